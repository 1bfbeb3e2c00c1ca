"""The running count of a demo: takes what the service logs and what the topics show, and says how things stand.

Unlike the balance it forgets: only the last few thousand measurements are kept, and it trusts what it sees. It is for
the eyes; the balance is for the verdict.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from retryapp.demo.balance import HandOff, Station
from retryapp.demo.figures import MANY_WAITING, Quantiles, quantiles
from retryapp.demo.visits import Outcome, Visit

RECENT = 2_000
"""So many of the newest measurements are summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How things stand."""

    done_at_first_try: int
    done_after_retry: int
    pending: int
    most_pending: int
    next_due_ms: int | None
    """The earliest due time still ahead; what is due and on its way does not count."""
    early: int
    """Deliveries before the due time that they were told."""
    dead_by_reason: Mapping[str, int]
    rejected_by_status: Mapping[str, int]
    lateness: Quantiles
    """Of the newest redeliveries."""
    healthy: Quantiles
    """Feeding to first delivery, of the newest flights."""
    healthy_while_many_wait: Quantiles
    """The same, of flights that arrived while at least `MANY_WAITING` waited."""
    requests: int
    last_outcomes: Mapping[str, int]
    """Outcomes of the newest requests: an outage shows here."""

    @property
    def done(self) -> int:
        """All that are done."""
        return self.done_at_first_try + self.done_after_retry

    @property
    def dead(self) -> int:
        """All that are dead."""
        return sum(self.dead_by_reason.values())

    @property
    def settled(self) -> int:
        """All that are done or dead."""
        return self.done + self.dead


class Tally:
    """Counts as things come in, in any order between the sources."""

    def __init__(self) -> None:
        """Start at zero."""
        self._first: set[int] = set()
        self._retried: set[int] = set()
        self._dead: set[int] = set()
        self._reasons: Counter[str] = Counter()
        self._verdicts: dict[int, str] = {}
        self._statuses: Counter[str] = Counter()
        self._seen: set[int] = set()
        self._parked: dict[tuple[str, int], int] = {}
        self._fired_ahead: set[tuple[str, int]] = set()
        self._most_pending = 0
        self._requests = 0
        self._early = 0
        self._lateness: deque[int] = deque(maxlen=RECENT)
        self._healthy: deque[int] = deque(maxlen=RECENT)
        self._healthy_many: deque[int] = deque(maxlen=RECENT)
        self._outcomes: deque[str] = deque(maxlen=RECENT // 4)

    def add_visits(self, visits: Iterable[Visit], fed_ms: Mapping[int, int]) -> None:
        """Take requests in, with the times at which flights were fed."""
        for visit in visits:
            self._requests += 1
            self._outcomes.append(visit.outcome.value)
            if visit.due_at_ms is not None:
                self._lateness.append(visit.started_ms - visit.due_at_ms)
                self._early += visit.started_ms < visit.due_at_ms
            if visit.flight_id not in self._seen:
                self._seen.add(visit.flight_id)
                self._measure(visit, fed_ms)
            if visit.outcome is Outcome.DONE:
                self._note_done(visit)
            elif visit.outcome.is_final:
                self._verdicts[visit.flight_id] = visit.outcome.value

    def add_handoffs(self, handoffs: Iterable[HandOff]) -> None:
        """Take committed records in. Topics are read side by side, so a redelivery may be seen before its parking."""
        for handoff in handoffs:
            key = (handoff.failure_id, handoff.attempt)
            if handoff.station is Station.DLQ:
                self._note_dead(handoff)
            elif handoff.station is Station.REDELIVERY:
                if self._parked.pop(key, None) is None:
                    self._fired_ahead.add(key)
            elif key in self._fired_ahead:
                self._fired_ahead.discard(key)
            else:
                self._parked[key] = handoff.due_at_ms or 0
        self._most_pending = max(self._most_pending, len(self._parked))

    def snapshot(self, now_ms: int) -> Snapshot:
        """Say how things stand; `now_ms` is the time as epoch milliseconds."""
        return Snapshot(
            done_at_first_try=len(self._first),
            done_after_retry=len(self._retried),
            pending=len(self._parked),
            most_pending=self._most_pending,
            next_due_ms=min((due for due in self._parked.values() if due > now_ms), default=None),
            early=self._early,
            dead_by_reason=dict(self._reasons),
            rejected_by_status=dict(self._statuses),
            lateness=quantiles(self._lateness),
            healthy=quantiles(self._healthy),
            healthy_while_many_wait=quantiles(self._healthy_many),
            requests=self._requests,
            last_outcomes=Counter(self._outcomes),
        )

    def _note_done(self, visit: Visit) -> None:
        flight_id = visit.flight_id
        if flight_id not in self._dead and flight_id not in self._first and flight_id not in self._retried:
            (self._first if visit.attempt == 1 else self._retried).add(flight_id)

    def _note_dead(self, handoff: HandOff) -> None:
        if handoff.flight_id in self._dead:
            return
        self._dead.add(handoff.flight_id)
        self._first.discard(handoff.flight_id)
        self._retried.discard(handoff.flight_id)
        self._reasons[handoff.reason or "unknown"] += 1
        # The service logs its verdict before it answers, so it is known here if the log is read after the topics.
        if handoff.flight_id in self._verdicts:
            self._statuses[self._verdicts[handoff.flight_id]] += 1

    def _measure(self, visit: Visit, fed_ms: Mapping[int, int]) -> None:
        fed = fed_ms.get(visit.flight_id)
        if fed is not None and visit.attempt == 1:
            self._healthy.append(visit.started_ms - fed)
            if len(self._parked) >= MANY_WAITING:
                self._healthy_many.append(visit.started_ms - fed)
