"""`Defer`: a record waits for an event outside, and its token releases it, however early it comes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from doubles import Gate, damage, post, rows, scheduler_of, serving

from retryapp import Batch, CircuitBreaker, Defer, ReleaseTimeoutError, RetryPolicy, non_retryable
from retryapp.core.control import Command, Verb, named_by, token_of
from retryapp.core.headers import decode_metadata
from retryapp.core.verdicts import RetryLater
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.ports import Event
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step

HOUR_MS = 3_600_000


class Caller:
    """Defers until it is released, or done; hands its token out before."""

    def __init__(self, deadline: str = "1h") -> None:
        self.deadline = deadline
        self.gate = asyncio.Event()
        self.gate.set()
        self.done = False
        self.tokens: list[str] = []
        self.seen: list[tuple[bytes, int, int, bool, str | None]] = []

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        error = (delivery.last_error_type or "").rpartition(".")[2] or None
        self.seen.append((value, delivery.attempt, delivery.number, delivery.released, error))
        self.tokens.append(delivery.token)
        await self.gate.wait()
        if not delivery.released and not self.done:
            raise Defer(self.deadline, "the bank calls back")


def append(partition: MemoryPartition, token: str) -> None:
    """Put a release on the control topic, and wait for nothing."""
    post(partition, Command(id="early", verb=Verb.RELEASE, **named_by(token)))


def early(partition: MemoryPartition) -> list[str]:
    """Return what was said of the release that `append` has sent."""
    events = partition.records("app.orders.events")
    return [(each.value or b"").decode() for each in events if b'"command":"early"' in (each.value or b"")]


async def test_a_deferred_record_waits_for_its_token_and_spends_no_attempt() -> None:
    """Over a restart; it is delivered at once, with the same attempt number."""
    async with serving(Caller(), "1s*2", b"one") as (orders, caller):
        assert orders.waiting == {"deferred": 1}
        assert [seen.event for seen in orders.observer.seen if seen.offset == 0] == [Event.DEFERRED]
    async with MemoryPartition(caller, "1s*2", transport=orders.transport) as orders:
        await orders.advance(HOUR_MS - 1)
        assert len(caller.seen) == 1
        outcome = await orders.command("release", caller.tokens[0], by="bank")
        assert (outcome["refused"], outcome["by"]) == (None, "bank")
        assert caller.seen == [(b"one", 1, 1, False, None), (b"one", 1, 2, True, "Defer")]
        assert not orders.waiting
        assert (await orders.command("release", caller.tokens[0]))["refused"] == "too-late"


async def test_at_the_deadline_the_attempt_has_failed_and_the_next_begins_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So the policy ends a record that nobody ever releases; its time is not counted by `max_elapsed`."""
    caller = Caller()
    with caplog.at_level(logging.WARNING, "retryapp.events"):
        async with serving(caller, RetryPolicy("1s*2", max_elapsed="10m"), b"one") as (orders, _):
            await orders.advance(HOUR_MS)
            assert caller.seen[1:] == [(b"one", 2, 3, False, "ReleaseTimeoutError")]
            await orders.command("release", caller.tokens[0])
            assert len(caller.seen) == 2
            await orders.to_rest()
    assert [call[1:3] for call in caller.seen] == [(1, 1), (2, 3), (3, 5)]
    (letter,) = orders.dead_letters
    assert (letter.reason, letter.attempt, letter.delivery) == ("exhausted", 3, 6)
    assert caplog.messages == ["retryapp.defer_expired"] * 3


async def test_a_release_after_the_deadline_is_too_late_also_while_its_record_waits_for_a_runner() -> None:
    """Its attempt has failed already, and somebody's hold on it stays."""
    goes_on, tokens = asyncio.Event(), list[str]()

    async def handler(value: bytes, delivery: Delivery) -> None:
        tokens.append(delivery.token)
        if value == b"deferred":
            raise Defer("1s")
        if delivery.number == 1:
            raise RetryLater("900ms")
        await goes_on.wait()

    async with serving(handler, "1s*9", b"slow", b"deferred", concurrency=1) as (orders, _):
        await orders.advance(900)
        await orders.advance(100)
        assert len(tokens) == 3
        assert (await orders.command("release", tokens[1]))["refused"] == "too-late"
        assert (await orders.command("hold", 1))["refused"] is None
        assert (await orders.command("release", tokens[1]))["refused"] == "too-late"
        goes_on.set()
        await orders.settle()
        assert len(tokens) == 3


async def test_a_rule_may_end_a_record_at_its_deadline() -> None:
    """It is a time-out like others."""
    caller = Caller()
    policy = RetryPolicy("1s*9", on=[non_retryable(ReleaseTimeoutError)])
    async with serving(caller, policy, b"one") as (orders, _):
        await orders.to_rest()
        assert [letter.reason for letter in orders.dead_letters] == ["non-retryable"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("crash", [False, True])
async def test_a_release_that_comes_while_the_delivery_goes_on_is_kept(again: bool, crash: bool) -> None:
    """At the first delivery and at a later one; also if its worker dies before the record waits."""
    async with serving(Caller("1s"), "1s*9", b"one") as (orders, caller):
        caller.gate.clear()
        await (orders.advance(1_000) if again else orders.send(b"two"))
        assert (await orders.command("release", caller.tokens[-1]))["after"] == "released"
        if not crash:
            caller.gate.set()
            await orders.settle()
    caller.gate.set()
    async with MemoryPartition(caller, "1s*9", transport=orders.transport) as orders:
        await orders.settle()
        assert caller.seen[-1] == ((b"one", 2, 4, True, "Defer") if again else (b"two", 1, 2, True, "Defer"))


async def test_a_kept_release_of_a_damaged_row_ends_no_lane() -> None:
    """The record is dead with its bytes, as without a release."""
    async with serving(Caller("1s"), "1s*9", b"one") as (orders, caller):
        caller.gate.clear()
        await orders.advance(1_000)
        await orders.command("release", caller.tokens[-1])
        damage(orders)
    async with MemoryPartition(caller, "1s*9", transport=orders.transport) as orders:
        assert [letter.reason for letter in orders.dead_letters] == ["damaged"]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("first", [False, True])
async def test_a_release_that_overtakes_the_commit_of_its_record_is_kept(first: bool, durable: bool) -> None:
    """The handler has ended, its row is on its way; and the worker dies in the commit of one or of the other."""
    async with serving(Caller(), "1s*9") as (orders, caller):
        dying = orders.transport.pause(Step.COMMIT, durable=durable)
        await orders.send(b"one")
        assert dying.reached
        if first:
            append(orders, caller.tokens[0])
            await orders.settle()
    if not first:
        append(orders, caller.tokens[0])
    async with MemoryPartition(caller, "1s*9", transport=orders.transport) as orders:
        await orders.settle()
        assert len(early(orders)) == 1
        assert caller.seen[-1] == (b"one", 1, 2, True, "Defer")
        assert not orders.waiting


async def test_a_crash_in_the_commit_of_the_kept_release_does_not_forget_it() -> None:
    """Nor between that and the commit of its record."""
    for durable in (False, True):
        async with serving(Caller(), "1s*9") as (orders, caller):
            caller.gate.clear()
            await orders.send(b"one")
            dying = orders.transport.pause(Step.COMMIT, durable=durable)
            append(orders, caller.tokens[0])
            await orders.settle()
            assert dying.reached
        async with MemoryPartition(caller, "1s*9", transport=orders.transport) as orders:
            await orders.settle()
            dying = orders.transport.pause(Step.COMMIT, durable=True)
            caller.gate.set()
            await orders.settle()
            assert dying.reached
        async with MemoryPartition(caller, "1s*9", transport=orders.transport) as orders:
            await orders.settle()
            assert (len(early(orders)), caller.seen[-1]) == (1, (b"one", 1, 2, True, "Defer"))


@pytest.mark.parametrize("again", [True, False])
async def test_a_kept_release_is_for_a_record_of_its_own_topic(again: bool) -> None:
    """A main topic that was made again has another record at the same offset: nobody has released that one."""
    async with serving(Caller(), "1s*9") as (orders, caller):
        caller.gate.clear()
        await orders.send(b"one")
        assert (await orders.command("release", caller.tokens[0]))["after"] == "released"
    caller.gate.set()
    orders = MemoryPartition(caller, "1s*9", transport=orders.transport)
    if again:
        orders.engine.context = replace(orders.engine.context, topic_id="otherid8")
    async with orders:
        assert [call[2:4] for call in caller.seen] == [(1, False), (1, False)] + [(2, True)] * (not again)
        assert orders.waiting == ({"deferred": 1} if again else {})


async def test_a_kept_release_is_forgotten_once_its_handler_is_done_with_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first delivery leaves no row; else, after many such, no release would be kept any more."""
    monkeypatch.setattr("retryapp.engine.partition.releases.MOST_EARLY", 1)
    async with serving(Caller("1s"), "1s*9") as (orders, caller):
        for value in (b"one", b"two", b"three"):
            caller.gate.clear()
            await orders.send(value)
            assert (await orders.command("release", caller.tokens[-1]))["refused"] is None
            caller.done = True
            caller.gate.set()
            await orders.to_rest()
        assert [value for value, *_ in caller.seen] == [b"one", b"two", b"three"]


async def test_a_release_of_what_does_not_exist_or_has_ended_is_too_late() -> None:
    """It was kept, and never went again: after 1,000 of these no early release was taken any more."""
    gates = {value: asyncio.Event() for value in (b"hung", b"fine", b"deferred", b"new")}
    released: list[bytes] = []

    async def handle(value: bytes, delivery: Delivery) -> None:
        if delivery.released:
            released.append(value)
            return
        await gates[value].wait()
        if value != b"fine":
            raise Defer("1h")

    def kept() -> list[int]:
        commands = orders.engine.commands
        assert commands is not None
        return [offset for some in commands._jobs.steering.releases.values() for offset in some]

    async def release(offset: int) -> str | None:
        outcome = await orders.command("release", token_of(f"app/orders@kq8G0bTz/0/{offset}", 1))
        refused: str | None = outcome["refused"]
        return refused

    async with serving(handle, "1s*9", b"hung", b"fine", b"deferred", concurrency=4) as (orders, _):
        assert [await release(offset) for offset in (1, 2, 3, 10**9)] == [None, None, "too-late", "too-late"]
        assert kept() == [1, 2]
        commit = orders.transport.pause(Step.COMMIT)
        for value in (b"fine", b"deferred"):  # both go ahead of the one that hangs, the second one in a turn of its own
            gates[value].set()
            for _ in range(10):
                await orders.advance(100)
            assert commit.reached
        commit.set()
        await orders.settle()
        assert kept() == [2]
        await orders.advance(100)  # the lane rests
        assert (kept(), released, await release(1)) == ([], [b"deferred"], "too-late")
        await orders.send(b"new")
        assert (await release(3), await release(4), kept()) == (None, "too-late", [3])


async def test_a_release_is_for_one_delivery() -> None:
    """It is forgotten where that ends otherwise, refused once it has; and a token of nothing is refused."""
    calls: list[int] = []

    async def handle(_value: bytes, delivery: Delivery) -> None:
        calls.append(delivery.number)
        if delivery.number == 1:
            await gate.wait()
            raise ValueError("down")
        raise Defer("1h")

    gate = asyncio.Event()
    async with serving(handle, "1s*9", b"one") as (orders, _):
        name = "app/orders@kq8G0bTz/0/0"
        assert (await orders.command("release", token_of(name, 1)))["refused"] is None
        gate.set()
        await orders.settle()
        await orders.advance(1_000)
        assert (calls, orders.waiting) == ([1, 2], {"deferred": 1})
        for token in (token_of(name, 1), token_of(name, 4), token_of("app/orders@kq8G0bTz/0/7", 2)):
            assert (await orders.command("release", token))["refused"] == "too-late"
        assert (await orders.command("retry-now", 0))["refused"] == "held"
        assert (await orders.command("release", 0))["refused"] is None
        assert calls == [1, 2, 3]


async def test_an_operator_may_hold_a_deferred_record_on() -> None:
    """The token takes away its own hold only; an operator's release takes both."""
    async with serving(Caller(), "1s*9", b"one", b"two") as (orders, caller):
        for offset in (0, 1):
            await orders.command("hold", offset)
        assert "still holds it" in (await orders.command("release", caller.tokens[0]))["text"]
        assert len(caller.seen) == 2
        for offset in (0, 1):
            await orders.command("release", offset)
        assert [call[:4] for call in caller.seen[2:]] == [(b"one", 1, 2, True), (b"two", 1, 2, True)]


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
async def test_in_order_others_wait_for_a_deferred_record(order: Order) -> None:
    async with serving(Caller(), "1s*9", b"one", b"two", key=b"k", order=order) as (orders, caller):
        assert [call[0] for call in caller.seen] == [b"one"]
        await orders.command("release", caller.tokens[0])
        assert [call[0] for call in caller.seen] == [b"one", b"one", b"two"]


async def test_one_record_of_a_list_is_deferred() -> None:
    """The others are not; and no circuit takes it for a failure."""
    seen: list[list[bytes]] = []

    async def handle(values: list[bytes], deliveries: list[Delivery]) -> None:
        seen.append(values)
        for delivery in deliveries:
            if delivery.raw_value == b"two" and not delivery.released:
                delivery.fail(Defer("1h"))

    breaker = CircuitBreaker(failure_ratio=0.1, minimum_calls=2)
    async with serving(handle, "1s", b"one", b"two", b"three", batch=Batch(3, "10ms"), circuit=breaker) as (orders, _):
        await orders.advance(20)
        assert orders.waiting == {"deferred": 1}
        await orders.command("release", 1)
        await orders.to_rest()
        assert seen[-1] == [b"two"]
        assert not orders.dead_letters


async def test_time_for_which_both_hold_a_record_is_left_out_once() -> None:
    """Its handler for an hour, and an operator for half of it."""

    async def handle(_value: bytes, delivery: Delivery) -> None:
        if delivery.number == 2:
            raise Defer("1h")
        raise ValueError("down")

    async with serving(handle, "1s*9", b"one") as (orders, _):
        first_ms = orders.clock.wall_ms()
        await orders.advance(1_000)
        await orders.advance(HOUR_MS // 4)
        await orders.command("hold", 0, hold_ms=HOUR_MS // 2)
        for _ in range(2):
            await orders.advance(HOUR_MS // 2)
        metadata = decode_metadata(orders.records("app.orders.retry")[-1].headers)
        assert metadata is not None
        assert (metadata.attempt, metadata.first_failed_ms, metadata.counted_from_ms) == (
            3,
            first_ms,
            first_ms + HOUR_MS,
        )


@pytest.mark.parametrize("doubt", ["set back", "in doubt"])
async def test_no_deadline_passes_by_a_clock_that_was_set_back_or_is_in_doubt(doubt: str) -> None:
    """Its row was claimed at the deadline, and waits for a runner: it waits on in the table."""
    gate, calls = Gate(), list[tuple[bytes, int, bool]]()

    async def handle(value: bytes, delivery: Delivery) -> None:
        calls.append((value, delivery.attempt, delivery.released))
        if value == b"a":
            raise Defer(deadline="30s")
        if delivery.attempt == 1:
            raise RetryLater(29)
        await gate(value)

    async with MemoryPartition(handle, "1s 10s", concurrency=1) as orders:
        await orders.send(b"a", b"b")
        await orders.advance(29_500)
        assert gate.started == [b"b"]
        await orders.advance(1_000)
        assert scheduler_of(orders).waiting == 1
        if doubt == "set back":
            orders.clock.jump_wall(-20_000)
        else:
            orders.clock.trusted = False
        gate.let_all()
        await orders.settle()
        (row,) = rows(orders)
        assert ((b"a", 2, False) in calls, row.attempt, row.held_by) == (False, 0, "token")
