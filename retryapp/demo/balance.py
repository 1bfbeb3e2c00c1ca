"""The verdict on a run, without asking the workers: from the flights that were fed, the service's log, and the ledger.

By the service's log a flight is *done* when it was answered 200, *dead* when its last final answer is 404 or 422, and
*lost* when it has neither. The ledger counts the topics and must have the same numbers; it also finds duplicated
hand-offs. Repeated handler runs are allowed: what had begun before a kill, and has no durable outcome, runs again.

*Early* is judged by the due time that the worker claimed, and by the service's own clock: attempt n + 1 may not arrive
before the end of attempt n plus the wait of the policy, or of the answer's `Retry-After`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from retryapp.demo.visits import Outcome, Visit
from retryapp.ledger import Fault, Ledger

CLOCK_GRAIN_MS: Final = 5
"""Service and workers round one clock to milliseconds independently: a smaller difference proves nothing."""
SHOWN_EXAMPLES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The figures of a run, as `--json` prints them."""

    fed: int
    done: int
    dead: int
    dead_by_status: Mapping[str, int]
    lost: int
    early: int
    duplicated_handoffs: int
    repeated_runs: int
    outage_calls: int
    """Calls that were answered 502."""
    outage_spent: int
    """Of these, attempts that were spent: the others ran again under the same number."""
    outage_dead: int
    """Dead letters without a final answer of the service."""
    recovery_s: float
    """From the last call that was answered 502 until all flights with such a call had a final answer."""
    kills: int
    seconds: float
    ledger: Mapping[str, int]
    """The ledger's records by fate, and its number of problems."""
    problems: tuple[str, ...]
    """What is not as promised; empty when the run is in order."""

    @property
    def text(self) -> str:
        statuses = ", ".join(f"{number:,} x {status}" for status, number in sorted(self.dead_by_status.items()))
        lines = [
            f"Balance after {self.seconds:.0f} s, by the service's own log and the ledger of the topics:",
            f"  fed                   {self.fed:>9,}",
            f"  done                  {self.done:>9,}",
            f"  dead                  {self.dead:>9,}   {statuses}",
            f"  lost                  {self.lost:>9,}",
            f"  early                 {self.early:>9,}",
            f"  handed over twice     {self.duplicated_handoffs:>9,}",
            f"  handler runs repeated {self.repeated_runs:>9,}   (no durable outcome yet when a worker was killed)",
            f"  calls in the outage   {self.outage_calls:>9,}   {self.outage_spent:,} attempts spent, "
            f"{self.outage_dead:,} dead letters, all answered {self.recovery_s:.0f} s after the last call",
            f"  workers killed        {self.kills:>9,}",
            f"  by the ledger         {self.ledger['received']:>9,}   {self.ledger['done']:,} done, "
            f"{self.ledger['dead']:,} dead, {self.ledger['pending']:,} pending, {self.ledger['problems']:,} problems",
        ]
        if self.problems:
            return "\n".join([*lines, "NOT in order:", *(f"  - {problem}" for problem in self.problems)])
        return "\n".join([*lines, "In order: every flight is done or dead, none lost, none early, none twice."])


def count(
    fates: Mapping[int, Outcome],
    visits: Sequence[Visit],
    ledger: Ledger,
    *,
    delays_ms: Sequence[int],
    kills: int = 0,
    seconds: float = 0.0,
) -> Balance:
    """Count a run; `fates`: the required final answer of each flight, `delays_ms`: the policy's waits."""
    answers = {visit.flight_id: visit.outcome for visit in visits if visit.outcome.is_final}
    done = {flight_id for flight_id, answer in answers.items() if answer is Outcome.DONE} & fates.keys()
    dead = (answers.keys() & fates.keys()) - done
    early = early_visits(visits, delays_ms)
    whole, free = ledger.total, _free(visits)
    findings: dict[str, Collection[int]] = {
        "flights are lost: neither done nor dead": fates.keys() - answers.keys(),
        "flights have another fate than the data say": [
            flight_id for flight_id in done | dead if answers[flight_id] is not fates[flight_id]
        ],
        "flights were delivered that were never fed": {visit.flight_id for visit in visits} - fates.keys(),
        "deliveries came early": {visit.flight_id for visit in early},
        "flights were tried more often than the policy allows": {
            visit.flight_id for visit in visits if visit.attempt > len(delays_ms) + 1
        },
    }
    problems = [_finding(what, sorted(flights)) for what, flights in findings.items() if flights]
    return Balance(
        fed=len(fates),
        done=len(done),
        dead=len(dead),
        dead_by_status=dict(Counter(answers[flight_id].value for flight_id in dead)),
        lost=max(len(fates.keys() - answers.keys()), whole.lost),
        early=len(early),
        duplicated_handoffs=sum(problem.fault is Fault.TWICE for problem in ledger.problems),
        repeated_runs=len(visits) - len({(visit.flight_id, visit.attempt) for visit in visits}) - free,
        outage_calls=sum(visit.outcome is Outcome.DOWN for visit in visits),
        outage_spent=sum(visit.outcome is Outcome.DOWN for visit in visits) - free,
        outage_dead=max(0, whole.dead - len(dead)),
        recovery_s=_recovery_s(visits),
        kills=kills,
        seconds=round(seconds, 1),
        ledger={
            **{name: getattr(whole, name) for name in ("received", "done", "dead", "pending", "unknown", "lost")},
            "problems": len(ledger.problems),
        },
        problems=(*problems, *_disagreements(ledger, len(fates), len(done), len(dead))),
    )


def _free(visits: Sequence[Visit]) -> int:
    """Return how many calls in the outage spent no attempt."""
    again: set[tuple[int, int]] = set()
    free = 0
    for visit in reversed(visits):
        place = visit.flight_id, visit.attempt
        free += visit.outcome is Outcome.DOWN and place in again
        again.add(place)
    return free


def _recovery_s(visits: Sequence[Visit]) -> float:
    down = {visit.flight_id: visit.ended_ms for visit in visits if visit.outcome is Outcome.DOWN}
    ended = [visit.ended_ms for visit in visits if visit.outcome.is_final and visit.flight_id in down]
    return round(max(0, max(ended) - max(down.values())) / 1000, 1) if ended else 0.0


def early_visits(visits: Iterable[Visit], delays_ms: Sequence[int]) -> list[Visit]:
    """Return the deliveries before their time; `delays_ms` are the policy's waits, without jitter."""
    by_attempt: defaultdict[tuple[int, int], list[Visit]] = defaultdict(list)
    for visit in visits:
        by_attempt[visit.flight_id, visit.attempt].append(visit)
    early = []
    for (flight_id, attempt), runs in by_attempt.items():
        before = by_attempt.get((flight_id, attempt - 1), ())
        # Which run failed is not known where there are several: the earliest gives a bound that is sure.
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


def _finding(what: str, flights: Sequence[int]) -> str:
    examples = ", ".join(map(str, flights[:SHOWN_EXAMPLES]))
    return f"{len(flights)} {what} ({examples}{', ...' if len(flights) > SHOWN_EXAMPLES else ''})"


def _disagreements(ledger: Ledger, fed: int, done: int, dead: int) -> Iterator[str]:
    for problem in ledger.problems[:SHOWN_EXAMPLES]:
        whose = problem.failure_id or f"partition {problem.partition}"
        yield f"the ledger says of {whose}: {problem.fault.value}: {problem.text}"
    whole = ledger.total
    if (whole.received, whole.done, whole.dead) != (fed, done, dead):
        yield (
            f"the ledger has {whole.received} received, {whole.done} done, {whole.dead} dead; "
            f"fed were {fed}, and by the service's log {done} are done, {dead} dead"
        )
