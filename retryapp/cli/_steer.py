"""Commands that change what waits or is dead: send them, wait, say what came of each."""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
from pydantic import ValidationError

from retryapp.cli._jobs import all_option, filter_options
from retryapp.cli._options import LENGTH, RATE, REASON, WORDS, Place, decorated, json_option, place_options, user_name
from retryapp.cli._output import table, undecoded_text
from retryapp.cli._target import decoding_of, origin_named, resolve, resolve_failure
from retryapp.cli.console import ExitCode, confirm, emit
from retryapp.core.checks import problem_text
from retryapp.core.control import Command, Verb, named_by
from retryapp.core.jobs import LetterFilter
from retryapp.core.lifecycle import Commanded
from retryapp.core.rates import parse_rate
from retryapp.core.text import counted
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection
from retryapp.kafka.commands import WAIT_S, send_commands
from retryapp.lookup.outcomes import QUEUED, outcome_of
from retryapp.lookup.payloads import printable
from retryapp.lookup.records import list_waiting

_Target = tuple[KafkaConnection, HandlerTopology]
"""A handler whose records are steered."""
_Records = Mapping[str, Mapping[str, Any]]
"""By failure id: the fields of its command that name it."""
_HELD: Final = {
    "operator": "held by somebody",
    "token": "wait for an event, as their handlers asked (Defer)",
    "sequence": "wait for earlier records of their keys: refused",
    None: "not held: refused",
}
"""What a release by a filter is about, by what holds records (`core.rows.PendingRow.held_by`)."""
BATCH: Final = 500
"""Commands that are sent together."""
MOST_SHOWN: Final = 50
"""Outcomes that are listed in text; of more, only those that are not done."""


def steer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what commands about records take: these, who and why, how long to wait; a filter needs a reason."""
    why = click.option("--why", type=WORDS, default="", help="Why, for the audit; needed with a filter.")
    return click.argument("failure_ids", nargs=-1)(_options(command, why))


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what commands about waiting records take: the same, or a filter, and a rate."""
    return decorated(
        command,
        click.option("--rate", type=RATE, metavar="N/s", help="Maximum rate, as 100/s or 600/m."),
        click.option("--yes", is_flag=True, help="Do not ask before doing it to all that a filter selects."),
        all_option,
        filter_options,
        steer_options,
    )


def audit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what commands about jobs and handlers take: who and why, how long to wait."""
    return _options(command, click.option("--why", type=REASON, required=True, help="Why, for the audit."))


def _options(command: Callable[..., Any], why: Callable[..., Any]) -> Callable[..., Any]:
    return decorated(
        command,
        click.option(
            "--by", type=WORDS, default=user_name, help="Who asks, for the audit; default: the name of this login."
        ),
        why,
        click.option("--wait", "wait_ms", type=LENGTH, default=f"{WAIT_S:g}s", show_default=True,
                     help="How long to wait for the workers' answer."),
        json_option,
        place_options,
    )  # fmt: skip


def steer(
    verb: Verb,
    failure_ids: Sequence[str],
    place: Place,
    *,
    by: str,
    why: str,
    wait_ms: int,
    as_json: bool,
    rate: str | None = None,
    wanted: LetterFilter | None = None,
    yes: bool = False,
    **more: Any,
) -> ExitCode:
    """Send one command for each record, of those that wait for each that fits, and print the outcomes.

    If that ends early, because the broker is gone or somebody interrupts it, the outcomes so far are printed first.

    Returns:
        FINE: all are obeyed; FINDING: some are refused, or no worker has answered.
    """
    per_s = None if rate is None else 1_000 / parse_rate(rate).share_ms(1)
    job = secrets.token_hex(6)
    known: dict[tuple[str, str], _Target] = {}
    if wanted is not None:
        need_reason(why)
        failure_ids = _fitting(verb, failure_ids, place, wanted, yes=yes)
    elif not failure_ids:
        raise click.UsageError(
            "say which records: failure ids, - to read them from stdin, or a filter, as --cause, --error or --all"
        )
    records = {facts["failure_id"]: facts for facts in (_named(verb, name) for name in _names(failure_ids))}
    names, targets = list(records), dict[str, _Target]()
    for name in names:
        group, origin = origin_named(name)
        handler = group, origin.topic
        if handler not in known:
            connection, topology, _ = resolve_failure(place, name)
            known[handler] = connection, topology
        targets[name] = known[handler]
    size = BATCH if per_s is None else max(1, min(BATCH, int(per_s)))
    next_s, asked, outcomes = time.monotonic(), 0, dict[str, Commanded]()
    try:
        for at in range(0, len(names), size):
            if per_s is not None:  # a rate is kept by the sender: what is sent is due at once
                time.sleep(max(0.0, next_s - time.monotonic()))
                next_s = time.monotonic() + size / per_s  # not from the beginning: a slow answer makes no burst
            some = {name: targets[name] for name in names[at : at + size]}
            _send(verb, some, records, at, job, outcomes, by=by, why=why, wait_ms=wait_ms, **more)
            asked = at + len(some)
    finally:
        found = [_facts(name, f"{job}-{number}", outcomes, asked=number < asked) for number, name in enumerate(names)]
        if asked or outcomes or not names:
            _tell(verb, found, as_json=as_json)
    return ExitCode.FINE if all(each["outcome"] == "done" for each in found) else ExitCode.FINDING


def need_reason(why: str) -> None:
    """Raise what click says of an option that is missing, where there is no reason."""
    if not why.strip():
        raise click.UsageError("a filter needs --why: the reason, for the audit")


def _tell(verb: Verb, found: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    counts = Counter(each["outcome"] for each in found)
    shown = found
    if len(found) > MOST_SHOWN:  # what is to be looked at, not thousands of lines about what is done
        shown = [each for each in found if each["outcome"] != "done"][:MOST_SHOWN]
    rows = [[each["failure_id"], each["outcome"], each["text"]] for each in shown]
    summary = f"{counts['done']:,} of {len(found):,} done, {counts['refused']:,} refused, {counts['queued']:,} queued"
    if counts["unknown"]:
        summary += f", {counts['unknown']:,} unknown"
    if len(shown) < len(found):
        summary += f"; {len(found) - len(shown):,} are not listed: --json has all"
    text = f"{table(['failure id', 'outcome', ''], rows)}\n{summary}" if rows else summary
    emit({"verb": verb, "outcomes": found}, text, as_json=as_json)


def _fitting(verb: Verb, failure_ids: Sequence[str], place: Place, wanted: LetterFilter, *, yes: bool) -> Sequence[str]:
    if failure_ids:
        raise click.UsageError("give failure ids or a filter, not both")
    only: Any = {"partition": None, "wanted": wanted, "decoding": decoding_of(place)}
    found = list_waiting(*resolve(place), **only, limit=None)
    has_name = [record for record in found.records if record["failure_id"] is not None]
    fitting = [record for record in has_name if record["held_by"] != "stopped"]
    damaged = [record for record in found.records if record["failure_id"] is None]
    names = [record["failure_id"] for record in fitting]
    causes = Counter(record["cause"] or record["damaged"] or "not tried yet" for record in (*fitting, *damaged))
    lines = [f"{count:>9,}  {cause}" for cause, count in causes.most_common(20)]
    lines.append(f"{verb}: {len(names):,} that wait")
    if damaged:
        lines.append(f"{len(damaged):,} more fit, and are left out: they are damaged and have no failure id")
    if verb is Verb.RELEASE:
        holds = Counter(record["held_by"] for record in fitting)
        lines += [f"{count:>9,}  {_HELD[word]}" for word, count in holds.most_common()]
    if stopped := len(has_name) - len(fitting):
        lines.append(
            f"{counted(stopped, 'stopped sequence')} more fit, and are left out: their records are dead. Replay or "
            "discard their letters ('retryapp dead'); or release each by its failure id: later records of the key go "
            "on without it"
        )
    lines += undecoded_text(found)
    click.echo(printable("\n".join(lines)), err=True)
    if names and not yes:
        confirm("go on?")
    return names


def _named(verb: Verb, name: str) -> dict[str, Any]:
    try:
        return named_by(name) if verb is Verb.RELEASE else {"failure_id": name}
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _names(failure_ids: Sequence[str]) -> Iterator[str]:
    for name in failure_ids:
        if name == "-":
            try:
                yield from (line.strip() for line in sys.stdin if line.strip())
            except UnicodeDecodeError as error:
                raise click.UsageError(f"stdin is no text: {error}. Expected failure ids, a line each") from error
        else:
            yield name


def _send(
    verb: Verb,
    targets: Mapping[str, _Target],
    records: _Records,
    first: int,
    job: str,
    outcomes: dict[str, Commanded],
    *,
    wait_ms: int,
    **more: Any,
) -> None:
    """Send one command for each failure id of `targets`; `first`: number of the first one in the job.

    `outcomes` gets what came of them, by id of the command, also if this raises.
    """
    try:
        commands = {
            name: Command(id=f"{job}-{number}", verb=verb, **records[name], **more)
            for number, name in enumerate(targets, start=first)
        }
    except ValidationError as error:
        raise click.UsageError(problem_text(error)) from error
    for target in dict.fromkeys(targets.values()):
        some = [command for name, command in commands.items() if targets[name] == target]
        send_commands(*target, some, wait_s=wait_ms / 1000, outcomes=outcomes)


def _facts(name: str, command: str, outcomes: Mapping[str, Commanded], *, asked: bool) -> dict[str, Any]:
    """Return what came of the command about a record; `asked`: it was sent, and its answer was waited for."""
    found = outcomes.get(command)
    facts = {"failure_id": name, "command": command, "outcome": outcome_of(found)}
    if found is None and not asked:
        text = "retryapp ended before its answer, perhaps before it was sent. Sent again, it does no harm"
        return {**facts, "outcome": "unknown", "text": text}
    if found is None:
        return {**facts, "text": f"{QUEUED}. Sent again, it does no harm"}
    return {
        **facts,
        "refused": found.refused,
        "text": found.text if found.refused is None else f"{found.refused}: {found.text}",
        "before": found.before,
        "after": found.after,
    }
