"""What this worker owns: from an assignment of the group to its end.

1. Assignment: one engine and one lane for each partition of a main topic that all topics of the handler have; any other
   stays paused until they have it, and that is reported. Lanes open once the rebalance is over.
2. Records go from the intake to the engines (`engine.worker.feed`).
3. Revoke or end of the process: handlers get some time to finish, lanes commit what is done and close. Until the runs
   that were going on have ended, all partitions go on as always, for half of the time at most.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from retryapp.core import marks
from retryapp.core.lane_errors import PositionGoneError
from retryapp.core.topology import GROW
from retryapp.engine.lane.lane import LaneState
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.worker.feed import Feed
from retryapp.engine.worker.intake import Intake
from retryapp.engine.worker.placement import Membership, Placed, Placer, Served
from retryapp.ports import Clock, Event, Observation, Observer, TopicPartition, TopicReader

_FINISH_S = 5.0
"""Longest wait for the last transactions (without a broker they never end); a short grace shortens it."""
_LEAST_FINISH_S = 0.5


class Ownership:
    """The partitions of one worker."""

    def __init__(self, *, clock: Clock, observer: Observer, drain_s: float) -> None:
        self.clock = clock
        self.observer = observer
        self.intake = Intake()
        self.served: dict[str, Served] = {}
        self.placed: dict[tuple[str, int], Placed] = {}
        self.assigned = False
        self._membership: Membership | None = None
        self._actives: set[TopicPartition] = set()
        self._shared: defaultdict[TopicPartition, SharedLetters] = defaultdict(SharedLetters)
        self._lost: set[TopicPartition] = set()
        """Where a position was gone: also openings of later assignments ask which main topic is there."""
        self._drain_s = drain_s
        self._stopping = False
        """No partition is placed any more."""
        self.feed = Feed(self.intake)
        self.placer: Placer | None = None
        self._suspending = asyncio.Lock()
        self._ends_s = 0.0
        """When the present end of the partitions cancels what runs, by the event loop's clock."""
        self.intake.on_records = self.feed.pump
        self.intake.on_assigned = self._on_assigned
        self.intake.on_revoked = self._on_revoked
        self.intake.on_out_of_range = self._on_out_of_range
        self.intake.on_counted = self._on_counted

    async def _on_assigned(self, generation: int, member_id: str, actives: set[TopicPartition]) -> None:
        if self._stopping:
            return
        self._membership, self._actives = Membership(generation=generation, member_id=member_id), actives
        for served in self.served.values():
            self._place_actives(served)
        self.assigned = True

    def _place_actives(self, served: Served) -> None:
        main = served.handler.main
        for partition in sorted(tp.partition for tp in self._actives if tp.topic == main):
            if partition < served.complete and (main, partition) not in self.placed:
                self._place(served, partition)

    def _on_counted(self, counts: Mapping[str, int]) -> None:
        for main, served in self.served.items():
            grown = counts.get(main, 0) > served.partitions
            served.partitions = max(served.partitions, counts.get(main, 0))
            if grown:
                self._report_lacking(served)

    def _report_lacking(self, served: Served) -> None:
        main, topology = served.handler.main, served.handler.topology
        message = (
            f"{main} has {served.partitions} partitions and our topics only {served.complete}: nothing is read from "
            f"the new ones. {GROW}, which adds partitions to {', '.join(topology.owned)}; running workers then open "
            "them within 30 s, without a restart"
        )
        self.observer.observe(Observation(event=Event.LANE_INCOMPLETE, handler=main, message=message))

    def complete(self, served: Served, partitions: int) -> None:
        """Learn how many partitions all topics of a handler have, and open those of them that are ours."""
        if partitions > served.complete:
            served.complete = min(partitions, served.partitions)
            if served.lacking:
                self._report_lacking(served)
            if self.assigned:
                self._place_actives(served)

    def made_again(self, ids: Mapping[str, str]) -> str:
        """Return why this process has to end: a main topic has another id now than it knows. Empty: none has.

        `ids` are those of the main topics that are there now. Whoever goes on reads the new topic from where the former
        one was read to, and names its records like those.
        """
        for main, served in self.served.items():
            if ids.get(main, served.topic_id) != served.topic_id:
                return f"Topic {main} was deleted and made again: a worker that starts now reads it from its beginning"
        return ""

    def _place(self, served: Served, partition: int) -> None:
        if self.placer is None or self._membership is None:
            raise RuntimeError("an assignment came before the runtime was started")
        topology = served.handler.topology
        topics = [topology.main] if topology.own_letters_of else [name for name in topology.dlqs if name in self.served]
        shared = {topic: self._shared[TopicPartition(topic, partition)] for topic in topics}
        placed = self.placer.place(served, partition, self._membership, shared)
        placed.transport.main_lost = placed.transport.place.main in self._lost
        self.placed[served.handler.main, partition] = placed
        for tp in (*placed.engine.sources, placed.engine.rows):
            self.feed.placed[tp] = placed

    def _on_out_of_range(self, tp: TopicPartition, position: int) -> None:
        placed = self.feed.placed.get(tp)
        if placed is not None:
            self._lost.add(placed.transport.place.main)
            placed.transport.main_lost = True
            placed.lane.fail(PositionGoneError(*tp, position))

    async def _on_revoked(self) -> None:
        self.assigned = False
        await self.suspend(self._drain_s)

    async def leave(self, deadline_s: float) -> None:
        """Suspend for good, as this process ends."""
        self.assigned, self._stopping = False, True
        await self.suspend(deadline_s)

    async def suspend(self, deadline_s: float) -> None:
        """Let handlers finish, commit, and close every lane, within the deadline and a few seconds.

        A shorter one that comes meanwhile counts: a revoke in a stop.
        """
        ends_s = asyncio.get_running_loop().time() + deadline_s
        if self._suspending.locked() and ends_s < self._ends_s:
            await asyncio.gather(*(each.engine.drain(deadline_s) for each in self.placed.values()))
        async with self._suspending:
            placed = list(self.placed.values())
            if not placed:
                return
            self._ends_s = ends_s
            over = asyncio.gather(*(each.engine.run_out() for each in placed))
            mains = dict.fromkeys(main for main, _ in self.placed)
            await asyncio.gather(*(self._hand_over(main, over, ends_s) for main in mains))
            over.cancel()
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

    async def _hand_over(self, main: str, over: asyncio.Future[Any], ends_s: float) -> None:
        """Go on with a handler until what ran at first is `over`; then let its partitions finish, each by itself.

        What begins meanwhile has to end in time, or it is cancelled and its next owner runs it again. So nothing begins
        in the second half of the time, nor with less left than all but one in a hundred runs of the handler took.
        """
        loop = asyncio.get_running_loop()
        left_s = ends_s - loop.time()
        serve_s = min(left_s / 2, left_s - self.served[main].handler.durations.usual_s)
        if serve_s > 0:
            await asyncio.wait([over], timeout=serve_s)
        self.feed.catch_up()  # before the drain: an engine that drains drops new records, and looks idle
        left_s = max(0.0, ends_s - loop.time())
        await asyncio.gather(*(_finish(each, left_s) for (name, _), each in self.placed.items() if name == main))

    def catch_up(self) -> bool:
        """Settle positions without records, and ask for the broker's time while the clock is in doubt.

        Call it every few seconds, and every second while it returns True: no row is delivered then, so there may be no
        other acknowledgement.
        """
        self.feed.catch_up()
        if self.clock.trusted or not self.clock.known:
            return False
        for placed in self.placed.values():
            if placed.lane.state is LaneState.OPEN and placed.lane.refusal is None:
                probe = marks.clock_probe(*placed.transport.place.changelog)
                placed.lane.submit(placed.lane.session, Turn(publishes=(probe,)))
                break
        return True

    async def look_for_commands(self, reader: TopicReader) -> None:
        """Tell the open lanes where their control topics end; raise what keeps some from it, once the others know."""
        open_lanes = {
            placed.transport.place.control: placed.engine
            for placed in self.placed.values()
            if placed.lane.state is LaneState.OPEN and placed.transport.place.control is not None
        }
        try:
            await _tell_ends(reader, open_lanes)
        except Exception:  # noqa: BLE001 - maybe of one partition
            alone = (_tell_ends(reader, {tp: engine}) for tp, engine in open_lanes.items())
            faults = await asyncio.gather(*alone, return_exceptions=True)
            for fault in filter(None, faults):
                raise fault from None


async def _tell_ends(reader: TopicReader, lanes: Mapping[TopicPartition, PartitionEngine]) -> None:
    for tp, (_, end) in (await reader.bounds([*lanes]) if lanes else {}).items():
        if (commands := lanes[tp].commands) is not None:
            commands.queue.come(end)


async def _finish(placed: Placed, deadline_s: float) -> None:
    """Let the handlers of one partition finish, then its lane: one with none does not wait for the slow ones."""
    await placed.engine.drain(deadline_s)
    placed.lane.finish()
    if placed.lane.state is not LaneState.OPEN:  # opening, or waiting to: it has nothing to commit
        placed.task.cancel()
