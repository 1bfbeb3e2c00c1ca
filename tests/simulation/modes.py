"""What must hold of settings that say how many retries run at once, how fast those of a service come, and when (I30).

* No more runs go on at once in a worker than it may have: of first deliveries, and of retries, those of an order that
  were held included. A run that was given up does not count.
* Rows that wait for a service come back no faster than its circuit's `rate_limit`, whatever its state, and no more of
  them run at once in a worker than its `max_concurrent`.
* Once everything has healed, nothing is later than a rebalance and an opening take.
* By the broker's clock nothing is early, also where somebody has set that.
* A record whose handler has asked for an instant is not delivered before it, and its row has that due time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import inf
from typing import Final

from retryapp.core.circuit import Circuit
from retryapp.core.rates import parse_rate
from retryapp.core.rows import decode_row, row_due_ms
from simulation.loop import BEGAN_S
from simulation.oracle import GIVEN_UP_MS, Oracle
from simulation.pacing import LATE_MS
from simulation.plan import Plan
from simulation.stores import origin_of
from simulation.story import Going, Opening, Origin, Story, must, step

CONCURRENCY: Final = 2
HEALED_MS: Final = 60_000.0
"""Longest lateness once faults have healed: a rebalance and a lane that opens again, behind handlers that hang."""
FEW: Final = 8
"""More records in flight are a crowd."""
LEARNT_MS: Final = 30_000.0
"""So late a worker knows of another time of the broker."""
TURN_MS: Final = 5_000.0
"""Longest wait for a turn with nobody before: others come and go, and partitions move."""
INSTANT_MS: Final = 1_500.0
"""After its record was sent a handler asks for an instant that is so late, once for each attempt."""


def instant_ms(story: Story, attempt: int) -> float:
    """Return the instant that a handler asks for at an attempt."""
    return story.sent_ms + INSTANT_MS * attempt


class Modes:
    """Judges the calls of one handler."""

    def __init__(self, plan: Plan, oracle: Oracle, skew_ms: float) -> None:
        self._plan = plan
        self._oracle = oracle
        self._skew_ms = skew_ms
        self._steps = [((BEGAN_S + at_s) * 1_000, step_ms) for at_s, step_ms in plan.steps]
        self._again = plan.max_concurrent or CONCURRENCY
        self._every_ms = parse_rate(plan.service_rate).share_ms(plan.partitions) if plan.service_rate else 0.0
        self._begun: dict[tuple[int, Opening, str], int] = defaultdict(int)
        self.reached: Counter[str] = Counter()
        self.healed_ms = inf
        """When everything has healed."""
        odd = plan.order != "none" or plan.through or plan.referred or plan.commands or plan.replayed or plan.bounds
        paced = plan.rate or plan.outage or plan.services or plan.max_concurrent == 1 or plan.in_flight > FEW
        self._plain = not (odd or paced or self._steps) and plan.steps_of_scripts.isdisjoint("XKH")

    def begun(self, origin: Origin, attempt: int, due_at_ms: int, now_ms: float, opening: Opening | None) -> None:
        """Judge a row that begins."""
        self._check_instant(origin, attempt, due_at_ms, now_ms)
        if self._plan.shorter and attempt > 1:
            ran = [call.worker for call in self._oracle.stories[origin].calls[attempt - 1]]
            allowed = any(self._oracle.waits.allows(worker, attempt - 1) for worker in ran)
            must(allowed, "I5", origin, f"attempt {attempt}, and the policies of {ran} have no more than {attempt - 1}")
        if self._steps and attempt > 1:
            self._check_time(origin, attempt, now_ms)
        if opening is not None and self._every_ms:
            self._check_rate(origin, due_at_ms, opening, now_ms)

    def at_rest(self) -> None:
        """Judge with how many attempts records that always fail are dead."""
        for origin, story in self._oracle.stories.items():
            if not self._plan.shorter or {*story.script} != {"F"} or story.stopped or "dead" not in story.fates:
                continue
            last, waits = max(story.calls), self._oracle.waits
            few = any(not waits.allows(call.worker, last) for call in story.calls[last])
            self.reached[f"dead after {last} attempts, by one of two policies"] += 1
            must(few, "I5", origin, f"dead after {last} attempts, and the policy of its worker has more")

    def check_late(self, origin: Origin, due_at_ms: int | None, now_ms: float) -> None:
        """Judge when a call begins after everything has healed, where nothing but handlers makes it late."""
        if not self._plain or now_ms < self.healed_ms:
            return
        story = self._oracle.stories[origin]
        late_ms = now_ms - max(self.healed_ms, story.sent_ms if due_at_ms is None else due_at_ms)
        self.reached["began after faults have healed"] += 1
        must(late_ms <= HEALED_MS, "I4", origin, f"{late_ms:.0f} ms late after everything has healed")

    def check_running(self, origin: Origin, worker: str, now_ms: float) -> None:
        """Judge what goes on when a call has begun; a list is one run with several records."""
        if self._plan.batch:
            return
        going = [
            each.again
            for story in self._oracle.stories.values()
            for each in story.going
            if each.worker == worker and now_ms - each.cancelled_ms < GIVEN_UP_MS
        ]
        again = sum(going)
        self.reached[f"{again} retries at once, of {self._plan.max_concurrent} that may"] += again > 0
        must(again <= self._again, "I30", origin, f"{again} retries at once, and {self._again} may")
        first, most = len(going) - again, CONCURRENCY + self._again * (self._plan.order != "none")
        must(first <= most, "I30", origin, f"{first} first deliveries at once, and {most} may")

    def _check_instant(self, origin: Origin, attempt: int, due_at_ms: int, now_ms: float) -> None:
        story = self._oracle.stories[origin]
        self.reached["a condition did not hold"] += self._plan.conditions and step(story.script, attempt - 1) in "EIO"
        if story.stopped or story.hurried or step(story.script, attempt - 1) != "A" or attempt == 1:
            return
        at_ms = instant_ms(story, attempt - 1) - self._set_forward_ms(0.0, now_ms)
        self.reached["came back at an instant"] += 1
        early_ms = at_ms - self._skew_ms - 1 - min(now_ms, due_at_ms)
        must(early_ms <= 0, "I30", origin, f"attempt {attempt} {early_ms} ms before the instant that was asked for")
        waited = all(call.ended_ms + self._skew_ms < at_ms for call in story.calls[attempt - 1])
        if waited and not (self._plan.outage or self._plan.services or self._plan.commands or self._steps):
            self.reached["waited for an instant"] += 1
            must(due_at_ms <= at_ms, "I30", origin, f"due {due_at_ms - at_ms} ms after the instant that was asked for")

    def _set_forward_ms(self, since_ms: float, now_ms: float) -> float:
        """Return how much later the broker's time may be than by what a worker knew then."""
        return sum(max(0.0, step) for at_ms, step in self._steps if since_ms - LEARNT_MS <= at_ms <= now_ms)

    def _check_time(self, origin: Origin, attempt: int, now_ms: float) -> None:
        """No attempt begins early by the broker's clock, which somebody may have set."""
        story, waits = self._oracle.stories[origin], self._oracle.waits
        if story.hurried:
            return
        early_ms = min(
            call.ended_ms - now_ms + waits.least_ms(story, attempt - 1, call.worker) - set_ms
            for call in story.calls[attempt - 1]
            for set_ms in [self._set_forward_ms(call.ended_ms, now_ms)]
        )
        self.reached["a row began after the broker's clock was set"] += any(at < now_ms for at, _ in self._steps)
        must(early_ms <= self._skew_ms + 1, "I30", origin, f"attempt {attempt} {early_ms} ms early")

    def service_of(self, origin: Origin, due_at_ms: int | None) -> str:
        """Return which service a record's row waits for; empty: none, or the row that is due is not visible.

        A broker that was stopped may have acknowledged it, and takes it back.
        """
        if not self._plan.services or origin in self._oracle.damages.ever:
            return ""
        rows = self._oracle.stores.rows[origin[0]]
        row = next((row for identity, row in rows.items() if origin_of(origin[0], identity) == origin), None)
        return "" if row is None or row_due_ms(row) != due_at_ms else decode_row(row).circuit

    def check_places(self, origin: Origin, going: Going, now_ms: float) -> None:
        """Judge how many retries of a service run at once in a worker, when one begins."""
        if self._plan.service_runs is None or not going.service:
            return
        beside = [
            each.service == going.service
            for story in self._oracle.stories.values()
            for each in story.going
            if each.worker == going.worker and now_ms - each.cancelled_ms < GIVEN_UP_MS
        ]
        runs = sum(beside)
        self.reached["a row began of a service of which few may run"] += 1
        self.reached["one begins beside a row of a service that has no more places"] += len(beside) > runs
        must(runs <= self._plan.service_runs, "I30", origin, f"{runs} retries of {going.service} at once")

    def check_turn(
        self, circuits: Mapping[str, Circuit], origin: Origin, going: Going, due_at_ms: int | None, now_ms: float
    ) -> None:
        """Judge how late a row begins that waits for its turn alone: not much after the last run in its worker."""
        if not self._plan.lined or due_at_ms is None or not going.service:
            return
        circuit = circuits[going.service]
        calls = (call for story in self._oracle.stories.values() for each in story.calls.values() for call in each)
        ends = [call.ended_ms for call in calls if call.worker == going.worker]
        if circuit.closed:
            late_ms = now_ms - max([due_at_ms, circuit.since_ms, *ends])
            self.reached["a row had its turn while its circuit was closed"] += 1
            must(late_ms <= TURN_MS, "I30", origin, f"had its turn {late_ms:.0f} ms after the last run has ended")

    def _check_rate(self, origin: Origin, due_at_ms: int | None, opening: Opening, now_ms: float) -> None:
        if not (name := self.service_of(origin, due_at_ms)):
            return
        self.reached["a row of a service with a rate began"] += 1
        self._begun[origin[0], opening, name] += 1
        count, most = self._begun[origin[0], opening, name], 1 + (now_ms - opening.fenced_ms + LATE_MS) / self._every_ms
        must(count <= most, "I30", origin, f"row {count} of {name} in a session, {most:.1f} are allowed by now")
