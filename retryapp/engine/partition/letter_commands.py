"""What commands about dead letters come to: a replay, or a mark that sets a letter aside.

A letter is read from its topic, where it is whole; its table says where the newest one of a record is, and its mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from retryapp.core.classify import DeadReason
from retryapp.core.control import (
    OF_LETTERS,
    Command,
    LetterMark,
    MarkKind,
    OutgoingMark,
    Refusal,
    Verb,
    digest_of,
    is_mark,
    is_open,
    row_state,
)
from retryapp.core.dead_index import LetterAge, newest_letter
from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.headers import HeaderReader, parted
from retryapp.core.hops import REPLAY, replayed, to_row, to_tier, waiting_size
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers, Origin, Record, held_bytes
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import ALONE, PendingRow, decode_row, encode_row, is_stopped, tier_of
from retryapp.core.text import cut_text
from retryapp.core.traces import qualified_name
from retryapp.core.values import value_type
from retryapp.engine.delivery.deliver import HandlerTimeoutError
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.shared_letters import LettersUnknownError, SharedLetters
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.partition.sequences import Sequences
from retryapp.engine.partition.stops import BESIDE_ROW_BYTES
from retryapp.ports import Observation, Row, TopicPartition

LETTERS_S: Final = 30.0
"""How long a command about a dead letter waits until all letters of its partition are known."""
_SEVERAL: Final = 4
"""Commands whose letters are worth a reading of their own."""
_AHEAD_BYTES: Final = 1 << 20
"""Of letters that are read together: those beyond are read alone."""
_MAX_ID_CHARS: Final = 64
MARK_BYTES: Final = 500
"""Approximate bytes of a mark."""
_NOT_READY: Final = (
    "the worker still reads the dead letters of the partition, or their handler is not open in it: send it again in a "
    "minute; where topics have different numbers of partitions, 'retryapp topics grow -A MODULE' first"
)
_MARKS_UNKNOWN: Final = (
    "what became of this dead letter is not known yet, as the partition of its records is not open in the worker: send "
    "it again in a minute; where topics have different numbers of partitions, 'retryapp topics grow -A MODULE' first"
)
_ALL_THE_SAME: Final = "with --force, or 'replay all the same' on its page, it is replayed"
_ALONE: Final = f"alone, {_ALL_THE_SAME}"
_TIMED_OUT: Final = qualified_name(HandlerTimeoutError)


class RefusedError(Exception):
    """A command is refused; its text is for people."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        self.refusal = refusal
        super().__init__(text)


@dataclass(slots=True)
class Effect:
    """What a command comes to."""

    text: str
    before: str | None = None
    after: str | None = None
    rows: tuple[Row, ...] = ()
    publishes: tuple[Any, ...] = ()
    observations: tuple[Observation, ...] = ()
    claim: bytes | None = None
    steered: bool = False
    """It changes what is remembered (`core.jobs.Steering`)."""
    edited: str = ""
    original: str = ""
    """What was edited, and of which letter: for the event and the mark."""
    size: int = MARK_BYTES
    """Approximate bytes that it adds to a transaction."""


@value_type
class Letter:
    """A dead letter as its topic has it."""

    topic: TopicPartition
    record: Record
    """With the headers that are not ours."""
    metadata: RetryMetadata
    failure_id: str


def check_place(context: DeliveryContext, transport: LaneProtocol, group: str, origin: Origin) -> None:
    """Raise `RefusedError` for a record of another group, main topic or partition."""
    main = transport.place.main
    if (group, origin.topic, origin.partition) != (context.handler.group, *main):
        text = f"it belongs on the control topic and partition of {group}/{origin.topic}[{origin.partition}]"
        raise RefusedError(Refusal.MISPLACED, text)


def appended_ms(record: Any) -> int:
    """Return the broker's time of a record, of the client's or of ours."""
    return int(record.timestamp_ms if isinstance(record, Record) else record.timestamp)


def _age(letter: Letter) -> LetterAge:
    return LetterAge(letter.record.timestamp_ms, letter.metadata.reason, letter.metadata.replays)


class LetterCommands:
    """The commands about dead letters of one session of a partition."""

    def __init__(
        self,
        context: DeliveryContext,
        transport: LaneProtocol,
        sequences: Sequences | None,
        *,
        claimed: Collection[bytes],
        runs_again: Callable[[int], bool],
        remember: Callable[[bytes, bytes, PendingRow, RetryMetadata, Headers], None],
        forget: Callable[[bytes], None],
    ) -> None:
        """Begin.

        Args:
            context: of the handler.
            transport: of the lane.
            sequences: of an ordered handler.
            claimed: keys of the rows that are being delivered.
            runs_again: whether a record may come as a first delivery, or what that came to is not in the tables.
            remember: takes a row that is written, as its bytes and decoded, and those of its headers that are not ours.
            forget: has that row forgotten, by its identity: it is not written.
        """
        self._context = context
        self._base = context.handler.topology.dlq
        self._transport = transport
        self._sequences = sequences
        self._claimed = claimed
        self._runs_again = runs_again
        self._remember = remember
        self._forget = forget
        self._ahead: dict[TopicPartition, dict[int, Record]] = {}
        """Letters that were read for several commands."""
        self._until_s: float | None = None
        """Monotonic time until which commands wait until all letters are known; None: none has waited."""

    def may_obey(self) -> bool:
        """Tell whether commands about letters need not wait: all letters are known, or that takes too long."""
        if self._transport.letters_here:
            self._until_s = None
            return True
        return self._left_s() <= 0

    async def known(self, then: Callable[[], None]) -> None:
        """Wait until `may_obey` says so, and call `then`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._left_s()):
                await self._transport.letters_known()
        then()

    async def may_end(self, letters: SharedLetters, letter: int) -> None:
        """In the handler of letters, wait until one may be ended by a command.

        Raises:
            RefusedError: that takes too long.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._left_s()):
                await letters.known(letter)
        if letters.waits(letter):
            raise RefusedError(Refusal.NOT_READY, _MARKS_UNKNOWN)
        self._until_s = None

    def _left_s(self) -> float:
        """Return how much longer commands wait: those that come later do not wait as long again."""
        now_s = self._context.clock.monotonic_s()
        if self._until_s is None:
            self._until_s = now_s + LETTERS_S
        return max(0.0, self._until_s - now_s)

    async def read_ahead(self, commands: Sequence[object]) -> None:
        """Read the letters of several commands together: alone, each takes a request and a whole batch of its topic."""
        self._ahead.clear()
        names = [each.failure_id for each in commands if isinstance(each, Command) and each.verb in OF_LETTERS]
        if len(names) < _SEVERAL or not self._transport.letters_here:
            return
        left = _AHEAD_BYTES
        for topic, keeper in self._transport.dead_keepers.items():
            tp = TopicPartition(topic, self._transport.place.partition)
            with suppress(Exception):  # then each is read alone, and its command told what is wrong
                offsets = {newest[0] for newest in map(keeper.newest, names) if newest is not None}
                letters = await self._transport.reader.records(tp, sorted(offsets), most_bytes=left)
                self._ahead[tp] = dict(letters)
                left -= sum(held_bytes(each.key, each.value, each.headers) for each in letters.values())

    async def obey(self, command: Command, origin: Origin, settled: Callable[[bytes], Awaitable[bool]]) -> Effect:
        """Return what a command comes to; `settled` waits for turns about a record, and tells whether there were any.

        Raises:
            RefusedError: it is refused.
        """
        if not self._transport.letters_here:
            raise RefusedError(Refusal.NOT_READY, _NOT_READY)
        try:
            letter, mark = await self._newest(command, origin)
            identity = identity_of(origin)
            if await settled(identity):
                letter, mark = await self._newest(command, origin)
            return self._effect(command, letter, mark, identity)
        except LettersUnknownError as error:
            raise RefusedError(Refusal.NOT_READY, _NOT_READY) from error

    def look(self, letters: Iterable[Letter]) -> None:
        """Look letters of a job up, before anything comes of one: where their table fails, `letters_here` says so."""
        with suppress(LettersUnknownError):
            for letter in letters:
                for keeper in self._transport.dead_keepers.values():
                    keeper.find(letter.failure_id)

    def may_be_taken(self, letter: Letter) -> bool:
        """Tell whether a job may still replay a letter that it has read: it is the newest of its record, and open."""
        keeper = self._transport.dead_keepers.get(letter.topic.topic)
        try:
            newest = None if keeper is None else keeper.newest(letter.failure_id)
        except LettersUnknownError:
            return True
        return newest is not None and newest[0] == letter.record.offset and is_open(newest[1])

    def of_job(self, command: Command, letter: Letter) -> Effect:
        """Return what becomes of a letter that a job has read; all letters are known, and `command` is about each.

        Raises:
            RefusedError: it is refused.
        """
        try:
            return self._of_job(command, letter)
        except LettersUnknownError as error:
            raise RefusedError(Refusal.NOT_READY, _NOT_READY) from error

    def _of_job(self, command: Command, letter: Letter) -> Effect:
        metadata = letter.metadata
        check_place(self._context, self._transport, metadata.group, metadata.origin)
        tables = self._transport.dead_keepers
        found = {topic: each for topic in tables if (each := tables[topic].newest(letter.failure_id)) is not None}
        topic = letter.topic.topic
        if topic not in found:
            raise RefusedError(Refusal.NO_LETTER, "its table does not have it")
        if len(found) > 1:
            ages = {name: row.age for name in found if (row := tables[name].find(letter.failure_id)) is not None}
            topic = newest_letter([*ages], lambda name: ages[name])
        offset, mark = found[topic]
        if (topic, offset) != (letter.topic.topic, letter.record.offset):
            raise RefusedError(Refusal.NOT_NEWEST, f"its newest dead letter has the offset {offset}")
        if command.verb is Verb.REPLAY and metadata.reason == DeadReason.CRASHED and is_open(mark):
            raise RefusedError(Refusal.CRASHED, f"it has ended its workers, so no job replays it: {_ALONE}")
        if command.verb is Verb.REPLAY and mark == MarkKind.HANDLED:
            text = f"its handler of dead letters is done with it, so no job replays it: {_ALONE}"
            raise RefusedError(Refusal.HANDLED, text)
        return self._effect(command, letter, mark, identity_of(metadata.origin))

    def _effect(self, command: Command, letter: Letter, mark: str | None, identity: bytes) -> Effect:
        replays, offset = letter.metadata.replays, letter.record.offset
        if (shared := self._transport.shared.get(letter.topic.topic)) is not None:
            if not self._transport.letters_here:
                raise RefusedError(Refusal.NOT_READY, _NOT_READY)
            if shared.runs(offset):
                raise RefusedError(Refusal.RUNNING, "its handler of dead letters has it now: send it again after that")
            mark = shared.mark_of(offset)  # the handler may have come to an end while it was read
        if command.verb is Verb.REPLAY:
            effect, kind = self._replay(command, letter, mark, identity), MarkKind.REPLAYED
            replays += 1
        else:
            effect = self._set_aside(command, mark, identity)
            kind = MarkKind.DISCARDED if command.verb is Verb.DISCARD else MarkKind.RESTORED
        told = LetterMark(
            mark=kind,
            failure_id=letter.failure_id,
            letter=offset,
            delivery=letter.metadata.delivery,
            replays=replays,
            command=command.id,
            by=command.by,
            why=command.why,
            edited=effect.edited,
            original=effect.original,
        )
        effect.before = str(offset)
        effect.publishes = (*effect.publishes, told.to_record(*letter.topic))
        if shared is not None:
            shared.change(offset)
        return effect

    def waits(self, identity: bytes) -> bool | None:
        """Tell whether a replayed record waits for somebody, or for others of its key; None: it has run, or ended."""
        table = self._transport.pending
        value = None if table is None or (key := table.find(identity)) is None else table.get(key)
        if value is None or tier_of(value) != REPLAY:
            return None
        with suppress(DamagedRowError):
            row = decode_row(value)
            return row.hold > 0 or (self._sequences is not None and self._sequences.waits_behind(identity, row.key))
        return None

    def drop(self, effects: Sequence[Effect]) -> None:
        """Let the letters and rows go of a step that is not taken."""
        for row in (row for effect in effects for row in effect.rows):
            self._forget(row.identity)
        for out in (out for effect in effects for out in effect.publishes if isinstance(out, OutgoingMark)):
            if (shared := self._transport.shared.get(out.topic)) is not None:
                shared.let_go((out.told.letter,))

    async def _newest(self, command: Command, origin: Origin) -> tuple[Letter, str | None]:
        """Return the newest dead letter of a record, and its mark."""
        if self._context.handler.topology.drop:
            raise RefusedError(Refusal.NO_LETTER, "this handler has no dead-letter topic")
        found: list[tuple[Letter, str | None]] = []
        for topic, keeper in self._transport.dead_keepers.items():
            if (newest := keeper.newest(command.failure_id)) is not None:
                tp, (offset, mark) = TopicPartition(topic, self._transport.place.partition), newest
                if (letter := await self._read(tp, offset)) is not None:
                    found.append((letter, mark))
        if not found:
            raise RefusedError(Refusal.NO_LETTER, "no dead letter of it is left: it is done, waits, or was deleted")
        letter, mark = newest_letter(found, lambda each: _age(each[0]))
        if letter.metadata.origin != origin:
            raise RefusedError(Refusal.OTHER_TOPIC, f"the letter is of {letter.metadata.origin.text}")
        if command.state is not None and command.state != str(letter.record.offset):
            raise RefusedError(Refusal.NOT_NEWEST, f"its newest dead letter has the offset {letter.record.offset}")
        return letter, mark

    async def _read(self, tp: TopicPartition, offset: int) -> Letter | None:
        ahead = self._ahead.get(tp, {}).pop(offset, None)
        found: list[Any] = [] if ahead is None else [ahead]

        def take(records: list[Any], _position: int) -> bool:
            found.extend(record for record in records if record.offset == offset)
            return True

        early = False
        try:
            if not found:
                end = await self._transport.reader.read(tp, offset, take)
                # a topic that was cut or made again ends there, too, and its letter never comes
                early = not found and end <= offset < await self._transport.reader.written_end(tp)
        except Exception as fault:  # a fault of that topic is none of the lane's
            text = f"{tp.topic}[{tp.partition}] could not be read: send it again in a minute"
            raise RefusedError(Refusal.NOT_READY, text) from fault
        if early:
            text = f"{tp.topic}[{tp.partition}] cannot be read up to its letter yet: send it again in a minute"
            raise RefusedError(Refusal.NOT_READY, text)
        if not found or is_mark(tuple(found[0].headers)):
            return None
        raw = found[0]
        try:
            ours, others = parted(raw.headers)
            metadata = HeaderReader(ours).metadata() if ours else None
        except DamagedMetadataError as error:
            raise RefusedError(Refusal.DAMAGED, str(error)) from error
        record = Record(*tp, raw.offset, appended_ms(raw), raw.key, raw.value, others)
        return None if metadata is None else Letter(tp, record, metadata, metadata.failure_id)

    def _replay(self, command: Command, letter: Letter, mark: str | None, identity: bytes) -> Effect:
        metadata, context, table = letter.metadata, self._context, self._transport.pending
        reason, now_ms = metadata.reason, context.clock.wall_ms()
        if metadata.origin.topic_id != context.topic_id:
            text = f"{context.handler.main} was deleted and created again since it died"
            raise RefusedError(Refusal.OTHER_TOPIC, text)
        stops = context.handler.holding.stops and self._stopping(identity) is not None  # then it is passed
        if self._runs_again(metadata.origin.offset) and not stops:  # beside its row
            raise RefusedError(Refusal.RUNNING, "the main topic was set back, and it runs again")
        if table is not None and (key := table.find(identity)) is not None and self._stopping(identity) is None:
            runs = key in self._claimed
            raise RefusedError(Refusal.RUNNING if runs else Refusal.WAITING, "it waits for its next attempt already")
        self._check_replay(command, letter, mark)
        if self._sequences is not None and not self._sequences.may_come_back(identity, letter.record.key):
            raise RefusedError(Refusal.SUPERSEDED, "a newer record of its key waits or runs")
        name = f"{letter.topic.topic.removeprefix(self._base).removeprefix('.')}:{letter.record.offset}"
        anew = replayed(metadata, letter=name, replay_id=cut_text(command.id, _MAX_ID_CHARS), now_ms=now_ms)
        record, before, parts = letter.record, "", ""
        if (edit := command.edit) is not None:
            if edit.key is not None and context.handler.order is not Order.NONE:
                raise RefusedError(Refusal.ORDERED, f"with order={context.handler.order} its key cannot be edited")
            original = None if metadata.null_value and not record.value else record.value
            record, edited = edit.applied_to(record), (metadata.edited or 0) + (edit.idempotency == "new")
            before = f"{letter.record.coordinates} {digest_of(original)}"
            parts = edit.parts(letter.record, original, record)
            anew = replace(anew, edited=edited, null_value=original is None and edit.value is None)
        copy = to_tier(record, topology=context.handler.topology, metadata=anew)
        timed_out = context.handler.batch is not None and metadata.error_type == _TIMED_OUT
        row = to_row(copy, anew, ALONE if timed_out else 0)
        raw = encode_row(row)
        # what waits is at most so much larger than its row: few are to be measured
        if len(raw) + BESIDE_ROW_BYTES + 2 * len(copy.headers) > context.max_bytes < waiting_size(copy):
            raise RefusedError(Refusal.TOO_LARGE, "with its headers it does not fit on the retry topic any more")
        if copy.value and not anew.null_value:  # else only the copy's headers say whether it is a null
            self._remember(identity, raw, row, anew, record.headers)
        if self._sequences is not None:
            self._sequences.came_back(identity, raw, row.key)
        return Effect(
            f"due at once, with new attempts; it was dead as {reason}{f'; edited: {parts}' if parts else ''}",
            after=row_state(anew.replays, 0, row.due_at_ms),
            rows=(Row(identity, raw, anew.tier or "?"),),
            publishes=(copy,),
            edited=parts,
            original=before,
            size=MARK_BYTES + 2 * len(raw),
        )

    def _check_replay(self, command: Command, letter: Letter, mark: str | None) -> None:
        metadata = letter.metadata
        if mark == MarkKind.DISCARDED:
            raise RefusedError(Refusal.DISCARDED, "it was discarded: restore it first")
        if metadata.reason == DeadReason.DAMAGED:
            raise RefusedError(Refusal.DAMAGED, "it is dead because it could not be read")
        if metadata.reason == DeadReason.GONE:
            raise RefusedError(Refusal.DAMAGED, "its letter does not have its value: the main topic had lost it")
        if metadata.reason == DeadReason.TOO_LARGE:
            raise RefusedError(Refusal.TOO_LARGE, "its letter does not have its value: it was too large")
        if mark in (MarkKind.REPLAYED, MarkKind.RECOVERED):  # once more would give its deliveries numbers that are used
            raise RefusedError(Refusal.REPLAYED, f"this letter is {mark} already")
        if command.force:
            return
        if mark == MarkKind.HANDLED:
            raise RefusedError(Refusal.HANDLED, f"its handler of dead letters is done with it: {_ALONE}")
        if metadata.reason == DeadReason.CRASHED:
            raise RefusedError(Refusal.CRASHED, f"it has ended its workers: {_ALONE}")
        if self._context.handler.order is Order.LATEST and letter.record.key is not None:
            text = f"a newer record of its key may have replaced it: {_ALL_THE_SAME}"
            raise RefusedError(Refusal.SUPERSEDED, text)

    def _stopping(self, identity: bytes) -> bytes | None:
        """Return the row by which the sequence of a dead record has stopped; None: it has not."""
        table = self._transport.pending
        key = None if table is None else table.find(identity)
        value = None if table is None or key is None or key in self._claimed else table.get(key)
        return value if value is not None and is_stopped(value) else None

    def _set_aside(self, command: Command, mark: str | None, identity: bytes) -> Effect:
        if command.verb is Verb.RESTORE:
            if mark != MarkKind.DISCARDED:
                raise RefusedError(Refusal.NOT_DISCARDED, f"it is {mark or 'a dead letter'}: nothing to restore")
            return Effect("it is a dead letter again", after=str(MarkKind.RESTORED))
        if mark in (MarkKind.REPLAYED, MarkKind.RECOVERED):
            raise RefusedError(Refusal.REPLAYED, f"it is {mark} already")
        if mark == MarkKind.DISCARDED:
            raise RefusedError(Refusal.DISCARDED, "it is discarded already")
        if mark == MarkKind.HANDLED:
            stops = "; release it, and its sequence goes on" if self._stopping(identity) is not None else ""
            raise RefusedError(Refusal.HANDLED, f"its handler of dead letters is done with it already{stops}")
        effect = Effect("it is discarded; restore takes that back until retention deletes it", after="discarded")
        if (value := self._stopping(identity)) is not None:
            effect.rows = (Row(identity, None, "?"),)
            effect.text = f"{effect.text}; its sequence goes on"
            if self._sequences is not None:
                key = None
                with suppress(DamagedRowError):  # no key has such a row, and a partition does not ask for one
                    key = decode_row(value).key
                self._sequences.removed(identity, key)
        return effect
