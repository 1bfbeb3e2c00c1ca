"""Due rows that come back through the main topic (`redelivery="main"`), of one session of a partition.

1. A claimed row is published to its partition of the main topic; the same turn notes in the row that it was (`SENT`).
2. Once the main topic is read up to that copy, the row is delivered. It stays claimed all the time, so it is delivered
   once; the copy itself starts nothing, so neither can a second one, nor an offset that is set back.
3. A later session delivers a row with the note once the main topic is read up to where it ended when that session
   began: its copy was read by then, or is gone. It is not published again.

What needs no run is not published, nor a first delivery, nor what a new record waits for (`hurry`), nor what the main
topic does not take, or has already, as it waits by reference: that is delivered at once. While it is known that the
main topic takes no copies, all are. What is not known is looked at before a copy: one for a partition without a leader
would fail the lane.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

from retryapp.core.errors import DamagedMetadataError, DestinationError, NewerFormatError
from retryapp.core.headers import decode_metadata
from retryapp.core.hops import restore
from retryapp.core.publication import Destination, Publication
from retryapp.core.record import Record
from retryapp.core.redelivery import copied
from retryapp.core.rows import as_sent
from retryapp.engine.delivery.run import Claim, DeliveryContext
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn, observed, settling
from retryapp.ports import Clock, Event, PendingTable, Row

logger = logging.getLogger(__name__)
Rows = list[tuple[Claim, Record]]


class Redelivery:
    """The rows of one session that wait for their copies."""

    def __init__(
        self,
        main: Destination,
        pending: PendingTable,
        clock: Clock,
        *,
        start: int,
        end: int,
        look: Callable[[Destination], Awaitable[None]],
        deliver: Callable[[Rows], None],
        submit: Callable[[Turn], None],
        over: Callable[[], bool],
        waited_for: Callable[[bytes], bool],
    ) -> None:
        """Begin.

        Args:
            main: the main topic.
            pending: the table.
            clock: tells how long what is known of the main topic counts.
            start: where the session begins on the main topic.
            end: where that ended when the lane opened.
            look: looks at the main topic.
            deliver: takes rows that are to be delivered now.
            submit: takes a turn of this session.
            over: whether this session is over.
            waited_for: whether a record of the main topic waits for the row with an identity.
        """
        self._main = main
        self._pending = pending
        self._clock = clock
        self._read_to = start
        self._end = end
        self._look = look
        self._deliver = deliver
        self._submit = submit
        self._over = over
        self._waited_for = waited_for
        self._told = False
        """It was said that the main topic takes no copies, and it has taken none since."""
        self._unlooked: list[tuple[tuple[Claim, Record], Publication]] = []
        """Rows and their copies, which wait for a look at the main topic."""
        self._look_due = asyncio.Event()
        self._waiting: list[tuple[int, int, tuple[Claim, Record]]] = []
        """By the position of the main topic that they wait for; a heap."""
        self._numbers = count()

    def take(self, rows: Rows) -> None:
        """Take claimed rows, and publish them, or deliver them where that is not to be."""
        for row in rows:
            if row[0].sent and row[0].runs:
                self._await(row, self._end)
            elif (copy := self._copy(*row)) is None:
                self._await(row, 0)
            elif self._main.fresh(self._clock.monotonic_s()):
                self._send(row, copy)
            else:
                row[0].changing = True  # else a command could change the row, and the turn of the copy put it back
                self._unlooked.append((row, copy))
                self._look_due.set()
        self.reach(self._read_to)

    async def run(self) -> None:
        """Look at the main topic when copies wait for that, until the session is over."""
        while True:
            await self._look_due.wait()
            with suppress(DestinationError):  # its problem is known now
                await self._look(self._main)
            self._look_due.clear()
            looked, self._unlooked = self._unlooked, []
            for row, copy in looked:
                row[0].changing = False
                self._send(row, copy)
            self.reach(self._read_to)

    def reach(self, position: int) -> None:
        """Note that all records of the main topic before a position came in, and deliver what has waited for them."""
        self._read_to = max(self._read_to, position)
        due: Rows = []
        while self._waiting and self._waiting[0][0] <= self._read_to:
            due.append(heapq.heappop(self._waiting)[-1])
        if due:
            self._deliver(due)

    def hurry(self) -> None:
        """Have a row wait for no copy that a record waits for now: that may fill the window before the copy is read."""
        waiting, self._waiting = self._waiting, []
        for position, _, row in waiting:
            self._await(row, position)
        self.reach(self._read_to)

    def _await(self, row: tuple[Claim, Record], position: int) -> None:
        at = 0 if self._waited_for(row[0].identity) else position
        heapq.heappush(self._waiting, (at, next(self._numbers), row))

    def _copy(self, claim: Claim, waiting: Record) -> Publication | None:
        """Return the copy of a row for the main topic; None: it is delivered without one."""
        if not claim.runs or claim.reference is not None or self._waited_for(claim.identity):
            return None
        try:
            metadata = claim.metadata or decode_metadata(waiting.headers)
        except (DamagedMetadataError, NewerFormatError):
            return None  # its delivery says what is wrong
        if metadata is None or metadata.held or metadata.due_at_ms is None:
            return None
        claim.metadata, shown = metadata, restore(waiting, metadata)
        if shown.key is None and shown.value is None:  # the client sends no such record
            return None
        headers = copied(shown.headers, metadata)
        return Publication(self._main.topic, waiting.partition, shown.key, shown.value, headers, self._main)

    def _send(self, row: tuple[Claim, Record], copy: Publication) -> None:
        """Publish a copy, or deliver its row without it where the main topic does not take it."""
        self._tell(copy.partition)
        if self._problem(copy.partition) is None and self._main.objection(copy.key, None, copy.size) is None:
            self._publish(row, copy)
        else:
            self._await(row, 0)

    def _publish(self, row: tuple[Claim, Record], copy: Publication) -> None:
        claim = row[0]
        if (value := self._pending.get(claim.key)) is None:
            raise RuntimeError(f"the table has no row {claim.key.hex()}, which is claimed")
        tier = None if claim.metadata is None else claim.metadata.tier

        def settled(committed: bool, offsets: tuple[int, ...]) -> None:
            claim.changing = False
            if self._over():
                if not committed:
                    self._main.doubt(copy.partition)  # it may be why the lane has failed
                return
            if committed:
                self._told = False
            else:
                self._main.fresh(self._clock.monotonic_s())  # what was refused there counts from now on
                self._tell(copy.partition)
            self._await(row, offsets[0] + 1 if committed else 0)
            self.reach(self._read_to)  # it may have been read before the answer came

        # without the claim, which lasts until the outcome; a copy that is refused is not made
        rows = (Row(claim.identity, as_sent(value), tier or "?"),)
        self._submit(Turn(rows=rows, publishes=(copy,), on_settled=settled, spare=True))
        claim.changing = True

    def _problem(self, partition: int) -> str | None:
        return self._main.problem or self._main.closed.get(partition)

    def _tell(self, partition: int) -> None:
        """Say that the main topic takes no copies, where that begins; one that is too large is no reason to."""
        if (problem := self._problem(partition)) is not None and not self._told:
            text = "%s[%s] takes no copies of records that are due again (%s): they are delivered without one"
            logger.warning(text, self._main.topic, partition, problem)
            self._told = True


def passed(copy: Record) -> Turn:
    """Return the turn that settles a copy, of whatever group: it is no record, so it is not counted as received."""
    return settling(copy, settles=0, skipped=True, observations=(observed(Event.COPY, copy.topic, copy),))


def begin_redelivery(
    context: DeliveryContext,
    transport: LaneProtocol,
    start: int,
    *,
    deliver: Callable[[Rows], None],
    submit: Callable[[Turn], None],
    over: Callable[[], bool],
    waited_for: Callable[[bytes], bool],
) -> Redelivery | None:
    """Return what takes the due rows of a new session, if they come back through the main topic."""
    handler, pending = context.handler, transport.pending
    if not handler.through_main or handler.destinations is None or pending is None:
        return None
    main = handler.destinations.of(handler.main)
    return Redelivery(
        main,
        pending,
        context.clock,
        start=start,
        end=transport.main_end,
        look=handler.destinations.look,
        deliver=deliver,
        submit=submit,
        over=over,
        waited_for=waited_for,
    )
