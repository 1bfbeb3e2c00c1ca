"""Lists whose call raises: who is to blame, and what that costs the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from doubles import BankDownError, serving
from listed import Listed, failed, out
from suspected import names

from retryapp.core.batch import Batch
from retryapp.core.masking import parse_mask
from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import retryable
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Delivery
from retryapp.testing import MemoryPartition


async def test_an_exception_is_that_of_the_record_that_raises_alone() -> None:
    """The halves are tried apart; no neighbour has failed, and nobody's results are there twice."""
    async with serving(Listed(), "1h", b"raise a", *names(7), batch=Batch(8)) as (orders, handler):
        assert [len(values) for values in handler.calls] == [8, 4, 4, 2, 2, 1, 1]
        assert failed(orders) == {b"raise a": (1, 4)}
        assert sorted(value or b"" for value in out(orders)) == names(7)
        assert [delivery.hot_attempt for delivery in handler.deliveries[1]] == [2, 2, 2, 2]
        assert orders.engine.in_flight == 0


@pytest.mark.parametrize(("size", "bad"), [(8, (1, 6)), (16, (3, 11, 15))])
async def test_several_that_raise_are_all_found(size: int, bad: tuple[int, ...]) -> None:
    """That they fail alike proves nothing while others between them go well."""
    values = [b"raise %d" % n if n in bad else b"%d" % n for n in range(size)]
    async with serving(Listed(), "1h", *values, batch=Batch(size)) as (orders, _):
        assert set(failed(orders)) == {b"raise %d" % n for n in bad}
        assert len(out(orders)) == size - len(bad)


async def test_what_fails_alike_three_times_over_fails_whole() -> None:
    """The service is down: five calls for a hundred records, and not two hundred."""
    handler = Listed()
    values = [b"raise %d" % n for n in range(100)]
    async with serving(handler, "1h", *values, batch=Batch(100)) as (orders, _):
        assert [len(call) for call in handler.calls] == [100, 50, 50, 25, 25]
        assert {attempt for attempt, _ in failed(orders).values()} == {1}
        assert len(failed(orders)) == 100


async def test_no_record_is_dead_for_its_neighbours() -> None:
    """The last attempt is each record's own, however many parts fail alike before it."""
    handler = Listed()
    bad = [3, 7, 15]
    async with MemoryPartition(handler, "1s*2", batch=Batch(16)) as orders:
        await orders.send(*(b"raise" if n in bad else b"%d" % n for n in range(16)))
        assert (len(failed(orders)), out(orders)) == (14, [])
        await orders.to_rest()
        assert [letter.origin.offset for letter in orders.dead_letters] == bad
        assert len(out(orders)) == 13


async def test_failures_of_a_list_leave_the_event_loop_to_others() -> None:
    """A thousand of them take a fifth of a second: others run in between."""

    def slow(_delivery: Delivery, _error: BaseException) -> bool:
        clock.advance(1)
        return False

    policy = RetryPolicy("1h", on=[retryable(BankDownError, when=slow)])
    async with MemoryPartition(Listed(), policy, batch=Batch(100)) as orders:
        clock, seen = orders.clock, set[int]()

        async def watch() -> None:
            while len(failed(orders)) < 100:
                seen.add(len(orders.engine._running))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        await orders.send(*(b"raise %d" % n for n in range(100)))
        await watching
        assert {10, 50, 90} <= seen


async def test_a_session_that_ends_between_failures_leaves_the_rest_without_an_outcome() -> None:
    """The next one has all of it again, and its runner goes on."""
    judged: list[Delivery] = []

    def slow(delivery: Delivery, _error: BaseException) -> bool:
        orders.clock.advance(1)
        judged.append(delivery)
        if len(judged) == 150:
            asyncio.get_running_loop().call_soon(orders.lane.fail, RuntimeError("lane"))
        return False

    handler = Listed()
    policy = RetryPolicy("1h", on=[retryable(BankDownError, when=slow)])
    async with MemoryPartition(handler, policy, batch=Batch(100)) as orders:
        await orders.send(*(b"raise %d" % n for n in range(100)))
        assert 0 < len(failed(orders)) < 60
        await orders.advance(200)
        await orders.advance(3_000)
        assert (len(orders.records("app.orders.retry")), len(failed(orders))) == (100, 100)
        assert (orders.engine.in_flight, orders.handler.orphans.total) == (0, 0)


@pytest.mark.parametrize("error", [Reject, lambda value: BankDownError(value.decode() * 2, type(value))])
async def test_what_is_about_a_record_is_never_said_of_another(error: Callable[[bytes], BaseException]) -> None:
    """A rejection is that of a record, however many are alike; unlike errors are not one cause."""
    kinds = [type(f"Odd{letter}Error", (Exception,), {}) for letter in "abcdefgh"]
    handler = Listed(lambda value: error(value) if error is Reject else kinds[value[-1] - 48]())
    async with serving(handler, "1h", *(b"raise %d" % n for n in range(7)), b"7", batch=Batch(8)) as (orders, _):
        assert out(orders) == [b"7"]
        assert len(orders.dead_letters) + len(failed(orders)) == 7


@pytest.mark.parametrize("marks", [False, True], ids=["raised", "marked"])
async def test_an_error_of_a_list_is_freed_of_what_is_masked_in_any_of_its_records(*, marks: bool) -> None:
    """A driver quotes the parameters of the whole call; keys have masked fields, too."""

    async def insert(values: list[bytes], deliveries: list[Delivery]) -> None:
        keys = [delivery.key for delivery in deliveries]
        error = ValueError(f"no INSERT [parameters: {values} {keys}]")
        if not marks:
            raise error
        for delivery in deliveries:
            delivery.fail(error)

    async with MemoryPartition(insert, "1s", batch=Batch(8), mask=parse_mask("/card")) as orders:
        for n in range(8):
            await orders.send(b'{"card": "4111-%d"}' % n, key=b'{"card": "k4111-%d"}' % n)
        await orders.to_rest()
        letters = orders.dead_letters
        assert {letter.attempt for letter in letters} == {2}
        texts = [f"{letter.error_message} {letter.error_trace}" for letter in letters]
        assert len([text for text in texts if "no INSERT" in text and "***" in text]) == 8
        assert not [text for text in texts if "4111" in text]
        assert not [each for each in orders.observer.seen if "4111" in f"{each.message} {each.trace}"]
