"""Hand records from the intake through the agents to the engines, one batch per partition at a time.

A batch of an older session or assignment, which may still be in an agent's queue, is ignored: its records are read
again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from retryapp.core.errors import UnreadableTopicError
from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.record import Record
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.session import Delivered
from retryapp.engine.worker.intake import Intake
from retryapp.engine.worker.placement import Placed
from retryapp.ports import Stuck, TopicPartition, Way

logger = logging.getLogger(__name__)

BATCH = 500


@dataclass(slots=True)
class Batch:
    """Records of a partition, or due rows, on their way to its engine."""

    tp: TopicPartition
    session: int
    records: Sequence[Record] | Sequence[Delivered]


class Feed:
    """Feeds the engines of this worker."""

    def __init__(self, intake: Intake) -> None:
        self.placed: dict[TopicPartition, Placed] = {}
        self.channels: dict[str, Way] = {}
        self._intake = intake
        self._handing: dict[TopicPartition, Batch | None] = {}
        """The batch in transit of a partition; None: stopped until the lane opens again."""

    def pump(self, tp: TopicPartition) -> None:
        """Hand records of a partition to its agent, up to the engine's room."""
        placed = self.placed.get(tp)
        if placed is None or tp in self._handing:
            return
        if not self._intake.waiting(tp):
            if (reached := self._intake.reached(tp)) is not None:
                placed.engine.reach(tp, reached)
            return
        room = placed.engine.room(tp)
        if room <= 0:
            return
        if stuck := self._intake.stuck(tp):
            self._stop_at(stuck, tp, placed)
            return
        records = self._intake.take(tp, min(room, BATCH), placed.engine.room_bytes(tp))
        batch = Batch(tp, placed.lane.session, records)
        self._handing[tp] = batch
        if not self.channels[tp.topic].put_now(batch):  # the agent is being restarted: nothing may be skipped
            self._fail(tp, placed, RuntimeError(f"the agent of {tp.topic} is not running"))

    def accept(self, batch: Batch) -> None:
        """Give a batch from an agent to its engine."""
        placed = self.placed.get(batch.tp)
        due = placed is not None and batch.tp == placed.engine.rows
        if placed is None or not (due or self._handing.get(batch.tp) is batch):
            return
        try:
            placed.engine.accept(batch.tp, batch.session, batch.records)
        except Exception as exc:  # the edge of an agent: a crash would skip the batch; the lane reads it again instead
            logger.exception("Records of %s could not be taken in", batch.tp)
            self._fail(batch.tp, placed, exc)
            return
        if not due:
            del self._handing[batch.tp]
            self.pump(batch.tp)

    def emit(self, tp: TopicPartition, session: int, rows: list[Delivered]) -> None:
        """Hand due rows to their agent; raise RuntimeError while it is being restarted: they are claimed."""
        if not self.channels[tp.topic].put_now(Batch(tp, session, rows)):
            raise RuntimeError(f"the agent of {tp.topic} is not running")

    def forget(self, tp: TopicPartition) -> None:
        """Forget the batch in transit: a lane has opened and reads it again."""
        self._handing.pop(tp, None)

    def clear(self) -> None:
        """Forget all partitions: they were given up."""
        self.placed.clear()
        self._handing.clear()

    def catch_up(self) -> None:
        """Settle positions after the last record (transaction markers), where everything before them is settled.

        Without this the committed offset stays before the marker. Once retention has deleted the record, it would look
        as if something had been deleted unread.
        """
        for tp, placed in self.placed.items():
            if tp in self._handing:
                continue
            if not placed.engine.idle(tp):
                continue
            position = self._intake.take_passed(tp)
            if position is not None:
                _submit(placed, Turn(source=tp, next_offset=position))

    def _stop_at(self, stuck: Stuck, tp: TopicPartition, placed: Placed) -> None:
        """Fail the lane over an unreadable record, once everything before it is committed."""
        if not placed.engine.idle(tp):
            return  # the engine asks again when it has settled something
        error = UnreadableTopicError(tp.topic, tp.partition, stuck.offset, stuck.problem)

        def settled(committed: bool, _offsets: tuple[int, ...]) -> None:
            if committed:
                placed.lane.fail(error)

        self._handing[tp] = None
        _submit(placed, Turn(source=tp, next_offset=stuck.offset, on_settled=settled))

    def _fail(self, tp: TopicPartition, placed: Placed, error: Exception) -> None:
        self._handing[tp] = None
        placed.lane.fail(error)


def _submit(placed: Placed, turn: Turn) -> None:
    try:
        placed.lane.submit(placed.lane.session, turn)
    except LaneClosedError:
        logger.debug("Lane %s closed before an offset was settled", placed.lane.name)
