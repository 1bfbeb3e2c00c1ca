"""A simulated worker process: the engine's own code over a simulated client, disk and clock."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from typing_extensions import override

from retryapp.core.skew import BrokerSkew
from retryapp.engine.delivery.batches import make_pools
from retryapp.engine.handler.handler import Handler
from retryapp.engine.lane.rounds import Rounds
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.worker.ownership import Ownership
from retryapp.engine.worker.placement import Membership, Placer, Served
from retryapp.ports import Clock, Committed, Observation, Observer, TopicPartition, Way
from retryapp.testing.lane import MemoryReader
from simulation.broker import Broker
from simulation.consumer import SimConsumer
from simulation.disk import SimDisk
from simulation.lanes import LateReader, SimLane
from simulation.loop import Process
from simulation.network import Network, Wire

TOPIC_ID = "simulated"
MAX_BYTES = 1 << 20
GRACE_S = 4.0
CONCURRENCY = 2
PROGRESS_MS = 2_000
LOOK_S = 3.0
"""How often a worker looks whether main topics are still the same."""


class SimClock(Clock):
    """`ports.Clock` of a machine whose clock is wrong by `offset_ms`, corrected as a worker's is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset_ms: float) -> None:
        self.offset_ms = offset_ms
        self.skew = BrokerSkew()
        self.wrong_ms = 0
        """By so much the next acknowledgement's time is off."""
        self._loop = loop

    @property
    @override
    def trusted(self) -> bool:
        return self.skew.trusted

    @property
    @override
    def known(self) -> bool:
        return self.skew.known

    @override
    def counted_ms(self) -> float:
        return self._loop.time() * 1000 + self.offset_ms

    @override
    def wall_ms(self) -> int:
        return int(self.counted_ms() + self.skew.correction_ms)

    @override
    def latest_ms(self) -> int:
        return self.wall_ms() + math.ceil(self.skew.late_ms)

    @override
    def monotonic_s(self) -> float:
        return self._loop.time()

    @override
    def anchor(self, *, sent_ms: float, acked_ms: float, appended_ms: int) -> None:
        appended_ms, self.wrong_ms = appended_ms + self.wrong_ms, 0
        self.skew.observe(sent_ms=sent_ms, acked_ms=acked_ms, appended_ms=appended_ms, at_s=self._loop.time())

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Channel(Way):
    """`ports.Way` through an agent's queue."""

    def __init__(self, accept: Callable[[Any], None]) -> None:
        self._accept = accept

    @override
    def put_now(self, batch: Any) -> bool:
        asyncio.get_running_loop().call_soon(self._accept, batch)
        return True


class SimWorker(Observer):
    """One worker process, from its start to its end."""

    def __init__(
        self,
        name: str,
        *,
        broker: Broker,
        network: Network,
        disk: SimDisk,
        make_handlers: Callable[[SimWorker], Sequence[Handler]],
        offset_ms: float,
        random: Random,
        observe: Callable[[SimWorker, Observation], None],
        commanded: bool = False,
        looks: bool = False,
        slow_letters: bool = False,
        kept_ms: int | None = None,
        slice_size: int = 20,
    ) -> None:
        loop = network.loop
        self.process = Process(name)
        self.broker = broker
        self.disk = disk
        self.wire = Wire(network)
        self.random = random
        self.clock = SimClock(loop, offset_ms)
        self.consumer = SimConsumer(self)
        self.ended = False
        """It ended by itself, in order."""
        self.early: dict[str, Mapping[TopicPartition, Committed]] = {}
        self.told_lacking = 0
        """Partitions of the main topic when it said last that our topics have fewer."""
        self._observe = observe
        self._commanded = commanded
        self._looks = looks
        """Whether main topics are still the same; where they always are, a look would be a step for nothing."""
        self.slow_letters = slow_letters
        """It takes long until its lanes know all dead letters."""
        self._kept_ms = kept_ms
        self.handlers = make_handlers(self)
        late = slow_letters and any(handler.topology.letters_of for handler in self.handlers)
        self.reader = (LateReader if late else MemoryReader)(broker, self.wire.request, slice_size)
        self.topics = [handler.main for handler in self.handlers]
        self.ownership = Ownership(clock=self.clock, observer=self, drain_s=GRACE_S)
        self.ownership.intake.topics = frozenset(self.topics)
        self.ownership.intake.attach(self.consumer)

    @override
    def observe(self, observation: Observation) -> None:
        self._observe(self, observation)

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return not self.process.dead and not self.ended

    def start(self) -> None:
        self.process.context.run(self._start)

    def _start(self) -> None:
        ownership, feed, rounds = self.ownership, self.ownership.feed, Rounds()
        for handler in self.handlers:
            ownership.served[handler.main] = Served(
                handler,
                *make_pools(handler, rounds),
                partitions=self.broker.complete,
                complete=self.broker.complete,
                topic_id=self.broker.id_of(handler.main),
                max_bytes=MAX_BYTES,
                kept_ms=self._kept_ms,
            )
            for topic in (handler.main, *handler.topology.retry_topics):
                feed.channels[topic] = _Channel(feed.accept)
        ownership.placer = Placer(
            make_transport=self._make_transport,
            settled=lambda: self.consumer.settled,
            lapsed=lambda: self.consumer.lapsed(),
            end_process=lambda _why: self.process.kill(),
            patience_s=60.0,
            life=self.process.name,
            clock=self.clock,
            random=self.random,
            observer=self,
            tick_s=0.25,
            progress_ms=PROGRESS_MS,
            emit=feed.emit,
            pump=feed.pump,
            forget=feed.forget,
        )
        for served in ownership.served.values():
            served.first.start()
            served.again.start()
        self._tasks = [asyncio.ensure_future(each) for each in (self.consumer.live(), self.consumer.fetch())]
        if self._looks:
            self._tasks.append(asyncio.ensure_future(self._look_at_topics()))
        if self._commanded:
            self._tasks.append(asyncio.ensure_future(self._look_for_commands()))
        self._catch_up()

    async def _look_at_topics(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self.ownership.made_again({main: self.broker.id_of(main) for main in self.ownership.served}):
                self.terminate()
                return

    async def _look_for_commands(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            with contextlib.suppress(TimeoutError, OSError):
                await self.ownership.look_for_commands(self.reader)

    def _catch_up(self) -> None:
        doubted = self.ownership.catch_up()
        for served in self.ownership.served.values():
            self.ownership.complete(served, self.broker.complete)
        asyncio.get_running_loop().call_later(1.0 if doubted else 10.0, self._catch_up)

    def _make_transport(self, served: Served, engine: PartitionEngine, membership: Membership) -> SimLane:
        topology, number = served.handler.topology, engine.partition
        return SimLane(
            place=LaneSite(
                name=f"{topology.prefix}.{number}",
                group=topology.group,
                partition=number,
                sources=engine.sources,
                main=TopicPartition(topology.main, number),
                changelog=TopicPartition(topology.pending_changelog, number),
                dlqs=[TopicPartition(name, number) for name in topology.dlqs],
                seen=TopicPartition(topology.seen_changelog, number) if served.handler.deduplicate else None,
                control=TopicPartition(topology.control, number) if self._commanded else None,
                control_id=TOPIC_ID,
                fences=served.handler.takes_delivery,
                topic_id=served.topic_id,
                changelog_id="again" if topology.pending_changelog in self.broker.made_again else TOPIC_ID,
            ),
            reader=self.reader,
            clock=self.clock,
            generation=membership.generation,
            member_id=membership.member_id,
            life=engine.context.life,
            broker=self.broker,
            disk=self.disk,
            worker=self,
        )

    def terminate(self) -> None:
        """Ask it to end, as SIGTERM does."""
        self.process.context.run(lambda: asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        await self.ownership.leave(GRACE_S)
        for task in self._tasks:
            task.cancel()
        member = self.consumer.member
        with contextlib.suppress(TimeoutError):  # then the session ends by itself
            await self.wire.request("leave", lambda: self.broker.leave(member))
        self.ended = True
        self.process.kill()
