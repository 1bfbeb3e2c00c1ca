"""The group's client of a simulated worker, as far as the retry protocol can notice it.

It joins the group, holds what it was given, empties its queues when the rebalance ends (as Faust's flow control does),
fetches in a thread of its own, and hands over what it fetched a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from retryapp.core.record import Record
from retryapp.engine.worker.intake import Stamped
from retryapp.ports import Flow, Standing, TopicPartition
from retryapp.testing.broker import OutOfRangeError
from simulation.broker import SESSION_S

if TYPE_CHECKING:
    from simulation.worker import SimWorker

HEARTBEAT_S = 3.0
_FETCH = 20
"""Records of a partition that one fetch brings."""
_CROSSING_S = 0.001
"""Into the client's thread."""
_CROSSED_S = 0.02
"""The way out of it, to the main loop."""
DELAYED_S = 0.5
"""The same when the main loop is busy: one fetch in ten."""
_SETTLE_S = 0.25
"""Longest time from an assignment to the end of its rebalance."""


class SimConsumer(Flow):
    """The group's client of a worker; see the module's text."""

    def __init__(self, worker: SimWorker) -> None:
        self.settled = False
        self._worker = worker
        self._positions: dict[TopicPartition, int] = {}
        """Of what the group gave to us."""
        self._flowing: set[TopicPartition] = set()
        """Partitions that are not paused."""
        self._full: set[TopicPartition] = set()
        self._wake = asyncio.Event()
        self.counted = 0
        """Partitions of the main topic when it joined last."""
        self.number = 0
        """How often it has joined."""
        self._asked_s = 0.0
        """When the coordinator was last asked something that it answered with yes."""

    # -- positions ----------------------------------------------------------------------------------------------

    async def hold(self, tps: Iterable[TopicPartition]) -> None:
        """Stop fetching and make everything fetched so far stale."""
        held = list(tps)
        await asyncio.sleep(_CROSSING_S)
        intake = self._worker.ownership.intake
        for tp in held:
            self._flowing.discard(tp)
            intake.epoch[tp] += 1
        intake.clear(held)

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """Set positions and let records flow."""
        self._worker.ownership.intake.begin(starts)
        await asyncio.sleep(_CROSSING_S)
        for tp, offset in starts.items():
            if tp not in self._positions:
                raise RuntimeError(f"{tp} is not assigned any more")
            self._positions[tp] = offset
            self._flowing.add(tp)
        self._wake.set()

    @override
    def on_buffer_full(self, tp: TopicPartition) -> None:
        self._full.add(tp)

    @override
    def on_buffer_drop(self, tp: TopicPartition) -> None:
        self._full.discard(tp)
        self._wake.set()

    @property
    def member(self) -> str:
        return f"{self._worker.process.name}-{self.number}"

    # -- the group ----------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Be a member of the group for as long as the process lives."""
        worker = self._worker
        while True:
            self.number += 1
            member = self.member
            try:
                generation, numbers = await worker.wire.request("join", partial(worker.broker.join, member))
            except TimeoutError:
                continue
            await self._assigned(member, generation, numbers)
            while await self._stays(member, generation):
                pass
            self.settled = False
            if worker.ownership.intake.on_revoked is not None:
                await worker.ownership.intake.on_revoked()
            worker.ownership.intake.clear(list(self._positions))
            self._positions.clear()
            self._flowing.clear()

    async def _assigned(self, member: str, generation: int, numbers: frozenset[int]) -> None:
        worker = self._worker
        topics = worker.topics
        actives = {TopicPartition(topic, number) for topic in topics for number in sorted(numbers)}
        self._positions = dict.fromkeys(sorted(actives), 0)
        self._flowing.clear()
        self.heard(worker.clock.monotonic_s())
        await self.hold(sorted(actives))
        self.counted = worker.broker.partitions
        worker.ownership.intake.on_counted(dict.fromkeys(topics, self.counted))
        if worker.ownership.intake.on_assigned is not None:
            await worker.ownership.intake.on_assigned(generation, member, actives)
        asyncio.get_running_loop().call_later(worker.random.uniform(0.0, _SETTLE_S), self._settle, generation)
        self._generation = generation

    def _settle(self, generation: int) -> None:
        """End a rebalance as Faust does: its flow begins with empty queues, whatever came in before."""
        if generation == self._generation:
            self._worker.ownership.intake.clear(list(self._positions))
            self.settled = True

    async def _stays(self, member: str, generation: int) -> bool:
        worker = self._worker
        await asyncio.sleep(HEARTBEAT_S * worker.random.uniform(0.5, 1.0))
        asked_s = worker.clock.monotonic_s()
        try:
            standing = await worker.wire.request("heartbeat", lambda: worker.broker.heartbeat(member, generation))
        except TimeoutError:
            return True
        if standing is Standing.MEMBER:
            self.heard(asked_s)
        return bool(standing is Standing.MEMBER)

    def heard(self, asked_s: float) -> None:
        """See `runtime.faust.consumer.RetryConsumer.heard`."""
        self._asked_s = max(self._asked_s, asked_s)

    def lapsed(self) -> bool:
        """See `runtime.faust.consumer.RetryConsumer.lapsed`."""
        return self._worker.clock.monotonic_s() - self._asked_s > SESSION_S

    # -- fetching -----------------------------------------------------------------------------------------------

    async def fetch(self) -> None:
        worker = self._worker
        while True:
            wanted = {tp: at for tp, at in self._positions.items() if tp in self._flowing and tp not in self._full}
            if not wanted:
                self._wake.clear()
                await self._wake.wait()
                continue
            changed = worker.broker.changed()
            try:
                got = await worker.wire.request("fetch", partial(self._read, wanted))
            except TimeoutError:
                continue
            if not await self._take(wanted, got):
                await self._wait(changed)

    async def _wait(self, changed: asyncio.Future[None]) -> None:
        """Wait until there may be something to fetch."""
        self._wake.clear()
        waking: asyncio.Future[Any] = asyncio.ensure_future(self._wake.wait())
        either: list[asyncio.Future[Any]] = [changed, waking]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        waking.cancel()

    def _read(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[list[Record], int] | None]:
        """Answer a fetch, at the broker; None: the position is not there."""
        got: dict[TopicPartition, tuple[list[Record], int] | None] = {}
        for tp, at in wanted.items():
            try:
                records, position = self._worker.broker.read(tp, at, _FETCH)
            except OutOfRangeError:
                got[tp] = None
                continue
            if position > at:
                got[tp] = records, position
        return got

    async def _take(
        self, wanted: Mapping[TopicPartition, int], got: Mapping[TopicPartition, tuple[list[Record], int] | None]
    ) -> bool:
        """Take what a fetch brought out of the client's thread; tell whether there was anything."""
        intake = self._worker.ownership.intake
        records = Stamped()
        positions: dict[TopicPartition, int] = {}
        for tp, found in got.items():
            if self._positions.get(tp) != wanted[tp] or tp not in self._flowing:
                continue  # it was held or moved meanwhile
            if found is None:
                self._flowing.discard(tp)
                intake.on_out_of_range(tp, wanted[tp])
                continue
            self._positions[tp] = positions[tp] = found[1]
            if found[0]:
                records[tp] = found[0]
        records.stamp = dict(intake.epoch)
        records.positions = positions
        if positions:
            random = self._worker.random
            await asyncio.sleep(random.uniform(0.0005, DELAYED_S if random.random() < 0.1 else _CROSSED_S))
            intake.put(records, records.stamp, positions)
        return bool(got)
