"""A lane that has nothing to do keeps its transactional id known to the broker, which forgets those nobody uses."""

from __future__ import annotations

import asyncio
from typing import Any

from doubles import MAIN, Rig

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
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: 8}, {MAIN: 9}, {MAIN: 10}]


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
