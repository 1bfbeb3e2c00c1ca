"""A command that waits until all dead letters are known holds up those about its record, and no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import MAIN, about, events_of, post, reopen

from retryapp import CircuitBreaker
from retryapp.core.control import Verb
from retryapp.core.jobs import HandlerCommand, HandlerVerb, Steering
from retryapp.core.lifecycle import Commanded
from retryapp.core.verdicts import Reject
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition import control_queue
from retryapp.engine.partition.letter_commands import LETTERS_S
from retryapp.ports import TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition
from retryapp.testing.lane import MemoryReader, Step


async def bank(value: bytes) -> None:
    raise Reject("wrong") if value == b"dead" else ValueError("down")


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether all letters are known, as the last item says."""
    known = [True]
    monkeypatch.setattr(MemoryLaneTransport, "letters_here", property(lambda _lane: known[-1]))
    return known


def partition(**more: Any) -> MemoryPartition:
    """Make one that rejects one record, and fails for the others."""
    return MemoryPartition(bank, "1h*3", circuit=CircuitBreaker(minimum_calls=100), **more)


def told(orders: MemoryPartition) -> list[tuple[str, str | None]]:
    """Return the commands that have an event, in order, and why they were refused."""
    return [(each.command, each.refused) for each in events_of(orders, Commanded) if each.command]


OUTAGE = HandlerCommand(id="outage", verb=HandlerVerb.OPEN)


async def test_an_outage_and_a_cancel_pass_a_replay_that_waits_for_letters(letters: list[bool]) -> None:
    """A command about the same record does not: it sees what the replay has left."""
    async with partition() as orders:
        await orders.send(b"dead", b"one")
        letters.append(False)
        post(orders, about("replay", Verb.REPLAY, 0), OUTAGE)
        post(orders, about("hold", Verb.HOLD, 0), about("cancel", Verb.CANCEL, 1))
        await orders.settle()
        assert told(orders) == [("outage", None), ("cancel", None)]
        assert orders.engine.context.pace.forced
        assert [letter.reason for letter in orders.dead_letters] == ["rejected", "cancelled"]
        post(orders, about("retry", Verb.RETRY_NOW, 1))
        await orders.advance(100)
        letters.append(True)
        await orders.advance(100)
        assert told(orders)[2:] == [("retry", "not-waiting"), ("replay", None), ("hold", None)]


async def test_a_replay_is_refused_once_it_has_waited_long(letters: list[bool]) -> None:
    """Those behind it do not wait as long again; once the letters are known the next one is obeyed."""
    async with partition() as orders:
        await orders.send(b"dead")
        letters.append(False)
        post(orders, about("first", Verb.REPLAY, 0))
        await orders.settle()
        await orders.advance(int(LETTERS_S * 1_000) - 1)
        assert told(orders) == []
        await orders.advance(60)
        post(orders, about("second", Verb.DISCARD, 0))
        await orders.settle()
        assert told(orders) == [("first", "not-ready"), ("second", "not-ready")]
        letters.append(True)
        post(orders, about("third", Verb.REPLAY, 0))
        await orders.settle()
        assert told(orders)[2:] == [("third", None)]


@pytest.mark.parametrize("durable", [False, True])
async def test_at_each_commit_a_kill_neither_repeats_nor_forgets_a_command(letters: list[bool], durable: bool) -> None:
    """Those that have passed are remembered until the position has passed them, too; the store is lost besides."""
    for after in range(30):
        transport, names = MemoryLaneTransport(), ["outage", "cancel", "replay", "hold", "retry"]
        dying = transport.pause(Step.COMMIT, after=after, durable=durable)
        letters.append(False)
        for life in range(3):
            async with partition(transport=transport) as orders:
                if life == 0:
                    await orders.send(b"dead", b"one")
                    post(orders, about("replay", Verb.REPLAY, 0), OUTAGE, about("hold", Verb.HOLD, 0))
                    post(orders, about("cancel", Verb.CANCEL, 1), about("retry", Verb.RETRY_NOW, 1))
                await orders.advance(100)
                if life > 0 or not dying.reached:
                    letters.append(True)
                await orders.advance(100)
                letters.append(life == 1)
            transport.lose_store()
        assert sorted(name for name, _ in told(orders)) == sorted(names), after
        assert [name for name, _ in told(orders) if name in ("replay", "hold")] == ["replay", "hold"]
        if not dying.reached:
            assert after > 4
            return


async def test_what_is_remembered_is_bounded(letters: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after so many that have passed waits, too; and nothing is remembered in the end."""
    monkeypatch.setattr(control_queue, "MOST_AHEAD", 3)
    async with partition() as orders:
        await orders.send(b"dead")
        letters.append(False)
        post(orders, about("replay", Verb.REPLAY, 0))
        post(orders, *(about(f"n{number}", Verb.CANCEL, 90 + number) for number in range(3)))
        await orders.settle()
        post(orders, *(about(f"n{number}", Verb.CANCEL, 90 + number) for number in range(3, 9)))
        await orders.advance(100)
        assert [name for name, _ in told(orders)] == ["n0", "n1", "n2"]
        letters.append(True)
        await orders.advance(100)
        assert [name for name, _ in told(orders)][3:] == ["replay", *(f"n{number}" for number in range(3, 9))]
        assert orders.engine.commands is not None
        assert orders.engine.commands.queue.ahead == {}


async def test_many_that_have_waited_for_letters_let_others_between(
    letters: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were obeyed in one go, each letter read alone: a pause waited for minutes."""
    reads, pick, read = [0], MemoryReader.records, MemoryReader.read

    async def picking(self: MemoryReader, *args: Any, **more: Any) -> Any:
        reads[0] += 1
        return await pick(self, *args, **more)

    async def reading(self: MemoryReader, tp: TopicPartition, *args: Any, **more: Any) -> int:
        reads[0] += tp.topic == "app.orders.dlq"
        return await read(self, tp, *args, **more)

    async with partition() as orders:
        await orders.send(*[b"dead"] * 500)
        letters.append(False)
        post(orders, *(about(str(number), Verb.REPLAY, number) for number in range(500)))
        await orders.settle()
        assert told(orders) == []
        monkeypatch.setattr(MemoryReader, "records", picking)
        monkeypatch.setattr(MemoryReader, "read", reading)
        letters.append(True)
        post(orders, HandlerCommand(id="pause", verb=HandlerVerb.PAUSE), about("again", Verb.REPLAY, 7))
        await orders.advance(100)
        names = [name for name, _ in told(orders)]
        assert names.index("pause") <= 200
        assert [name for name in names if name != "pause"] == [*map(str, range(500)), "again"]
        assert [refused for _, refused in told(orders)] == [None] * 501 + ["waiting"]
        assert reads[0] <= 11


async def test_no_more_than_may_be_remembered_pass_over_an_opening(letters: list[bool]) -> None:
    """A session that finds 99 of a former one took 100 more."""
    async with partition() as orders:
        await orders.send(b"dead")
        letters.append(False)
        for first in (0, 99):
            post(orders, *([about("replay", Verb.REPLAY, 0)] * (first == 0)))
            post(orders, *(about(f"n{number}", Verb.CANCEL, 900 + number) for number in range(first, first + 99)))
            await orders.settle()
            await reopen(orders)
        assert [name for name, _ in told(orders)] == [f"n{number}" for number in range(100)]
        letters.append(True)
        await orders.advance(100)
        assert [name for name, _ in told(orders)][100:] == ["replay", *(f"n{number}" for number in range(100, 198))]


async def test_offsets_of_a_former_control_topic_pass_nothing() -> None:
    """One that was made again has other commands at the same offsets."""
    async with partition() as orders:
        await orders.send(b"one")
        kept = Steering(ahead={"former": [0, 1, 2]}).written
        orders.lane.submit(orders.lane.session, Turn(source=MAIN, next_offset=0, steering=kept))
        await orders.settle()
    async with partition(transport=orders.transport) as orders:
        await orders.command("cancel", 0)
        assert [letter.reason for letter in orders.dead_letters] == ["cancelled"]


async def test_where_the_control_topic_ends_is_known_after_a_fault_of_the_broker() -> None:
    """A pause would take what was sent before it for something that came later."""
    async with partition() as orders:
        post(orders, HandlerCommand(id="r", verb=HandlerVerb.RESUME))
        queue = orders.engine.commands.queue  # type: ignore[union-attr]
        queue.come(1)
        orders.transport.fail("tail", ConnectionError())  # type: ignore[arg-type]
        await queue.read()
        assert (queue.end, queue.more) == (1, False)
        await orders.advance(1_000)
        assert told(orders) == [("r", None)]


async def test_where_the_control_topic_ends_is_known_while_it_is_read() -> None:
    """The end of when the reading began took its place."""
    async with partition() as orders:
        post(orders, HandlerCommand(id="r1", verb=HandlerVerb.RESUME))
        queue = orders.engine.commands.queue  # type: ignore[union-attr]
        answer = orders.transport.pause("tail", durable=True)  # type: ignore[arg-type]
        await orders.until(lambda: answer.reached)
        post(orders, HandlerCommand(id="r2", verb=HandlerVerb.RESUME))
        queue.come(2)
        answer.set()
        for _ in range(12):
            await asyncio.sleep(0)
            assert queue.end == 2
        await orders.settle()
        assert told(orders) == [("r1", None), ("r2", None)]
