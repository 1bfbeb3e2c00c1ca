"""What this worker owns: from an assignment of the group to its end.

1. Assignment: one engine and one lane for each number of which this worker has *all* the handler's topics (rule 1); any
   other number stays paused, and that is reported. Lanes open once the rebalance is over.
2. Records go from the intake to the engines (`engine.worker.feed`).
3. Revoke or end of the process: handlers get some time to finish, lanes commit what is done and close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from retryapp.core import marks
from retryapp.core.errors import PositionGoneError
from retryapp.core.record import Record
from retryapp.engine.lane.lane import LaneState
from retryapp.engine.lane.turn import Turn
from retryapp.engine.worker.feed import Feed
from retryapp.engine.worker.intake import Intake
from retryapp.engine.worker.placement import Membership, Placed, Placer, Served
from retryapp.ports import Clock, Event, Observation, Observer, TopicPartition

_FINISH_S = 5.0
"""Longest wait for the last transactions (without a broker they never end); a short grace shortens it."""
_LEAST_FINISH_S = 0.5


class Ownership:
    """The partitions of one worker."""

    def __init__(self, *, clock: Clock, observer: Observer, to_record: Callable[[Any], Record], drain_s: float) -> None:
        self.clock = clock
        self.observer = observer
        self.intake = Intake()
        self.served: dict[str, Served] = {}
        self.placed: dict[tuple[str, int], Placed] = {}
        self.assigned = False
        self._drain_s = drain_s
        self.feed = Feed(self.intake, to_record)
        self.placer: Placer | None = None
        self._suspending = asyncio.Lock()
        self.intake.on_records = self.feed.pump
        self.intake.on_assigned = self._on_assigned
        self.intake.on_revoked = self._on_revoked
        self.intake.on_out_of_range = self._on_out_of_range

    async def _on_assigned(self, generation: int, member_id: str, actives: set[TopicPartition]) -> None:
        for served in self.served.values():
            consumed = set(served.handler.topology.consumed)
            numbers = {tp.partition for tp in actives if tp.topic in consumed}
            for partition in sorted(numbers):
                wanted = {TopicPartition(topic, partition) for topic in served.handler.topology.consumed}
                mine = wanted & actives
                if mine == wanted:
                    self._place(served, partition, generation, member_id)
                elif mine:
                    missing = ", ".join(sorted(tp.topic for tp in wanted - mine))
                    why = f"another worker has this number of {missing}"
                    if partition >= served.partitions:
                        why = f"the main topic has grown; add partitions to {missing} and restart"
                    message, main = f"stays paused: {why}", served.handler.main
                    self.observer.observe(
                        Observation(event=Event.LANE_INCOMPLETE, handler=main, partition=partition, message=message)
                    )
        self.assigned = True

    def _place(self, served: Served, partition: int, generation: int, member_id: str) -> None:
        if self.placer is None:
            raise RuntimeError("an assignment came before the runtime was started")
        placed = self.placer.place(served, partition, Membership(generation=generation, member_id=member_id))
        self.placed[served.handler.main, partition] = placed
        for tp in placed.engine.sources:
            self.feed.placed[tp] = placed

    def _on_out_of_range(self, tp: TopicPartition, position: int) -> None:
        placed = self.feed.placed.get(tp)
        if placed is not None:
            placed.lane.fail(PositionGoneError(*tp, position))

    async def _on_revoked(self) -> None:
        self.assigned = False
        await self.suspend(self._drain_s)

    async def suspend(self, deadline_s: float) -> None:
        """Let handlers finish, commit, and close every lane, within the deadline and a few seconds."""
        async with self._suspending:
            placed = list(self.placed.values())
            if not placed:
                return
            self.feed.catch_up()  # not later: what comes to an engine that drains is dropped, and it looks idle
            await asyncio.gather(*(each.engine.drain(deadline_s) for each in placed))
            for each in placed:
                each.lane.finish()
                if each.lane.state is not LaneState.OPEN:  # opening, or waiting to: it has nothing to commit
                    each.task.cancel()
            finish_s = min(_FINISH_S, max(_LEAST_FINISH_S, deadline_s))
            _, late = await asyncio.wait([each.task for each in placed], timeout=finish_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=finish_s)
            for each in placed:
                each.engine.end()
            self.placed.clear()
            self.feed.clear()

    def catch_up(self) -> bool:
        """Settle positions without records, and ask for the broker's time while the clock is in doubt.

        Call it every few seconds, and every second while it returns True: nothing fires then, so there may be no other
        acknowledgement.
        """
        self.feed.catch_up()
        if self.clock.trusted or not self.clock.known:
            return False
        for placed in self.placed.values():
            if placed.lane.state is LaneState.OPEN:
                probe = marks.clock_probe(*placed.transport.place.changelog)
                placed.lane.submit(placed.lane.session, Turn(publishes=(probe,)))
                break
        return True
