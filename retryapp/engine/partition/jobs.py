"""The parts of jobs of one partition: letters are read in order, and replayed or set aside, many in one turn.

Each turn has what it does to its letters, an event for each of the first ones that it refuses, and where the part is
then. So a crash neither repeats nor skips a letter. A part keeps to its share of the job's rate, and few of its records
wait at once. In each round of the event loop all parts have as much time as due rows have (`engine.lane.rounds`):
first deliveries and the records' own retries go on beside it. Its first replays are a canary: the others wait for their
outcomes, and where most of the last outcomes are failures, the part pauses itself, for each replay spends all attempts
of its record. Without letters left there is nothing to pause: it ends, and says how many have failed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from retryapp.core.control import Command, Refusal, Verb, is_mark
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import RETRY_ERROR_TRACE, RETRY_MARK, HeaderReader, parted
from retryapp.core.hops import REPLAY, Outgoing
from retryapp.core.jobs import (
    JOB_AGE_MS,
    LAST_OUTCOMES,
    MOST_JOBS,
    MOST_NAMED,
    JobCommand,
    JobPart,
    JobVerb,
    Part,
    PartState,
    read_steering,
)
from retryapp.core.rates import SharedTurns
from retryapp.core.record import Record, held_bytes
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.letter_commands import Effect, Letter, LetterCommands, RefusedError, appended_ms
from retryapp.ports import Event, Row, TopicPartition

MOST_AT_ONCE: Final = 200
"""Letters of one step, and of one turn: each turn of its own would be another transaction."""
MOST_BESIDE: Final = 50
"""The same while there are first deliveries, or in an ordered handler, where nothing comes between them."""
MOST_TOGETHER: Final = 10
"""The same in an ordered handler while there are first deliveries."""
MOST_LOOKED: Final = 2_000
"""Letters that are looked at for one turn."""
LOOKED_TOGETHER: Final = 10
"""Of these, without a look at the time: each takes 10 us."""
MOST_AHEAD_BYTES: Final = 2 << 20
"""Bytes of letters that are read ahead, of each job, and of letters of one turn."""
FAULT_MS: Final = 5_000.0
"""How long jobs rest when letters could not be read, or their table has failed."""
MOST_UNDELIVERED: Final = 1_000
"""Replayed records that wait for their first run, in a partition."""
FEW: Final = 20
"""Of these, so many are looked at: those that are held, or behind others, keep no letter waiting."""
UNDELIVERED_MS: Final = 10_000.0
"""The same as time at the part's rate."""
CATCH_UP_MS: Final = 250.0
"""What a part may catch up of its rate: a transaction takes some time, on a busy machine more than 100 ms."""
LOOK_S: Final = 0.05
"""How often a part looks whether it may go on."""

logger = logging.getLogger(__name__)


class _Ahead(NamedTuple):
    """A record of a dead-letter topic that was read ahead, without a mark."""

    record: Record
    """With the headers that are not ours."""
    ours: dict[str, bytes] | DamagedMetadataError
    """The others. As a tuple for each the garbage collector would look through all of them, again and again."""
    size: int


def _ahead(tp: TopicPartition, raw: Any) -> _Ahead | None:
    """Take a record apart; None: it is a mark."""
    ours: dict[str, bytes] | DamagedMetadataError
    try:
        ours, others = parted(raw.headers)
    except DamagedMetadataError as error:
        if is_mark(raw.headers):
            return None
        ours, others = error, ()
    size = held_bytes(raw.key, raw.value, others)
    if isinstance(ours, dict):
        if RETRY_MARK in ours:
            return None
        ours.pop(RETRY_ERROR_TRACE, None)  # most bytes, not used
        size += sum(map(len, ours.values()))
    return _Ahead(Record(*tp, raw.offset, appended_ms(raw), raw.key, raw.value, others), ours, size)


class Jobs:
    """What one session of a partition does for jobs."""

    def __init__(
        self,
        context: DeliveryContext,
        transport: LaneProtocol,
        letters: LetterCommands,
        event: Callable[..., Outgoing],
    ) -> None:
        """Begin with what the partition remembers; `event` makes that of a command."""
        self.steering = read_steering(transport.steering)
        self._context = context
        self._transport = transport
        self._letters = letters
        self._event = event
        self._named: list[Outgoing] = []
        """Events of letters that the present step has refused."""
        self._turns: dict[str, SharedTurns] = {}
        self._outcomes: dict[str, deque[bool]] = {}
        """By job: whether the last replays failed again."""
        self._waiting: dict[str, set[bytes]] = {}
        """By job: identities of what this session has replayed, and that has not run."""
        self._steps = 0
        self._stepped: dict[str, int] = {}
        """By job: the number of its last step."""
        self._ahead: dict[tuple[str, str], tuple[int, deque[_Ahead]]] = {}
        """By job and topic: where the next reading begins, and letters that were read and not looked at."""
        self._rest_ms = 0.0
        """No step before: letters could not be read."""
        for part in self.steering.parts:
            part.probed = part.done  # outcomes that another session has seen are not known here

    @property
    def running(self) -> list[Part]:
        """Parts that go on here."""
        parts = self.steering.parts
        return [part for part in parts if part.state is PartState.RUNNING and isinstance(part.order, JobPart)]

    # -- commands about jobs ------------------------------------------------------------------------------------

    def obey(self, command: JobCommand, age_ms: int) -> Effect:
        """Begin, pause, go on with or cancel a part.

        Raises:
            RefusedError: it is refused.
        """
        part = self.steering.part(command.job)
        if command.verb is JobVerb.START:
            return self._start(command, part, age_ms)
        if part is None or part.over:
            raise RefusedError(Refusal.NO_JOB, "no such job goes on here" if part is None else f"it is {part.state}")
        before = str(part.state)
        if command.verb is JobVerb.CANCEL:
            self._over(part, PartState.CANCELLED)
        elif command.verb is JobVerb.PAUSE:
            part.state, part.paused = PartState.PAUSED, command.why or "somebody has paused it"
        else:
            part.state, part.paused, part.probed = PartState.RUNNING, "", part.done
            self._outcomes.pop(part.job, None)
        return Effect(part.text, before=before, after=str(part.state))

    def _start(self, command: JobCommand, part: Part | None, age_ms: int) -> Effect:
        if part is not None:
            raise RefusedError(Refusal.JOB_KNOWN, f"it has begun already, and is {part.text}")
        if command.part is None:
            raise RefusedError(Refusal.MALFORMED, "part: a start says what is to be done")
        if age_ms > JOB_AGE_MS:
            text = f"no worker had its partition for {age_ms // 3_600_000} hours after it was sent: start a new one"
            raise RefusedError(Refusal.EXPIRED, text)
        if len(self.steering.going_on) >= MOST_JOBS:
            raise RefusedError(Refusal.TOO_MANY, f"{MOST_JOBS} jobs go on: wait for one, or cancel one")
        if self._context.handler.topology.drop:
            raise RefusedError(Refusal.NO_LETTER, "this handler has no dead-letter topic")
        verb = str(command.part.verb)
        since_ms = self._context.clock.wall_ms()
        part = Part(job=command.job, verb=verb, order=command.part, by=command.by, why=command.why, since_ms=since_ms)
        self.steering.parts.append(part)
        return Effect("it begins", after=str(part.state))

    def _over(self, part: Part, state: PartState) -> None:
        self.steering.over(part, state)
        self._outcomes.pop(part.job, None)
        self._waiting.pop(part.job, None)
        self._turns.pop(part.job, None)
        self._stepped.pop(part.job, None)
        self._read_again(part)

    def _read_again(self, part: Part) -> None:
        for place in [place for place in self._ahead if place[0] == part.job]:
            del self._ahead[place]

    # -- outcomes -----------------------------------------------------------------------------------------------

    def note(self, run: Run, outcome: Turn) -> None:
        """Note what the first run of a replayed record has come to."""
        metadata = run.metadata
        if metadata is None or metadata.tier != REPLAY:
            return
        if run.claim is not None and run.claim.on_hold is not None and not run.begun:
            return  # it has not run: somebody holds it
        self._waiting.get(metadata.replay_id or "", set()).discard(run.place)
        part = self.steering.part(metadata.replay_id or "")
        if part is None:
            return
        failed = any(seen.event in (Event.FAILED, Event.DEAD) for seen in outcome.observations)
        part.outcomes += 1
        part.failed_again += failed
        if not part.over:
            self._outcomes.setdefault(part.job, deque(maxlen=LAST_OUTCOMES)).append(failed)

    def _fails(self, part: Part, canary: int) -> str:
        """Return why a part that has letters left pauses itself; empty: it does not."""
        outcomes = self._outcomes.get(part.job, ())
        failed = sum(outcomes)
        if len(outcomes) < max(1, canary) or failed * 2 <= len(outcomes):
            return ""
        return f"{failed} of the last {len(outcomes)} replays failed again"

    # -- steps --------------------------------------------------------------------------------------------------

    def may_step(self) -> bool:
        """Tell whether a part may go on now: not before all letters are known."""
        here = self._transport.letters_here and self._now_ms() >= self._rest_ms
        return here and any(self._room(part) > 0 for part in self.running)

    def wait_s(self) -> float | None:
        """Return after how long a part may be able to go on; None: none goes on."""
        now_ms = self._context.clock.wall_ms()
        turns = [self._turns.get(part.job) for part in self.running]
        waits = [0.0 if each is None else each.wait_ms(now_ms) / 1_000 for each in turns]
        return max(LOOK_S, min(waits)) if waits else None  # several letters at once: each step is a transaction

    def _room(self, part: Part) -> int:
        """Return how many letters a part may take now."""
        order = part.order
        most = self._fitting(part, order) if isinstance(order, JobPart) else 0
        if not isinstance(order, JobPart) or order.every_ms is None or most <= 0:
            return most
        now_ms = self._context.clock.wall_ms()
        if part.job not in self._turns:
            self._turns[part.job] = SharedTurns(order.every_ms, order.share, now_ms, CATCH_UP_MS)
        return min(most, self._turns[part.job].room(now_ms))

    def _fitting(self, part: Part, order: JobPart) -> int:
        """Return the same, whatever the rate."""
        pending = self._transport.pending
        if order.verb is not Verb.REPLAY or pending is None:
            return MOST_AT_ONCE
        undelivered, most = pending.counts().get(REPLAY, 0), MOST_UNDELIVERED
        probed = part.done - part.probed
        outcomes = len(self._outcomes.get(part.job, ()))
        if self._fails(part, order.canary):
            return MOST_AT_ONCE  # so that it looks, and pauses where one of them is left
        if undelivered and len(self._waiting.get(part.job, ())) <= FEW:
            to_run, stuck = self._look_at_waiting(part)
            undelivered, probed = min(undelivered, to_run), probed - stuck  # others are probes in their place
        if probed >= order.canary > outcomes and undelivered:
            return 0  # without any that wait, all have been tried, maybe by another worker
        if probed < order.canary:
            return min(MOST_AT_ONCE, order.canary - probed)
        if order.every_ms is not None:
            first, after, of = order.share
            most = max(1, min(most, int(UNDELIVERED_MS * (after - first) / of / order.every_ms)))
        return min(MOST_AT_ONCE, most - undelivered)

    def _look_at_waiting(self, part: Part) -> tuple[int, int]:
        """Return how many that this session has replayed are to run, and how many are held, or behind others."""
        looked = Counter(map(self._letters.waits, self._waiting.get(part.job, ())))
        return looked[False], looked[True]

    def _forget_ended(self) -> None:
        """Leave out replays that no longer wait: only where all that was submitted is in the tables."""
        for part in self.running:
            waiting = self._waiting.get(part.job, set())
            if len(waiting) <= FEW:
                waiting -= {identity for identity in waiting if self._letters.waits(identity) is None}

    def _now_ms(self) -> float:
        return self._context.clock.monotonic_s() * 1_000

    async def step(self, submit: Callable[[Turn, Part | None], None]) -> None:
        """Take one step with one part, each when its turn comes; what is in the lane is in the tables.

        `submit` takes a turn, and the part if the turn is to tell its state.
        """
        self._forget_ended()
        shared, ordered = self._context.rounds.shared, self._context.handler.order is not Order.NONE
        most = MOST_TOGETHER if shared and ordered else MOST_BESIDE if shared or ordered else MOST_AT_ONCE
        for part in sorted(self.running, key=lambda part: self._stepped.get(part.job, 0)):
            room = self._room(part)
            if room <= 0 or not isinstance(part.order, JobPart):
                continue
            self._steps += 1
            self._stepped[part.job] = self._steps
            await self._take_some(part, part.order, min(room, most), submit)
            return  # the next step sees what this one did

    async def _take_some(
        self, part: Part, order: JobPart, room: int, submit: Callable[[Turn, Part | None], None]
    ) -> None:
        """Submit the turn of so many letters."""
        # a copy: a rule that pauses the partition, or an early release, may have the part written down meanwhile
        after = part.model_copy(update={"at": dict(part.at), "refused": Counter(part.refused)})
        letters: list[Letter] | None = None
        self._named.clear()
        try:
            letters = await self._look(after, room)
        except Exception as fault:  # noqa: BLE001 - whatever it is: a fault of those topics is none of the lane's
            logger.warning("Job %s of %s rests: %r", part.job, self._transport.place.name, fault)
        why = self._fails(part, order.canary)
        if why and any(map(self._letters.may_be_taken, letters or [])):
            self._read_again(part)  # they are left for whoever resumes it
            part.state, part.paused = PartState.PAUSED, why
            submit(Turn(), part)
            return
        known = letters is not None and self._transport.letters_here
        effects = await self._judge(after, order, letters or []) if known else []
        if not (known and self._transport.letters_here):
            self._letters.drop(effects)
            self._read_again(part)
            self._rest_ms = self._now_ms() + FAULT_MS
            return
        if part.job in self._turns:
            self._turns[part.job].take(len(effects))
        part.at, part.looked, part.refused = after.at, after.looked, after.refused
        part.done += len(effects)
        replays = [row.identity for effect in effects for row in effect.rows if row.value is not None]
        self._waiting.setdefault(part.job, set()).update(replays)
        rows: tuple[Row, ...] = tuple(row for effect in effects for row in effect.rows)
        sent = (*(out for effect in effects for out in effect.publishes), *self._named)
        seen = tuple(told for effect in effects for told in effect.observations)
        over = all(part.at.get(topic, 0) >= end for topic, end in order.upto.items())
        if over:
            part.paused = self._fails(part, order.canary)
            self._over(part, PartState.ENDED)
        size = sum(effect.size for effect in effects)
        submit(Turn(rows=rows, publishes=sent, observations=seen, known_size=size), part if over else None)

    async def _look(self, part: Part, room: int) -> list[Letter]:
        """Look at letters until so many fit, or many do not; move the part on."""
        found: list[Letter] = []
        looked = size = 0
        if not isinstance(order := part.order, JobPart):
            return found
        for topic, end in order.upto.items():
            tp = TopicPartition(topic, self._transport.place.partition)
            if tp not in self._transport.place.dlqs:
                part.at[topic] = end  # it is none of this handler, or not any more
            while (
                len(found) < room and looked < MOST_LOOKED and size < MOST_AHEAD_BYTES and part.at.get(topic, 0) < end
            ):
                if (letter := await self._next(part, tp, end)) is None:
                    part.at[topic] = end
                    break
                record, ours, held = letter
                part.at[topic] = record.offset + 1
                if looked % LOOKED_TOGETHER == 0:
                    await self._context.rounds.turn(self)
                looked += 1
                metadata = None
                try:
                    metadata = HeaderReader(ours).metadata() if ours and isinstance(ours, dict) else None
                except DamagedMetadataError as error:
                    ours = error
                if metadata is None:
                    self._refuse(part, Refusal.DAMAGED, f"{record.coordinates}: {ours or 'it is no dead letter'}")
                elif order.filter.fits(metadata, record, record.timestamp_ms):
                    size += held
                    found.append(Letter(tp, record, metadata, metadata.failure_id))
        part.looked += looked
        return found

    async def _next(self, part: Part, tp: TopicPartition, end: int) -> _Ahead | None:
        """Return the next letter before `end`; None: there is none."""
        place = part.job, tp.topic
        position, ahead = self._ahead.get(place, (part.at.get(tp.topic, 0), deque()))
        if not ahead and position < end:
            reached, held = position, 0

            def take(records: list[Any], to: int) -> bool:
                nonlocal reached, held
                reached = to
                for record in records:
                    if (letter := _ahead(tp, record)) is not None:
                        held += letter.size
                        ahead.append(letter)
                return to >= end or len(ahead) >= MOST_LOOKED or held >= MOST_AHEAD_BYTES

            stop = await self._transport.reader.read(tp, position, take)
            position = stop if reached == position else reached
        self._ahead[place] = position, ahead
        if not ahead or ahead[0].record.offset >= end:
            return None
        return ahead.popleft()

    async def _judge(self, part: Part, order: JobPart, letters: list[Letter]) -> list[Effect]:
        """Return what becomes of letters; count those that are refused.

        In an ordered handler nothing comes between that and their turn: a sequence has them already.
        """
        effects, taken = list[Effect](), set[str]()
        await self._context.rounds.turn(self)
        command = Command(id=part.job, verb=order.verb, failure_id="?", by=part.by, why=part.why, force=order.force)
        ordered = self._context.handler.order is not Order.NONE
        if ordered:
            self._letters.look(letters)
        for letter in letters:
            if not ordered:
                await self._context.rounds.turn(self)
            if not self._transport.letters_here:
                break  # a sequence would have a record that does not come back: the step is not taken
            name = letter.failure_id
            if name in taken:  # its tables do not have what this turn does
                self._refuse(part, Refusal.NOT_NEWEST, "the job has taken another letter of it", name)
                continue
            try:
                effects.append(self._letters.of_job(command, letter))
            except RefusedError as error:
                self._refuse(part, error.refusal, str(error), name)  # it may have a newer one among these
            else:
                taken.add(name)
        return effects

    def _refuse(self, part: Part, refusal: Refusal, text: str, name: str = "") -> None:
        part.refused[refusal] += 1
        if part.refused.total() <= MOST_NAMED:
            facts = {"job": part.job, "verb": part.verb, "failure_id": name, "by": part.by, "why": part.why}
            self._named.append(self._event(Effect(text), refusal, command="", **facts))
