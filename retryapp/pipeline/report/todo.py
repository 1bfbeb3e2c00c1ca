"""What deserves action, the most urgent first: each entry with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

DAY_MS: Final = 86_400_000
LATELY_MS: Final = 900_000
"""An outage whose last failure is not older than this, when it was analysed, may go on."""
LATE_MS: Final = 60_000
"""99 in 100 attempts should begin within this after they are due."""
MANY: Final = 5
"""So many causes and keys are named one by one."""

Entry = dict[str, Any]


def todo(facts: Mapping[str, Any]) -> list[Entry]:
    """Return entries of ``level`` (act, look, know), ``title``, ``text`` and ``command`` (or null).

    Args:
        facts: the report's tables.
    """
    found = [
        *_failed_checks(facts),
        *_at_risk(facts),
        *_outages(facts),
        *_causes(facts),
        *_late(facts),
        *_offenders(facts),
        *_warnings(facts),
    ]
    ranks = {"act": 0, "look": 1, "know": 2}
    return sorted(found, key=lambda entry: ranks[entry["level"]])  # stable: within a level, the order above


def _entry(level: str, title: str, text: str, command: str | None = None) -> Entry:
    return {"level": level, "title": title, "text": text, "command": command}


def _command(words: str, row: Mapping[str, Any]) -> str:
    """Return the command that shows more; the page does not know the broker's address."""
    return f"retryapp {words} --broker HOST:PORT --group {row['group']} --topic {row['main']}"


def _failed_checks(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for check in facts["checks"]:
        if check["failures"] and check["severity"] == "error":
            shown = f" For example: {'; '.join(check['examples'][:2])}." if check["examples"] else ""
            command = "retryapp ledger --broker HOST:PORT --group NAME" if check["name"].startswith("ledger") else None
            text = f"{check['failures']:,} x {check['text']}.{shown}"
            yield _entry("act", f"Check failed: {check['name']}", text, command)


def _at_risk(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for row in facts["retention"]:
        soon = row["within_day"] or row["within_week"]
        if not soon:
            continue
        when = "24 hours" if row["within_day"] else "7 days"
        yield _entry(
            "act" if row["within_day"] else "look",
            f"{soon:,} dead letters leave {row['topic']} within {when}",
            "Replay them or let them go knowingly; afterwards only the archive has them.",
            _command("dead list", row),
        )


def _outages(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for row in facts["outages"]:
        if facts["analysed_ms"] - row["to_ms"] <= LATELY_MS:
            text = (
                f"{row['failures']:,} failures of {row['error_type']} in {row['main']}, up to "
                f"{row['peak_per_minute']:,} a minute, the last one just before this analysis."
            )
            yield _entry("act", f"An outage may be going on: {row['error_type']}", text)


def _causes(facts: Mapping[str, Any]) -> Iterator[Entry]:
    deadly = [row for row in facts["causes"] if row["dead"]]
    for row in deadly[:MANY]:
        new = facts["analysed_ms"] - row["first_seen_ms"] <= DAY_MS
        text = f"In {row['main']}; {row['failures']:,} failed attempts at {row['records']:,} records."
        if new:
            text += " First seen within the last 24 hours."
        title = f"{row['dead']:,} {'record is' if row['dead'] == 1 else 'records are'} dead of {row['error_type']}"
        yield _entry("look", title, f"{text} Fix the cause, then replay.", _command("dead list", row))


def _late(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for row in facts["lateness"]:
        if row["tier"] is None and row["p99_ms"] > LATE_MS:
            text = (
                f"1 in 100 attempts of {row['main']} began more than {row['p99_ms'] / 1_000:,.0f} s after it was due."
            )
            yield _entry("look", "Retries come late", text, _command("pending list", row))


def _offenders(facts: Mapping[str, Any]) -> Iterator[Entry]:
    worst = [row for row in facts["offenders"] if row["dead"] > 1]
    if worst:
        row = worst[0]
        text = (
            f"{len(worst):,} keys have more than one dead record; the worst has {row['dead']:,} in {row['main']}, "
            f"for example {row['example']}."
        )
        yield _entry("look", "The same keys fail again and again", text)


def _warnings(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for check in facts["checks"]:
        if check["failures"] and check["severity"] == "warn":
            yield _entry("know", check["name"], f"Not so: {check['failures']:,} x {check['text']}.")
