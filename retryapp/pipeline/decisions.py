"""What people have decided about causes: resolved, ignored, or open again; and what has changed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from retryapp.pipeline.errors import NameUnknownError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.lake import Lake

DECISIONS_TABLE: Final = "decisions"
OPEN: Final = "open"
RESOLVED: Final = "resolved"
IGNORED: Final = "ignored"
FACTOR: Final = 2.0  # so many times as many records are more
STEP: Final = 10  # and so many more at least
_CAUSE: Final = ("group", "main", "fingerprint")

Row = dict[str, Any]


def decide(lake: Lake, rows: Sequence[Row], states: Mapping[str, str], *, decided_ms: int, **words: Any) -> None:
    """Note a state for each of some causes, by the ids that they have in ``rows``, the causes of the last analysis.

    ``words`` are ``who``, ``note`` and ``until_ms``, until when the causes are ignored (None: for good).

    Raises:
        NameUnknownError: ``rows`` have no such id; nothing was noted.
    """
    if unknown := states.keys() - {row["cause_id"] for row in rows}:
        raise NameUnknownError("cause", min(unknown))
    facts = Facts(lake)
    for row in (row for row in rows if row["cause_id"] in states):
        cause, state = {name: row[name] for name in _CAUSE}, states[row["cause_id"]]
        fact = {**cause, "state": state, "decided_ms": decided_ms, **words}
        if state != IGNORED:
            fact["until_ms"] = None
        facts.put(DECISIONS_TABLE, f"{decided_ms:013d} {' '.join(cause.values())}", fact)


def judged(lake: Lake, rows: Iterable[Row], *, since_ms: int | None, now_ms: int) -> list[Row]:
    """Return causes with what was decided last (``decision``, ``who``, ``note``, ``until_ms``) and how they changed.

    ``change`` is ``regressed`` (it was resolved and has failed since), ``new`` (first seen since ``since_ms``),
    ``gone``, ``more`` or ``fewer`` (than ``before``, which is None where nothing is compared), or None.
    """
    facts = Facts(lake).rows(DECISIONS_TABLE)  # in the order of time
    decisions = {tuple(fact[name] for name in _CAUSE): fact for fact in facts}
    undecided = {"state": OPEN, **dict.fromkeys(("who", "note", "decided_ms", "until_ms"))}
    found = []
    for row in rows:
        made = decisions.get(tuple(row[name] for name in _CAUSE), undecided)
        is_over = made["until_ms"] is not None and made["until_ms"] <= now_ms
        if made["state"] == OPEN or is_over:
            made = undecided
        if made["state"] == RESOLVED and row["last_seen_ms"] > made["decided_ms"]:
            change: str | None = "regressed"
        elif since_ms is not None and row["first_seen_ms"] >= since_ms:
            change = "new"
        else:
            change = None if row["before"] is None else _compared(row["records"], row["before"])
        told = {name: made[name] for name in undecided if name != "state"}
        found.append({**row, "decision": made["state"], **told, "change": change})
    return found


def _compared(now: int, before: int) -> str | None:
    if not now:
        return "gone"
    if now >= max(before * FACTOR, before + STEP):
        return "more"
    return "fewer" if before >= max(now * FACTOR, now + STEP) else None
