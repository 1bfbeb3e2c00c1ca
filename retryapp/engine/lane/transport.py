"""The steps of a lane with Kafka and its local stores, over the primitives of a client.

A lane calls `prove`, `fence`, `prove`, `committed`, `recover`, `release` to open, then `commit` and `apply`, one batch
at a time; after any error `hold` and `close`, and it opens again. The order of the steps keeps records
(docs/protocol.md, rules 12, 26, 28 and 29):

* the producer is new at every opening: its start fences the former owner and ends its transaction, and offsets read
  after it are stable; a producer that saw an error is never used again: after a refusal, whose transaction is known
  not to be committed, the session goes on with a new one (`renew`);
* the changelog is read to its end by *position*: its last record is usually a transaction marker; what was read before
  a deadline or a fault stays in the local store, and the next opening continues from there;
* every transaction ends with a progress record on the changelog (rule 30), the offsets of all sources: the broker
  forgets those of a group that was away for a week. The group's offsets, which an operator can set, take precedence;
* the local store is written after the commit only, and one that failed during a write is dropped;
* the dead-letter table only answers questions, so it is opened and filled after the lane has opened, and no fault of
  it reaches the lane.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from retryapp.core import marks
from retryapp.core.errors import RetryAppError
from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import (
    CommitLostError,
    CommitUndecidedError,
    HandOffRefusedError,
    MainReplacedError,
)
from retryapp.core.marks import Suspected, Tally
from retryapp.core.row_keys import HELD_ROWS
from retryapp.engine.lane import recovery
from retryapp.engine.lane.dead_keeper import DeadLetterKeeper, dead_rows
from retryapp.engine.lane.notes import Notes
from retryapp.engine.lane.recovery import (
    apply_seen,
    catch_up,
    check_changelog,
    end_undecided,
    position_in,
    recover_seen,
    written_down,
)
from retryapp.engine.lane.rounds import Rounds
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.engine.lane.site import LaneSite
from retryapp.ports import (
    Acks,
    Clock,
    Committed,
    DeadLetterTable,
    LaneBatch,
    LaneReceipt,
    PendingTable,
    SeenTable,
    Standing,
    TopicPartition,
    TopicReader,
)

logger = logging.getLogger(__name__)

CLOSE_S = 3.0
"""Longest wait of a closing lane; a client ends within two seconds or is left alone."""
SMALL = 20
"""Records of a transaction that take less than a millisecond to send or to write."""


class NotMemberError(RetryAppError):
    """This process is no longer a member of the assignment's generation: another worker may own the lane."""


class RebalancingError(RetryAppError):
    """This process is still a member, but the assignment that the lane belongs to is ending."""


@dataclass(slots=True, kw_only=True)
class LaneProtocol(ABC):
    """Kafka and the local tables of one lane."""

    place: LaneSite
    reader: TopicReader
    clock: Clock
    generation: int
    member_id: str
    life: str = "?"
    suspected: Suspected | None = None
    """Records of the main topic that may have killed a worker, as found by the last opening."""
    suspected_rows: Suspected | None = None
    main_end: int = 0
    """End offset of the main topic, as the last opening found it."""
    control_next: int = 0
    """Where the commands begin that nobody has obeyed or refused, as the last opening found it."""
    control_end: int = 0
    steering: str = ""
    """What is remembered of those before (`core.jobs.Steering`)."""
    fence_at: int | None = None
    """Offset of what the last opening has written to the changelog last; None: nothing."""
    pending: PendingTable | None = None
    seen: SeenTable | None = None
    shared: Mapping[str, SharedLetters] = field(default_factory=dict)
    """By dead-letter topic, of those whose letters have a handler."""
    letters: SharedLetters | None = None
    """Of the main topic, if that is one of dead letters."""
    rounds: Rounds = field(default_factory=Rounds)
    """What can wait takes turns in these."""
    _who: object = field(default_factory=object)
    """Itself, among those."""
    _progress: dict[str, int] = field(default_factory=dict)
    """Next offset of each source topic, as last written to the changelog."""
    _notes: Notes | None = None
    _before: tuple[dict[str, int], Notes | None] = field(default=({}, None))
    """Both as they were before the last commit."""
    _undecided: bool = False
    """The changelog has rows behind its stable end, which the last opening cannot read yet."""
    _is_long: bool = False
    """The changelog had more offsets, when the last opening began, than those where a floor is looked for."""
    _doubted: bool = False
    main_lost: bool = False
    """The main topic had no offset any more at which it was read: the next opening asks whether it was made again."""
    dead_keepers: dict[str, DeadLetterKeeper] = field(default_factory=dict)
    """By dead-letter topic."""
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it has all of them."""

    # -- primitives ---------------------------------------------------------------------------------------------

    @abstractmethod
    async def standing(self) -> Standing:
        """Send a heartbeat with the generation and member id *of the assignment*.

        The client's own heartbeat would send those of the moment, and a zombie may have rejoined.
        """

    @abstractmethod
    async def start_producer(self) -> None:
        """Start a new producer under the lane's transactional id."""

    @abstractmethod
    def end_producer(self) -> asyncio.Task[None] | None:
        """End the producer without flushing; return the task of its end, if any."""

    @abstractmethod
    async def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    async def send(self, records: Sequence[Outgoing]) -> Acks:
        """Send records; those of one partition keep their order."""

    @abstractmethod
    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Add offsets to the transaction."""

    @abstractmethod
    async def end_transaction(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    async def fetch_committed(self) -> Mapping[TopicPartition, Committed]:
        """Return the committed offsets of the sources that have one."""

    @abstractmethod
    async def main_id(self) -> str:
        """Ask for the present id of the main topic; empty if this login may not describe it, or the topic is away."""

    @abstractmethod
    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """Set positions and let records flow; the partitions must be held."""

    @abstractmethod
    async def hold(self) -> None:
        """Stop the flow of this lane's partitions, and drop what was fetched before."""

    @abstractmethod
    def open_pending(self) -> PendingTable:
        """Open the pending table, or a new one if it cannot be trusted."""

    @abstractmethod
    def open_dead(self, dlq: TopicPartition) -> DeadLetterTable:
        """Open the table of a dead-letter topic, the same."""

    def open_seen(self) -> SeenTable:
        """Open the table of seen events, the same; called only if `LaneSite.seen` names its changelog."""
        raise NotImplementedError(f"lane {self.place.name} has no table of seen events")

    # -- opening ------------------------------------------------------------------------------------------------

    async def prove(self) -> None:
        """Prove membership of the assignment's generation, or raise `NotMemberError` or `RebalancingError`."""
        if await self._prove_member() is Standing.REBALANCING:
            raise RebalancingError(f"lane {self.place.name}: the group is rebalancing")

    async def _prove_member(self) -> Standing:
        """Prove membership; while the group rebalances, a lane that drains still has its partition."""
        standing = await self.standing()
        if standing is Standing.GONE:
            raise NotMemberError(f"lane {self.place.name}: not a member of generation {self.generation} any more")
        return standing

    async def fence(self) -> None:
        """Start a new producer, which fences the former owner."""
        await self.start_producer()

    async def committed(self) -> Mapping[TopicPartition, int]:
        """Return the next offset of every source partition, stable after `fence`."""
        sources, self.fence_at = self.place.sources, None
        offsets = await self.fetch_committed()
        found = {tp: each.offset for tp, each in offsets.items()}
        control, note = self.place.control, marks.Note("", "")
        if self.place.main in offsets:
            note = marks.split_note(offsets[self.place.main].note)
            check_changelog(self.place, note.changelog)
            if note.main not in ("", self.place.topic_id):
                text = "Lane %s: %s was made again, and is read from its first record on"
                logger.warning(text, self.place.name, self.place.main.topic)
                offsets = {tp: each for tp, each in offsets.items() if tp != self.place.main}
                del found[self.place.main]
        changelog = self.place.changelog
        bounds = await self.reader.bounds([*sources, changelog, *([] if control is None else [control])])
        self._is_long = bounds[changelog][1] - bounds[changelog][0] > recovery.TAIL_OFFSETS
        self._progress = {}  # what ends a transaction says nothing of it
        self._undecided = await end_undecided(self.place, self.reader, bounds[changelog][1], self.commit)
        texts, known, main = ("", "", "", ""), False, self.place.main
        missing = [tp for tp in sources if tp not in found]
        foreign = not (note.changelog or note.control)  # an offset that somebody has set says nothing of commands
        if missing or (control is not None and (foreign or note.control.endswith(marks.STEERED))):
            written, texts, known = await written_down(self.place, self.reader, missing)
            found |= written
        if self.main_lost or (main in missing and known):  # or an old transaction has committed its offset
            if await self.main_id() not in ("", self.place.topic_id):
                raise MainReplacedError(*main)
            self.main_lost = False
        starts: dict[TopicPartition, int] = {}
        for tp in sources:
            first, end = bounds[tp]
            committed = found.get(tp)
            if committed is None:
                starts[tp] = end if tp == main and self.place.start_at_end and not known else first
            else:
                starts[tp] = await position_in(self.place, self.reader, tp, committed, bounds[tp])
        self._progress = {tp.topic: offset for tp, offset in starts.items()}
        self.main_end = bounds[main][1]
        self.suspected, told = self._beside().read(offsets.get(main), starts[main], self.main_end, texts)
        if control is not None:
            first, end = bounds[control]
            self.control_next = min(max(first, marks.parse_control(self._beside().control, self.place.control_id)), end)
            self.control_end = end
            self.steering = self._beside().steering
        # a start that is not committed would be decided anew after a crash, and a mark must precede its record
        if noted := {tp: starts[tp] for tp in sources if (told is not None and tp == main) or tp in missing}:
            if not self._undecided:  # else a store may have read what cannot be read yet
                recovery.check_end(self.open_pending, bounds[changelog][1], self.place)
            await self._write(LaneBatch(offsets=noted, notes={} if told is None else {main: told}))
        return starts

    async def recover(self) -> None:
        """Open the local tables and read them up to the end of their topics."""
        changelog = self.place.changelog
        if not self.clock.trusted:  # the age of a store, expiry and marks need the broker's time
            recovery.check_end(self.open_pending, (await self.reader.bounds([changelog]))[changelog][1], self.place)
            await self._write(LaneBatch(publishes=[marks.clock_probe(*changelog)]))
        self.pending = self.open_pending()
        if not await catch_up(self.pending, self.reader, self.place, is_long=self._is_long):
            for dlq in self.place.dlqs:
                self.open_dead(dlq).drop()  # one that does not open now would open later, with what was rolled back
            if self.place.seen is not None:
                self.open_seen().drop()
            if self.letters is not None:
                await self.letters.rolled_back()
            self.pending.drop()  # last: all have records of the rolled-back transaction, only it tells the next opening
            self.pending = self.open_pending()
            await catch_up(self.pending, self.reader, self.place, is_long=self._is_long)
        if self._undecided:  # not before: a store that has read them says more
            raise CommitUndecidedError(self.place.name, *self.place.changelog)
        await self._mend_note(self.pending)
        await self._mark_rows(self.pending)
        await self._fence_off()
        if self.place.seen is not None:
            now_ms = self.clock.wall_ms()
            self.seen = await recover_seen(self.open_seen, self.reader, self.place.seen, now_ms=now_ms)

    async def _mend_note(self, table: PendingTable) -> None:
        """Take out of the note what the topic has lost, before its rows run: others are to run that are there now."""
        if lost := await recovery.noted_and_lost(self.place, self.reader, table, self.settled):
            self.take_back(lost)
            await self._write(LaneBatch(offsets={self.place.main: self._progress[self.place.main.topic]}))

    async def _mark_rows(self, table: PendingTable) -> None:
        """Note this life before it delivers a row, and find the rows that may have killed one."""
        self.suspected_rows = None
        if first := table.page(HELD_ROWS, 1) or table.page(None, 1):  # held ones have the last keys, and go first
            self.suspected_rows, told = self._beside().read_rows(first[0][0], self.clock.wall_ms())
            if told:
                main = self.place.main
                await self._write(LaneBatch(offsets={main: self._progress[main.topic]}, rows_note=told))

    async def _fence_off(self) -> None:
        """Have a number that is greater than those of all openings before: an offset that this one has written.

        Who had the partition is fenced: all that it has written comes before. The end of the topic is no such number,
        as an opening that writes nothing leaves it to the next one.
        """
        if self.place.fences and self.fence_at is None:
            await self._write(LaneBatch())

    async def _write(self, batch: LaneBatch) -> None:
        """Commit what an opening writes to the changelog, and have the local table know it."""
        receipt = await self.commit(batch)
        self.fence_at = receipt.changelog_offset
        if self.pending is not None and receipt.changelog_offset is not None:
            self.pending.write((), receipt.changelog_offset)

    @property
    def dead(self) -> Mapping[str, DeadLetterTable]:
        """The dead letters by topic, of those that have a table now."""
        keepers = dict(self.dead_keepers)  # pages ask in a thread
        return {topic: table for topic, keeper in keepers.items() if (table := keeper.table) is not None}

    @property
    def letters_counted(self) -> bool:
        """Whether the tables of dead letters have been filled since they opened; what came since may lack."""
        return self._released.is_set() and all(keeper.filled for keeper in [*self.dead_keepers.values()])

    @property
    def letters_here(self) -> bool:
        """Whether the tables of dead letters have all that their topics have."""
        return self._released.is_set() and all(keeper.known.is_set() for keeper in self.dead_keepers.values())

    async def letters_known(self) -> None:
        """Wait until the tables of dead letters have all that their topics have."""
        await self._released.wait()
        for keeper in self.dead_keepers.values():
            await keeper.known.wait()

    async def release(self, starts: Mapping[TopicPartition, int]) -> None:
        """Set the consumer to `starts` and let records of these partitions flow."""
        await self.reposition(starts)
        for dlq in self.place.dlqs:
            self.dead_keepers[dlq.topic] = DeadLetterKeeper(
                self.place.name, partial(self.open_dead, dlq), dlq=dlq, reader=self.reader, clock=self.clock,
                shared=self.shared.get(dlq.topic),
            )  # fmt: skip
        self._released.set()

    # -- serving ------------------------------------------------------------------------------------------------

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """Commit a batch in one transaction.

        Begin, publish hand-offs and changelog, add offsets, await every answer, commit.

        Raises:
            HandOffRefusedError: nothing is committed; the lane goes on after `renew`.
            Exception: the outcome is unknown, and the lane must reopen.
        """
        self._before = dict(self._progress), replace(self._beside())
        await self.begin()
        await self.turn(batch)
        sent_ms = self.clock.counted_ms()
        sent, logged = await self.send(batch.publishes), await self._log(batch)
        self._anchor(sent_ms, sent, logged)
        if batch.offsets:
            await self.send_offsets(self._beside().beside(batch))
        published, written = await sent.offsets(), await logged.offsets()
        await self.end_transaction()
        return LaneReceipt(published, max(written, default=None))

    async def turn(self, batch: LaneBatch) -> None:
        """Wait until a batch may be sent, or applied: large ones of several lanes would make one round long."""
        if batch.changes > SMALL:
            await self.rounds.turn(self._who)

    async def renew(self) -> None:
        """Take a new producer within the session, after a refusal; its start ends the refused transaction.

        aiokafka's old one is of no use: it has counted the refused batch, so the next one for that partition is out of
        sequence, also after an abort; and batches for a denied topic would be sent in the next transaction.

        A broker that took an acknowledged commit back fences its producer, and a new one would never learn of it: the
        changelog must still have what the store wrote last.

        Raises:
            NotMemberError: another worker may have the partition.
            CommitLostError: the broker took a commit back; the lane must reopen.
        """
        self._progress, self._notes = self._before
        self.end_producer()
        await self._prove_member()
        await self.fence()
        await self._prove_member()
        if self.pending is not None and not await catch_up(self.pending, self.reader, self.place):
            raise CommitLostError(self.place.name, f"{self.place.changelog.topic} has not kept what it committed last")

    async def explain(self, error: HandOffRefusedError) -> HandOffRefusedError:
        """Return a refusal with the topic's limit, if that can be read."""
        return error

    def counted_from(self, start: int, now_ms: int) -> Tally:
        """Return what was counted of the main topic before its committed offset and not published.

        Where nothing was, counting begins at `start`: also if what moves the offset first is no record.
        """
        notes = self._beside()
        notes.tally = notes.tally or Tally(from_offset=start, since_ms=now_ms)
        return notes.tally

    @property
    def settled(self) -> Mapping[int, bool]:
        """Records beyond the main topic's committed offset that are settled: offset, and whether each succeeded."""
        return self._beside().settled

    def take_back(self, offsets: Collection[int]) -> None:
        """Remove offsets from the note of what is settled: the topic has lost those records, and has other ones."""
        for notes in filter(None, (self._beside(), self._before[1])):  # a refusal brings back what was before
            notes.settled = {at: fine for at, fine in notes.settled.items() if at not in offsets}

    def _beside(self) -> Notes:
        if self._notes is None:
            self._notes = Notes(self.place, self.life)
        return self._notes

    async def rest(self) -> None:
        """Say in the marks that count against a record that this life has ended in good order.

        Others stay: the next life counts one for them, and only a second one has consequences. A transaction for each
        lane would delay every rebalance.
        """
        note, rows_note = self._beside().ended()
        if note is not None or rows_note is not None:
            main = self.place.main
            notes = {} if note is None else {main: note}
            await self.commit(LaneBatch(offsets={main: self._progress[main.topic]}, notes=notes, rows_note=rows_note))

    async def _log(self, batch: LaneBatch) -> Acks:
        topic, partition = self.place.changelog
        changes = [(row.identity, row.value) for row in batch.rows]
        if batch.offsets:
            self._progress |= {tp.topic: offset for tp, offset in batch.offsets.items()}
        if self._progress:
            place, notes = self.place, self._beside()
            texts = notes.counted(batch), place.changelog_id, notes.noted(batch), notes.commanded(batch)
            floor = 0 if self.pending is None else self.pending.floor  # without this batch, which may not happen
            progress = marks.progress_value(self._progress, place.topic_id, *texts, notes.steering, floor)
            changes.append((marks.PROGRESS, progress))
        return await self.send([Outgoing(topic, partition, key, value, ()) for key, value in changes])

    def _anchor(self, sent_ms: float, *several: Acks) -> None:
        """Learn the broker's time from the first acknowledgement."""

        def appended(appended_ms: int) -> None:
            self.clock.anchor(sent_ms=sent_ms, acked_ms=self.clock.counted_ms(), appended_ms=appended_ms)

        for acks in several:
            if acks.on_appended(appended):
                return

    def apply(self, batch: LaneBatch, receipt: LaneReceipt) -> None:
        """Write a committed batch to the local tables. After any error they cannot be trusted."""
        if self.pending is None or len(self.dead_keepers) < len(self.place.dlqs):
            raise RuntimeError(f"lane {self.place.name} has no local store")
        self._doubted = True
        self.pending.touch(self.clock.wall_ms())
        if receipt.changelog_offset is not None:
            self.pending.write(batch.rows, receipt.changelog_offset)
        for topic, dead in dead_rows(self.dead_keepers.keys(), batch, receipt).items():
            self.dead_keepers[topic].write(dead)
        if self.seen is not None and self.place.seen is not None:
            apply_seen(self.seen, self.place.seen, batch, receipt, self.clock.wall_ms())
        self._doubted = False

    async def close(self) -> None:
        """Close producer and tables; never raises. A table that failed during a write is dropped."""
        tables, self.pending, self.seen = (self.pending, *self.dead.values(), self.seen), None, None
        keepers, self.dead_keepers = self.dead_keepers, {}
        self._released.clear()
        ends: set[asyncio.Task[None]] = set()
        for topic, keeper in keepers.items():
            keeper.task.cancel()  # it does not use the table again
            if (shared := self.shared.get(topic)) is not None:
                shared.leave(keeper)
            ends.add(keeper.task)
        for table in tables:
            try:
                if table is not None:
                    (table.drop if self._doubted else table.close)()
            except Exception:  # whatever a disk may do: the rest must be closed as well
                logger.exception("A local store of lane %s did not close", self.place.name)
        self._doubted = False
        if (ending := self.end_producer()) is not None:  # the next owner ends its transaction
            ends.add(ending)
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_S)
