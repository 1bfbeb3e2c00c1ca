"""Whatever of the engine raises what it never should: nothing is lost, nothing hangs, and each record has one end."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from doubles import MAIN, BankDownError, about, post
from suspected import found

from retryapp.core.control import Verb, is_mark
from retryapp.core.headers import decode_metadata
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.notes import Notes
from retryapp.engine.lane.refused import RefusedTurns
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.beyond import Beyond
from retryapp.engine.partition.commands import Commands
from retryapp.engine.partition.control_queue import ControlQueue
from retryapp.engine.partition.duplicates import Duplicates
from retryapp.engine.partition.given_up import GivenUp
from retryapp.engine.partition.jobs import Jobs
from retryapp.engine.partition.letter_commands import LetterCommands
from retryapp.engine.partition.levels import Levels
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.partition.progress import Counting, OffsetWindow
from retryapp.engine.partition.recall import Recall
from retryapp.engine.partition.releases import Releases
from retryapp.engine.partition.row_commands import RowCommands
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.sequences import Sequences
from retryapp.engine.partition.session import Session
from retryapp.engine.partition.suspects import Suspects
from retryapp.ports import Event
from retryapp.testing import MemoryPartition

PARTS: tuple[type, ...] = (
    PartitionEngine, Session, Scheduler, Sequences, Suspects, Commands, ControlQueue, RowCommands, LetterCommands,
    Levels, Jobs, Releases, Recall, Duplicates, GivenUp, Beyond, OffsetWindow, Counting, Pace, DeliveryPool, Run,
    Lane, RefusedTurns, Notes, Turn,
)  # fmt: skip
ORDERS = ("none", "key")
TAKES = {(Run, "end")}
"""It is what takes them."""


class FaultOfOursError(RuntimeError):
    """A call of the engine's own raises it."""


def public(part: type) -> list[str]:
    names = [name for name, each in vars(part).items() if inspect.isfunction(each) and not name.startswith("_")]
    return [name for name in names if (part, name) not in TAKES]


def throw_at(number: int, numbers: Iterator[int]) -> None:
    if next(numbers) == number - 1:
        raise FaultOfOursError


@contextmanager
def before(part: type, name: str, then: Callable[[], None]) -> Iterator[None]:
    """Have something done before each call of a method."""
    real: Any = vars(part)[name]

    def call(*given: Any, **named: Any) -> Any:
        then()
        return real(*given, **named)

    async def wait(*given: Any, **named: Any) -> Any:
        then()
        return await real(*given, **named)

    with patch.object(part, name, wait if inspect.iscoroutinefunction(real) else call):
        yield


def command(orders: MemoryPartition, verb: str, offset: int) -> None:
    post(orders, about(verb, Verb(verb), offset))


def send(orders: MemoryPartition, *values: bytes) -> None:
    for value in values:
        orders.transport.append(MAIN, value[-1:], value, (("id", value),))


class Life:
    """Records that fail, rows that come due, suspects, commands and a lane that fails: what is noticed or wrong."""

    def __init__(self, order: str) -> None:
        self.over = False
        self.problems: list[str] = []
        self.noticed = 0
        self._options: dict[str, Any] = {"order": order, "deduplicate": "header:id"}
        self._options["transport"] = found("r1:dead wr1:dead", b"bad 0", b"dead 1")
        self._tries = Counter[bytes]()
        self._steps: deque[Callable[[MemoryPartition], Any]] = deque(
            (
                lambda _: None,
                lambda orders: send(orders, b"bad 2", b"good 1", b"dead 2", b"good 2"),
                lambda orders: command(orders, "retry-now", 2),
                lambda orders: command(orders, "cancel", 0),
                lambda orders: send(orders, b"good 3", b"bad 1"),
                lambda orders: orders.lane.fail(RuntimeError("so that it opens again")),
                *[lambda _: None] * 12,
                lambda orders: command(orders, "replay", 1),
                lambda orders: send(orders, b"bad 5"),
                *[lambda _: None] * 6,
            )
        )

    async def _handle(self, value: bytes) -> None:
        self._tries[value] += 1
        if value.startswith(b"dead") or (value.startswith(b"bad") and self._tries[value] <= 2):
            raise BankDownError

    def _note(self, _loop: object, told: dict[str, Any]) -> None:
        self.noticed += isinstance(told.get("exception"), FaultOfOursError)

    async def live(self) -> None:
        """Come to rest; where nobody takes a fault its process ends, and another goes on."""
        asyncio.get_running_loop().set_exception_handler(self._note)
        for _ in range(3):
            orders = MemoryPartition(self._handle, "1s 1s", **self._options)
            try:
                self.over = await self._rests(orders)
                if self.over:
                    self.problems += self._judge(orders)
                    return
            finally:
                told = [each for each in orders.observer.seen if each.event in (Event.LANE_FAILED, Event.DEAD)]
                self.noticed += sum(FaultOfOursError.__name__ in f"{each.error_type} {each.message}" for each in told)
                with suppress(FaultOfOursError):
                    await orders.__aexit__(None, None, None)
        self.problems.append("each process ends")

    async def _rests(self, orders: MemoryPartition) -> bool:
        try:
            await orders.__aenter__()
            while self._steps:
                self._steps.popleft()(orders)
                await orders.advance(400)
            await orders.to_rest(600_000)
        except FaultOfOursError:
            self.noticed += 1
            return False
        except AssertionError as error:
            if orders._task is not None and orders._task.done():  # then its process ends
                self.noticed += 1
                return False
            self.problems.append(str(error))
        return True

    def _judge(self, orders: MemoryPartition) -> Iterator[str]:
        topology, seen = orders.handler.topology, Counter[tuple[str, str, int]]()
        for topic in (topology.dlq, *topology.retry_topics):
            copies = (decode_metadata(each.headers) for each in orders.records(topic) if not is_mark(each.headers))
            seen.update((topic, str(each.origin.offset), each.delivery) for each in copies if each is not None)
        for event in (json.loads(each.value or b"") for each in orders.records(topology.events)):
            what = {"succeeded": "origin", "command": "command"}.get(event["kind"])
            if what is not None and event[what]:
                seen[event["kind"], event[what].rpartition("/")[2], 0] += 1
        yield from (f"{what}: {count} times" for what, count in seen.items() if count > 1)
        yield from (f"no {verb}" for verb in ("retry-now", "cancel", "replay") if not seen["command", verb, 0])
        for record in orders.records("orders"):
            value, offset = record.value or b"", str(record.offset)
            ends = {name for name, of, _ in seen if of == offset and name in ("succeeded", topology.dlq)}
            if value.startswith(b"good") and not ends:
                ends = {"done"} if self._tries[value] else set()
            if len(ends) != 1:
                yield f"{value!r} ends {sorted(ends)}"


@cache
def calls(order: str) -> Counter[tuple[type, str]]:
    """Return how often each method of a part is called in a life without a fault, with which nothing is wrong."""
    counted, life = Counter[tuple[type, str]](), Life(order)

    def note(part: type, name: str) -> None:
        counted[part, name] += not life.over

    with ExitStack() as stack:
        for part in PARTS:
            for name in public(part):
                stack.enter_context(before(part, name, partial(note, part, name)))
        asyncio.run(life.live())
    assert (life.problems, life.noticed) == ([], 0)
    return counted


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("part", PARTS)
def test_a_fault_of_ours_in_any_call_loses_nothing(part: type, order: str) -> None:
    """At the first call of a method, or in the middle: its lane opens again, its process or its record ends."""
    wrong: list[str] = []
    for name in public(part):
        often = calls(order)[part, name]
        for number in sorted({1, often // 2 + 1} if often else ()):
            life = Life(order)
            with before(part, name, partial(throw_at, number, count())):
                asyncio.run(life.live())
            wrong += [f"{name}, call {number}: {problem}" for problem in life.problems]
            wrong += [f"{name}, call {number}: nobody has noticed"] * (life.noticed == 0)
    assert wrong == []
