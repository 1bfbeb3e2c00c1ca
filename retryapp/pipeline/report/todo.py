"""What deserves action, the most urgent first: each entry with what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from retryapp.core.causes import cause_name
from retryapp.core.classify import DeadReason
from retryapp.core.text import counted
from retryapp.lookup.instants import utc_text
from retryapp.lookup.previews import NO_REPLAY
from retryapp.pipeline.analysis.checks import NO_LOSS

LATE_MS: Final = 60_000  # 99 in 100 attempts should begin within this after they are due
MANY: Final = 5  # so many causes and keys are named one by one
_STAYS: Final = "Dead letters stay on their topic until its retention ends."
_REMEDIES: Final[Mapping[str | None, str]] = {
    None: "Fix what fails: its records wait, and are retried automatically.",
    "exhausted": "Fix what fails, or let the policy wait longer.",
    "expired": "Fix what fails, or raise max_elapsed.",
    "damaged": "Find what changed their retry headers, or damaged the batch.",
    "too-large": "Raise max.message.bytes of the handler's topics.",
    "gone": "Keep records on the main topic for as long as they wait, or let copies wait.",
    "overflow": "Fix what fails, or raise max_sequences and max_sequence_size: too many records waited for these.",
    "cancelled": "Their retries were cancelled.",
    "crashed": "Fix what ends the worker: its last log lines and the system's say what it was.",
}
_CHANGES: Final = {
    "new": "It is new. ",
    "more": "In the time before: {before:,}. ",
    "regressed": "{who} resolved it on {decided}. ",
}
_REFUSED: Final = "Fix the producer, or the handler or policy that takes no such records."

Entry = dict[str, Any]


def todo(facts: Mapping[str, Any]) -> list[Entry]:
    """Return entries of ``level`` (act, look, know), ``title``, ``text`` and ``command`` (or null)."""
    finders = (_failed_checks, _at_risk, _outages, _causes, _late, _offenders, _warnings)
    entries = [entry for find in finders for entry in find(facts)]
    ranks = {"act": 0, "look": 1, "know": 2}
    return sorted(entries, key=lambda entry: ranks[entry["level"]])  # stable: within a level, the order above


def _entry(level: str, title: str, text: str, command: str | None = None) -> Entry:
    return {"level": level, "title": title, "text": text, "command": command}


def _command(facts: Mapping[str, Any], words: str, row: Mapping[str, Any] | None = None) -> str:
    handler = "" if row is None else f" --group {row['group']} --topic {row['main']}"
    login = "" if facts["client_config"] is None else f" --client-config {shlex.quote(facts['client_config'])}"
    return f"retryapp {words} --broker {shlex.quote(facts['broker'])}{login}{handler}"


def _failed_checks(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for check in facts["checks"]:
        if check["failures"] and check["severity"] == "error":
            shown = f" For example: {'; '.join(check['examples'][:2])}." if check["examples"] else ""
            group = facts["groups"][0] if len(facts["groups"]) == 1 else "NAME"
            command = _command(facts, f"ledger --group {group}") if check["name"].startswith("ledger") else None
            if check["name"] == NO_LOSS:
                command = f"retryapp pipeline gaps --lake {shlex.quote(facts['lake'])}"
            text = f"{check['failures']:,} x {check['text']}.{shown}"
            yield _entry("act", f"Check failed: {check['name']}", text, command)


def _at_risk(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for row in facts["retention"]:
        if soon := row["within_day"] or row["within_week"]:
            level, when = ("act", "24 hours") if row["within_day"] else ("look", "7 days")
            title = f"{row['topic']} loses {counted(soon, 'dead letter')} within {when}"
            text = f"Save what you still need. {_STAYS} Afterwards only the archive has them."
            yield _entry(level, title, text, _command(facts, "dead list", row))


def _outages(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for row in facts["outages"]:
        if row["is_over"]:
            continue
        names = ", ".join(cause["template"] or _short(cause["error_type"]) for cause in row["causes"])
        text = (
            f"Since {utc_text(row['from_ms'])[:19]} UTC {row['share']:.0%} of the first deliveries from {row['main']} "
            f"fail ({row['usual']:.0%} before): {counted(row['records'], 'record')}. Check the service behind "
            f"them. Waiting records are retried automatically."
        )
        yield _entry("act", f"Possible outage: {names}", text, _command(facts, "pending list", row))


def _short(error_type: str) -> str:
    return error_type.rsplit(".", 1)[-1]


def _causes(facts: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the causes with most dead letters; what is ignored or resolved is left out, unless it came back."""
    open_ones = [row for row in facts["causes"] if row["decision"] == "open" or row["change"] == "regressed"]
    back = [row for row in open_ones if row["change"] == "regressed" and row["failures"]]
    deadly = [row for row in open_ones if row["dead"] and row not in back]
    deadly.sort(key=lambda row: -row["dead"])
    for row in [*back[:MANY], *deadly[:MANY]]:
        name = cause_name(_short(row["error_type"]), None, row["template"])
        dead = f"{counted(row['dead'], 'dead record')}, {row['reason']}"
        title = f"Came back: {name}" if row in back else f"{dead}: {name}"
        what = _CHANGES.get(row["change"], "").format(**row, decided=utc_text(row["decided_ms"] or 0)[:10])
        text = f"In {row['main']}; {counted(row['failures'], 'failed attempt')}. {what}"
        text += _REMEDIES.get(row["reason"], _REFUSED)
        if not row["dead"]:  # of what came back nothing has died yet: there is no dead letter to show
            yield _entry("look", title, text, _command(facts, "pending list", row))
            continue
        if (row["group"], row["main"]) in _without_letters(facts):
            yield _entry("look", title, f"{text} Their topic was deleted: only the archive has these dead letters.")
            continue
        newest = shlex.quote(row["examples"][0]["failure_id"])
        command = _command(facts, f"dead show {newest}")
        if row["reason"] == DeadReason.CRASHED.value:
            text += f" No job replays them. This replays one: '{_command(facts, f'dead replay {newest} --force')}'."
        elif row["reason"] not in NO_REPLAY:
            replay = _command(facts, f"dead replay --cause {row['cause_id']} --why TEXT", row)
            text += f" This brings them back once it is mended: '{replay}'."
        yield _entry("look", title, f"{text} {_STAYS} The newest:", command)


def _without_letters(facts: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the handlers whose dead-letter topics were all deleted: no command finds their dead letters."""
    found = [((row["group"], row["main"]), row["was_deleted"]) for row in facts["retention"]]
    return {handler for handler, _ in found} - {handler for handler, was_deleted in found if not was_deleted}


def _late(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for row in facts["lateness"]:
        if row["tier"] is None and row["p99_ms"] > LATE_MS:
            late_s = f"{row['p99_ms'] / 1_000:,.0f} s"
            text = f"1 in 100 attempts of {row['main']} began more than {late_s} after it was due."
            yield _entry("look", "Retries come late", text, _command(facts, "pending list", row))


def _offenders(facts: Mapping[str, Any]) -> Iterator[Entry]:
    gone = _without_letters(facts)
    worst = [row for row in facts["offenders"] if row["dead"] > 1 and (row["group"], row["main"]) not in gone]
    if worst:
        row, number = worst[0], facts["in_all"]["deadly_keys"]
        keys = f"{number:,} {'key has' if number == 1 else 'keys have'}"
        text = f"{keys} more than one dead record; the worst has {row['dead']:,} in {row['main']}. The newest:"
        command = _command(facts, f"dead show {shlex.quote(row['example'])}")
        yield _entry("look", "Keys with several dead records", text, command)


def _warnings(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for check in facts["checks"]:
        if check["failures"] and check["severity"] == "warn":
            yield _entry("know", f"Warning: {check['name']}", f"{check['failures']:,} x {check['text']}.")
