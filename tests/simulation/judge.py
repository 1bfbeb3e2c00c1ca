"""What is judged of the records of one handler: by readers of its topics, by its committed offsets, and at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any, Final

from retryapp.core.circuit import CircuitBreaker
from retryapp.core.deduplicate import Deduplicate, encode_seen
from retryapp.core.lane_errors import ChangelogReplacedError
from retryapp.core.policy import RetryPolicy
from retryapp.core.rates import RateLimit, parse_rate
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.ports import Event, TopicPartition
from simulation.beyond import Notes
from simulation.broker import SESSION_S, Broker
from simulation.counts import check_counts
from simulation.faults import DRAINS
from simulation.fences import Fences
from simulation.kept import Kept
from simulation.letters import TOPICS, Letters
from simulation.lives import SPAN
from simulation.loop import BEGAN_S
from simulation.modes import Modes
from simulation.oracle import Oracle
from simulation.pacing import Pacing
from simulation.plan import HELD, Plan
from simulation.quiet import check_outage, check_quiet
from simulation.referring import Referring
from simulation.scripts import ENDLESS_MS, HOT_RETRIES, LATER_MS, OWN_MS, SERVICES, SHORTER_MS, WAITS_MS, policies
from simulation.services import Services, circuits_of, spends
from simulation.sessions import seen_stores
from simulation.steering import Steering
from simulation.stopping import Stops
from simulation.stores import origin_of
from simulation.story import Origin, Story, Topics, Violation, must, step
from simulation.through import Copies
from simulation.tries import HALVINGS, Tries
from simulation.worker import SimWorker

EVENTS: Final = Deduplicate("header:event-id", window="1h")
CLOSED: Final = ChangelogReplacedError.__name__
GATES: Final = 2
"""Calls of a record that pause its partition."""
MANY_FAILURES: Final = 40
"""Several workers may try, each with its own wait."""
SKEW_MS: Final = 20.0
"""What two workers may differ by whose clocks are wrong: an acknowledgement's way."""
_NAME: Final = re.compile(rb"(\d+)\.(\d+):")
"""What values begin with: the partition and offset by which a record is known here."""


class Judge:
    """Judges a handler; see the module's text."""

    def __init__(self, plan: Plan, main: str) -> None:
        self.plan = plan
        self.rule = EVENTS if plan.repeats else None
        self.policies = policies(
            ruled=plan.ruled, conditions=plan.conditions, hot=plan.hot, endless=plan.endless, shorter=plan.shorter,
            drop=plan.drop or main in TOPICS, elapsed_ms=plan.elapsed_ms,
        )  # fmt: skip
        self.tries = Tries(HALVINGS if plan.batch else HOT_RETRIES * plan.hot, lists=plan.batch)
        self.topologies = [self._topology(main, policy) for policy in self.policies]
        """One for each policy."""
        self.topology = self.topologies[0]
        self.names = Topics.of(self.topology, results=f"{main.rpartition('.')[2]}-results" if plan.publishes else "")
        jumps = any(fault.kind == "clock jump" for fault in plan.faults)
        skew_ms = SKEW_MS if jumps or any(plan.offsets_ms) or plan.steps else 0.0
        stepped_ms = sum(max(0.0, step) for _, step in plan.steps)
        self.oracle = Oracle(
            self.names,
            *(ENDLESS_MS if plan.endless else SHORTER_MS if plan.shorter else WAITS_MS),
            endless=plan.endless,
            own_ms=OWN_MS,
            per_delay=plan.per_delay,
            later_ms=LATER_MS,
            skew_ms=skew_ms + stepped_ms,
            timeout_ms=self.policies[0].timeout_ms,
            max_kills=plan.max_kills,
            most_ms=plan.elapsed_ms,
            stops=any("pause" in fault.kind for fault in plan.faults),
            lists=plan.batch,
            plain=not (plan.commands or plan.outage or plan.services or "Q" in plan.steps_of_scripts),
            pace=Pacing(
                self.rate.share_ms(plan.partitions) if self.rate else 0.0,
                circuit=plan.outage is not None or bool(plan.services),
                lists=plan.batch,
                through=plan.through,
            ),
        )
        self.letters = Letters(plan, self.oracle, main) if main in TOPICS else None
        self.services = Services(plan, main)
        self.kept = Kept(main, self.topology.pending_changelog, commanded=bool(plan.commands))
        self.modes = Modes(plan, self.oracle, skew_ms)
        self.fences = Fences()
        self.oracle.main = Referring() if plan.referred else None
        self.oracle.copies = Copies() if plan.through else None
        self.notes = Notes(self.oracle.stories)
        self.observed: Counter[Event] = Counter()
        self._failures: dict[int | None, list[float]] = {}
        """When lanes failed, in the last seconds, by partition."""
        self.was_set_back = False
        self.closed: dict[int, list[Origin]] = {}
        """Partitions whose changelog was made again, and the records that waited there, until somebody decides."""
        self.lost: dict[TopicPartition, int] = {}
        """Partitions of which a record was deleted unread, and the offset after it."""

    def steer(self, broker: Broker, random: Random) -> None:
        """Have somebody send commands."""
        plan, scripts = self.plan, "".join(self.plan.steps_of_scripts)
        steering = self.oracle.steering = Steering(
            self.topology,
            broker,
            self.oracle.stories,
            random,
            keys=plan.order == "none" or plan.changes,
            levels=plan.levels,
            holds=plan.seed >= HELD,
            letters=self.letters is None,
            calm=not plan.faults and {*"XK"}.isdisjoint(scripts),
        )
        steering.newest, steering.stepped = plan.order == "latest", bool(plan.steps)
        steering.circuits = [name for name, *_ in plan.services] and SERVICES
        sequences = self.oracle.sequences
        if plan.caps is not None and not plan.changes:
            sequences.most = plan.caps[1]
        sequences.releases = plan.caps is not None and plan.caps[2] == "release"
        if plan.stops:
            sequences.stops = Stops(self.oracle.fate, steering.decides)

    @property
    def rate(self) -> RateLimit | None:
        return parse_rate(self.plan.rate) if self.plan.rate else None

    @property
    def options(self) -> dict[str, Any]:
        breaker = partial(
            CircuitBreaker,
            minimum_calls=3, sampling="3s", break_for="400ms", ramp="1s", max_open="20s", probes=self.plan.probes,
        )  # fmt: skip
        limits: Any = {"rate_limit": self.plan.service_rate or None, "max_concurrent": self.plan.service_runs}
        circuits = {name: breaker(**limits) for name, *_ in self.plan.services}
        own = {
            "circuit": breaker() if self.plan.outage else None,
            "circuits": circuits,
            "max_concurrent": self.plan.max_concurrent,
        }
        return {"deduplicate": self.rule, "rate_limit": self.rate, **own}

    def step(self, origin: Origin, attempt: int, at_s: float) -> str:
        """Return what a call does: what its record's script says, or it fails in an outage."""
        story = self.oracle.stories[origin]
        if self.plan.lacks(origin[1], at_s) and not self.plan.is_out(at_s):
            story.stopped = True
            return "U"
        if not self.plan.is_out(at_s):
            now = step(story.script, attempt)
            if now == "Q":
                story.gated += 1
                return now if story.gated <= GATES else "S"
            return now
        story.stopped = True  # its script does not say how it ends
        return "F"

    def through(self, worker: SimWorker) -> bool:
        """Tell whether what is due again goes through the main topic, with a worker's handler."""
        return any(each.through_main for each in worker.handlers if each.main == self.topology.main)

    def ended(self, worker: SimWorker, origin: Origin, attempt: int, now: str) -> None:
        """Note whether a call that ends now may spend an attempt."""
        self.services.ended(origin, now)
        circuits = circuits_of(worker, self.topology.main, origin[0])
        named = circuits.get(SERVICES[origin[1] % len(SERVICES)]) if now == "U" else None
        if spends([circuits.get(""), named], worker.clock.monotonic_s() * 1_000):
            self.oracle.stories[origin].spent.add(attempt)

    def _topology(self, main: str, policy: RetryPolicy) -> HandlerTopology:
        return HandlerTopology(
            "sim",
            main,
            Tiers.PER_DELAY if self.plan.per_delay else Tiers.SINGLE,
            delays_ms=policy.delays_ms,
            dead_letters=policy.dead_letters,
            seen_window_ms=None if self.rule is None else self.rule.window_ms,
            drop=self.plan.drop or main in TOPICS,
            letters_of="orders" if main in TOPICS else None,
        )

    @property
    def reached(self) -> Counter[str]:
        """What its records have come to."""
        parts = self.tries, self.services, self.kept, self.modes, self.fences
        return sum((each.reached for each in parts), self.oracle.named)

    @property
    def retry_topics(self) -> list[str]:
        return sorted({topic for topology in self.topologies for topic in topology.retry_topics})

    def owns(self, topic: str) -> bool:
        return topic in {self.topology.main, self.names.results} or topic.startswith(f"{self.topology.prefix}.")

    @property
    def refusing(self) -> list[str]:
        """The topics that a fault has refuse hand-offs."""
        return [*self.retry_topics, *self.topology.dlqs, self.topology.events]

    def failed(self, number: int | None, now_s: float) -> None:
        """Note that a lane has failed.

        Raises:
            Violation: it has so often that it does not wait before it opens again.
        """
        failures = [*(at_s for at_s in self._failures.get(number, ()) if at_s > now_s - 10), now_s]
        self._failures[number] = failures
        if len(failures) > MANY_FAILURES:
            raise Violation(f"I4: the lane of partition {number} has failed {len(failures)} times in 10 s")

    def check_bound(self, taken_in: int, claimed: int) -> None:
        """Judge how many records a worker has taken in from a partition, and rows claimed, and not settled.

        A command claims the row that it changes, whatever is in flight.

        Raises:
            Violation: more than are allowed in flight.
        """
        for count, what in ((taken_in, "records"), (claimed * (not self.plan.commands), "claimed rows")):
            if count > self.plan.in_flight:
                raise Violation(f"I15: {count} {what} in flight, and {self.plan.in_flight} are allowed")

    def damage(self, broker: Broker, number: int, rng: Random) -> None:
        """Damage a row of a partition."""
        tp, oracle = TopicPartition(self.topology.pending_changelog, number), self.oracle
        oracle.damages.strike(broker, tp, oracle.stores.rows[number], oracle.stories, rng)

    def check_silence(self, origin: Origin, silent_ms: float) -> None:
        """Judge the start of a call in a worker that its group has not heard for a while."""
        must(silent_ms <= SESSION_S * 1_000 + 1, "I10", origin, f"begins {silent_ms:.0f} ms after a sign of life")

    def waits(self) -> bool:
        if self.oracle.steering is not None and self.oracle.steering.unanswered:
            return True
        return bool(self.oracle.open_ends()) or any(map(self.oracle.stores.waiting, [*self.oracle.stores.rows]))

    def is_behind(self, broker: Broker) -> bool:
        """Tell whether the group has not come to the end of its topics."""
        for tp in (TopicPartition(self.topology.main, n) for n in range(broker.partitions)):
            records = broker.visible(tp)
            reached = max(each.get(tp, 0) for each in (broker.committed, broker.moved_in_vain))
            if records and reached <= records[-1].offset:
                return True
        return False

    def lose_unread(self, broker: Broker) -> None:
        """Delete the first record of each partition that is not settled, where the group has an offset there."""
        for number in range(self.plan.partitions):
            tp = TopicPartition(self.topology.main, number)
            offset = broker.committed.get(tp)
            if offset is not None and offset < broker.logs[tp].end and not self.notes.named_now(number):
                broker.delete_before(tp, offset + 1)
                self.oracle.sequences.starts.gone.add((number, offset))
                self.lost[tp] = offset + 1

    def decide(self, broker: Broker) -> None:
        """Set offsets by hand, as somebody does who gives up what was deleted, or has what waited run again."""
        for tp, offset in self.lost.items():
            if broker.committed[tp] < offset:
                self.oracle.give_up((tp.partition, offset - 1))
                if self.notes.named_now(tp.partition):  # by a commit that came late: what it names runs again
                    self._set(broker, tp, offset)
                broker.committed[tp], broker.notes[tp] = offset, ""
        closed, self.closed = self.closed, {}
        for number, waited in closed.items():
            tp = TopicPartition(self.topology.main, number)
            offset, start = broker.committed[tp], broker.logs[tp].start
            if self.plan.seed % 2:  # all of it is to run again, that is there
                offset = min([offset, *(max(at, start) for _, at in waited)])
            for origin in waited:
                if origin[1] < offset:
                    self.oracle.give_up(origin)
            self._set(broker, tp, offset)

    def set_back(self, broker: Broker, random: Random) -> None:
        """Set the offsets back, as somebody does who wants records to run again; not those of their letters."""
        if self.letters is not None:
            return
        for number in range(self.plan.partitions):
            tp = TopicPartition(self.topology.main, number)
            if (end := broker.committed.get(tp)) is not None:
                offset = max(broker.logs[tp].start, end - random.choice((0, 1, 2, 5, 99)))
                self._set(broker, tp, offset)

    def _set(self, broker: Broker, tp: TopicPartition, offset: int) -> None:
        broker.committed[tp], broker.notes[tp] = offset, ""
        self.notes.forget(tp.partition)
        self.oracle.offsets.set_back(tp.partition, offset, broker.true_ms())
        self.was_set_back = True

    def make_again(self, broker: Broker) -> None:
        """Delete the changelogs and make them again: what they had is not there any more."""
        for number in range(self.plan.partitions):
            tp, rows = TopicPartition(self.topology.main, number), self.oracle.stores.rows[number]
            if tp in broker.committed:
                self.closed[number] = [origin_of(number, identity) for identity in rows]
            rows.clear()
            self.fences.forget(number)
            broker.make_again(TopicPartition(self.topology.pending_changelog, number))

    def bear_again(self, broker: Broker) -> None:
        """Delete the main topic and make it again: what has no durable outcome by now may be lost with it."""
        oracle, life, waits = self.oracle, broker.life[self.topology.main], self.oracle.open_ends()
        for origin, story in oracle.stories.items():
            if origin[1] // SPAN == life:
                passed = origin[1] < oracle.offsets.reached(origin[0], life)
                story.gone = not (passed or story.copies or story.fates or story.held)
                oracle.sequences.starts.gone.update([origin] * story.gone)
                oracle.named["a record is gone with its topic"] += story.gone
                oracle.named["a record waits whose topic was made again"] += not story.gone and origin in waits
        for number in range(self.plan.partitions):
            broker.make_again(TopicPartition(self.topology.main, number))
        broker.life[self.topology.main] += 1
        self.was_set_back = True

    def named_rightly(self, origin: Origin, value: bytes | None) -> None:
        """Take a call. A worker may have named its record like one of the former topic: it is to come once more."""
        stories, found = self.oracle.stories, _NAME.match(value or b"")
        if found is None:  # a command has edited it
            return
        own = int(found[1]), int(found[2])
        if own == origin or own not in stories:
            return
        story = stories[own]
        if origin not in stories or stories[origin].record.value != story.record.value:
            stories[origin] = Story(story.record, story.script, story.sent_ms, gone=True)
            self.oracle.named["a record was named like one of the former topic"] += 1

    def check_closed(self, origin: Origin) -> None:
        """Judge a call that begins.

        Raises:
            Violation: the changelog of its partition was made again, and nobody has decided.
        """
        must(origin[0] not in self.closed, "I27", origin, "begins, and its changelog was made again")

    def judge(self, broker: Broker, workers: Iterable[SimWorker | None]) -> int:
        """Judge the end; return how many progress events there are."""
        self.oracle.at_rest()
        if self.letters is not None:
            self.letters.at_rest(broker)
        if self.oracle.doubted and not broker.taken_back[self.topology.pending_changelog]:
            raise Violation(f"I8 {self.oracle.doubted[0]}: edited by a command of which nothing is there")
        # an offset that was set by hand has nothing beside it
        said = 0 if self.lost or self.was_set_back else check_counts(broker, self.oracle, self.names)
        for number, store in seen_stores(workers, self.topology.main, broker.generation):
            taken_back = broker.taken_back[self.topology.seen_changelog] > 0
            rows = {identity: encode_seen(row) for identity, row in store.rows.items()}
            self.oracle.stores.remembered(number, rows, taken_back=taken_back)
        discarded = Event.DISCARDED if self.letters is None else Event.LETTER_FAILED
        counted = [(Event.SCHEDULED, self.retry_topics), (discarded, [])]
        counted += [(Event.DEAD, [*self.topology.dlqs])] * bool(self.topology.dlqs)
        for event, topics in counted:
            there = sum(self.oracle.visible[topic] for topic in topics) if topics else self.oracle.discarded
            seen, gone = self.observed[event], sum(broker.taken_back[topic] for topic in topics or (self.names.events,))
            if seen > there + gone or (self.plan.quiet and seen != there):
                raise Violation(f"I12: {seen} observed as {event.value}, {there} are visible")
        if self.observed[Event.SKIPPED] > self.oracle.skips + broker.taken_back[self.topology.events]:
            raise Violation(f"I12: {self.observed[Event.SKIPPED]} observed as skipped, {self.oracle.skips} are visible")
        steering = self.oracle.steering
        paused = steering is not None and steering.has_stopped
        if (
            self.plan.outage
            and not paused
            and not self.plan.faults
            and self.plan.order == "none"
            and not self.plan.batch
        ):
            check_outage(self.oracle, (BEGAN_S + self.plan.outage[1]) * 1_000)
        self.modes.at_rest()
        self.services.at_rest(self.oracle, BEGAN_S * 1_000)
        if self.plan.quiet and not paused:
            ordered, failed = self.plan.order != "none", self.observed[Event.LANE_FAILED]
            ordered = ordered or (self.letters is not None and self.plan.slow_letters)
            lone = dict(self.plan.bounds).get("backlog") == 1
            check_quiet(self.oracle, failed=failed, ordered=ordered, through=self.plan.through, lone=lone)
        # in an order no outcome goes ahead of a record that is skipped, which waits for the offset
        skips = self.plan.order != "none" and (bool(self.plan.repeats) or "P" in self.plan.steps_of_scripts)
        if self.plan.only(DRAINS) and self.oracle.repeated and not skips:
            raise Violation(f"I10: {self.oracle.repeated} calls repeated, and every worker had time for its drain")
        return said
