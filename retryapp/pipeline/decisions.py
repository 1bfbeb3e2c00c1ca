"""What people have decided about causes: resolved, ignored, or open again; and what has changed since."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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

Row = dict[str, Any]
Cause = tuple[str, str, str]  # group, main topic, fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about a cause."""

    group: str
    main: str
    fingerprint: str
    state: str  # open, resolved or ignored
    decided_ms: int
    who: str
    note: str
    until_ms: int | None  # ignored: until then; None: for good

    def holds(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


class Decisions:
    """The decisions of one lake; the last one about a cause counts."""

    def __init__(self, lake: Lake) -> None:
        self._facts = Facts(lake)

    def put(self, decision: Decision) -> None:
        name = f"{decision.decided_ms:013d} {decision.fingerprint} {uuid.uuid4().hex[:12]}"
        self._facts.put(DECISIONS_TABLE, name, asdict(decision))

    def current(self) -> dict[Cause, Decision]:
        """Return the last decision about each cause."""
        made = (Decision(**row) for row in self._facts.rows(DECISIONS_TABLE))  # in the order of time
        return {(each.group, each.main, each.fingerprint): each for each in made}


def chosen(rows: Sequence[Row], cause_id: str) -> list[Cause]:
    """Return the causes with an id.

    Raises:
        NameUnknownError: there is none.
    """
    found = dict.fromkeys(
        (row["group"], row["main"], row["fingerprint"]) for row in rows if row["cause_id"] == cause_id
    )
    if not found:
        raise NameUnknownError("cause", cause_id)
    return list(found)


def judged(rows: Iterable[Row], decisions: Mapping[Cause, Decision], *, since_ms: int | None, now_ms: int) -> list[Row]:
    """Return causes with what was decided (``decision``, ``who``, ``note``, ``until_ms``) and how they changed.

    ``change`` is ``regressed`` (it was resolved and has failed since), ``new`` (first seen since ``since_ms``),
    ``gone``, ``more`` or ``fewer`` (than ``before``, which is None where nothing is compared), or None.
    """
    found = []
    for row in rows:
        made = decisions.get((row["group"], row["main"], row["fingerprint"]))
        decision = made if made is not None and made.state != OPEN and made.holds(now_ms) else None
        told = {
            "decision": OPEN if decision is None else decision.state,
            **{name: getattr(decision, name, None) for name in ("who", "note", "decided_ms", "until_ms")},
        }
        has_failed = decision is not None and row["last_seen_ms"] > decision.decided_ms
        if has_failed and told["decision"] == RESOLVED:
            change: str | None = "regressed"
        elif since_ms is not None and row["first_seen_ms"] >= since_ms:
            change = "new"
        else:
            change = None if row["before"] is None else _compared(row["records"], row["before"])
        found.append({**row, **told, "change": change})
    return found


def _compared(now: int, before: int) -> str | None:
    if not now:
        return "gone"
    if now >= max(before * FACTOR, before + STEP):
        return "more"
    return "fewer" if before >= max(now * FACTOR, now + STEP) else None
