"""A lane that ends commits what it can and gives everything up."""

from __future__ import annotations

from doubles import MAIN, MakeRig, Rig

from retryapp.ports import Event
from retryapp.testing import Step


async def test_finish_commits_what_is_queued_and_gives_the_lane_up(make_rig: MakeRig) -> None:
    """Offsets do not wait for their tick, and more than one transaction is made where needed."""
    rig = await make_rig(turns=2).start()
    for n in range(5):
        rig.submit(str(n), n + 1)
    rig.lane.finish()
    await rig.settle()
    assert rig.task is not None
    assert rig.task.done()
    assert [batch.offsets[MAIN] for batch in rig.transport.batches] == [2, 4, 5]
    assert all(committed for _, committed, _ in rig.settled)
    assert (rig.state, rig.closed, rig.transport.calls[-1]) == ("closed", 1, Step.CLOSE)
    assert len(rig.observer.of(Event.LANE_CLOSED)) == 1


async def test_finish_waits_for_the_transaction_that_runs(rig: Rig) -> None:
    """And takes what has come meanwhile."""
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("a", 1, publishes=1)
    await rig.settle()
    rig.submit("b", 2)
    rig.lane.finish()
    await rig.settle()
    assert rig.task is not None
    assert not rig.task.done()
    gate.set()
    await rig.settle()
    assert (rig.task.done(), rig.transport.offsets[MAIN]) == (True, 2)


async def test_finish_that_cannot_commit_does_not_open_again(rig: Rig) -> None:
    """The next owner reads what is missing."""
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"))
    rig.submit("a", publishes=1)
    rig.lane.finish()
    await rig.advance(60_000)
    assert rig.task is not None
    assert rig.task.done()
    assert (len(rig.opened), rig.settled) == (1, [("a", False, ())])


async def test_a_cancelled_lane_drops_its_turns_and_gives_everything_up(rig: Rig) -> None:
    """Even in the middle of a transaction."""
    rig.transport.pause(Step.COMMIT)
    rig.submit("a", publishes=1)
    await rig.settle()
    rig.submit("b", 2)
    assert rig.task is not None
    rig.task.cancel()
    await rig.settle()
    assert rig.task.cancelled()
    assert rig.settled == [("a", False, ()), ("b", False, ())]
    assert (rig.state, rig.closed, rig.transport.calls[-1]) == ("closed", 1, Step.CLOSE)


async def test_a_lane_that_backs_off_ends_at_once_when_it_is_finished(make_rig: MakeRig) -> None:
    """A rebalance must not wait for the back-off of a lane that has nothing to commit."""
    rig = make_rig(first_backoff_s=5.0)
    rig.transport.fail(Step.FENCE, ConnectionError(), times=9)
    await rig.start()
    rig.lane.finish()
    await rig.settle()
    assert rig.task is not None
    assert rig.task.done()
