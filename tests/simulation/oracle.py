"""What must hold of every history, judged from inputs, handler calls and what committed readers see.

It shares no code with the engine: it reads header bytes by itself, knows the policy as a list of waits, and decides
each record's fate from the script that its value carries. Numbers are those of the invariants: I1 conservation, I2 no
fate undone, I3 never early, I4 bounded late, I5 attempts, I6 offsets, I7 stores, I8 bytes, I10 one owner, I12 metrics.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import NamedTuple

from retryapp.core.causes import cause_bytes
from retryapp.core.failed import row_failed_of
from retryapp.core.record import Record
from retryapp.core.rows import failure_in
from retryapp.core.topology import HandlerTopology
from retryapp.engine.delivery.deliver import HandlerTimeoutError
from retryapp.ports import TopicPartition
from simulation.broker import SESSION_S, Broker
from simulation.damaging import Damages
from simulation.newest import SUPERSEDED, Starts, check_newest, check_replaced
from simulation.pacing import Pacing
from simulation.plan import BEYOND_MS
from simulation.referring import Referring
from simulation.steering import Steering, begin_again
from simulation.stopping import Stops
from simulation.story import FINE, FIRST, Call, Going, Opening, Origin, Story, Violation, step
from simulation.through import Copies
from simulation.waits import Waits

_SUSPECTS, _SUSPECT_ROWS = (
    re.compile(begin + r"(s|g)\d+:(?P<life>[^@]+)@(?P<first>[\d.]+)(-(?P<end>[\d.]+))?") for begin in ("^", "(?:^| )w")
)
HELD_MS = 253_402_300_799_999
"""Due time of a row that waits for others of its sequence."""
GIVEN_UP_MS = 2_000.0
"""A handler that does not heed its cancellation is given up after it."""
TIMED_OUT = f"{HandlerTimeoutError.__module__}.{HandlerTimeoutError.__qualname__}"


class Topics(NamedTuple):
    """Names of the handler's topics."""

    main: str
    retry: str
    """With a topic for each delay: what their names begin with."""
    dlq: str
    events: str
    changelog: str
    seen: str = ""
    results: str = ""
    """The handler publishes to it at each attempt."""

    @classmethod
    def of(cls, topology: HandlerTopology, *, results: str) -> Topics:
        ours = f"{topology.prefix}.retry", topology.dlq, topology.events, topology.pending_changelog
        return cls(topology.main, *ours, topology.seen_changelog, results)


class Oracle:
    """Judges a history: `waits_ms` are policies, `skew_ms` is how early a record may be by the broker's clock."""

    def __init__(
        self,
        topics: Topics,
        *waits_ms: Sequence[int],
        later_ms: int,
        skew_ms: float,
        own_ms: Sequence[int] = (),
        per_delay: bool = False,
        timeout_ms: float = 1e9,
        max_kills: int = 12,
        pace: Pacing | None = None,
        endless: bool = False,
    ) -> None:
        self.stories: dict[Origin, Story] = {}
        self._lost: dict[Origin, Story] = {}
        """Those that somebody has given up."""
        self.repeated = 0
        """Handler calls of an attempt that had begun before."""
        self.latest_ms = 0.0
        """Largest lateness of a call."""
        self._topics = topics
        self.waits = Waits(waits_ms, {"L": later_ms, "N": 0, "B": BEYOND_MS, "W": 0}, own_ms, per_delay=per_delay)
        self._skew_ms = skew_ms
        self._timeout_ms = timeout_ms
        self.orders: dict[str, str] = {}
        """What order each worker keeps."""
        self._started: dict[tuple[Opening, int, bytes], int] = {}
        """Offset of the record that began last, by opening, partition and sequence."""
        self.starts = Starts()
        self.pace = pace or Pacing()
        self.steering: Steering | None = None
        """Set where the history has commands."""
        self.stops: Stops | None = None
        """Set where sequences stop behind dead records."""
        self.releases = False
        """A record is dead that too many wait for."""
        self.most = 1 << 30
        """Records of a sequence that may wait."""
        self.main: Referring | None = None
        """Set where records wait by reference."""
        self.damages = Damages()
        self.copies: Copies | None = None
        """Set where what is due again goes through the main topic."""
        self._endless = endless
        """Copies after the first one are without payload."""
        self._max_kills = max_kills
        """Workers that one record may end."""
        self._moved: dict[TopicPartition, int] = {}
        self._rows: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self._seen_rows: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        """What the changelog of seen events comes to, by partition."""
        self._events: dict[str, Origin] = {}
        self.named: Counter[str] = Counter()
        """Calls that began while a mark named them."""
        self.cut = 0
        """Failures of attempts whose second try would have been fine."""
        self.skips = 0
        """Visible events of duplicates that were skipped."""
        self.visible: Counter[str] = Counter()
        """Visible records by topic."""

    @property
    def max_attempts(self) -> int:
        return self.waits.count + 1

    def waiting(self, partition: int) -> list[bytes]:
        return list(self._rows[partition])

    def damage(self, broker: Broker, number: int, rng: Random) -> None:
        """Damage a row of a partition."""
        tp = TopicPartition(self._topics.changelog, number)
        self.damages.strike(broker, tp, self._rows[number], self.stories, rng)

    # -- what happens -------------------------------------------------------------------------------------------

    def add(self, record: Record, script: str, event: str | None = None, *, age_ms: int = 0) -> None:
        """Note an input, which is so old; the first record of an `event` id is the one that counts."""
        origin = record.partition, record.offset
        first = origin if event is None else self._events.setdefault(event, origin)
        sent_ms = record.timestamp_ms + age_ms
        self.stories[origin] = Story(record, script, sent_ms, first=None if first == origin else first)

    def begun(
        self,
        origin: Origin,
        attempt: int,
        due_at_ms: int | None,
        seen: tuple[object, ...],
        now_ms: float,
        opening: Opening | None = None,
    ) -> None:
        story = self._story(origin)
        record = story.record
        if opening is not None:
            self._check_again(origin, story, attempt, due_at_ms, now_ms, opening)
            self._check_order(origin, story, opening)
            self.damages.begun(origin, opening)
            if self.steering is not None:
                self.steering.begins(origin, story, opening)
                unsure = origin[0] in self.damages.unsure and origin[0] not in self.steering.paused
                _must(not unsure, "I25", origin, "begins, although a damaged row may stop its sequence")
            if set(self.orders.values()) == {"latest"} and record.key is not None:
                is_row = due_at_ms is not None
                self.starts.check(origin, record.key, is_row=is_row, now_ms=now_ms, opening=opening)
            self.pace.begun(origin, due_at_ms, now_ms, opening)
        if due_at_ms is None and story.taken_in is None and opening is not None:
            story.taken_in = now_ms, opening
        _must(story.first is None, "I5", origin, f"a duplicate of {story.first} was handled")
        _must(seen == (record.key, record.value, record.headers, record.timestamp_ms), "I8", origin, f"saw {seen}")
        _must(1 <= attempt <= self.max_attempts, "I5", origin, f"attempt {attempt}")
        if attempt > 1:
            failed = [
                call
                for call in story.calls[attempt - 1]
                if not call.fine or self._late(call) or attempt - 1 in story.overdue
            ]
            _must(bool(failed), "I5", origin, f"attempt {attempt} before {attempt - 1} failed")
            earliest_ms = min(call.ended_ms + self.waits.least_ms(story, attempt - 1, call.worker) for call in failed)
            early_ms = 0.0 if story.hurried else earliest_ms - now_ms
            _must(early_ms <= self._skew_ms + 1, "I3", origin, f"attempt {attempt} {early_ms} ms early")
            _must(due_at_ms is not None, "I3", origin, "a retry without a due time")
        self.latest_ms = max(self.latest_ms, now_ms - (due_at_ms or now_ms))
        if (attempt, due_at_ms) in story.seen:
            self.repeated += 1
        story.seen.add((attempt, due_at_ms))
        story.begun[attempt] += 1
        kills = story.begun[attempt] - len(story.calls[attempt]) if step(story.script, attempt) in "XK" else 0
        _must(kills <= self._max_kills, "I5", origin, "ended too many workers")

    def given_back(self, origin: Origin, attempt: int, due_at_ms: int | None) -> None:
        """A list has raised while its partition drains: its records have no outcome and run once more elsewhere."""
        self._story(origin).seen.discard((attempt, due_at_ms))

    def check_key(self, origin: Origin, suffix: str) -> None:
        """A handler call begins with an idempotency key that ends so."""
        renewed = self._story(origin).renewed
        _must(suffix == (f"-e{renewed}" if renewed else ""), "I8", origin, f"idempotency key ends with {suffix!r}")

    def goes_on(self, origin: Origin, going: Going, now_ms: float) -> None:
        """A handler call begins, and none of its record goes on in that worker, unless it was given up."""
        others = [each for each in self._story(origin).going if each.worker == going.worker]
        given_up = all(now_ms - each.cancelled_ms >= GIVEN_UP_MS for each in others)
        self._story(origin).going.append(going)
        _must(given_up, "I10", origin, "runs beside a run of itself")

    def check_silence(self, origin: Origin, silent_ms: float) -> None:
        """A handler call begins in a worker whose group has heard nothing of it for so long."""
        _must(silent_ms <= SESSION_S * 1_000 + 1, "I10", origin, f"begins {silent_ms:.0f} ms after a sign of life")

    def suspects(self, origin: Origin, attempt: int, due_at_ms: int | None, note: str, opening: Opening) -> None:
        """A handler call begins beside this note of the main topic's offset: what it names runs, and nothing else does.

        Whatever ran before in that session is durable: the mark does not name it any more.
        """
        is_row = due_at_ms is not None or self.stories[origin].held
        mark = (_SUSPECT_ROWS if is_row else _SUSPECTS).search(note)
        if mark is None or mark["life"] != opening.worker:
            return
        self.named["suspects ran together" if mark["end"] else "a suspect ran alone"] += 1
        first = _place(mark["first"])
        end = _place(mark["end"]) if mark["end"] else (*first[:-1], first[-1] + 1)
        place = (due_at_ms or 0, origin[1]) if is_row else (origin[1],)
        _must(first <= place < end, "I14", origin, f"attempt {attempt} runs beside {mark[0]}")
        for other, story in self.stories.items():
            began_ms = story.began_ms.get((opening, is_row), inf)
            if other[0] != origin[0] or began_ms == inf or (not is_row and first <= (other[1],) < end):
                continue
            passed = other[1] < self._moved.get(TopicPartition(self._topics.main, other[0]), 0)
            waits = is_row and other == origin
            settled = 0 in story.settled_ms or story.outcome_ms >= began_ms or (passed and not is_row)
            named = is_row and any(first <= (due_ms, other[1]) < end for due_ms in story.rows)
            _must(settled or waits or named, "I14", origin, f"attempt {attempt} beside {other}, not durable")

    @staticmethod
    def _sequence(order: str, record: Record) -> bytes | None:
        return {"none": None, "key": record.key, "latest": record.key}.get(order, b"")

    def _check_order(self, origin: Origin, story: Story, opening: Opening) -> None:
        """In one session the records of a sequence begin in order, each after the end of those before it."""
        order = self.orders.get(opening.worker, "none")
        if (sequence := self._sequence(order, story.record)) is None or story.replays:
            return
        place, always = (opening, origin[0], sequence), len(set(self.orders.values())) == 1
        last, self._started[place] = self._started.get(place, -1), origin[1]
        _must(origin[1] >= last, "I16", origin, f"begins after {last} of its sequence")
        self.named["waited for its turn"] += story.held
        for other, each in self.stories.items():
            if other == origin or other[0] != origin[0] or self._sequence(order, each.record) != sequence:
                continue
            beside = any(going.worker == opening.worker for going in each.going)
            _must(not beside, "I16", origin, f"begins beside {other} of its sequence")
            if self.stops is not None and other[1] < origin[1] and not self._is_resumed(other, opening):
                self.stops.check(origin, other, each, always=always and other not in self.damages.ever)
            if each.first is not None or each.replays or each.cancelling or other in self.damages.ever:
                continue
            if other[1] < origin[1]:
                _must(
                    order == "latest" or self._has_ended(each) or self._is_lost(other),
                    "I16",
                    origin,
                    f"begins before the end of {other} of its sequence",
                )
            elif always:
                # an owner of before begins what it has taken in, until it hears that it was replaced
                known = min(each.settled_ms.values(), default=inf) < opening.fenced_ms
                settled = known and each.fates != [SUPERSEDED]  # else others of them are behind it
                _must(not settled, "I16", origin, f"begins after {other} of its sequence is settled")

    def _is_resumed(self, origin: Origin, opening: Opening) -> bool:
        """Tell whether somebody had all go on in a session that a damaged stop has paused."""
        resumed_ms = {} if self.steering is None else self.steering.resumed_ms
        return origin in self.damages.now and resumed_ms.get(origin[0], -inf) > opening.fenced_ms

    def _is_lost(self, origin: Origin) -> bool:
        return self.main is not None and origin in self.main.lost

    def _has_ended(self, story: Story) -> bool:
        """Tell whether a final outcome is there, or may be on its way."""
        if story.fates or story.cancelling or "X" in story.script or "K" in story.script:
            return True
        return bool(story.calls[self.waits.last(story.script)]) or (self.releases and any(story.calls.values()))

    def _check_again(
        self, origin: Origin, story: Story, attempt: int, due_at_ms: int | None, now_ms: float, opening: Opening
    ) -> None:
        """Whoever has seen an attempt's outcome, or begins it, does not begin it once more."""
        run = attempt, due_at_ms, opening.worker, opening.fenced_ms
        _must(run not in story.runs, "I5", origin, f"attempt {attempt} twice in one session")
        story.runs.add(run)
        story.began_ms[opening, due_at_ms is not None or story.held] = now_ms
        ends = {0, attempt, FIRST} if due_at_ms is None else {0, attempt}
        settled_ms = min((at for which, at in story.settled_ms.items() if which in ends), default=None)
        known = settled_ms is not None and settled_ms < opening.fenced_ms
        _must(not known, "I5", origin, f"attempt {attempt} again, and its outcome is durable")

    def ended(self, origin: Origin, attempt: int, call: Call) -> None:
        """A handler call has ended; its time-out may come while what it has published is looked at."""
        story = self._story(origin)
        story.calls[attempt].append(call)
        story.stopped = story.stopped or (call.fine and self._late(call))

    def _late(self, call: Call) -> bool:
        return call.ended_ms - call.started_ms >= self._timeout_ms

    def stopped(self, origin: Origin, attempt: int, call: Call) -> None:
        """A handler call was told to stop: its attempt has failed, or does not count. Nobody here can tell."""
        story = self._story(origin)
        story.calls[attempt].append(call)
        story.stopped = story.stopped or step(story.script, attempt) not in "TH"
        story.spent.add(attempt)

    def _may_be_late(self, story: Story, attempt: int, now_ms: float) -> bool:
        return any(now_ms - call.started_ms >= self._timeout_ms for call in story.calls[attempt])

    def appeared(self, tp: TopicPartition, records: list[Record], now_ms: float) -> None:
        topics = self._topics
        self.visible[tp.topic] += len(records)
        for record in records:
            if tp.topic == topics.changelog:
                self._logged(record, now_ms)
            elif tp.topic == topics.seen:
                self._seen_rows[tp.partition][record.key or b""] = record.value or b""
            elif tp.topic == topics.events:
                self._told(record, now_ms)
            elif tp.topic == topics.results:
                self._published(record)
            elif tp.topic == topics.main and self.copies is not None:
                self.copies.appeared(record, self.stories)
            elif tp.topic != topics.main and not tp.topic.endswith(".control"):
                self._handed(tp.topic, record, now_ms)

    def _handed(self, topic: str, record: Record, now_ms: float) -> None:
        topics = self._topics
        ours = {name: value or b"" for name, value in record.headers}
        if "retry-mark" in ours:
            self.named[f"a letter is {ours['retry-mark'].decode()}"] += 1
            return
        origin = _origin(ours["retry-origin"].decode())
        story, attempt = self._story(origin), int(ours["retry-attempt"])
        delivery = int(ours.get("retry-delivery", attempt))
        replays = int(ours.get("retry-replays", b"0"))
        if topic.startswith(topics.dlq) and self.damages.dead(origin, story, record, ours):
            self.named["a damaged row has its letter"] += 1
            hides_key = record.key is None and not self.damages.now[origin].readable
            if self.stops is not None and set(self.orders.values()) == {"key"} and hides_key:
                self.damages.unsure.add(origin[0])
            self._end(origin, story, "dead", 1 << 30, now_ms)
            if self.steering is not None:
                self.damages.replayed(story, record, ours)
            return
        again = self.steering is not None and replays > story.replays
        if self.steering is not None and again:
            self.steering.edited(story, ours["retry-replay-id"].decode())
        foreign = tuple((name, value) for name, value in record.headers if not name.startswith("retry-"))
        lost = self.main is not None and topic.startswith(topics.dlq) and self.main.ended(origin, ours, story)
        bare = self._endless and delivery > 1 and not topic.startswith(topics.dlq)
        if self.main is not None and (lost or not topic.startswith(topics.dlq)):
            bare = lost or "retry-no-payload" in ours
        self.named["a copy without payload"] += bare
        payload = (b"", ()) if bare else (story.record.value, story.record.headers)
        _must((record.key, record.value, foreign) == (story.record.key, *payload), "I8", origin, topic)
        _must(bare == ("retry-no-payload" in ours), "I8", origin, f"its copy on {topic} says otherwise")
        if again:
            begin_again(story, replays)
            story.copies[delivery] += 1
            return
        story.outcome_ms = now_ms
        if lost:
            self.named["a record was lost"] += 1
            story.stopped = True
            self._end(origin, story, "dead", delivery, now_ms)
            return
        if ours.get("retry-reason") == b"overflow":
            _must(self.releases, "I22", origin, "dead as too many wait for it, and there they block")
            self.named["too many waited for a record"] += 1
            story.stopped = True
            self._end(origin, story, "dead", delivery, now_ms)
            return
        if ours.get("retry-reason") == b"cancelled":
            _must(story.cancelling, "I19", origin, "cancelled, and nobody has asked for it")
            story.stopped = True
            self._end(origin, story, "dead", delivery, now_ms)
            return
        if self.steering is not None and self.steering.deferred(origin, story, ours, now_ms):
            story.copies[delivery] += 1
            story.dues[delivery].add(int(ours["retry-due-ms"]))
            _once(origin, story.copies[delivery], f"copy of delivery {delivery}")
            return
        timed_out = ours.get("retry-error-type") == TIMED_OUT.encode()
        self._cut_short(story, attempt, now_ms, timed_out=timed_out)
        if topic.startswith(topics.dlq):
            named, letter = topic == f"{topics.dlq}.invalid", step(story.script, attempt)
            right = letter == "V" if named else topic == topics.dlq and (letter != "V" or story.stopped)
            _must(right, "I8", origin, f"attempt {attempt} has a dead letter on {topic}")
            self.pace.spent(origin, story, attempt, ours.get("retry-reason", b"").decode())
            self._end(origin, story, "dead", delivery, now_ms)
            return
        _must(attempt < self.max_attempts, "I5", origin, f"attempt {attempt} is to be followed by another")
        _must(not story.fates, "I2", origin, f"to be tried again after {story.fates}")
        story.copies[delivery] += 1
        story.dues[delivery].add(int(ours["retry-due-ms"]))
        _once(origin, story.copies[delivery], f"copy of delivery {delivery}")
        if self.pace.is_free(story, attempt, delivery):
            self._cut_short(story, attempt + 1, now_ms, timed_out=timed_out)
            return
        _must(
            step(story.script, attempt) != "Q" or story.stopped,
            "I20",
            origin,
            f"attempt {attempt} paused, and is spent",
        )
        self.pace.spent(origin, story, attempt)
        told = self.waits.are_told_by(topic, topics.retry, story, attempt)
        _must(told, "I8", origin, f"attempt {attempt} has a copy on {topic}")
        story.settled_ms.setdefault(attempt, now_ms)

    def _cut_short(self, story: Story, attempt: int, now_ms: float, *, timed_out: bool) -> None:
        """Note what an attempt that failed did not come to, so that its script does not say how it ends."""
        if step(story.script, attempt) == "G":
            story.stopped = True
            self.cut += 1
        if timed_out and self._may_be_late(story, attempt, now_ms):
            story.overdue.add(attempt)
            story.stopped = story.stopped or step(story.script, attempt) not in "TH"

    def _published(self, record: Record) -> None:
        origin, attempt = (record.partition, int(record.key or b"")), int(record.value or b"")
        story = self._story(origin)
        story.results += 1
        _once(origin, story.results, "result")
        fine = any(call.fine for call in story.calls[attempt])
        _must(fine, "I1", origin, f"attempt {attempt} was not fine, and its result is there")

    def _told(self, record: Record, now_ms: float) -> None:
        told = json.loads(record.value or b"{}")
        if told.get("kind") == "command" and self.steering is not None:
            self.steering.answered(record.value or b"", now_ms)
        elif told.get("kind") == "succeeded":
            origin = _origin(told["origin"])
            self._end(origin, self._story(origin), "done", told["delivery"], now_ms)
        elif told.get("kind") == "held":
            story = self._story(_origin(told["origin"]))
            _must(not story.held, "I1", _origin(told["origin"]), "held twice")
            story.held = True
        elif told.get("kind") == SUPERSEDED:
            origin = _origin(told["origin"])
            check_replaced(self.stories, origin, told["by_offset"])
            self.named["a record was superseded"] += 1
            self._end(origin, self._story(origin), SUPERSEDED, told["delivery"], now_ms)
        elif told.get("kind") == "skipped":
            origin = _origin(told["origin"])
            story = self._story(origin)
            first = story.first
            if told["first_offset"] is None:
                self.skips += 1
                self._end(origin, story, "skipped", told["delivery"], now_ms)
                return
            _must(first == (record.partition, told["first_offset"]), "I1", origin, f"skipped, and it repeats {first}")
            self.skips += 1
            story.fates.append("skipped")
            _once(origin, len(story.fates), "skip", "I2")

    def _end(self, origin: Origin, story: Story, fate: str, delivery: int, now_ms: float) -> None:
        replaced = fate == SUPERSEDED
        _must(
            replaced or story.stopped or fate == self.fate(story.script),
            "I1",
            origin,
            f"{fate}, by script {story.script!r}",
        )
        _must(
            delivery + replaced > max(story.copies, default=0),
            "I2",
            origin,
            f"{fate} by delivery {delivery}: it has a copy",
        )
        story.fates.append(fate)
        story.outcome_ms = now_ms
        story.settled_ms.setdefault(0, now_ms)
        _once(origin, len(story.fates), f"end {fate}", "I2")

    def _logged(self, record: Record, now_ms: float) -> None:
        key = record.key or b""
        if len(key) < 16:
            return  # a mark
        rows = self._rows[record.partition]
        self.damages.logged((record.partition, int.from_bytes(key[-8:], "big")), record.value)
        if self.stops is not None:
            place = record.partition, int.from_bytes(key[-8:], "big")
            self.stops.logged(place, self._story(place), record.value)
            self.named["a sequence has stopped"] += place in self.stops.now
        if record.value is None:
            rows.pop(key, None)
        else:
            rows[key] = record.value
            self._check_size(record.partition, key)
            due_ms, origin = _due_ms(record.value), (record.partition, int.from_bytes(key[-8:], "big"))
            self._story(origin).rows.add(0 if due_ms == HELD_MS else due_ms)
            if self.main is not None:
                self.main.written(origin, self._story(origin), record.value, now_ms + self._skew_ms)

    def _check_size(self, partition: int, key: bytes) -> None:
        """So many records of a sequence wait at most; one that was dead waits besides."""
        origin = partition, int.from_bytes(key[-8:], "big")
        record, places = (
            self._story(origin).record,
            ((partition, int.from_bytes(row[-8:], "big")) for row in self._rows[partition]),
        )
        if record.key is not None and self.most < 1 << 30:
            same = [
                story
                for place in places
                if (story := self._story(place)).record.key == record.key
                and not story.replays
                and place not in self.damages.ever
            ]
            _must(len(same) <= self.most, "I22", origin, f"{len(same)} of its sequence wait")

    def moved(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Committed offsets are about to move: everything that they pass has a durable fate."""
        for tp, offset in offsets.items():
            before = self._moved.get(tp, 0)
            _must(offset >= before, "I6", (tp.partition, offset), f"{tp.topic} moves back from {before}")
            self._moved[tp] = offset
            for at in range(before, offset):
                if (tp.partition, at) in self.stories:
                    self._check_passed((tp.partition, at))

    def _check_passed(self, origin: Origin) -> None:
        story = self.stories[origin]
        fine = any(call.fine for call in story.calls[1])
        if story.replays:  # it was dead
            return
        _must(fine or bool(story.copies[1]) or bool(story.fates) or story.held, "I6", origin, "passed without a fate")
        waits = not story.copies[1] or not story.dues[1].isdisjoint(story.rows)
        _must(waits, "I6", origin, "its copy is on the retry topic, and no row waits")

    def give_up(self, origin: Origin) -> None:
        """Somebody has decided that a record is lost."""
        if (story := self.stories.pop(origin, None)) is not None:
            self._lost[origin] = story

    def recovered(self, partition: int, rows: Mapping[bytes, bytes]) -> None:
        """A lane has opened with these rows, whose keys are queue and due time, and identity."""
        found = {key[8:]: value for key, value in rows.items()}
        _must(found == self._rows[partition], "I7", (partition, -1), "the store is not the changelog")
        sorted_so = all(int.from_bytes(key[2:8], "big") in (_due_ms(value), 0) for key, value in rows.items())
        _must(sorted_so and len(found) == len(rows), "I7", (partition, -1), "a row has a key that is not its own")
        for identity, value in found.items():
            origin = partition, int.from_bytes(identity[-8:], "big")
            as_said = origin in self.damages.ever or _failure_is_as_said(value)
            _must(as_said, "I12", origin, "its row is counted under another failure than its headers say")

    def remembered(self, partition: int, rows: Mapping[bytes, bytes], *, taken_back: bool) -> None:
        """A lane that is open, and at rest, has these rows of seen events; histories are shorter than the window.

        Where the broker took a row back, its offset went with it: the lane still knows the event, and the next one
        handles the record and writes it down.
        """
        logged = self._seen_rows[partition]
        same = logged.items() <= dict(rows).items() if taken_back else dict(rows) == logged
        _must(same, "I7", (partition, -1), "the table of seen events is not its changelog")

    # -- the end ------------------------------------------------------------------------------------------------

    def open_ends(self) -> list[Origin]:
        return [origin for origin, story in self.stories.items() if not self._settled(story)]

    def _settled(self, story: Story) -> bool:
        if story.fates:
            return True
        fine = any(call.fine for call in story.calls[1]) and not story.copies[1]
        return fine and (story.results > 0 or not self._topics.results)

    def at_rest(self) -> None:
        """Judge the end, when nothing is on its way any more."""
        if self.steering is not None:
            self.steering.judge()
            self.named += self.steering.reached
        for origin, story in self.stories.items():
            _must(self._settled(story), "I1", origin, "lost")
            if story.first is not None:
                _must(set(story.fates) == {"skipped"}, "I1", origin, f"a duplicate ends {story.fates}")
                continue
            expected = self.fate(story.script)
            failed_first = (
                story.fates == [SUPERSEDED]
                or story.held
                or step(story.script, 1) not in FINE
                or story.stopped
                or 1 in story.overdue
            )
            _must(failed_first or not story.fates, "I1", origin, f"ends {story.fates}")
            _must(bool(story.fates) or expected == "done", "I1", origin, "no end")
            results = int(not {"dead", "skipped", SUPERSEDED} & set(story.fates))
            _must(story.results == results or not self._topics.results, "I1", origin, f"{story.results} results")
        check_newest({**self.stories, **self._lost})
        for partition, rows in {number: self.waiting(number) for number in self._rows}.items():
            _must(not rows, "I7", (partition, -1), f"{len(rows)} rows wait for ever")

    def fate(self, script: str) -> str:
        """Return what a record's script comes to under the policy."""
        return self.waits.fate(script)

    def _story(self, origin: Origin) -> Story:
        story = self.stories.get(origin)
        if story is None:
            raise Violation(f"I1 {origin}: nobody sent this record")
        return story


def _origin(text: str) -> Origin:
    _, partition, offset = text.rsplit("/", 2)
    return int(partition), int(offset)


def _place(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _failure_is_as_said(row: bytes) -> bool:
    said, told = row_failed_of(row), failure_in(row)
    return told == (None if said is None else (cause_bytes(said.cause_id), said.attempts, said.last_ms))


def _due_ms(row: bytes) -> int:
    return int.from_bytes(row[4:12], "big")


def _once(origin: Origin, count: int, what: str, invariant: str = "I1") -> None:
    _must(count <= 1, invariant, origin, f"{count} visible copies of a {what}")


def _must(holds: bool, invariant: str, origin: Origin, what: str) -> None:
    if not holds:
        raise Violation(f"{invariant} {origin[0]}/{origin[1]}: {what}")
