"""What deserves action, the most urgent first: each entry with what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

DAY_MS: Final = 86_400_000
LATELY_MS: Final = 900_000  # an outage whose last failure is not older than this may go on
LATE_MS: Final = 60_000  # 99 in 100 attempts should begin within this after they are due
MANY: Final = 5  # so many causes and keys are named one by one
MESSAGE: Final = 160  # characters of an error message that stand here; the table of causes has more
_AGAIN: Final = "To try one again, publish its value ('retryapp dead show FAILURE_ID --raw') to the main topic."

Entry = dict[str, Any]


def todo(facts: Mapping[str, Any]) -> list[Entry]:
    """Return entries of ``level`` (act, look, know), ``title``, ``text`` and ``command`` (or null)."""
    finders = (_failed_checks, _at_risk, _outages, _causes, _late, _offenders, _warnings)
    entries = [entry for find in finders for entry in find(facts)]
    ranks = {"act": 0, "look": 1, "know": 2}
    return sorted(entries, key=lambda entry: ranks[entry["level"]])  # stable: within a level, the order above


def _entry(level: str, title: str, text: str, command: str | None = None) -> Entry:
    return {"level": level, "title": title, "text": text, "command": command}


def _command(words: str, row: Mapping[str, Any]) -> str:
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
        level, title = (
            "act" if row["within_day"] else "look",
            f"{soon:,} dead letters leave {row['topic']} within {when}",
        )
        text = f"Save what you still need. {_AGAIN} Afterwards only the archive has them."
        yield _entry(level, title, text, _command("dead list", row))


def _outages(facts: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield one entry for each main topic: a service that is down fails in several ways."""
    waiting = {row["fingerprint"]: row["pending"] for row in facts["causes"]}
    on = [row for row in facts["outages"] if facts["analysed_ms"] - row["to_ms"] <= LATELY_MS]
    # a cause without waiting records is over, or time does not cure it
    on = [row for row in on if waiting.get(row["fingerprint"], 1)]
    for group, main in dict.fromkeys((row["group"], row["main"]) for row in on):
        ours = [row for row in on if (row["group"], row["main"]) == (group, main)]
        names = list(dict.fromkeys(_short(row["error_type"]) for row in ours))
        text = (
            f"{sum(row['failures'] for row in ours):,} failures in {main}, up to "
            f"{max(row['peak_per_minute'] for row in ours):,} a minute, the last one just before this analysis. Check "
            f"the service behind them. Waiting records are retried automatically."
        )
        yield _entry("act", f"Possible outage: {', '.join(names[:MANY])}", text, _command("pending list", ours[0]))


def _short(error_type: str) -> str:
    return error_type.rsplit(".", 1)[-1]


def _causes(facts: Mapping[str, Any]) -> Iterator[Entry]:
    deadly = [row for row in facts["causes"] if row["dead"]]
    for row in deadly[:MANY]:
        new = facts["analysed_ms"] - row["first_seen_ms"] <= DAY_MS
        parts = [f"In {row['main']}; {row['failures']:,} failed attempts at {row['records']:,} records."]
        if row["examples"] and row["examples"][0]["message"]:
            parts.append(f"The newest: {_cut(row['examples'][0]['message'])}")
        if new:
            parts.append("First seen within the last 24 hours.")
        title = f"{row['dead']:,} dead {'record' if row['dead'] == 1 else 'records'}: {_short(row['error_type'])}"
        yield _entry("look", title, f"{' '.join(parts)} Fix the cause. {_AGAIN}", _command("dead list", row))


def _cut(message: str) -> str:
    line = " ".join(message.split())
    shown = line if len(line) <= MESSAGE else f"{line[: MESSAGE - 1]}…"
    return f"“{shown}”."


def _late(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for row in facts["lateness"]:
        if row["tier"] is None and row["p99_ms"] > LATE_MS:
            late_s = f"{row['p99_ms'] / 1_000:,.0f} s"
            text = f"1 in 100 attempts of {row['main']} began more than {late_s} after it was due."
            yield _entry("look", "Retries come late", text, _command("pending list", row))


def _offenders(facts: Mapping[str, Any]) -> Iterator[Entry]:
    worst = [row for row in facts["offenders"] if row["dead"] > 1]
    if worst:
        row, more = worst[0], len(worst) < facts["in_all"]["offenders"] and len(worst) == len(facts["offenders"])
        keys = "1 key has" if len(worst) == 1 and not more else f"{'At least ' * more}{len(worst):,} keys have"
        text = f"{keys} more than one dead record; the worst has {row['dead']:,} in {row['main']}. The newest:"
        command = f"retryapp dead show --broker HOST:PORT {shlex.quote(row['example'])}"
        yield _entry("look", "Keys with several dead records", text, command)


def _warnings(facts: Mapping[str, Any]) -> Iterator[Entry]:
    for check in facts["checks"]:
        if check["failures"] and check["severity"] == "warn":
            yield _entry("know", f"Warning: {check['name']}", f"{check['failures']:,} x {check['text']}.")
