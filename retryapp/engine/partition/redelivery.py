"""Due rows that come back through the main topic (`redelivery="main"`), of one session of a partition.

1. A claimed row is published to its partition of the main topic; the same turn notes in the row that it was (`SENT`).
2. Once the main topic is read up to that copy, the row is delivered. It stays claimed all the time, so it is delivered
   once; the copy itself starts nothing, so neither can a second one, nor an offset that is set back.
3. A later session delivers a row with the note once the main topic is read up to where it ended when that session
   began: its copy was read by then, or is gone. It is not published again.

What needs no run is not published, nor a first delivery, nor what the main topic does not take, or has already, as it
waits by reference: that is delivered at once. While it is known that the main topic refuses copies, all are.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from itertools import count
from typing import Any

from retryapp.core.errors import DamagedMetadataError, NewerFormatError
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
        deliver: Callable[[Rows], None],
        submit: Callable[[Turn], None],
        over: Callable[[], bool],
    ) -> None:
        """Begin.

        Args:
            main: the main topic.
            pending: the table.
            clock: tells how long a refusal counts.
            start: where the session begins on the main topic.
            end: where that ended when the lane opened.
            deliver: takes rows that are to be delivered now.
            submit: takes a turn of this session.
            over: whether this session is over.
        """
        self._main = main
        self._pending = pending
        self._clock = clock
        self._read_to = start
        self._end = end
        self._deliver = deliver
        self._submit = submit
        self._over = over
        self._refused = False
        """The last copy that was tried was refused."""
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
            else:
                self._publish(row, copy)
        self.reach(self._read_to)

    def reach(self, position: int) -> None:
        """Note that all records of the main topic before a position came in, and deliver what has waited for them."""
        self._read_to = max(self._read_to, position)
        due: Rows = []
        while self._waiting and self._waiting[0][0] <= self._read_to:
            due.append(heapq.heappop(self._waiting)[-1])
        if due:
            self._deliver(due)

    def _await(self, row: tuple[Claim, Record], position: int) -> None:
        heapq.heappush(self._waiting, (position, next(self._numbers), row))

    def _copy(self, claim: Claim, waiting: Record) -> Publication | None:
        """Return the copy of a row for the main topic; None: it is delivered without one."""
        if not claim.runs or claim.reference is not None:
            return None
        if self._problem(waiting.partition) is not None:
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
        copy = Publication(self._main.topic, waiting.partition, shown.key, shown.value, headers, self._main)
        return copy if self._main.objection(copy.key, None, copy.size) is None else None

    def _publish(self, row: tuple[Claim, Record], copy: Publication) -> None:
        claim = row[0]
        if (value := self._pending.get(claim.key)) is None:
            raise RuntimeError(f"the table has no row {claim.key.hex()}, which is claimed")
        tier = None if claim.metadata is None else claim.metadata.tier

        def settled(committed: bool, offsets: tuple[int, ...]) -> None:
            claim.changing = False
            if self._over():
                return
            self._note(copy, refused=not committed)
            self._await(row, offsets[0] + 1 if committed else 0)
            self.reach(self._read_to)  # it may have been read before the answer came

        # without the claim, which lasts until the outcome; a copy that is refused is not made
        rows = (Row(claim.identity, as_sent(value), tier or "?"),)
        self._submit(Turn(rows=rows, publishes=(copy,), on_settled=settled, spare=True))
        claim.changing = True

    def _note(self, copy: Publication, *, refused: bool) -> None:
        """Note what became of a copy, and say so where the main topic begins to refuse them."""
        problem = self._problem(copy.partition) if refused else None  # it counts from now on
        if refused and not self._refused:
            text = "%s refuses the copy of a record that is due again (%s): such records are delivered without one"
            logger.warning(text, self._main.topic, problem or "it is too large")
        self._refused = refused

    def _problem(self, partition: int) -> str | None:
        return self._main.known_problem(partition, self._clock.monotonic_s())


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
) -> Redelivery | None:
    """Return what takes the due rows of a new session, if they come back through the main topic."""
    handler, pending = context.handler, transport.pending
    if not handler.through_main or handler.destinations is None or pending is None:
        return None
    main = handler.destinations.of(handler.main)
    calls: Any = {"deliver": deliver, "submit": submit, "over": over}
    return Redelivery(main, pending, context.clock, start=start, end=transport.main_end, **calls)
