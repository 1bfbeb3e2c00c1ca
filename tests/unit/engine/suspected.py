"""What tests of suspects share: what a dead worker has left, its marks, and a handler that ends its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from doubles import MAIN, BankDownError, Gate, serving

from retryapp.core.marks import split_note
from retryapp.engine.partition.suspects import GATHER_S
from retryapp.testing import MemoryLaneTransport, MemoryPartition

GATHER_MS = round(GATHER_S * 1_000)
ENDS = 2
"""Unclean ends that make records suspect."""


def found(note: str, *values: bytes) -> MemoryLaneTransport:
    """Return what a worker that died has left: records of the main topic, and a mark beside their first offset."""
    transport = MemoryLaneTransport()
    for value in values:
        transport.append(MAIN, None, value)
    transport.broker.committed[MAIN], transport.broker.notes[MAIN] = 0, note
    return transport


def names(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def marks(orders: MemoryPartition) -> list[tuple[int, str]]:
    """Return the marks that were committed, without their lives, and the offsets beside which they are."""
    return [
        (batch.offsets[MAIN], without_life(batch.notes[MAIN]))
        for batch in orders.transport.batches
        if batch.notes.get(MAIN)
    ]


def rows_marks(transport: MemoryLaneTransport) -> list[str]:
    """Return the kinds and counts of the marks of the rows, in order."""
    return [batch.rows_note.partition(":")[0] for batch in transport.batches if batch.rows_note]


def without_life(note: str) -> str:
    kind, _, rest = split_note(note).mark.partition(":")
    at = min((rest.find(sign) for sign in "@<" if sign in rest), default=len(rest))
    return kind + rest[at:]


def beside(other: MemoryPartition, gate: Callable[[bytes], object], note: str, *values: bytes) -> MemoryPartition:
    """Return another partition of the same worker."""
    made = MemoryPartition(gate, transport=found(note, *values), clock=other.clock, max_in_flight=4, concurrency=4)
    made.engine.context = replace(made.engine.context, alone=other.engine.context.alone)
    return made


class Killer:
    """A handler on which the worker dies at one value, after as many attempts that fail."""

    def __init__(self, poison: bytes, fails: int = 0) -> None:
        self.poison, self.fails = poison, fails
        self.killed = asyncio.Event()
        self.done: list[bytes] = []
        self.failed: set[bytes] = set()

    async def __call__(self, value: bytes) -> None:
        """Fail first if that is wanted; then do it, or die."""
        if self.fails and value not in self.failed and not value.startswith(b"main"):
            self.failed.add(value)
            raise BankDownError
        if value == self.poison:
            self.killed.set()
            await asyncio.Event().wait()
        self.done.append(value)

    async def ends_a_life(self, transport: MemoryLaneTransport, life: int = 0, **options: object) -> bool:
        """Run a worker until it dies or has nothing to do; one more record of the main topic comes meanwhile."""
        self.killed.clear()
        async with MemoryPartition(self, "1s 1h", transport=transport, **options) as orders:  # type: ignore[arg-type]
            if self.fails:
                await orders.send(b"main %d" % life)
            for _ in range(12):
                if self.killed.is_set():
                    break
                await orders.advance(GATHER_MS)
            return self.killed.is_set()

    async def outlives(self, transport: MemoryLaneTransport, **options: object) -> None:
        """Run a worker that is told to leave before the record has killed it."""
        async with MemoryPartition(self, "1s 1h", transport=transport, **options) as orders:  # type: ignore[arg-type]
            await orders.advance(4 * GATHER_MS)
            await orders.finish(1.0, meanwhile=lambda: orders.advance(2_000))


async def with_rows(count: int, policy: str = "1s 1h") -> tuple[Gate, MemoryLaneTransport]:
    """Return a handler and what a worker has left whose records have failed, all of them due now."""
    async with serving(Gate(), policy, *names(count), concurrency=count) as (orders, gate):
        for name in names(count):
            gate.let(name, BankDownError())
        await orders.settle()
        await orders.advance(1_000)
    gate.running.clear()
    return gate, orders.transport


def disk_rows(transport: MemoryLaneTransport) -> list[tuple[bytes, bytes]]:
    """Return the rows of the local store of a worker that is dead."""
    return transport.open_pending().page(None, 100)
