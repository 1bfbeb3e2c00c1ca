"""What is due again comes back through the main topic: once, from the table, when that is read so far."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from doubles import MAIN, Refusing, reopen, rows, serving
from typing_extensions import override

from retryapp.core.deduplicate import Deduplicate
from retryapp.core.marks import Tally
from retryapp.core.publication import Destination, TopicLook
from retryapp.core.record import Headers, Record
from retryapp.core.redelivery import RETRY_REDELIVERY, is_copy
from retryapp.core.rows import CANCELLED, SENT
from retryapp.engine.handler.handler import Order
from retryapp.ports import Event
from retryapp.testing import MemoryDestinations, MemoryPartition, Script, Step

HEADERS: Final = (("trace", b"\xff1"), ("trace", None), ("retry-due-ms", b"mine"), (RETRY_REDELIVERY, b"another's"))
RECORD: Final = "orders@kq8G0bTz/0/0"


def copies(partition: MemoryPartition) -> list[Record]:
    """Return the copies on the main topic."""
    return [each for each in partition.records("orders") if is_copy(*MAIN, each.headers)]


def names(partition: MemoryPartition) -> list[bytes | None]:
    return [each.headers[-1][1] for each in copies(partition)]


def tally(partition: MemoryPartition) -> Tally:
    assert partition.engine.session is not None
    return partition.engine.session._counting._tally


def copy_of(group: str, number: int, offset: int = 0) -> Headers:
    return ((RETRY_REDELIVERY, f"{group}/orders@kq8G0bTz/0/{offset}:{number}".encode()),)


@pytest.mark.parametrize("value", [b"order", b"", None])
async def test_a_record_comes_back_as_it_was_behind_its_copy(value: bytes | None) -> None:
    """The copy has key, value and headers of the record, and one more; it is not handled, nor counted as received."""
    seen: list[Any] = []

    async def handle(_value: bytes, delivery: Any) -> None:
        seen.append((delivery.key, delivery.raw_value, delivery.headers, delivery.timestamp_ms))
        if len(seen) < 3:
            raise ValueError

    async with serving(handle, "1s 10s", value, key=b"k", headers=HEADERS, through_main=True) as (orders, _):
        await orders.to_rest()
        found = copies(orders)
        assert (tally(orders).received, tally(orders).failed, tally(orders).skipped) == (1, 1, 0)
        assert len(orders.observer.of(Event.COPY)) == 2
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert [(each.key, each.value, each.headers[:-1]) for each in found] == [(b"k", value, HEADERS)] * 2
    assert [each.headers[-1] for each in found] == [(RETRY_REDELIVERY, f"app/{RECORD}:{n}".encode()) for n in (2, 3)]


async def test_it_comes_behind_what_waits_on_the_main_topic() -> None:
    """So many first deliveries go before it, although it is due."""
    going = asyncio.Event()
    order: list[bytes] = []

    async def handle(value: bytes, delivery: Any) -> None:
        order.append(value)
        if value == b"a" and delivery.attempt == 1:
            raise ValueError
        await going.wait()

    async with serving(handle, "1s", b"a", through_main=True, max_in_flight=2) as (orders, _):
        await orders.send(*(b"%d" % n for n in range(6)))
        await orders.advance(1_000)
        assert (len(copies(orders)), order) == (1, [b"a", b"0"])
        going.set()
        await orders.to_rest()
    assert order == [b"a", *(b"%d" % n for n in range(6)), b"a"]


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("lost", [False, True])
async def test_a_kill_between_copy_and_outcome_publishes_no_second_one(read: bool, lost: bool) -> None:
    """The row says that it was sent; the next session delivers it once the main topic is read to its end."""
    async with serving(Script("fail"), "1s", b"a", through_main=True) as (orders, script):
        if not read:
            orders.engine.room = lambda _: 0  # type: ignore[method-assign]
        else:
            script._then = lambda *_: asyncio.Event().wait()
        await orders.advance(1_000)
        assert names(orders) == [f"app/{RECORD}:2".encode()]
        transport = orders.transport
    if lost:
        transport.lose_store()
    script._then = None
    async with MemoryPartition(script, "1s", through_main=True, transport=transport) as orders:
        await orders.to_rest()
        assert names(orders) == [f"app/{RECORD}:2".encode()]
        assert transport.offsets[MAIN] >= 2
    assert [seen.attempt for seen in script.calls if seen.came_to != "stopped"] == [1, 2]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_kill_in_the_commit_of_the_copy_leaves_both_or_none(durable: bool) -> None:
    """One copy is visible in the end, and the record is delivered once."""
    async with serving(Script("fail"), "1s", b"a", through_main=True) as (orders, script):
        orders.transport.pause(Step.COMMIT, durable=durable)
        await orders.advance(1_000)
    async with MemoryPartition(script, "1s", through_main=True, transport=orders.transport) as orders:
        await orders.to_rest()
        assert names(orders) == [f"app/{RECORD}:2".encode()]
    assert [seen.attempt for seen in script.calls] == [1, 2]


@pytest.mark.parametrize("options", [{}, {"through_main": True}, {"order": Order.KEY}, {"order": Order.LATEST}])
async def test_copies_of_others_are_passed_in_every_mode(options: dict[str, Any]) -> None:
    """Also second ones of its own, before they are taken for duplicates."""
    async with serving(Script(), "1s", deduplicate=Deduplicate("header:id"), **options) as (orders, script):
        await orders.send(b"a", headers=(("id", b"1"),))
        for headers in (copy_of("other", 2), copy_of("app", 2), copy_of("app", 7)):
            await orders.send(b"a", headers=(("id", b"1"), *headers))
        await orders.send(b"b", headers=(("id", b"2"),))
        await orders.advance(1_000)
        assert (tally(orders).received, tally(orders).skipped) == (2, 0)
        assert len(orders.observer.of(Event.COPY)) == 3
        assert orders.transport.offsets[MAIN] == 5
    assert [seen.value for seen in script.calls] == [b"a", b"b"]


async def test_what_only_looks_like_a_copy_is_a_record() -> None:
    """Of another topic or partition, whose headers a service has passed on; or with a name that is none."""
    script = Script()
    names = b"app/refunds@kq8G0bTz/0/0:2", b"app/orders@kq8G0bTz/1/0:2", b"app/orders@kq8G0bTz/0/0:", b"\xff", None
    async with MemoryPartition(script, "1s", through_main=True) as orders:
        for name in names:
            await orders.send(b"a", headers=((RETRY_REDELIVERY, name),))
        await orders.to_rest()
    assert len(script.calls) == len(names)


async def test_a_copy_without_its_row_delivers_nothing() -> None:
    """Offsets that were set back, or a copy that somebody has copied: only the session's own claims are delivered."""
    async with serving(Script("fail"), "1h", b"a", through_main=True) as (orders, script):
        await orders.send(b"a", headers=copy_of("app", 2))
        await orders.advance(60_000)
    assert [seen.attempt for seen in script.calls] == [1]


async def test_a_cancel_while_its_copy_is_on_the_way_is_obeyed_before_the_call() -> None:
    """A retry-now is refused: it is on its way."""
    async with serving(Script("fail"), "1s", b"a", through_main=True) as (orders, script):
        orders.engine.room = lambda _: 0  # type: ignore[method-assign]
        await orders.advance(1_000)
        assert (await orders.command("retry-now", 0))["refused"] == "running"
        assert (await orders.command("cancel", 0))["refused"] is None
    async with MemoryPartition(script, "1s", through_main=True, transport=orders.transport) as orders:
        await orders.to_rest()
        assert [letter.reason for letter in orders.dead_letters] == ["cancelled"]
        assert len(copies(orders)) == 1
    assert [seen.attempt for seen in script.calls] == [1]


async def test_a_command_waits_for_the_turn_that_notes_the_copy() -> None:
    """Or one of the two would be taken back by the other, once the worker has died."""
    async with serving(Script("fail"), "1s", b"a", through_main=True) as (orders, _):
        orders.engine.room = lambda _: 0  # type: ignore[method-assign]
        commit = orders.transport.pause(Step.COMMIT)
        await orders.advance(1_000)
        assert commit.reached
        with pytest.raises(AssertionError, match="no outcome"):
            await orders.command("cancel", 0)
        commit.set()
        await orders.settle()
        assert [row.flags for row in rows(orders)] == [CANCELLED | SENT]


async def test_what_the_main_topic_may_not_take_comes_at_once() -> None:
    """A record that its copy's header makes too large; and one without key and value, which no client sends."""
    async with serving(Script("fail"), "1s", through_main=True) as (orders, script):
        orders.handler.destinations.of("orders").max_bytes = 1_000
        await orders.send(b"x" * 900)
        await orders.send(None)
        await orders.to_rest()
        assert copies(orders) == []
    assert len(script.calls) == 4


async def test_what_the_main_topic_refuses_comes_at_once_and_closes_no_lane(caplog: pytest.LogCaptureFixture) -> None:
    """One copy tells that it takes none; half a minute later another one, until it does again. Others run on."""
    started: list[bytes] = []

    async def handle(value: bytes, delivery: Any) -> None:
        started.append(value)
        if value == b"slow":
            await asyncio.Event().wait()
        if delivery.attempt == 1:
            raise ValueError

    values = [b"a%d" % n for n in range(20)]
    async with serving(handle, "1s", *values, through_main=True, concurrency=2) as (orders, _):
        refusing = Refusing(orders.transport, b"a")
        refusing.topics = "orders"
        await orders.send(b"slow")
        await orders.advance(1_000)
        assert len(refusing.tries) == 1
        assert started[21:] == started[:20]
        assert not orders.waiting
        assert caplog.messages == [
            "orders[0] takes no copies of records that are due again (denied): they are delivered without one"
        ]
        for tries in (0, 1):
            refusing.tries.clear()
            await orders.send(b"a again")
            await orders.advance(300)  # it goes ahead of the slow one
            await orders.advance(1_000)
            assert len(refusing.tries) == tries
            await orders.advance(30_000)
        refusing.prefixes = ()
        await orders.send(b"a again")
        await orders.advance(300)
        await orders.advance(1_000)
        assert len(copies(orders)) == 1
        assert (orders.lane.session, orders.lane.refusal, started.count(b"slow")) == (1, None, 1)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("topic", ["app.orders.pending.changelog", "orders"])
async def test_a_refusal_that_is_not_of_all_copies_is_not_said_of_the_main_topic(
    topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the row's note, by another topic; or of one copy, by its size."""
    monkeypatch.setattr(Destination, "refuse", lambda *_: None)
    async with serving(Script("fail"), "1s", b"a", through_main=True) as (orders, script):
        refusing = Refusing(orders.transport, b"")
        refusing.topics = topic
        await orders.advance(1_000)
        assert refusing.tries
        refusing.prefixes = ()
        await orders.to_rest()
        assert copies(orders) == []
    assert [seen.attempt for seen in script.calls] == [1, 2]
    assert caplog.messages == []


LEADERLESS: Final = TopicLook(1, closed={0: "it has no leader"})


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (LEADERLESS, "it has no leader"),
        (TopicLook(1, problem="it has no partitions yet"), "it has no partitions yet"),
        (TimeoutError("no broker"), "it could not be looked at (no broker)"),
    ],
)
async def test_before_a_copy_the_main_topic_is_looked_at(
    seen: TopicLook | Exception, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy for a partition without a leader would close the lane. Copies go on once it takes them."""
    topics = MemoryDestinations(None if isinstance(seen, Exception) else {"orders": seen})
    topics.error = seen if isinstance(seen, Exception) else None
    options: Any = {"through_main": True, "destinations": topics}
    async with serving(Script("fail", "fail"), "1s 10s", b"a", **options) as (orders, script):
        await orders.advance(1_000)
        assert (copies(orders), len(script.calls), orders.lane.session) == ([], 2, 1)
        topics.topics, topics.error = None, None
        await orders.advance(10_000)
        assert names(orders) == [f"app/{RECORD}:3".encode()]
        assert (len(script.calls), orders.lane.session) == (3, 1)
    text = f"orders[0] takes no copies of records that are due again ({problem}): they are delivered without one"
    assert caplog.messages == [text]


async def test_after_a_copy_has_failed_its_lane_the_main_topic_is_looked_at_again() -> None:
    """It has lost its leader since: each further copy would close the lane again."""
    topics = MemoryDestinations()
    options: Any = {"through_main": True, "destinations": topics}
    async with serving(Script("fail", "fail"), "1s 4s", b"a", **options) as (orders, script):
        await orders.advance(1_000)
        assert (len(copies(orders)), topics.looked) == (1, ["orders"])
        topics.topics = {"orders": LEADERLESS}
        orders.transport.fail(Step.COMMIT, TimeoutError("no leader"))
        await orders.advance(4_000)
        await orders.to_rest()
        assert (len(copies(orders)), topics.looked) == (1, ["orders", "orders"])
        assert (len(script.calls), orders.lane.session) == (3, 2)


async def test_the_main_topic_is_there_where_a_test_names_others(caplog: pytest.LogCaptureFixture) -> None:
    """Those that the handler publishes to: no reason to make no copies."""
    options: Any = {"through_main": True, "destinations": MemoryDestinations({"out": 1})}
    async with serving(Script("fail"), "1s", b"a", **options) as (orders, script):
        await orders.advance(1_000)
        assert (len(copies(orders)), len(script.calls)) == (1, 2)
    assert caplog.messages == []


class Slow(MemoryDestinations):
    """Answers once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    @override
    async def look(self, topic: str) -> TopicLook | None:
        await self.answers.wait()
        return await super().look(topic)


@pytest.mark.parametrize("reopens", [False, True])
async def test_what_waits_for_a_look_comes_back_once_behind_its_copy(reopens: bool) -> None:
    """No command changes its row meanwhile, which its copy would take back; a lane that opens again looks anew."""
    topics = Slow()
    async with serving(Script("fail"), "1s", b"a", through_main=True, destinations=topics) as (orders, script):
        await orders.advance(1_000)
        assert (await orders.command("cancel", 0))["refused"] == "running"
        if reopens:
            await reopen(orders)
        assert (copies(orders), len(script.calls)) == ([], 1)
        topics.answers.set()
        await orders.to_rest()
        assert (len(copies(orders)), {*topics.looked}, orders.lane.session) == (1, {"orders"}, 1 + reopens)
    assert [seen.attempt for seen in script.calls] == [1, 2]
