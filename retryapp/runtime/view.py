"""What a worker tells its web pages: `ports.WorkerView` on the runtime. Everything is bounded."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from itertools import islice

from retryapp.core.record import Record
from retryapp.engine.lane import LaneState
from retryapp.kafka import read_record
from retryapp.ports import DeadEntry, HandlerInfo, PartitionInfo, PendingEntry
from retryapp.runtime.app import Placed, Runtime, owners

NO_CLAIMS: frozenset[bytes] = frozenset()


class RuntimeView:
    """See the module's text."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        runtime.gauges = lambda: {main: partitions_of(runtime, main) for main in runtime.served}

    def handlers(self) -> Sequence[HandlerInfo]:
        """See `ports.WorkerView.handlers`."""
        return [_info(self._runtime, main) for main in self._runtime.served]

    def partitions(self, main: str) -> Sequence[PartitionInfo]:
        """See `ports.WorkerView.partitions`."""
        return partitions_of(self._runtime, main)

    def pending_page(
        self, main: str, *, after: bytes | None, limit: int, partition: int | None = None
    ) -> Sequence[PendingEntry]:
        """See `ports.WorkerView.pending_page`."""
        pages = []
        for (topic, number), placed in self._runtime.placed.items():
            if topic == main and partition in (None, number) and placed.transport.pending is not None:
                rows = placed.transport.pending.page(after, limit)
                pages.append([PendingEntry(partition=number, key=key, value=value) for key, value in rows])
        return list(islice(heapq.merge(*pages, key=lambda entry: entry.key), limit))

    def pending_find(self, main: str, partition: int, origin_offset: int) -> PendingEntry | None:
        """See `ports.WorkerView.pending_find`."""
        placed = self._open(main, partition)
        table = placed.transport.pending if placed else None
        key = table.find(origin_offset) if table else None
        value = table.get(key) if table and key else None
        return PendingEntry(partition=partition, key=key, value=value) if key and value else None

    def dead_page(self, main: str, *, partition: int, before: int | None, limit: int) -> Sequence[DeadEntry]:
        """See `ports.WorkerView.dead_page`."""
        placed = self._open(main, partition)
        table = placed.transport.dead if placed else None
        return [DeadEntry(partition=partition, row=row) for row in table.page(before, limit)] if table else []

    def dead_find(self, main: str, partition: int, failure_id: str) -> DeadEntry | None:
        """See `ports.WorkerView.dead_find`."""
        placed = self._open(main, partition)
        table = placed.transport.dead if placed else None
        row = table.find(failure_id) if table else None
        return DeadEntry(partition=partition, row=row) if row else None

    async def read_record(self, topic: str, partition: int, offset: int) -> Record | None:
        """See `ports.WorkerView.read_record`."""
        return await asyncio.to_thread(read_record, self._runtime.connection, topic, partition, offset)

    def ready(self) -> bool:
        """See `ports.WorkerView.ready`."""
        runtime = self._runtime
        if not runtime.assigned or runtime.app.rebalancing:  # before the first assignment nothing is placed yet
            return False
        return all(placed.lane.state is LaneState.OPEN for placed in runtime.placed.values())

    def metrics_text(self) -> bytes:
        """See `ports.WorkerView.metrics_text`."""
        return self._runtime.metrics.text()

    def _open(self, main: str, partition: int) -> Placed | None:
        return self._runtime.placed.get((main, partition))


def _info(runtime: Runtime, main: str) -> HandlerInfo:
    served = runtime.served[main]
    handler, topology = served.handler, served.handler.topology
    return HandlerInfo(
        group=handler.group,
        main=main,
        function=handler.name,
        policy=handler.policy.text,
        policy_digest=handler.policy.digest,
        tiers=str(topology.tiers),
        concurrency=handler.concurrency,
        timeout_ms=handler.policy.timeout_ms,
        topics={
            "main": main,
            "redelivery": topology.redelivery,
            "dlq": topology.dlq,
            "events": topology.events,
            "changelog": topology.pending_changelog,
        },
        partitions=served.partitions,
        retry_topics=topology.retry_topics,
    )


def partitions_of(runtime: Runtime, main: str) -> Sequence[PartitionInfo]:
    """Return all partitions of a handler; those of other workers with their owner's address."""
    served = runtime.served[main]
    addresses = owners(runtime.app, main) if runtime.plan is not None else {}
    return [_partition(runtime, main, number, addresses.get(number)) for number in range(served.partitions)]


def _partition(runtime: Runtime, main: str, number: int, address: str | None) -> PartitionInfo:
    placed = runtime.placed.get((main, number))
    pending = placed.transport.pending if placed else None
    dead = placed.transport.dead if placed else None
    counts = dict(pending.counts()) if pending else {}
    next_due = pending.due(0, 0, NO_CLAIMS)[1] if pending else None
    mine = str(runtime.app.conf.canonical_url)
    return PartitionInfo(
        partition=number,
        state=str(placed.lane.state) if placed else "elsewhere",
        owner_url=None if placed else (address if address != mine else None),
        pending=sum(counts.values()),
        pending_by_tier=counts,
        next_due_ms=next_due,
        dead=dead.count() if dead else 0,
        in_flight=placed.engine.in_flight if placed else 0,
        release_lag_ms=placed.engine.release_lag_ms if placed else 0,
        last_error=placed.lane.last_error if placed else None,
    )
