"""What somebody has set for a whole handler, in the terminal: set it, take it back, show it."""

from __future__ import annotations

from typing import Literal

from retryapp.cli._jobs import answers, only_handler
from retryapp.cli._options import Place
from retryapp.cli.console import ExitCode, emit
from retryapp.core.jobs import HandlerVerb, Level
from retryapp.kafka.remembered import remembered
from retryapp.lookup import jobs
from retryapp.lookup.instants import utc_text


def tell_handler(
    verb: HandlerVerb, place: Place, *, by: str, why: str, wait_ms: int, as_json: bool, circuit: str = ""
) -> ExitCode:
    """Send a command about a handler to all partitions, and say what they answer."""
    connection, topology = only_handler(place)
    told = jobs.tell_handler(connection, topology, verb, circuit, by=by, why=why, wait_s=wait_ms / 1000)
    return answers({"main": topology.main, "verb": verb}, told, as_json=as_json)


def show_levels(
    place: Place, name: Literal["paused", "forced"], *, none: str, as_json: bool, circuit: str = ""
) -> ExitCode:
    """Show on which partitions it is set; `none`: what to say where it is not."""
    connection, topology = only_handler(place)
    levels: dict[int, Level] = {
        number: level
        for number, each in remembered(connection, topology).items()
        if (level := each.paused if name == "paused" else each.forced_open.get(circuit)) is not None
    }
    lines = [f"partition {number} since {utc_text(each.since_ms)}: {each.text}" for number, each in levels.items()]
    lines += [f"  the record: {each.record}" for each in levels.values() if each.record]
    facts = {str(number): each.model_dump() for number, each in levels.items()}
    emit({"main": topology.main, name: facts}, "\n".join(lines) or none, as_json=as_json)
    return ExitCode.FINDING if levels else ExitCode.FINE
