"""Every error of a lane, and its end: hold, close, and open again or not."""

from __future__ import annotations

import pytest
from doubles import BACKOFF_MS, GIVEN_UP, MAIN, RETRY, MakeRig, Rig

from retryapp.core.lane_errors import LaneClosedError
from retryapp.ports import Event
from retryapp.testing import Step


@pytest.mark.parametrize("durable", [False, True], ids=["not committed", "committed, answer lost"])
async def test_an_unknown_commit_is_settled_by_reading_and_never_repeated(rig: Rig, durable: bool) -> None:
    """Its turns are dropped with all others; the next session begins where the broker says."""
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"), durable=durable)
    rig.submit("a", 5, publishes=1)
    await rig.hand_over("b", 6)
    assert rig.settled == [("a", False, ()), ("b", False, ())]
    assert (rig.observer.of(Event.SCHEDULED), rig.closed, rig.lane.room) == ([], 1, 0)
    await rig.advance(BACKOFF_MS)
    assert rig.opened[1] == (2, {MAIN: 6 if durable else 0})
    await rig.advance(10_000)
    assert rig.transport.calls.count(Step.COMMIT) == 1
    assert len(rig.transport.read(RETRY)) == (1 if durable else 0)


async def test_turns_of_an_old_session_are_refused(rig: Rig) -> None:
    """Before, while and after the lane opens again: their records are read again."""
    old = rig.lane.session
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"))
    await rig.hand_over("a", publishes=1)
    with pytest.raises(LaneClosedError, match=r"app\.orders\.0"):
        rig.lane.submit(old, rig.turn("late", publishes=1))
    await rig.advance(BACKOFF_MS)
    assert rig.state == "open"
    with pytest.raises(LaneClosedError):
        rig.lane.submit(old, rig.turn("later", publishes=1))
    await rig.hand_over("new", publishes=1)
    assert [(name, committed) for name, committed, _ in rig.settled] == [("a", False), ("new", True)]


async def test_a_transaction_that_hangs_is_given_up_at_its_deadline(make_rig: MakeRig) -> None:
    """Its outcome is as unknown as that of any other error."""
    rig = await make_rig(commit_s=30).start()
    rig.transport.pause(Step.COMMIT)
    await rig.hand_over("a", publishes=1)
    await rig.advance(29_999)
    assert rig.state == "open"
    await rig.advance(1)
    assert (rig.settled, rig.transport.calls[-2:]) == ([("a", False, ())], GIVEN_UP)
    assert rig.lane.last_error == "TimeoutError: a commit took longer than 30 s"


async def test_holding_that_fails_does_not_keep_the_lane_from_closing(rig: Rig) -> None:
    """The consumer may be gone; both errors are told."""
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"))
    rig.transport.fail(Step.HOLD, RuntimeError("no consumer"))
    await rig.hand_over("a", publishes=1)
    assert rig.transport.calls[-2:] == GIVEN_UP
    assert "cut" in str(rig.lane.last_error)
    assert "no consumer" in str(rig.lane.last_error)
    await rig.advance(BACKOFF_MS)
    assert rig.state == "open"


async def test_a_fault_outside_while_records_begin_to_flow_is_not_forgotten(make_rig: MakeRig) -> None:
    """The session has begun, the opening is not quite over: the record that failed would never be settled."""
    rig = make_rig()
    released = rig.transport.pause(Step.RELEASE)
    await rig.start()
    rig.lane.fail(RuntimeError("agent died"))
    released.set()
    await rig.settle()
    await rig.advance(BACKOFF_MS)
    assert [session for session, _ in rig.opened] == [1, 2]
    await rig.advance(60_000)
    assert rig.lane.session == 2


async def test_waiting_offsets_of_a_dropped_session_are_not_committed_at_the_tick(make_rig: MakeRig) -> None:
    """The timer goes with the session."""
    rig = await make_rig(tick_s=0.25).start()
    rig.submit("a", 5)
    rig.lane.fail(RuntimeError())
    await rig.settle()
    await rig.advance(10_000)
    assert (rig.settled, rig.transport.batches) == ([("a", False, ())], [])


async def test_finish_commits_what_is_queued_and_gives_the_lane_up(make_rig: MakeRig) -> None:
    """It waits for the transaction that runs, but not for a tick, and makes more than one where needed."""
    rig = await make_rig(turns=2).start()
    gate = rig.transport.pause(Step.COMMIT)
    await rig.hand_over("first", 1, publishes=1)
    for n in range(5):
        rig.submit(str(n), n + 2)
    rig.lane.finish()
    await rig.settle()
    assert not rig.done
    gate.set()
    await rig.settle()
    assert rig.done
    assert [batch.offsets[MAIN] for batch in rig.transport.batches] == [1, 3, 5, 6]
    assert all(committed for _, committed, _ in rig.settled)
    assert (rig.state, rig.closed, rig.transport.calls[-1]) == ("closed", 1, Step.CLOSE)
    assert len(rig.observer.of(Event.LANE_CLOSED)) == 1


async def test_finish_that_cannot_commit_does_not_open_again(rig: Rig) -> None:
    """The next owner reads what is missing."""
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"))
    rig.submit("a", publishes=1)
    rig.lane.finish()
    await rig.advance(60_000)
    assert rig.done
    assert (len(rig.opened), rig.settled) == (1, [("a", False, ())])


async def test_a_lane_that_backs_off_ends_at_once_when_it_is_finished(make_rig: MakeRig) -> None:
    """A rebalance must not wait for the back-off of a lane that has nothing to commit."""
    rig = make_rig(first_backoff_s=5.0)
    rig.transport.fail(Step.FENCE, ConnectionError(), times=9)
    await rig.start()
    rig.lane.finish()
    await rig.settle()
    assert rig.done
