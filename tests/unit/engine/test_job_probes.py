"""Jobs do not wait for replays that cannot run: held ones, and those behind others of their key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import pass_time, serving, tell
from test_jobs import begin, part_of, with_letters

from retryapp import RetryPolicy, non_retryable
from retryapp.core.jobs import HandlerVerb, PartState
from retryapp.engine.handler.handler import Order
from retryapp.engine.partition.commands import Commands


async def test_a_replay_that_somebody_holds_keeps_no_letter_waiting() -> None:
    """Not for as long as it is held, which may be days."""
    async with with_letters(6) as (orders, service):
        await tell(orders, HandlerVerb.PAUSE)
        assert (await orders.command("replay", 0))["refused"] is None
        assert (await orders.command("hold", 0))["refused"] is None
        service.all_down = False
        await begin(orders, every_ms=10_000.0)
        await tell(orders, HandlerVerb.RESUME)
        await pass_time(orders, 600_000, 5_000)
        assert (part_of(orders).done, len(service.again)) == (5, 5)


@pytest.mark.parametrize("pace", [{"every_ms": 10_000.0, "canary": 1}, {"canary": 3}], ids=["slow", "canary"])
async def test_a_replay_behind_another_of_its_key_keeps_no_other_key_waiting(pace: dict[str, Any]) -> None:
    """That one has failed again, and waits for an hour."""
    fatal, down = {b"b", b"c", b"1", b"2", b"3", b"4"}, set[bytes]()

    async def handle(value: bytes) -> None:
        if value in fatal:
            raise KeyError(value)
        if value in down:
            raise ValueError(value)

    policy = RetryPolicy("1h*3", on=non_retryable(KeyError))
    async with serving(handle, policy, order=Order.KEY) as (orders, _):
        for value, key in ((b"1", b"1"), (b"b", b"k"), (b"c", b"k"), (b"2", b"2"), (b"3", b"3"), (b"4", b"4")):
            await orders.send(value, key=key)
        fatal.clear()
        down.add(b"b")
        await begin(orders, **pace)
        await pass_time(orders, 600_000, 5_000)
        assert part_of(orders).done == 6


async def test_a_probe_that_is_held_before_it_runs_is_none() -> None:
    """Of three one fails, and two are held: two others are tried before the job goes on."""
    gate, dead, seen = asyncio.Event(), [True], list[bytes]()

    async def handle(value: bytes) -> None:
        if dead:
            raise ValueError(value)
        seen.append(value)
        await gate.wait()
        raise KeyError(value)

    values = [b"%d" % number for number in range(12)]
    policy = RetryPolicy("1s*1", on=non_retryable(KeyError))
    async with serving(handle, policy, *values, concurrency=1) as (orders, _):
        await orders.to_rest()
        dead.clear()
        await begin(orders, canary=3)
        for number in (1, 2):
            assert (await orders.command("hold", number))["after"] == "holding"
        gate.set()
        await pass_time(orders, 2_000)
        assert (len(seen), part_of(orders).state) == (3, PartState.PAUSED)


async def test_the_first_replays_are_waited_for_beside_one_that_is_not_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job looks before its own are in the table, too: it took them for tried, and went on."""
    submit = Commands._submit_step

    def submit_and_look(commands: Commands, *step: Any) -> None:
        submit(commands, *step)
        commands._jobs.may_step()

    monkeypatch.setattr(Commands, "_submit_step", submit_and_look)
    async with with_letters(8) as (orders, service):
        await tell(orders, HandlerVerb.PAUSE)
        assert (await orders.command("replay", 0))["refused"] is None
        service.all_down = False
        await begin(orders, canary=3)
        await pass_time(orders, 60_000, 1_000)
        assert (part_of(orders).done, service.again) == (3, [])
        await tell(orders, HandlerVerb.RESUME)
        await pass_time(orders, 60_000, 1_000)
        assert (part_of(orders).done, len(service.again)) == (7, 8)


async def test_a_session_counts_which_replays_failed_again() -> None:
    """At their first attempt, also after the job has ended; pages say it, and nothing is written down."""
    async with with_letters(6) as (orders, service):
        service.down = {b"1", b"2"}
        await begin(orders)
        await orders.to_rest()
        assert orders.engine.commands is not None
        (part,) = orders.engine.commands.parts
        assert (part.state, part.done, part.outcomes, part.failed_again) == (PartState.ENDED, 6, 6, 2)
        assert part_of(orders).model_copy(update={"outcomes": 6, "failed_again": 2}) == part
