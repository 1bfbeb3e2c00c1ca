"""Caps of what waits in order of a key: at them the partition takes in no more, or what others wait for is dead."""

from __future__ import annotations

import asyncio
from typing import Any

import faust
import pytest
from doubles import committed, held, reopen

from retryapp import Retries
from retryapp.core.errors import InvalidSettingError
from retryapp.core.holding import Holding
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition


class Down:
    """A service that is down for some values."""

    def __init__(self, *down: bytes) -> None:
        self.down = {*down}
        self.seen: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, value: bytes) -> None:
        """Note the call."""
        self.seen.append(value)
        await self.gate.wait()
        if value in self.down:
            raise ValueError("down")


def partition(service: Down, policy: str = "1h*9", **more: Any) -> MemoryPartition:
    """Return a partition with caps."""
    kept = {name: more.pop(name) for name in ("max_sequences", "max_sequence_size", "overflow") if name in more}
    return MemoryPartition(service, policy, order=Order.KEY, holding=Holding(**kept), **more)


async def test_a_full_sequence_fills_the_window_and_stops_its_partition() -> None:
    """No row more is written; as soon as the head is done all go on in order, and others with them."""
    service = Down(b"0")
    async with partition(service, max_sequence_size=3, max_in_flight=4) as orders:
        await orders.send(*(b"%d" % n for n in range(9)), key=b"a")
        await orders.send(b"b", key=b"b")
        assert (sum(orders.waiting.values()), held(orders), committed(orders), orders.engine.in_flight) == (3, 2, 3, 4)
        why = "later records of a key stay out: as many wait for offset 0 as may (max_sequence_size=3)"
        assert orders.engine.blocked == why
        await reopen(orders)
        assert orders.engine.blocked == why
        await orders.advance(60_000)
        assert (sum(orders.waiting.values()), service.seen) == (3, [b"0"])
        service.down.clear()
        await orders.advance(3_600_000)
        await orders.to_rest()
        assert [value for value in service.seen if value != b"b"] == [b"0"] + [b"%d" % n for n in range(9)]
        assert b"b" in service.seen
        assert orders.engine.blocked is None


async def test_a_partition_with_so_many_waiting_sequences_takes_in_no_more() -> None:
    """Those that are in the window go on; rows that wait for what is not read yet do not count."""
    service = Down(*(b"%d" % n for n in range(9)))
    async with partition(service, max_sequences=2, max_in_flight=2) as orders:
        for n in range(9):
            await orders.send(b"%d" % n, key=b"%d" % n)
        assert (service.seen, orders.waiting) == ([b"0", b"1"], {"1h": 2})
        assert orders.engine.blocked == "no new records come in: as many keys wait as may (max_sequences=2)"
        assert (await orders.command("cancel", 0))["refused"] is None
        assert service.seen == [b"0", b"1", b"2", b"3"], "as many as are in flight at once"
        service.down.clear()
        await reopen(orders)
        await orders.to_rest()
        assert sorted(service.seen[4:]) == [b"%d" % n for n in range(1, 9)]
    async with MemoryPartition(Down(b"0"), "1h", concurrency=9) as orders:
        await orders.send(b"x", b"0", key=b"a")
    orders.transport.offsets[orders.engine.sources[0]] = 0  # it is set back: "0" waits, and comes behind "x"
    service.seen.clear()
    async with partition(service, "1h", max_sequences=1, transport=orders.transport) as orders:
        await orders.to_rest(7_200_000)
        assert service.seen == [b"x", b"0"]


@pytest.mark.parametrize(("overflow", "given_up"), [("block", []), ("release", [1])])
async def test_a_record_that_comes_again_waits_with_those_that_are_behind_it(
    overflow: str, given_up: list[int]
) -> None:
    """The offset was set back while as many waited as may: it joins them, or is one that too many wait for."""
    service = Down(b"2")
    async with partition(service, max_sequence_size=2, overflow=overflow) as orders:
        await orders.send(*(b"%d" % n for n in range(4)), key=b"a")
        assert (service.seen, sum(orders.waiting.values())) == ([b"0", b"1", b"2"], 2)
    service.down = {b"1"}
    orders.transport.offsets[orders.engine.sources[0]] = 0
    async with partition(service, max_sequence_size=2, overflow=overflow, transport=orders.transport) as orders:
        await orders.advance(60_000)
        assert sum(orders.waiting.values()) == 3 - len(given_up)
        service.down.clear()
        await orders.to_rest(7_200_000)
        assert service.seen[3:] == [b"0", b"1", *[b"1"] * (not given_up), b"2", b"3"]
        assert [letter.origin.offset for letter in orders.dead_letters] == given_up


@pytest.mark.parametrize("by_reference", [False, True])
async def test_what_too_many_wait_for_is_dead_and_they_go_on(by_reference: bool) -> None:
    """At once, not at its next attempt; in order, its letter whole; and nothing waits in the window."""
    service = Down(b"0", b"3")
    async with partition(service, "1h*9", max_sequence_size=3, overflow="release", by_reference=by_reference) as orders:
        await orders.send(b"0", b"1", b"2", key=b"a")
        assert (service.seen, orders.dead_letters) == ([b"0"], [])
        await orders.send(b"3", key=b"a")
        assert service.seen == [b"0", b"1", b"2", b"3"]
        (letter,) = orders.dead_letters
        assert (letter.reason, letter.origin.offset, letter.attempt, letter.delivery) == ("overflow", 0, 1, 2)
        assert orders.records("app.orders.dlq")[0].value == b"0"
        await orders.send(b"4", b"5", key=b"a")
        service.gate.clear()
        await orders.advance(3_600_000)
        await orders.send(b"6", key=b"a")
        service.gate.set()
        await orders.settle()
        assert service.seen == [b"0", b"1", b"2", b"3", b"3", b"4", b"5", b"6"]
        assert [(each.origin.offset, each.attempt, each.delivery) for each in orders.dead_letters[1:]] == [(3, 2, 2)]
        assert orders.waiting == {}


async def test_a_sequence_too_many_is_dead_at_its_first_failure() -> None:
    """Those that wait already go on waiting, and one of them may fail again."""
    service = Down(b"0", b"1", b"2")
    async with partition(service, "1h*9", max_sequences=2, overflow="release") as orders:
        for n in range(4):
            await orders.send(b"%d" % n, key=b"%d" % n)
        assert [(each.reason, each.origin.offset) for each in orders.dead_letters] == [("overflow", 2)]
        await orders.advance(3_600_000)
        assert (service.seen[4:], orders.waiting) == ([b"0", b"1"], {"1h": 2})


@pytest.mark.parametrize("hold_ms", [None, 7_200_000])
async def test_what_somebody_holds_is_not_given_up(hold_ms: int | None) -> None:
    """Its sequence blocks until the hold ends; after that it is dead if it still overflows."""
    service = Down(b"0")
    async with partition(service, "1h*9", max_sequence_size=2, overflow="release") as orders:
        await orders.send(b"0", key=b"a")
        await orders.command("hold", 0, **({} if hold_ms is None else {"hold_ms": hold_ms}))
        await orders.send(b"1", b"2", b"3", key=b"a")
        await orders.advance(3_600_000)
        assert service.seen == [b"0"]
        if hold_ms is None:
            told = await orders.command("release", 0)
            assert told["text"].startswith("it is dead at once, as overflow: more records of its key wait than may")
        else:
            await orders.advance(3_600_000)
        assert service.seen == [b"0", b"1", b"2", b"3"]
        assert [each.reason for each in orders.dead_letters] == ["overflow"]


@pytest.mark.parametrize(
    "kept",
    [
        {"max_sequences": 0}, {"max_sequence_size": 1.5}, {"overflow": "drop"}, {"overflow": "release"},
        {"max_sequences": 9, "overflow": "release", "on_dead": "hold"},
    ],
)  # fmt: skip
def test_caps_that_make_no_sense_are_refused(kept: dict[str, Any]) -> None:
    """By themselves, or with the other settings."""
    with pytest.raises(InvalidSettingError):
        Holding(**kept)


async def test_a_declaration_has_them_and_says_what_they_mean() -> None:
    """As `retryapp plan` prints it."""
    retries = Retries(faust.App("caps", broker="kafka://127.0.0.1:1", store="memory://"))
    caps: dict[str, Any] = {"max_sequences": 9, "max_sequence_size": 3}
    retries.handler("orders", policy="1s", order="key", overflow="release", **caps)(Down())
    retries.handler("refunds", policy="1s", order="key", on_dead="hold", max_sequences=7)(Down())
    released, stopped = retries.handlers
    assert released.manner[1] == "max_sequences=9, max_sequence_size=3: beyond that what the others wait for is dead"
    assert stopped.manner[1].endswith("releases it; max_sequences=7: beyond that the partition takes in no more")
    async with MemoryPartition.of(retries, "orders", function=Down(b"0")) as orders:
        await orders.send(b"0", b"1", b"2", b"3", key=b"a")
        assert [each.reason for each in orders.dead_letters] == ["overflow"]
