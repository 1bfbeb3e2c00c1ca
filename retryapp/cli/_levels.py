"""What somebody has set for a whole handler, in the terminal: set it, take it back, show it."""

from __future__ import annotations

from typing import Any, Literal

from retryapp.cli._jobs import answers, only_handler
from retryapp.cli._options import Place
from retryapp.cli.console import ExitCode, emit
from retryapp.core.jobs import HandlerVerb
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
    """Show on which partitions it is set, of all circuits or of one; `none`: what to say where it is not."""
    connection, topology = only_handler(place)
    facts: dict[str, dict[str, Any]] = {}
    lines = []
    for number, each in remembered(connection, topology).items():
        paused = {} if each.paused is None else {"": each.paused}
        for at, level in (paused if name == "paused" else each.forced_open).items():
            if circuit in ("", at):
                facts.setdefault(at, {})[str(number)] = level.model_dump()
                what = f"circuit {at} of partition" if at else "partition"
                lines.append(f"{what} {number} since {utc_text(level.since_ms)}: {level.text}")
                lines += [f"  the record: {level.record}"] * bool(level.record)
    shown = {"main": topology.main, name: facts.pop(circuit, {})} | ({"circuits": facts} if name == "forced" else {})
    emit(shown, "\n".join(lines) or none, as_json=as_json)
    return ExitCode.FINDING if lines else ExitCode.FINE
