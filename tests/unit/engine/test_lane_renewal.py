"""A lane that has nothing to do keeps its transactional id known to the broker, which forgets those nobody uses."""

from __future__ import annotations

import asyncio
from typing import Any

from doubles import MAIN, MakeRig, Rig

from retryapp.testing import Step

DAY_MS = 86_400_000


async def test_an_idle_lane_commits_a_known_offset_every_other_day(rig: Rig) -> None:
    """Nothing moves by it; a broker forgets after a week."""
    rig.submit("a", 8, publishes=1)
    await rig.settle()
    await rig.advance(DAY_MS)
    assert len(rig.transport.batches) == 1
    for _ in range(7):
        await rig.advance(DAY_MS)
        await rig.advance(250)
    assert [batch.offsets for batch in rig.transport.batches[1:]] == [{MAIN: 8}] * 4
    assert not any(batch.publishes for batch in rig.transport.batches[1:])


async def test_a_lane_that_commits_anyway_does_not_renew(rig: Rig) -> None:
    """Each transaction has used its id."""
    for day in range(3):
        rig.submit("a", day + 1, publishes=1)
        await rig.advance(DAY_MS)
        await rig.advance(250)
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: 1}, {MAIN: 2}, {MAIN: 3}]


async def test_a_renewal_never_takes_an_offset_back(rig: Rig) -> None:
    """What is queued or being committed is newer than what the lane would say again."""
    rig.submit("a", 8, publishes=1)
    await rig.settle()
    await rig.advance(DAY_MS)
    await rig.advance(DAY_MS - 100)
    rig.submit("b", 9)
    await rig.advance(100)
    await rig.advance(500)
    await rig.advance(DAY_MS - 500)
    await rig.advance(DAY_MS - 500)
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("c", 10, publishes=1)
    await rig.advance(500)
    gate.set()
    for _ in range(3):
        await rig.advance(500)
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: 8}, {MAIN: 8}, {MAIN: 9}, {MAIN: 10}]


async def test_a_lane_that_falls_idle_behind_a_hand_off_asks_once_more(rig: Rig) -> None:
    """A broker that has taken an acknowledged transaction back says so to the next one; and one is enough."""
    rig.submit("a", 8, publishes=1)
    await rig.settle()
    await rig.advance(9_000)
    await rig.advance(500)
    assert len(rig.transport.batches) == 1
    await rig.advance(500)
    for _ in range(5):
        await rig.advance(20_000)
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: 8}, {MAIN: 8}]
    assert rig.transport.batches[1].publishes == []


async def test_what_was_taken_back_is_found_by_an_idle_lane(rig: Rig) -> None:
    """The question is refused, and the lane opens again: it reads on from the committed offset."""
    rig.submit("a", 8, publishes=1)
    await rig.settle()
    rig.transport.fail(Step.COMMIT, ConnectionError("fenced"))
    await rig.advance(10_000)
    for _ in range(3):
        await rig.advance(250)
    assert [session for session, _ in rig.opened] == [1, 2]


async def test_a_lane_that_goes_on_or_moves_offsets_only_does_not_ask(rig: Rig) -> None:
    """The next transaction is question enough; and what moved offsets only is done again at worst."""
    for at in range(5):
        rig.submit("a", at + 1, publishes=1)
        await rig.advance(6_000)
    await rig.advance(3_000)
    rig.submit("b", 6)
    for _ in range(5):
        await rig.advance(10_000)
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: at} for at in range(1, 7)]


async def test_a_lane_need_not_ask(make_rig: MakeRig) -> None:
    """Without transactions there is none to be taken back."""
    rig = await make_rig(confirm_s=0).start()
    rig.submit("a", 8, publishes=1)
    for _ in range(5):
        await rig.advance(10_000)
    assert len(rig.transport.batches) == 1


async def test_a_closed_lane_renews_nothing(rig: Rig) -> None:
    """Its id belongs to somebody else by then."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    rig.submit("a", 8, publishes=1)
    await rig.settle()
    rig.lane.finish()
    await rig.settle()
    await rig.advance(DAY_MS)
    await rig.advance(DAY_MS)
    assert len(rig.transport.batches) == 1
    assert not faults
