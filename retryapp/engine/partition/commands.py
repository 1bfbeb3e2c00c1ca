"""Obey the commands of one partition: each in a turn of its own, in the order of the control topic, or refuse it.

The turn of a command has its effect, the event that tells it, and the next offset of the control topic. So after a
crash no command is obeyed twice, and none is forgotten. What is in the lane is in the tables first: a command sees the
state that the turns before it have left. It claims the row that it changes, so that nobody runs it meanwhile.

A record that runs is never taken from its handler. A cancelled one has a flag in its row, which the outcome of the run
obeys, or after a crash the next claim; if the handler is done with it, that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

from retryapp.core.control import (
    COMMAND_AGE_MS,
    OF_LETTERS,
    Command,
    Refusal,
    Verb,
    row_state,
)
from retryapp.core.errors import DamagedMetadataError, DamagedRowError, NewerRowError, RecordError
from retryapp.core.headers import decode_metadata
from retryapp.core.hops import Outgoing
from retryapp.core.jobs import (
    AnyCommand,
    HandlerCommand,
    HandlerVerb,
    JobCommand,
    JobVerb,
    Part,
    PartState,
)
from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.lifecycle import Commanded
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin, parse_failure_id
from retryapp.core.row_keys import IDENTITY_AT, identity_of
from retryapp.core.rows import CANCELLED, OPERATOR, TOKEN, PendingRow, decode_row
from retryapp.core.text import cut_text
from retryapp.engine.delivery.run import DeliveryContext, Outcome, Run
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn, to_event
from retryapp.engine.partition.circuits import KeptCircuits
from retryapp.engine.partition.command_lines import MAX_TEXT_BYTES, log_command, log_unread
from retryapp.engine.partition.control_queue import ControlQueue
from retryapp.engine.partition.jobs import Jobs
from retryapp.engine.partition.letter_commands import Effect, LetterCommands, RefusedError, appended_ms
from retryapp.engine.partition.levels import Levels
from retryapp.engine.partition.recall import Recall
from retryapp.engine.partition.releases import Releases
from retryapp.engine.partition.row_commands import RowCommands
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.sequences import Sequences
from retryapp.engine.partition.stops import lost_stops, stopped_rows
from retryapp.ports import PendingTable

MOST_AT_ONCE: Final = 100
"""Commands that are obeyed before others in the event loop come between."""
LETTERS_AHEAD: Final = 50
"""Commands whose letters are read together; each may be as large as a record."""
MOST_UNSETTLED: Final = 5_000
"""Commands whose turns the lane may have; the others wait."""
NOT_DURABLE: Final = "what came of its last attempt, its copy or another command is not durable: a topic may refuse it"
"""Why a command is refused that would change a record."""


class Commands:
    """The commands of one session of a partition."""

    def __init__(
        self,
        context: DeliveryContext,
        transport: LaneProtocol,
        scheduler: Scheduler,
        sequences: Sequences | None,
        *,
        submit: Callable[[Turn], None],
        busy: Callable[[], bool],
        runs_again: Callable[[int], bool],
        recall: Recall,
        applied_to: Callable[[], int],
        read_to: Callable[[], int],
    ) -> None:
        """Begin where the lane has obeyed all before.

        Args:
            context: of the handler.
            transport: of the lane, which has just opened.
            scheduler: whose claims keep others from a row.
            sequences: of an ordered handler.
            submit: takes a turn of this session.
            busy: whether the lane has turns that are not in the tables.
            runs_again: whether a record may come as a first delivery, or what that came to is not in the tables.
            recall: returns rows that wait by reference as copies.
            applied_to: the offset of the main topic before which what became of all records is in the tables.
            read_to: that before which records may have been delivered, here or in former sessions.
        """
        self._context = context
        self._transport = transport
        self._scheduler = scheduler
        self._sequences = sequences
        self._submit = submit
        self._busy = busy
        self._recall = recall
        self._touched: set[bytes] = set()
        """Identities that turns change which are not in the tables yet."""
        self._unsettled = 0
        """Commands since the lane was waited for last."""
        self._letters = LetterCommands(
            context,
            transport,
            sequences,
            claimed=scheduler.claimed,
            runs_again=runs_again,
            remember=scheduler.remember,
            forget=scheduler.forget,
        )
        self._jobs = Jobs(context, transport, self._letters, self._event)
        self.queue = ControlQueue(context, transport, self._jobs.steering.ahead)
        self._rows = RowCommands(context, transport, sequences)
        self._releases = Releases(
            context,
            transport,
            self._jobs.steering,
            scheduler.claimed,
            applied_to=applied_to,
            read_to=read_to,
            runs_again=runs_again,
            unwritten=recall.unwritten,
        )
        self.circuits = KeptCircuits(context, transport.place.main, self._jobs.steering)
        self.levels = Levels(  # behind the circuits: they may be forced open
            context,
            transport.place.main,
            self._jobs.steering,
            self._event,
            sent_to=lambda: self.queue.end,
            lost=lambda: lost_stops(self._table, () if sequences is None else sequences.lost),
        )

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of jobs that it remembers."""
        return self._jobs.steering.parts

    async def run(self) -> None:
        """Obey commands until the session is over."""
        await self._scheduler.known.wait()
        self._release_early()
        self._end_stops()
        while True:
            if not self.queue and self.queue.more:
                await self.queue.read()
            if not (self.queue and self.queue.more):
                self.queue.caught_up.set()
                await self._awaken()
            self._close_gate()
            await self._place_pause()
            some = self.queue.take(MOST_AT_ONCE)
            if any(isinstance(each, HandlerCommand) and each.verb is HandlerVerb.PAUSE for _, each in some):
                self._context.pace.pause()  # at once: one before it may take long, and records do not wait for it
            are_bad = all(isinstance(command, RefusedError) for _, command in some)
            if self.queue.put_off or not are_bad or self._unsettled >= MOST_UNSETTLED:
                await self._settle()
            self._unsettled += len(some)
            await self._obey_put_off()
            refused: list[tuple[Any, RefusedError]] = []
            for number, (record, command) in enumerate(some):
                if number % LETTERS_AHEAD == 0:
                    await self._letters.read_ahead([each for _, each in some[number : number + LETTERS_AHEAD]])
                if isinstance(command, RefusedError):
                    refused.append((record, command))
                    continue
                self._refuse(refused)
                if self.queue.passes(record, command, waits=self._waits(command)):
                    await self._obey(record, command)
            await self._letters.read_ahead(())  # those of commands that were refused without a look
            self._refuse(refused)
            if not (self.queue or self.queue.unread or self.queue.put_off) and self._jobs.may_step():
                await self._step()
            await asyncio.sleep(0)

    async def _obey_put_off(self) -> None:
        """Obey commands that have waited until all letters are known: some, as others may have come since."""
        for _ in range(MOST_AT_ONCE // LETTERS_AHEAD):
            some = [command for _, command in islice(self.queue.put_off, LETTERS_AHEAD)]
            await self._letters.read_ahead(some)
            for _ in some:
                if not self._letters.may_obey():
                    return
                await self._obey(*self.queue.put_off.popleft())

    def _waits(self, command: AnyCommand) -> bool:
        """Tell whether a command waits until all letters are known, or behind one that has."""
        of_letter = isinstance(command, Command) and command.verb in OF_LETTERS
        return of_letter and (bool(self.queue.put_off) or not self._letters.may_obey())

    async def _awaken(self) -> None:
        """Wait for commands, for a rule that pauses the partition, or until a part of a job may go on."""
        while not (self.queue.more or self.levels.closing or self._may_place() or self._may_go_on()):
            self.queue.wake.clear()
            known = asyncio.create_task(self._letters.known(self.queue.wake.set)) if self.queue.put_off else None
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._jobs.wait_s() if known is None else None):
                        await self.queue.wake.wait()
            finally:
                if known is not None:
                    known.cancel()

    def _may_go_on(self) -> bool:
        return self._letters.may_obey() if self.queue.put_off else self._jobs.may_step()

    async def _step(self) -> None:
        """Have a job go on; commands that come meanwhile wait for this step, which sees what those before have left."""
        await self._settle()
        await self._jobs.step(self._submit_step)

    def _submit_step(self, turn: Turn, told: Part | None) -> None:
        """Submit a step of a job, with an event if it tells how the part is now."""
        if told is not None:
            verb = JobVerb.PAUSE if told.state is PartState.PAUSED else "job-end"
            text = f"{told.paused}; {told.text}" if told.paused else told.text
            effect = Effect(text, before=str(PartState.RUNNING), after=str(told.state))
            facts: dict[str, Any] = {"command": "", "verb": str(verb), "job": told.job}
            turn.publishes = (*turn.publishes, self._event(effect, **facts))
            turn.on_settled = partial(log_command, self._transport.place.main, effect, None, facts)
        turn.source, turn.next_offset = self._transport.place.main, 0
        turn.steering = self._jobs.steering.written
        self._submit(turn)

    def judged(self, run: Run, outcome: Outcome) -> Outcome:
        """Return the outcome that counts: one that was cancelled is not tried again."""
        if isinstance(outcome, Turn):
            self._jobs.note(run, outcome)
        if run.pauses is not None and self.levels.judge(run, run.pauses):
            self._close_gate()  # before its own turn, which may remove its row
        return self._rows.judged(run, outcome)

    def _close_gate(self) -> None:
        """Write down that a rule has paused the partition."""
        if (turn := self.levels.close()) is not None:
            self._submit(turn)
            self.queue.wake.set()

    def _may_place(self) -> bool:
        return self.levels.unplaced is not None and not self.queue.failed

    async def _place_pause(self) -> None:
        """Ask where the control topic ends since a rule has paused the partition: what was sent before ends no pause.

        What the session knows of that is as old as its last look; and its transaction does not wait for the answer.
        """
        while (level := self.levels.unplaced) is not None and (end := await self.queue.look()) is not None:
            if self.levels.paused is level:
                self._submit(self.levels.place(level, end))

    # -- one command --------------------------------------------------------------------------------------------

    def _refuse(self, refused: list[tuple[Any, RefusedError]]) -> None:
        """Submit one turn for records in a row that are no commands for this partition, with an event for each."""
        if not refused:
            return
        self._close_gate()
        told = [self._event(Effect(str(e)), e.refusal, offset=record.offset, command="") for record, e in refused]
        first, offsets = refused[0][1], [record.offset for record, _ in refused]
        line = partial(log_unread, self._transport.place.main, len(refused), first.refusal, str(first))
        self._submit_commands(offsets, publishes=tuple(told), on_settled=line)
        refused.clear()

    async def _obey(self, record: Any, command: AnyCommand) -> None:
        """Submit the turn of a command."""
        self._close_gate()
        effect, refusal = Effect(""), None
        try:
            effect = await self._come_to(command, self._context.clock.wall_ms() - appended_ms(record), record.offset)
        except RefusedError as error:
            effect, refusal = Effect(str(error)), error.refusal
        steered = refusal is None and (isinstance(command, JobCommand | HandlerCommand) or effect.steered)
        facts = command.model_dump(include={"verb", "failure_id", "by", "why", "job", "circuit"})
        facts["command"] = command.id
        event = self._event(effect, refusal, offset=record.offset, **facts)
        line = partial(log_command, self._transport.place.main, effect, refusal, facts)

        def settled(committed: bool, offsets: tuple[int, ...]) -> None:
            line(committed, offsets)
            if isinstance(command, HandlerCommand):
                self.levels.go_on(command, committed, offsets)

        self._submit_commands(
            [record.offset],
            steered=steered,
            rows=effect.rows,
            claim=effect.claim,
            publishes=(*effect.publishes, event),
            observations=effect.observations,
            on_settled=settled,
        )

    def _submit_commands(self, offsets: Sequence[int], *, steered: bool = False, **facts: Any) -> None:
        """Submit the turn of commands at these offsets: main's stays, and its metadata has the position on theirs."""
        control = [self.queue.obeyed(offset) for offset in offsets][-1]
        steering = self._jobs.steering
        steered, steering.ahead = steered or steering.ahead != self.queue.ahead, self.queue.ahead
        written = steering.written if steered else None
        self._submit(Turn(source=self._transport.place.main, next_offset=0, control=control, steering=written, **facts))

    async def _come_to(self, command: AnyCommand, age_ms: int, offset: int) -> Effect:
        if isinstance(command, HandlerCommand):
            return self.levels.obey(command, offset)
        if isinstance(command, JobCommand):
            return self._jobs.obey(command, age_ms)
        origin = parse_failure_id(command.failure_id)[1]
        if age_ms > COMMAND_AGE_MS:
            text = f"no worker had its partition for {age_ms // 60_000} minutes after it was sent: send it again"
            raise RefusedError(Refusal.EXPIRED, text)
        if command.verb in OF_LETTERS:
            return await self._letters.obey(command, origin, self._settled)
        return await self._of_row(command, origin)

    def _event(self, effect: Effect, refusal: Refusal | None = None, **facts: Any) -> Outgoing:
        """Return the event that tells of a command, or of a part of a job."""
        handler, partition = self._context.handler, self._transport.place.partition
        event = Commanded(
            group=handler.group,
            handler=handler.name,
            main=handler.main,
            partition=partition,
            refused=None if refusal is None else str(refusal),
            text=cut_text(effect.text, MAX_TEXT_BYTES),
            before=effect.before,
            after=effect.after,
            edited=effect.edited,
            original=effect.original,
            at_ms=self._context.clock.wall_ms(),
            **{"verb": "", "failure_id": "", **facts},
        )
        return to_event(event, topology=handler.topology, partition=partition)

    async def _settle(self) -> None:
        """Wait until the turns that are in the lane are in the tables."""
        self._touched.clear()
        self._unsettled = 0
        if not self._busy():
            return
        over = asyncio.get_running_loop().create_future()

        def settled(_committed: bool, _offsets: tuple[int, ...]) -> None:
            if not over.done():
                over.set_result(None)

        self._submit(Turn(on_settled=settled, hurried=True))
        await over

    async def _settled(self, identity: bytes) -> bool:
        """Wait for the turns that change a record's row, whosever they are; note that this command does, too."""
        touched = False
        while (was_put := self._is_put(identity)) or identity in self._touched:
            touched = True
            await self._settle()
            if was_put and self._is_put(identity):  # what was before in the lane is in the tables: a topic refuses it
                raise RefusedError(Refusal.RUNNING, NOT_DURABLE)
        self._touched.add(identity)
        return touched

    def _is_put(self, identity: bytes) -> bool:
        """Tell whether a first delivery's row, or a copy of the row, is on its way into the table."""
        return identity in self._recall.unwritten or any(
            key[IDENTITY_AT:] == identity for key in self._scheduler.copying
        )

    # -- records that wait --------------------------------------------------------------------------------------

    async def _of_row(self, command: Command, origin: Origin) -> Effect:
        identity = identity_of(origin)
        await self._settled(identity)
        table = self._table
        key = table.find(identity)
        if key is not None and self._changes(key):
            await self._settled(identity)
            key = table.find(identity)
        value = None if key is None else table.get(key)
        if key is None or value is None:
            if command.delivery is not None:
                return self._releases.keep(origin, command.delivery, None)
            raise RefusedError(Refusal.NOT_WAITING, "it does not wait: it is done, dead, or not tried yet")
        try:
            row = decode_row(value)
            metadata = decode_metadata(row.headers)
        except (DamagedRowError, NewerRowError, DamagedMetadataError) as error:
            raise RefusedError(Refusal.DAMAGED, str(error)) from error
        if metadata is None:
            raise RefusedError(Refusal.DAMAGED, "its row has no retry metadata")
        changes = self._changes(key)
        if not changes:  # else it has left its sequence, as it has ended
            self._rows.check_newest(identity, row)
        if command.delivery is not None and not (row.hold & TOKEN and metadata.delivery == command.delivery):
            return self._releases.keep(origin, command.delivery, metadata.delivery)
        if command.verb is Verb.CANCEL and (letters := self._context.letters) and letters.waits(origin.offset):
            await self._letters.may_end(letters, origin.offset)  # its end has a mark
            return await self._of_row(command, origin)
        before = row_state(metadata.replays, metadata.attempt, row.due_at_ms)
        if command.state is not None and command.state != before:
            text = f"it has changed since it was looked at (from {command.state} to {before}): look at it again"
            raise RefusedError(Refusal.CHANGED, text)
        runs = key in self._scheduler.claimed
        if changes:
            raise RefusedError(Refusal.RUNNING, NOT_DURABLE)
        if row.reference is not None and command.verb is Verb.CANCEL and not runs:
            row, metadata = await self._whole(row, key, value), replace(metadata, no_payload=False)
        effect = self._rows.obey(command, row, metadata, identity, self._scheduler.claimed.get(key))
        effect.before = before
        if not runs:
            effect.claim = self._take(key, len(value))
        return effect

    def _changes(self, key: bytes) -> bool:
        claim = self._scheduler.claimed.get(key)
        return claim is not None and claim.changing

    async def _whole(self, row: PendingRow, key: bytes, value: bytes) -> PendingRow:
        """Return a row that waits by reference as a copy."""
        identity = key[IDENTITY_AT:]
        try:
            row = await self._recall.read_row(row, identity)
        except RecordError as error:
            raise RefusedError(Refusal.DAMAGED, str(error)) from error
        except Exception as error:
            raise RefusedError(Refusal.NOT_READY, f"the main topic cannot be read now: {error!r}") from error
        if key in self._scheduler.claimed or self._table.get(key) != value:
            raise RefusedError(Refusal.RUNNING, "its time has come while it was read: send it again")
        self._rows.check_newest(identity, row)
        return row

    def _take(self, key: bytes, size: int) -> bytes:
        """Claim a row that a command changes; return its key."""
        self._scheduler.take(key, key[IDENTITY_AT:], size)
        return key

    def take_held(self, key: bytes, row: PendingRow) -> bool:
        """Take a row that would be delivered now, if a hold of it ends or begins instead; tell whether it has."""
        if row.flags & CANCELLED or (not row.hold & OPERATOR and not row.more):
            return False
        try:
            metadata = decode_metadata(row.headers)
        except DamagedMetadataError:
            return False  # its delivery says what is wrong
        if metadata is None or (due := self._rows.due(key, row, metadata)) is None:
            return False
        verb, effect = due
        self._change(key, row.value or b"", effect, verb, metadata)
        return True

    def applied(self, turns: Sequence[Turn]) -> None:
        """Take note of turns that are in the tables."""
        if self._releases.concern(turns):
            with suppress(LaneClosedError):  # the next session does it
                self._release_early()

    def _release_early(self) -> None:
        """Release what waits now and was released before: at once, so that no deadline comes first."""
        main = self._transport.place.main
        for key, value, row, metadata in self._releases.obey():
            if self._rows.is_replaced(key[IDENTITY_AT:], row):
                continue
            effect = self._rows.released(row, metadata, key[IDENTITY_AT:])
            steering = self._jobs.steering.written
            self._change(key, value, effect, Verb.RELEASE, metadata, source=main, next_offset=0, steering=steering)

    def _end_stops(self) -> None:
        """Have sequences go on that have stopped, where the handler does not hold them any more."""
        if self._context.handler.holding.stops:
            self.levels.shut()
            return
        for key, value, row, metadata in stopped_rows(self._table):
            effect = self._rows.go_on(row, key[IDENTITY_AT:])
            effect.text = f"on_dead is not 'hold' any more: {effect.text}"
            self._change(key, value, effect, Verb.RELEASE, metadata)

    def _change(
        self, key: bytes, value: bytes, effect: Effect, verb: Verb, metadata: RetryMetadata, **more: Any
    ) -> None:
        """Submit a turn that changes a row without a command of now."""
        event = self._event(effect, command="", verb=str(verb), failure_id=metadata.failure_id)
        self._submit(Turn(rows=effect.rows, claim=self._take(key, len(value)), publishes=(event,), **more))

    @property
    def _table(self) -> PendingTable:
        table = self._transport.pending
        if table is None:
            raise RuntimeError("the lane has no pending table")
        return table
