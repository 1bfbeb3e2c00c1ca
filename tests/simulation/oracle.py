"""What must hold of every history, judged from inputs, handler calls and what committed readers see.

It shares no code with the engine: it reads header bytes by itself, knows the policy as a list of waits, and decides
each record's fate from the script that its value carries. Numbers are those of the invariants: I1 conservation, I2 no
fate undone, I3 never early, I4 bounded late, I5 attempts, I8 bytes, I10 one owner. Offsets (I6, I14), stores (I7, I12)
and sequences (I16, I22) are judged by modules of these names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retryapp.core.record import Record
from retryapp.engine.delivery.deliver import HandlerTimeoutError
from retryapp.ports import TopicPartition
from simulation.again import Again
from simulation.damaging import Damages
from simulation.elapsed import Elapsed
from simulation.kills import Kills
from simulation.lives import key_in
from simulation.newest import SUPERSEDED, check_newest, check_replaced
from simulation.odd_letters import ODD
from simulation.offsets import Offsets
from simulation.pacing import Pacing
from simulation.referring import Referring
from simulation.scripts import BEYOND_MS, is_invalid
from simulation.sequences import Sequences
from simulation.steering import Steering, begin_again
from simulation.stores import HELD_MS, Stores, due_ms_of, origin_of
from simulation.story import (
    FINE,
    FIRST,
    Call,
    Going,
    Opening,
    Origin,
    Story,
    Topics,
    Violation,
    must,
    named_wrongly,
    step,
)
from simulation.through import Copies
from simulation.waits import Waits

GIVEN_UP_MS = 2_000.0
"""A handler that does not heed its cancellation is given up after it."""
PASSED = "the letter is "
"""What the event of a dead letter says that its handler has passed: a command has decided about it."""
TIMED_OUT = f"{HandlerTimeoutError.__module__}.{HandlerTimeoutError.__qualname__}"


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
        max_kills: Callable[[int], int] = lambda _ahead: 12,
        pace: Pacing | None = None,
        endless: bool = False,
        most_ms: int | None = None,
        stops: bool = False,
        plain: bool = False,
        lists: bool = False,
    ) -> None:
        self.stories: dict[Origin, Story] = {}
        self._lost: dict[Origin, Story] = {}
        """Those that somebody has given up."""
        self.doubted: list[Origin] = []
        """Records that have begun as edited by a command whose transaction is not visible."""
        self.repeated = 0
        """Handler calls of an attempt that had begun before."""
        self.latest_ms = 0.0
        """Largest lateness of a call."""
        self._topics = topics
        self.waits = Waits(waits_ms, {"L": later_ms, "N": 0, "B": BEYOND_MS, "W": 0}, own_ms, per_delay=per_delay)
        list_ms = timeout_ms if lists else 0.0
        self.elapsed = Elapsed(most_ms, self.waits, skew_ms=skew_ms, stops=stops, plain=plain, list_ms=list_ms)
        self._skew_ms = skew_ms
        self._timeout_ms = timeout_ms
        self.pace = pace or Pacing()
        self.steering: Steering | None = None
        """Set where the history has commands."""
        self.main: Referring | None = None
        """Set where records wait by reference."""
        self.damages = Damages()
        self.named: Counter[str] = Counter()
        """What the history has come to, in words."""
        self.sequences = Sequences(self.stories, self.waits, self.elapsed, self.damages, self.named)
        self.stores = Stores(self.damages)
        self.again = Again(self.stories, self.stores, self.named)
        self.again.orders = self.sequences.orders
        self.offsets = Offsets(self.stories, self.again, self.named)
        self.copies: Copies | None = None
        """Set where what is due again goes through the main topic."""
        self._endless = endless
        """Copies after the first one are without payload."""
        self.kills = Kills(max_kills, self.stories, self.offsets)
        self._events: dict[str, Origin] = {}
        self.cut = 0
        """Failures of attempts whose second try would have been fine."""
        self.skips = 0
        """Visible events of duplicates that were skipped."""
        self.discarded = 0
        """Visible events in place of dead letters."""
        self.visible: Counter[str] = Counter()
        """Visible records by topic."""

    @property
    def max_attempts(self) -> int:
        return self.waits.count + 1

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
        if due_at_ms is None:
            self.again.anew(story)
        record = story.record
        if opening is not None:
            self._check_again(origin, story, attempt, due_at_ms, now_ms, opening)
            resumed_ms = {} if self.steering is None else self.steering.resumed_ms
            lost = set() if self.main is None else self.main.lost
            self.sequences.begun(origin, story, opening, resumed_ms=resumed_ms, lost=lost)
            self.damages.begun(origin, opening)
            if due_at_ms is None:
                self.again.begun(origin, opening)
            if self.steering is not None:
                self.steering.begins(origin, story, opening)
                unsure = origin[0] in self.damages.unsure and origin[0] not in self.steering.paused
                must(not unsure, "I25", origin, "begins, although a damaged row may stop its sequence")
            self.sequences.check_latest(origin, is_row=due_at_ms is not None, now_ms=now_ms, opening=opening)
            self.pace.begun(origin, due_at_ms, now_ms, opening)
        if due_at_ms is None and story.taken_in is None and opening is not None:
            story.taken_in = now_ms, opening
        must(story.first is None, "I5", origin, f"a duplicate of {story.first} was handled")
        if seen != (record.key, record.value, record.headers, record.timestamp_ms):
            doubted = self.steering is not None and self.steering.may_have_edited(record, seen)
            must(doubted, "I8", origin, f"saw {seen}")
            self.doubted.append(origin)
        must(1 <= attempt <= self.max_attempts, "I5", origin, f"attempt {attempt}")
        if attempt > 1:
            failed = [
                call
                for call in story.calls[attempt - 1]
                if not call.fine or self._late(call) or attempt - 1 in story.overdue
            ]
            must(bool(failed), "I5", origin, f"attempt {attempt} before {attempt - 1} failed")
            earliest_ms = min(call.ended_ms + self.waits.least_ms(story, attempt - 1, call.worker) for call in failed)
            early_ms = 0.0 if story.hurried else earliest_ms - now_ms
            must(early_ms <= self._skew_ms + 1, "I3", origin, f"attempt {attempt} {early_ms} ms early")
            must(due_at_ms is not None, "I3", origin, "a retry without a due time")
        self.latest_ms = max(self.latest_ms, now_ms - (due_at_ms or now_ms))
        if (attempt, due_at_ms) in story.seen:
            self.repeated += 1
        story.seen.add((attempt, due_at_ms))
        story.begun[attempt] += 1
        self.kills.begun(origin, attempt, is_row=due_at_ms is not None)

    def given_back(self, origin: Origin, attempt: int, due_at_ms: int | None) -> None:
        """A list has raised while its partition drains: its records have no outcome and run once more elsewhere."""
        self._story(origin).seen.discard((attempt, due_at_ms))

    def check_key(self, origin: Origin, suffix: str) -> None:
        """A handler call begins with an idempotency key that ends so."""
        renewed = self._story(origin).renewed
        right = suffix == (f"-e{renewed}" if renewed else "") or origin in self.doubted
        must(right, "I8", origin, f"idempotency key ends with {suffix!r}")

    def goes_on(self, origin: Origin, going: Going, now_ms: float) -> None:
        """A handler call begins, and none of its record goes on in that worker, unless it was given up."""
        others = [each for each in self._story(origin).going if each.worker == going.worker]
        given_up = all(now_ms - each.cancelled_ms >= GIVEN_UP_MS for each in others)
        self._story(origin).going.append(going)
        must(given_up, "I10", origin, "runs beside a run of itself")

    def _check_again(
        self, origin: Origin, story: Story, attempt: int, due_at_ms: int | None, now_ms: float, opening: Opening
    ) -> None:
        """Whoever has seen an attempt's outcome, or begins it, does not begin it once more."""
        run = attempt, due_at_ms, opening.worker, opening.fenced_ms
        twice = run in story.runs and not (story.held and story.again > 0)  # its held row first, and then the record
        must(not twice, "I5", origin, f"attempt {attempt} twice in one session")
        story.runs.add(run)
        story.began_ms[opening, due_at_ms is not None or story.held] = now_ms
        ends = {0, attempt, FIRST} if due_at_ms is None else {0, attempt}
        settled_ms = min((at for which, at in story.settled_ms.items() if which in ends), default=None)
        known = settled_ms is not None and settled_ms < opening.fenced_ms and not story.again
        must(not known, "I5", origin, f"attempt {attempt} again, and its outcome is durable")

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
                self.stores.saw(record)
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
        if "retry-mark" in ours or (ODD in ours and topic == topics.dlq):
            self.named[f"a letter is {ours.get('retry-mark', b'odd').decode()}"] += 1
            self.visible[topic] -= 1  # it is no letter, or of none of these records
            return
        origin = key_in(ours["retry-origin"].decode())
        story, attempt = self._story(origin), int(ours["retry-attempt"])
        delivery = int(ours.get("retry-delivery", attempt))
        replays = int(ours.get("retry-replays", b"0"))
        if topic.startswith(topics.dlq) and self.damages.dead(origin, story, record, ours):
            self.named["a damaged row has its letter"] += 1
            hides_key = record.key is None and not self.damages.now[origin].readable
            if self.sequences.stop_by_key and hides_key:
                self.damages.unsure.add(origin[0])
            self._end(origin, story, "dead", 1 << 30, now_ms)
            if self.steering is not None:
                self.damages.replayed(story, record, ours)
            return
        again = self.steering is not None and replays > story.replays
        if self.steering is not None and again:
            command = ours["retry-replay-id"].decode()
            self.steering.edited(story, command)
            self.sequences.came_back(origin, now_ms, forced=self.steering.is_forced(command))
        lost = self._check_bytes(origin, story, topic, record, ours)
        if again:
            begin_again(story, replays)
            story.copies[delivery] += 1
            return
        story.outcome_ms = now_ms
        story.first_ms = now_ms if delivery == 1 else story.first_ms
        if self._died_otherwise(origin, story, attempt, ours.get("retry-reason"), lost=lost):
            story.stopped = True
            self._end(origin, story, "dead", delivery, now_ms)
            return
        if self.steering is not None and self.steering.deferred(origin, story, ours, now_ms):
            story.copied(origin, delivery, ours)
            return
        timed_out = ours.get("retry-error-type") == TIMED_OUT.encode()
        self._cut_short(story, attempt, now_ms, timed_out=timed_out)
        if topic.startswith(topics.dlq):
            named, letter = topic == f"{topics.dlq}.invalid", step(story.script, attempt)
            invalid = letter == "V" or (letter == "I" and is_invalid(record.value))  # by its value, as it is now
            right = invalid if named else topic == topics.dlq and (not invalid or story.stopped)
            must(right, "I8", origin, f"attempt {attempt} has a dead letter on {topic}")
            self.pace.spent(origin, story, attempt, ours.get("retry-reason", b"").decode())
            self._end(origin, story, "dead", delivery, now_ms)
            return
        must(attempt < self.max_attempts, "I5", origin, f"attempt {attempt} is to be followed by another")
        must(not story.fates or story.again > 0, "I2", origin, f"to be tried again after {story.fates}")
        story.copied(origin, delivery, ours)
        if self.pace.is_free(story, attempt, delivery):
            self._cut_short(story, attempt + 1, now_ms, timed_out=timed_out)
            return
        self.elapsed.waits_on(origin, story, attempt, int(ours["retry-due-ms"]))
        paused = step(story.script, attempt) == "Q" and not story.stopped
        must(not paused, "I20", origin, f"attempt {attempt} paused, and is spent")
        self.pace.spent(origin, story, attempt)
        told = self.waits.are_told_by(topic, topics.retry, story, attempt)
        must(told, "I8", origin, f"attempt {attempt} has a copy on {topic}")
        story.settled_ms.setdefault(attempt, now_ms)

    def _check_bytes(self, origin: Origin, story: Story, topic: str, record: Record, ours: Mapping[str, bytes]) -> bool:
        """A copy has what the record has, or no payload where it need not have one; tell whether the record is lost."""
        is_letter, delivery = topic.startswith(self._topics.dlq), int(ours.get("retry-delivery", ours["retry-attempt"]))
        lost = self.main is not None and is_letter and self.main.ended(origin, ours, story)
        bare = self._endless and delivery > 1 and not is_letter and ours.get("retry-tier") != b"replay"
        if self.main is not None and (lost or not is_letter):
            bare = lost or "retry-no-payload" in ours
        self.named["a copy without payload"] += bare
        foreign = tuple((name, value) for name, value in record.headers if not name.startswith("retry-"))
        payload = (b"", ()) if bare else (story.record.value, story.record.headers)
        must((record.key, record.value, foreign) == (story.record.key, *payload), "I8", origin, topic)
        must(bare == ("retry-no-payload" in ours), "I8", origin, f"its copy on {topic} says otherwise")
        return lost

    def _died_otherwise(self, origin: Origin, story: Story, attempt: int, reason: bytes | None, *, lost: bool) -> bool:
        """Tell whether a record is dead whatever its script says: lost, overflowing, cancelled or expired."""
        if lost:
            self.named["a record was lost"] += 1
        elif reason == b"overflow":
            must(self.sequences.releases, "I22", origin, "dead as too many wait for it, and there they block")
            self.named["too many waited for a record"] += 1
        elif reason == b"cancelled":
            must(story.cancelling, "I19", origin, "cancelled, and nobody has asked for it")
        elif reason == b"expired":
            self.elapsed.expired(origin, story, attempt, self.steering)
            self.pace.spent(origin, story, attempt, "expired")
            self.named["a record has expired"] += 1
        return lost or reason in (b"overflow", b"cancelled", b"expired")

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
        story.once(origin, story.results, "result")
        fine = any(call.fine for call in story.calls[attempt])
        must(fine, "I1", origin, f"attempt {attempt} was not fine, and its result is there")

    def _told(self, record: Record, now_ms: float) -> None:
        told = json.loads(record.value or b"{}")
        if told.get("kind") == "command" and self.steering is not None:
            self.steering.answered(record.value or b"", now_ms)
        elif told.get("kind") == "succeeded":
            origin = key_in(told["origin"])
            self._end(origin, self._story(origin), "done", told["delivery"], now_ms)
        elif told.get("kind") in ("discarded", "failed"):
            self._discarded(key_in(told["origin"]), told, now_ms)
        elif told.get("kind") == "held":
            story = self._story(key_in(told["origin"]))
            must(not story.held or story.again > 0, "I1", key_in(told["origin"]), "held twice")
            story.held, story.outcome_ms = True, now_ms
        elif told.get("kind") == SUPERSEDED:
            story = self._story(origin := key_in(told["origin"]))
            check_replaced(self.stories, origin, told["by_offset"])
            self.named["a record was superseded"] += 1
            self._end(origin, story, SUPERSEDED, told["delivery"], now_ms)
        elif told.get("kind") == "skipped":
            origin = key_in(told["origin"])
            story = self._story(origin)
            first = story.first
            if told["first_offset"] is None:
                self.skips += 1
                story.stopped = story.stopped or told["why"].startswith(PASSED)
                self._end(origin, story, "skipped", told["delivery"] or 1, now_ms)
                return
            must(first == (record.partition, told["first_offset"]), "I1", origin, f"skipped, and it repeats {first}")
            self.skips += 1
            story.fates.append("skipped")
            story.ended_ms = story.outcome_ms = story.first_ms = now_ms
            story.once(origin, len(story.fates), "skip", "I2")

    def _discarded(self, origin: Origin, told: Mapping[str, Any], now_ms: float) -> None:
        """Take an event that stands in place of a dead letter."""
        story, reason = self._story(origin), told["reason"]
        self.discarded += 1
        if reason == "damaged" and origin in self.damages.now:
            story.stopped = True
            self._end(origin, story, "dead", 1 << 30, now_ms)
            return
        lost = self.main is not None and self.main.ended(origin, {"retry-reason": reason.encode()}, story)
        if self._died_otherwise(origin, story, told["attempt"], reason.encode(), lost=lost):
            story.stopped = True
        else:
            self._cut_short(story, told["attempt"], now_ms, timed_out=told["error_type"] == TIMED_OUT)
            self.pace.spent(origin, story, told["attempt"], reason)
        self._end(origin, story, "dead", told["delivery"], now_ms)

    def _end(self, origin: Origin, story: Story, fate: str, delivery: int, now_ms: float) -> None:
        replaced = fate == SUPERSEDED
        expected = replaced or story.stopped or fate == self.fate(story.script)
        must(expected, "I1", origin, f"{fate}, by script {story.script!r}")
        is_last = delivery + replaced > max(story.copies, default=0)
        must(is_last or story.again > 0, "I2", origin, f"{fate} by delivery {delivery}: it has a copy")
        story.fates.append(fate)
        story.outcome_ms = story.ended_ms = now_ms
        story.first_ms = now_ms if delivery == 1 else story.first_ms
        story.settled_ms.setdefault(0, now_ms)
        story.once(origin, len(story.fates), f"end {fate}", "I2")

    def _logged(self, record: Record, now_ms: float) -> None:
        key, row = record.key or b"", record.value
        if len(key) < 16:
            return  # a mark
        origin = origin_of(record.partition, key)
        self.damages.logged(origin, row)
        if (stops := self.sequences.stops) is not None:
            stops.logged(origin, self._story(origin), row)
            self.named["a sequence has stopped"] += origin in stops.now
        is_new = self.stores.logged(record)
        if row is not None:
            story, due_ms = self._story(origin), due_ms_of(row)
            if is_new:
                waiting = self.stores.waiting(record.partition)
                self.sequences.check_size(origin, [origin_of(record.partition, identity) for identity in waiting])
            story.rows.add(0 if due_ms == HELD_MS else due_ms)
            if self.main is not None:
                self.main.written(origin, story, row, now_ms + self._skew_ms)

    def give_up(self, origin: Origin) -> None:
        """Somebody has decided that a record is lost."""
        if (story := self.stories.pop(origin, None)) is not None:
            self._lost[origin] = story

    # -- the end ------------------------------------------------------------------------------------------------

    def open_ends(self) -> list[Origin]:
        return [origin for origin, story in self.stories.items() if not (story.gone or self._settled(story))]

    def _settled(self, story: Story) -> bool:
        if story.again:
            return self.again.settled(story, publishes=bool(self._topics.results))
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
            if story.gone:
                continue
            must(self._settled(story), "I1", origin, "lost")
            if story.first is not None:
                must(set(story.fates) == {"skipped"}, "I1", origin, f"a duplicate ends {story.fates}")
                continue
            expected = self.fate(story.script)
            failed_first = (
                set(story.fates) == {SUPERSEDED}
                or story.held
                or step(story.script, 1) not in FINE
                or story.stopped
                or 1 in story.overdue
            )
            must(failed_first or not story.fates, "I1", origin, f"ends {story.fates}")
            must(bool(story.fates) or expected == "done", "I1", origin, "no end")
            results = int(not {"dead", "skipped", SUPERSEDED} & set(story.fates))
            right = results <= story.results <= (1 + story.again if story.again else results)
            must(right or not self._topics.results, "I1", origin, f"{story.results} results")
        check_newest({**self.stories, **self._lost})
        self.stores.at_rest()

    def fate(self, script: str) -> str:
        """Return what a record's script comes to under the policy."""
        return self.waits.fate(script)

    def story(self, origin: Origin) -> Story:
        """Return what is known of a record, also of one that somebody has given up."""
        return self._lost.get(origin) or self._story(origin)

    def _story(self, origin: Origin) -> Story:
        story = self.stories.get(origin) or named_wrongly(self.stories, origin)
        if story is None:
            raise Violation(f"I1 {origin}: nobody sent this record")
        return story
