"""The balance of a run, counted from outside: what was fed, the service's own log, and the topics as committed.

Nothing here asks the workers. A flight is *done* when the service answered it 200 and it has no dead letter, *dead*
when a dead letter of it lies on the topic, and *lost* when it is neither. The run is in order when every flight is
where the data say it must be, none came early, every hand-off was followed up, and none is there twice for a committed
reader. Repeated runs of a handler are counted and allowed: after a kill what was in flight runs again.

*Early* is judged twice: against the due time that the worker was told, and, so that a wrong due time cannot hide,
against the service's own clock: attempt n + 1 may not arrive before the end of attempt n plus the wait that the policy,
or the answer's `Retry-After`, asks for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from retryapp.demo.data import Fate
from retryapp.demo.figures import Quantiles, healthy_ms, lateness_ms, quantiles
from retryapp.demo.visits import Outcome, Visit
from retryapp.ledger import Ledger

CLOCK_GRAIN_MS = 5
"""Service and workers read one machine's clock, but in whole milliseconds counted from anchors of their own: where only
the service's clock speaks, so much is no proof."""

SHOWN_EXAMPLES = 5
"""A problem names so many flights."""


class Station(StrEnum):
    """The topics that a record is handed to."""

    RETRY = "retry"
    REDELIVERY = "redelivery"
    DLQ = "dlq"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOff:
    """One record of ours, as a committed reader sees it."""

    station: Station
    flight_id: int
    failure_id: str
    attempt: int
    """The attempt that failed last."""
    due_at_ms: int | None = None
    reason: str | None = None
    """Why it is dead; dead letters only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a balance is counted from."""

    expected: Mapping[int, Fate]
    """Fate by flight, for every flight that was fed and acknowledged."""
    fed_ms: Mapping[int, int]
    """When each was handed to the producer, epoch milliseconds."""
    visits: Sequence[Visit]
    """The service's log."""
    handoffs: Sequence[HandOff]
    """The committed records of retry, redelivery and dead-letter topics."""
    delays_ms: Sequence[int]
    """The policy's waits: the first follows attempt 1."""
    ledger: Ledger | None = None
    """What `retryapp ledger` makes of the topics; it knows neither flights nor the service."""
    pauses: Sequence[tuple[int, int]] = ()
    """Spans in which partitions had no owner, epoch milliseconds."""
    kills: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What a run came to."""

    fed: int
    done: int
    done_at_first_try: int
    dead: int
    dead_by_reason: Mapping[str, int]
    rejected_by_status: Mapping[str, int]
    """Dead flights by the last final answer of the service: 404 and 422."""
    lost: int
    early: int
    duplicated_handoffs: int
    repeated_runs: int
    kills: int
    lateness: Quantiles
    """Of all redeliveries."""
    steady_lateness: Quantiles
    """Of those that were not due in a failover."""
    healthy: Quantiles
    seconds: float
    by_ledger: Mapping[str, int] | None = None
    """What `retryapp ledger` has come to: records by fate, and `problems`; None where it was not asked."""
    problems: tuple[str, ...] = field(default=())
    """What is not as promised, one sentence each; empty when the run is in order."""

    @property
    def is_in_order(self) -> bool:
        """True when every promise that can be seen from outside was kept."""
        return not self.problems

    def as_json(self) -> dict[str, object]:
        """Return the object that `--json` prints."""
        return {
            "fed": self.fed,
            "done": self.done,
            "dead": self.dead,
            "dead_by_reason": dict(self.dead_by_reason),
            "lost": self.lost,
            "early": self.early,
            "duplicated_handoffs": self.duplicated_handoffs,
            "repeated_runs": self.repeated_runs,
            "kills": self.kills,
            "lateness_ms": {"p50": self.lateness.p50, "p99": self.lateness.p99, "max": self.lateness.max},
            "steady_lateness_ms": {
                "p50": self.steady_lateness.p50,
                "p99": self.steady_lateness.p99,
                "max": self.steady_lateness.max,
            },
            "healthy_ms": {"p50": self.healthy.p50, "p99": self.healthy.p99},
            "seconds": round(self.seconds, 1),
            "ledger": None if self.by_ledger is None else dict(self.by_ledger),
        }


def count(evidence: Evidence) -> Balance:
    """Count a run.

    Args:
        evidence: taken after everything has settled, or after the run was given up.
    """
    runs = Counter((visit.flight_id, visit.attempt) for visit in evidence.visits)
    copies = Counter((handoff.station, handoff.failure_id, handoff.attempt) for handoff in evidence.handoffs)
    letters = {handoff.flight_id: handoff for handoff in evidence.handoffs if handoff.station is Station.DLQ}
    answered = {visit.flight_id for visit in evidence.visits if visit.outcome is Outcome.DONE}
    done = {flight_id for flight_id in evidence.expected if flight_id in answered and flight_id not in letters}
    dead = evidence.expected.keys() & letters.keys()
    first_tries = {visit.flight_id for visit in evidence.visits if visit.outcome is Outcome.DONE and visit.attempt == 1}
    verdicts = _last_verdicts(evidence.visits)
    early = early_visits(evidence.visits, evidence.delays_ms)
    return Balance(
        fed=len(evidence.expected),
        done=len(done),
        done_at_first_try=len(done & first_tries),
        dead=len(dead),
        dead_by_reason=Counter(letters[flight_id].reason or "unknown" for flight_id in sorted(dead)),
        rejected_by_status=Counter(verdicts[flight_id].value for flight_id in sorted(dead & verdicts.keys())),
        lost=len(evidence.expected) - len(done) - len(dead),
        early=len(early),
        duplicated_handoffs=sum(number - 1 for number in copies.values()),
        repeated_runs=sum(number - 1 for number in runs.values()),
        kills=evidence.kills,
        lateness=quantiles(lateness_ms(evidence.visits)),
        steady_lateness=quantiles(lateness_ms(evidence.visits, pauses=evidence.pauses)),
        healthy=quantiles(healthy_ms(evidence.visits, evidence.fed_ms, pauses=evidence.pauses)),
        seconds=evidence.seconds,
        by_ledger=_by_ledger(evidence.ledger),
        problems=tuple(_problems(evidence, done, letters, answered, verdicts, early, copies)),
    )


def _by_ledger(ledger: Ledger | None) -> Mapping[str, int] | None:
    if ledger is None:
        return None
    whole = ledger.total
    return {
        "received": whole.received,
        "done": whole.done,
        "pending": whole.pending,
        "dead": whole.dead,
        "unknown": whole.unknown,
        "lost": whole.lost,
        "problems": len(ledger.problems),
    }


def early_visits(visits: Iterable[Visit], delays_ms: Sequence[int]) -> list[Visit]:
    """Return the deliveries that came before their time.

    Args:
        visits: the service's log, in any order.
        delays_ms: the policy's waits, without jitter.
    """
    by_attempt: defaultdict[tuple[int, int], list[Visit]] = defaultdict(list)
    for visit in visits:
        by_attempt[visit.flight_id, visit.attempt].append(visit)
    early = []
    for (flight_id, attempt), runs in by_attempt.items():
        before = by_attempt.get((flight_id, attempt - 1), ())
        # The run that failed is not known where there are several: the earliest gives a bound that is sure.
        sure_ms = min((_soonest_next_ms(visit, delays_ms) for visit in before), default=0) - CLOCK_GRAIN_MS
        early += [visit for visit in runs if visit.started_ms < max(sure_ms, visit.due_at_ms or 0)]
    return early


def _soonest_next_ms(visit: Visit, delays_ms: Sequence[int]) -> int:
    """Return when the attempt after this one may start at the soonest, by the service's own clock."""
    if visit.retry_after_ms is not None:
        return visit.ended_ms + visit.retry_after_ms
    delay_ms = delays_ms[visit.attempt - 1] if visit.attempt <= len(delays_ms) else 0
    # The service learns of a client that gave up a little after the client does, so the end is no sure bound there.
    return (visit.started_ms if visit.outcome is Outcome.TIMEOUT else visit.ended_ms) + delay_ms


def _last_verdicts(visits: Iterable[Visit]) -> dict[int, Outcome]:
    verdicts: dict[int, Outcome] = {}
    for visit in visits:
        if visit.outcome in {Outcome.NOT_FOUND, Outcome.UNPROCESSABLE}:
            verdicts[visit.flight_id] = visit.outcome
    return verdicts


def _problems(
    evidence: Evidence,
    done: set[int],
    letters: Mapping[int, HandOff],
    answered: set[int],
    verdicts: Mapping[int, Outcome],
    early: Sequence[Visit],
    copies: Mapping[tuple[Station, str, int], int],
) -> Iterable[str]:
    expected = evidence.expected
    attempts = len(evidence.delays_ms) + 1
    seen = {visit.flight_id for visit in evidence.visits} | {handoff.flight_id for handoff in evidence.handoffs}
    wrong = [
        flight_id
        for flight_id, fate in expected.items()
        if (flight_id in done and fate is not Fate.DONE)
        or (flight_id in letters and (fate is Fate.DONE or verdicts.get(flight_id) != fate.value))
    ]
    findings: tuple[tuple[str, Iterable[object]], ...] = (
        ("flights are lost: neither done nor dead", expected.keys() - done - letters.keys()),
        ("flights have another fate than the data say", wrong),
        ("flights are both done and dead", answered & letters.keys()),
        ("flights were delivered that were never fed", seen - expected.keys()),
        ("deliveries came early", {visit.flight_id for visit in early}),
        ("flights were tried more often than the policy allows", _beyond(evidence.visits, attempts)),
        ("retries were parked and never redelivered", _unfired(evidence.handoffs)),
        ("redeliveries had no effect", _unheeded(evidence.handoffs, evidence.visits)),
        ("hand-offs are there twice", {f"{key[1]} attempt {key[2]} on {key[0]}" for key, n in copies.items() if n > 1}),
    )
    for what, cases in findings:
        listed = sorted(cases, key=str)
        if listed:
            examples = ", ".join(str(case) for case in listed[:SHOWN_EXAMPLES])
            yield f"{len(listed)} {what} ({examples}{', ...' if len(listed) > SHOWN_EXAMPLES else ''})"
    if evidence.ledger is not None:
        yield from _disagreements(evidence.ledger, len(expected), len(done), len(expected.keys() & letters.keys()))


def _disagreements(ledger: Ledger, fed: int, done: int, dead: int) -> Iterable[str]:
    """Say what the ledger finds fault with, and where it has come to other numbers."""
    for problem in ledger.problems[:SHOWN_EXAMPLES]:
        whose = problem.failure_id or f"partition {problem.partition}"
        yield f"the ledger says of {whose}: {problem.fault.value}: {problem.text}"
    whole = ledger.total
    if (whole.received, whole.done, whole.dead) != (fed, done, dead):
        yield (
            f"the ledger has {whole.received} received, {whole.done} done, {whole.dead} dead; "
            f"fed were {fed}, and by the service's log {done} are done, {dead} dead"
        )


def _beyond(visits: Iterable[Visit], attempts: int) -> set[int]:
    return {visit.flight_id for visit in visits if visit.attempt > attempts}


def _unfired(handoffs: Iterable[HandOff]) -> set[str]:
    """Return the retries that wait still: parked, and not handed to the redelivery topic."""
    handed = defaultdict[Station, set[str]](set)
    for handoff in handoffs:
        handed[handoff.station].add(f"{handoff.failure_id} attempt {handoff.attempt}")
    return handed[Station.RETRY] - handed[Station.REDELIVERY]


def _unheeded(handoffs: Sequence[HandOff], visits: Iterable[Visit]) -> set[int]:
    """Return the flights that were redelivered without a sign of the next attempt: no visit, no further hand-off."""
    signs = {(visit.flight_id, visit.attempt) for visit in visits}
    signs |= {(each.flight_id, each.attempt) for each in handoffs if each.station is not Station.REDELIVERY}
    fired = (each for each in handoffs if each.station is Station.REDELIVERY)
    return {each.flight_id for each in fired if (each.flight_id, each.attempt + 1) not in signs}
