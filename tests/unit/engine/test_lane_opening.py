"""A lane opens step by step, backs off from what fails, and keeps its id and its store in use while it is idle."""

from __future__ import annotations

from itertools import pairwise

import pytest
from doubles import BACKOFF_MS, GIVEN_UP, MAIN, OPENING, MakeRig, Rig, pass_time

from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.topology import CHANGELOG_DELETE_RETENTION_MS
from retryapp.engine.lane.limits import LaneLimits
from retryapp.engine.lane.transport import NotMemberError, RebalancingError
from retryapp.ports import Event
from retryapp.testing import Step


async def test_opening_holds_proves_fences_proves_again_and_reads_before_records_flow(make_rig: MakeRig) -> None:
    """In this order, each step once; the session begins at the committed offsets, before the first record comes."""
    rig = make_rig()
    rig.transport.offsets[MAIN] = 17
    released = rig.transport.pause(Step.RELEASE)
    await rig.start()
    assert rig.transport.calls == OPENING
    assert rig.opened == [(1, {MAIN: 17})]
    assert not rig.transport.released
    released.set()
    await rig.settle()
    assert rig.transport.released == {MAIN: 17}
    assert (rig.state, rig.lane.session, rig.lane.last_error) == ("open", 1, None)
    assert [o.event for o in rig.observer.seen] == [Event.LANE_OPENED]


@pytest.mark.parametrize("step", [*OPENING[:3], *OPENING[4:]])
async def test_an_opening_that_fails_is_given_up_and_tried_again(make_rig: MakeRig, step: Step) -> None:
    """From its first step, after a back-off, with the partition held and everything given up in between."""
    rig = make_rig()
    rig.transport.fail(step, ConnectionError("gone"))
    await rig.start()
    assert rig.state == "opening"
    assert rig.lane.last_error == "ConnectionError: gone"
    assert rig.transport.calls[-2:] == GIVEN_UP
    assert rig.lane.room == 0
    before = len(rig.transport.calls)
    await rig.advance(BACKOFF_MS - 1)
    assert len(rig.transport.calls) == before
    await rig.advance(1)
    assert rig.transport.calls[before:] == OPENING
    assert rig.state == "open"
    assert len(rig.observer.of(Event.LANE_FAILED)) == 1
    assert rig.closed == (1 if step is Step.RELEASE else 0)


async def waits_for_an_opening(rig: Rig, times: int) -> list[int]:
    """Return how long the lane waits before each of its next openings, in steps of 50 ms."""
    waits = []
    for _ in range(times):
        fenced = rig.transport.calls.count(Step.FENCE)
        waited = 0
        while rig.transport.calls.count(Step.FENCE) == fenced:
            await rig.advance(50)
            waited += 50
        waits.append(waited)
    return waits


async def test_a_lane_that_opens_well_and_fails_each_transaction_slows_down(make_rig: MakeRig) -> None:
    """An opening proves nothing."""
    rig = await make_rig(first_backoff_s=0.1, last_backoff_s=0.5).start()
    rig.transport.fail(Step.COMMIT, ConnectionError(), times=5)
    waits = []
    for _ in range(5):
        assert rig.state == "open"
        await rig.hand_over("poison", publishes=1)
        waits += await waits_for_an_opening(rig, 1)
    assert waits == [100, 200, 400, 500, 500]


@pytest.mark.parametrize(
    ("commits", "lasts_ms", "next_wait_ms"),
    [
        (True, 499, 400),
        (True, 500, 100),
        (False, 500, 400),
        (False, 59_999, 400),
        (False, 60_000, 100),
    ],
)
async def test_back_off_starts_over_after_a_session_that_committed_or_lasted(
    make_rig: MakeRig, commits: bool, lasts_ms: int, next_wait_ms: int
) -> None:
    """A fault that comes a day later is a new one."""
    rig = make_rig(first_backoff_s=0.1, last_backoff_s=0.5)
    rig.transport.fail(Step.FENCE, ConnectionError(), times=2)
    await rig.start()
    assert await waits_for_an_opening(rig, 2) == [100, 200]
    if commits:
        rig.submit("sound", publishes=1)
    await rig.advance(lasts_ms)
    rig.lane.fail(RuntimeError())
    await rig.settle()
    assert await waits_for_an_opening(rig, 1) == [next_wait_ms]


async def test_an_opening_that_hangs_is_given_up_at_its_deadline(make_rig: MakeRig) -> None:
    """Each lane has one of its own."""
    rig = make_rig(open_s=30)
    rig.transport.pause(Step.COMMITTED)
    await rig.start()
    await rig.advance(29_999)
    assert Step.CLOSE not in rig.transport.calls
    await rig.advance(1)
    assert rig.transport.calls[-2:] == GIVEN_UP
    assert rig.lane.last_error == "TimeoutError: opening it took longer than 30 s"


async def test_a_time_out_that_says_more_is_told_in_its_own_words(make_rig: MakeRig) -> None:
    """A reader names the partition that nothing comes from."""
    rig = make_rig(open_s=30)
    rig.transport.fail(Step.RECOVER, TimeoutError("log[3]: nothing came"))
    await rig.start()
    assert rig.lane.last_error == "TimeoutError: log[3]: nothing came"


@pytest.mark.parametrize("error", [NotMemberError("left"), RebalancingError("ending")])
@pytest.mark.parametrize("before", [0, 1], ids=["before fencing", "after fencing"])
async def test_no_member_no_lane(make_rig: MakeRig, error: Exception, before: int) -> None:
    """It idles until the next assignment: another worker may own the lane, so nothing is tried again."""
    rig = make_rig()
    rig.transport.fail(Step.PROVE, error, after=before)
    await rig.start()
    await rig.advance(3_600_000)
    assert (rig.state, rig.lane.last_error) == ("idle", str(error))
    assert rig.done
    assert rig.transport.calls.count(Step.FENCE) == before
    assert (rig.transport.calls[-1], rig.opened, rig.closed) == (Step.CLOSE, [], 0)


@pytest.mark.parametrize("step", [Step.RELEASE, Step.COMMIT])
async def test_membership_lost_after_the_session_began_ends_the_session(make_rig: MakeRig, step: Step) -> None:
    """What was begun is told that it is over, and its turns are dropped."""
    rig = make_rig()
    rig.transport.fail(step, NotMemberError("left"))
    await rig.start()
    if step is Step.COMMIT:
        await rig.hand_over("a", publishes=1)
        assert rig.settled == [("a", False, ())]
    assert (rig.state, len(rig.opened), rig.closed) == ("idle", 1, 1)
    with pytest.raises(LaneClosedError):
        rig.submit("b", publishes=1)


RENEW_MS = round(LaneLimits().renew_s * 1_000)


async def test_an_idle_lane_commits_a_known_offset_before_its_store_counts_as_unused(rig: Rig) -> None:
    """Nothing moves by it."""
    await rig.hand_over("a", 8, publishes=1)
    times_ms = [rig.clock.wall_ms()]
    for _ in range(4 * 24 * 6):
        await rig.advance(600_000)
        times_ms += [rig.clock.wall_ms()] * (len(rig.transport.batches) - len(times_ms))
    waits_ms = [after - before for before, after in pairwise(times_ms)]
    assert CHANGELOG_DELETE_RETENTION_MS / 4 < max(waits_ms) < CHANGELOG_DELETE_RETENTION_MS / 2
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: 8}] * len(times_ms)
    assert not any(batch.publishes for batch in rig.transport.batches[1:])


async def test_a_renewal_never_takes_an_offset_back(rig: Rig) -> None:
    """What is queued or being committed is newer than what the lane would say again."""
    await rig.hand_over("a", 8, publishes=1)
    await rig.advance(RENEW_MS)
    await rig.advance(RENEW_MS - 100)
    rig.submit("b", 9)
    await rig.advance(100)
    await rig.advance(500)
    await rig.advance(RENEW_MS - 500)
    await rig.advance(RENEW_MS - 500)
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("c", 10, publishes=1)
    await rig.advance(500)
    gate.set()
    await pass_time(rig, 1_500, 500)
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: 8}, {MAIN: 8}, {MAIN: 9}, {MAIN: 10}]


async def test_a_lane_that_goes_on_or_moves_offsets_only_does_not_ask(rig: Rig) -> None:
    """The next transaction is question enough; and what moved offsets only is done again at worst."""
    for at in range(5):
        rig.submit("a", at + 1, publishes=1)
        await rig.advance(6_000)
    await rig.advance(3_000)
    rig.submit("b", 6)
    await pass_time(rig, 50_000, 10_000)
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: at} for at in range(1, 7)]
