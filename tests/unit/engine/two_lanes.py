"""A worker of tests with both lanes of one partition: that of records, and that of the handler of their letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from doubles import events_of

from retryapp import Delivery, Reject
from retryapp.core.control import is_mark, mark_of
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.lifecycle import Commanded
from retryapp.core.topology import HandlerTopology
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step
from retryapp.testing.lane import MemoryReader

ORDERS = HandlerTopology("app", "orders", delays_ms=(1_000,))
LETTERS = HandlerTopology("app", ORDERS.dlq, delays_ms=(60_000,), drop=True, letters_of="orders")


class Bad:
    """Rejects orders until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.seen: list[bytes] = []

    async def __call__(self, value: bytes) -> None:
        """Note the order."""
        self.seen.append(value)
        if not self.mended:
            raise Reject("no such customer")


class Tickets:
    """A handler of letters: each call raises the next of its errors, if there is one, once `open` is set."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = [*errors]
        self.open = asyncio.Event()
        self.open.set()
        self.seen: list[bytes] = []

    async def __call__(self, value: bytes, _delivery: Delivery) -> None:
        """Note the letter."""
        self.seen.append(value)
        await self.open.wait()
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error


class Worker:
    """A worker with both lanes of one partition."""

    def __init__(self, bad: Bad, tickets: Tickets, before: Worker | None, **more: Any) -> None:
        self.bad, self.tickets = bad, tickets
        kept = None if before is None else (before.orders.transport, before.letters.transport)
        if kept is None:
            first = MemoryLaneTransport()
            second = MemoryLaneTransport(first.clock)
            second.broker = first.broker
            second.reader = MemoryReader(first.broker, second.request)
            kept = first, second
        shared = SharedLetters()
        kept[0].shared, kept[1].letters = {ORDERS.dlq: shared}, shared
        self.orders = MemoryPartition(bad, "1s", topology=ORDERS, transport=kept[0], **more)
        self.letters = MemoryPartition(tickets, "1m*2", topology=LETTERS, transport=kept[1])
        object.__setattr__(self.letters.engine.context, "letters", shared)

    async def settle(self) -> None:
        """Let both come to rest."""
        for _ in range(2):
            await self.orders.settle()
            await self.letters.settle()

    async def die(self, *values: bytes) -> None:
        """Have orders die, and their letters go to the handler."""
        await self.orders.send(*values)
        await self.settle()

    async def command(self, verb: str, offset: int = 0, **more: Any) -> str | None:
        """Send a command about an order; return why it was refused."""
        outcome = await self.orders.command(verb, offset, **more)
        await self.settle()
        refused: str | None = outcome["refused"]
        return refused

    async def almost_due(self) -> None:
        """Wait until the letter that waits is due in 100 ms."""
        table = self.letters.transport.pending
        assert table is not None
        due_at_ms = table.due(0, 0)[1]
        assert due_at_ms is not None
        for left_ms in (5_000, 1_000, 100):  # what has waited for its time is committed before
            await self.letters.advance(due_at_ms - left_ms - self.letters.clock.wall_ms())
            await self.settle()

    @property
    def told(self) -> list[tuple[str, str | None]]:
        """Commands of the letters' handler that have an event, in order, and why they were refused."""
        return [(event.command, event.refused) for event in events_of(self.letters, Commanded)]

    async def pause(self, verb: HandlerVerb) -> None:
        """Pause the handler of letters, or have it go on."""
        await self.letters.obey(HandlerCommand(id=str(verb), verb=verb))
        await self.settle()

    @property
    def marks(self) -> list[str]:
        """What the dead-letter topic says became of letters, in order."""
        records = (record for record in self.orders.records(ORDERS.dlq) if is_mark(record.headers))
        return [mark.mark.value for r in records if (mark := mark_of(r.headers, r.value)) is not None]


@asynccontextmanager
async def worker(bad: Bad, tickets: Tickets, before: Worker | None = None, **more: Any) -> AsyncIterator[Worker]:
    """Run a worker, after another that was killed; `more` is about its handler of records."""
    made = Worker(bad, tickets, before, **more)
    async with made.orders, made.letters:
        await made.settle()
        yield made


@asynccontextmanager
async def with_letter(*errors: BaseException | None, shut: bool = False) -> AsyncIterator[tuple[Worker, Bad, Tickets]]:
    """Run a first worker in which a record has died; where its handler of letters is shut, that one waits."""
    bad, tickets = Bad(), Tickets(*errors)
    if shut:
        tickets.open.clear()
    async with worker(bad, tickets) as both:
        await both.die(b"1")
        yield both, bad, tickets


@asynccontextmanager
async def half_open(bad: Bad, tickets: Tickets, before: Worker) -> AsyncIterator[tuple[Worker, asyncio.Event]]:
    """Run a worker, after another that was killed; the lane of the records opens once the event is set."""
    made = Worker(bad, tickets, before)
    opening = made.orders.transport.pause(Step.RECOVER)
    async with made.orders, made.letters:
        await made.letters.settle()
        await made.letters.advance(1_000)
        yield made, opening
