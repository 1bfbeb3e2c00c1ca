"""A record that waits by reference: the row says where it is on the main topic, which is read again when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from doubles import DLQ, MAIN, RETRY, crowd, failures, reopen, rows, scheduler_of, serving

from retryapp.core.errors import UnreadableTopicError
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.record import Damage, Record
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition, Script
from retryapp.testing.broker import Entry
from retryapp.testing.tables import MemoryPendingTable

LARGE: Final = b"x" * 100_000
DAY_MS: Final = 86_400_000
HEADERS: Final = (("trace", b"1"), ("trace", None), ("retry-due-ms", b"mine"))


def change(partition: MemoryPartition, offset: int, to: Callable[[Record], Record] | None) -> None:
    """Have the main topic have something else at an offset; None: nothing."""
    log = partition.transport.broker.logs[MAIN]
    at = next(at for at, entry in enumerate(log.entries) if entry.record.offset == offset)
    log.entries[at : at + 1] = [] if to is None else [Entry(to(log.entries[at].record), None)]


@pytest.mark.parametrize("value", [LARGE, b"", None])
async def test_a_record_comes_again_as_it_was_and_no_copy_has_waited(value: bytes | None) -> None:
    """Key, value, headers and time; row and retry topic have neither value nor headers."""
    seen: list[Any] = []

    async def handle(value: bytes, delivery: Any) -> None:
        seen.append((delivery.key, delivery.raw_value, delivery.headers, delivery.timestamp_ms))
        if len(seen) < 3:
            raise ValueError

    async with serving(handle, "1s 10s", value, key=b"k", headers=HEADERS, by_reference=True) as (orders, _):
        (row,) = rows(orders)
        assert (row.key, row.value, row.reference.size) == (b"k", b"", len(value or b"") + 1 + 27)
        await orders.to_rest()
        copies = orders.records(RETRY.topic)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert [(copy.key, copy.value) for copy in copies] == [(b"k", b"")] * 2
    assert all(name.startswith("retry-") for copy in copies for name, _ in copy.headers)


async def test_a_dead_letter_has_the_whole_record() -> None:
    """It is read for the last time."""
    async with MemoryPartition(Script("fail", "fail"), "1s", by_reference=True) as orders:
        await orders.send(LARGE, key=b"k", headers=(("trace", b"1"),))
        await orders.to_rest()
        (letter,) = orders.records(DLQ)
        (metadata,) = orders.dead_letters
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", LARGE, ("trace", b"1"))
    assert (metadata.reason, metadata.attempt, metadata.no_payload) == ("exhausted", 2, False)


@pytest.mark.parametrize(
    "to",
    [
        None,
        lambda record: replace(record, value=b"y" * 100_000),
        lambda record: replace(record, key=b"other"),
        lambda record: replace(record, headers=(("trace", b"2"),)),
        lambda record: replace(record, timestamp_ms=record.timestamp_ms + 1),
    ],
)
async def test_another_record_in_its_place_is_never_delivered(to: Callable[[Record], Record] | None) -> None:
    """Its dead letter is `gone`, spends no attempt, says that it has no payload, and is not replayed."""
    async with serving(Script("fail"), "1s", by_reference=True) as (orders, script):
        await orders.send(LARGE, key=b"k", headers=(("trace", b"1"),))
        change(orders, 0, to)
        await orders.to_rest()
        (metadata,) = orders.dead_letters
        (letter,) = orders.records(DLQ)
        outcome = await orders.command("replay", 0)
    assert len(script.calls) == 1
    assert (metadata.reason, metadata.attempt, metadata.delivery, metadata.no_payload) == ("gone", 1, 2, True)
    assert (letter.key, letter.value) == (b"k", b"")
    assert outcome["refused"] == "damaged"


async def test_a_damaged_batch_is_a_damaged_letter() -> None:
    """As at a first delivery."""
    damaged = partial(replace, value=b"", headers=(), key=None, damage=Damage(0, "a wrong checksum"))
    async with serving(Script("fail"), "1s", LARGE, by_reference=True) as (orders, _):
        change(orders, 0, damaged)
        await orders.to_rest()
        (metadata,) = orders.dead_letters
    assert (metadata.reason, metadata.attempt) == ("damaged", 1)
    assert "a wrong checksum" in metadata.error_message


async def test_a_topic_that_was_made_again_has_other_records() -> None:
    """Also where one is equal."""
    async with MemoryPartition(Script("fail"), "1s", by_reference=True) as orders:
        await orders.send(LARGE)
    again = MemoryPartition(Script(), "1s", by_reference=True, transport=orders.transport)
    again.engine.context = replace(again.engine.context, topic_id="otherid8")
    async with again:
        await again.to_rest()
        (metadata,) = again.dead_letters
    assert (metadata.reason, metadata.origin.topic_id) == ("gone", "kq8G0bTz")


async def test_a_fault_of_the_broker_costs_no_attempt() -> None:
    """The record waits, and comes a little later."""
    async with serving(Script("fail"), "1s", LARGE, by_reference=True) as (orders, script):
        orders.transport.fail("records", ConnectionError("the leader is away"), times=3)
        took_ms = await orders.to_rest()
    assert [(seen.attempt, seen.came_to) for seen in script.calls] == [(1, "ConnectionError"), (2, "ok")]
    assert took_ms >= 3_000
    assert orders.dead_letters == []


async def test_a_record_that_this_worker_cannot_read_again_stops_its_partition_by_name() -> None:
    """It has no codec for it, say: to ask again and again, in silence, would keep all others that wait from theirs."""
    async with serving(Script("fail"), "1s", LARGE, by_reference=True) as (orders, script):
        error = UnreadableTopicError(*MAIN, 0, "no codec")
        orders.transport.fail("records", error, times=2)  # type: ignore[arg-type]
        await orders.advance(1_000)
        assert failures(orders) == [str(error)]
        await orders.to_rest()
        assert failures(orders) == [str(error)] * 2
        assert [call.attempt for call in script.calls] == [1, 2]


async def test_what_would_wait_longer_than_the_topic_keeps_it_waits_as_a_copy() -> None:
    """Half of that time is for workers that are away; and a copy stays one."""
    script = Script("later 25h", "later 1h")
    async with serving(script, "1h*3", b"late", by_reference=True, kept_ms=2 * DAY_MS) as (orders, _):
        (late,) = rows(orders)
        change(orders, 0, None)
        await orders.advance(25 * 3_600_000)
        (again,) = rows(orders)
    assert [(row.reference, row.value) for row in (late, again)] == [(None, b"late")] * 2


@pytest.mark.parametrize("way", ["pause", "hold", "reschedule"])
async def test_a_row_that_waits_on_becomes_a_copy_before_the_topic_may_lose_it(way: str) -> None:
    """After which it comes as ever, whatever the topic still has."""
    async with serving(Script("fail"), "1h", LARGE, by_reference=True, kept_ms=2 * DAY_MS) as (orders, script):
        if way == "pause":
            await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE, by="me", why="a deploy"))
        elif way == "hold":
            await orders.command("hold", 0, hold_ms=2 * DAY_MS)
        else:
            await orders.command("reschedule", 0, due_at_ms=orders.clock.wall_ms() + 2 * DAY_MS)
        await orders.advance(12 * 3_600_000)
        early = rows(orders)
        await orders.advance(15 * 3_600_000)
        late = rows(orders)
        change(orders, 0, None)
        if way == "pause":
            await orders.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME, by="me"))
        await orders.to_rest()
    told = [decode_metadata(row.headers) for row in early + late]
    assert [each and each.no_payload for each in told] == [True, False]
    assert [row.reference is None for row in early + late] == [False, True]
    assert [row.hold for row in early + late] == [2 * (way == "hold")] * 2
    assert [seen.came_to for seen in script.calls] == ["ConnectionError", "ok"]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("command", ["", "hold", "cancel"])
async def test_a_claimed_row_that_does_not_begin_becomes_a_copy_too(command: str, dies: bool) -> None:
    """It was due and read again while no run could begin; commands meanwhile wait for the run, too."""
    async with serving(Script("fail"), "1h", LARGE, by_reference=True, kept_ms=2 * DAY_MS) as (orders, script):
        ends = crowd(orders.handler.orphans)
        await orders.advance(3_600_000)
        (claim,) = scheduler_of(orders).claimed.values()
        if command:
            assert (await orders.command(command, 0))["refused"] is None
        await orders.advance(27 * 3_600_000)
        (row,) = rows(orders)
        assert scheduler_of(orders).claimed == {claim.key: claim}
        change(orders, 0, None)
        if dies:
            await reopen(orders)
        ends[0].set_result(None)
        await orders.advance(1_000)
        if command == "hold":
            (held,) = rows(orders)
            assert (held.hold, held.reference) == (2, None)
            await orders.command("release", 0)
        await orders.to_rest()
        letters = [letter.value for letter in orders.records(DLQ)]
        reasons = [metadata.reason for metadata in orders.dead_letters]
    assert row.reference is None
    assert [seen.came_to for seen in script.calls] == ["ConnectionError", "ok"][: 1 if command == "cancel" else 2]
    assert (letters, reasons) == (([LARGE], ["cancelled"]) if command == "cancel" else ([], []))


async def test_what_waits_by_reference_becomes_a_copy_also_where_records_wait_as_copies_now() -> None:
    """The handler was declared otherwise when it failed, and its pause outlasts what the topic keeps."""
    async with serving(Script("fail"), "1h", LARGE, by_reference=True, kept_ms=2 * DAY_MS) as (orders, script):
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE, by="me", why="a deploy"))
    async with MemoryPartition(script, "1h", kept_ms=2 * DAY_MS, transport=orders.transport) as orders:
        await orders.advance(27 * 3_600_000)
        (row,) = rows(orders)
        change(orders, 0, None)
        await orders.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME, by="me"))
        await orders.to_rest()
    assert row.reference is None
    assert [seen.came_to for seen in script.calls] == ["ConnectionError", "ok"]


async def test_a_topic_that_keeps_records_for_no_time_is_not_looked_at_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compacted one says so; where no row is a reference, there will be none."""
    pages: list[int] = []
    page = MemoryPendingTable.page
    monkeypatch.setattr(MemoryPendingTable, "page", lambda *given: pages.append(1) or page(*given))
    async with serving(Script("fail"), "1h", LARGE, kept_ms=0) as (orders, _):
        await orders.advance(600_000)
    assert 1 < len(pages) < 10


async def test_a_hold_that_begins_after_a_run_keeps_the_reference() -> None:
    """And the release ends it."""
    gate = asyncio.Event()
    seen: list[bytes] = []

    async def handle(value: bytes, delivery: Any) -> None:
        seen.append(value)
        if delivery.attempt == 2:
            await gate.wait()
        if delivery.attempt < 3:
            raise ValueError

    async with serving(handle, "1s*3", LARGE, by_reference=True) as (orders, _):
        await orders.advance(1_000)
        await orders.command("hold", 0)
        gate.set()
        await orders.advance(60_000)
        (row,) = rows(orders)
        await orders.command("release", 0)
        await orders.to_rest()
    assert (row.hold, row.reference is None) == (2, False)
    assert seen == [LARGE] * 3


async def test_a_cancelled_record_is_whole_or_the_command_is_refused() -> None:
    """Its letter is the last that is seen of it."""
    async with serving(Script("fail", "fail"), "2h", b"there", b"gone", by_reference=True) as (orders, _):
        change(orders, 1, None)
        outcomes = [await orders.command("cancel", offset) for offset in (0, 1)]
        letters = orders.records(DLQ)
        told = [(metadata.reason, metadata.no_payload) for metadata in orders.dead_letters]
    assert told == [("cancelled", False)]
    assert [outcome["refused"] for outcome in outcomes] == [None, "damaged"]
    assert [letter.value for letter in letters] == [b"there"]


async def test_what_is_read_again_counts_as_in_flight() -> None:
    """With its bytes: a burst of large records is not in memory at once."""
    most = 0
    fails = True

    async def handle(_value: bytes) -> None:
        nonlocal most
        most = max(most, scheduler_of(orders).claimed_bytes)
        if fails:
            raise ConnectionError
        await asyncio.sleep(0)

    options: Any = {"by_reference": True, "max_in_flight_bytes": 4 * len(LARGE)}
    async with MemoryPartition(handle, "1s*2", **options) as orders:
        await orders.send(*[LARGE] * 40)
        fails = False
        await orders.to_rest()
    assert 3 * len(LARGE) < most < 6 * len(LARGE)
    assert orders.dead_letters == []


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_in_order_the_head_waits_by_reference(order: str) -> None:
    """Those behind it wait as copies: nothing says for how long."""
    async with serving(Script("fail"), "1s", by_reference=True, order=Order(order)) as (orders, script):
        await orders.send(b"1", b"2", key=b"k")
        waiting = rows(orders)
        await orders.to_rest()
    assert (waiting[0].held, waiting[0].reference is None) == (False, False)
    assert all(row.reference is None for row in waiting[1:])
    assert [seen.value for seen in script.calls if seen.came_to == "ok"] == [b"1", b"2"]
