"""After a transaction a lane rests about as long as it took: fewer and larger transactions where many compete."""

from __future__ import annotations

from doubles import REDELIVERY, MakeRig, Rig, down

from retryapp.testing import MemoryPartition, Step


async def transact(rig: Rig, ms: int) -> None:
    """Have the lane commit a turn in so many milliseconds."""
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("first", 1, publishes=1)
    await rig.settle()
    rig.clock.advance(ms)
    gate.set()
    await rig.settle()


async def test_what_comes_while_a_lane_rests_goes_together(rig: Rig) -> None:
    """One transaction, as long after the former as that took."""
    await transact(rig, 16)
    rig.submit("a", 2, publishes=1)
    await rig.advance(10)
    rig.submit("b", 3, publishes=1)
    await rig.advance(5)
    assert len(rig.transport.batches) == 1
    await rig.advance(1)
    assert [len(batch.publishes) for batch in rig.transport.batches] == [1, 2]


async def test_a_rest_is_bounded(rig: Rig) -> None:
    """A broker that took seconds once does not make the lane slow."""
    await transact(rig, 5_000)
    rig.submit("a", 2, publishes=1)
    await rig.advance(19)
    assert len(rig.transport.batches) == 1
    await rig.advance(1)
    assert len(rig.transport.batches) == 2


async def test_a_lane_does_not_rest_while_a_full_transaction_waits(make_rig: MakeRig) -> None:
    """It would only lose time: nothing more can join."""
    rig = make_rig(changes=3)
    await rig.start()
    gate = rig.transport.pause(Step.COMMIT)
    for n in range(5):
        rig.submit("first", n + 1, publishes=1)
    await rig.settle()
    for n in range(3):
        rig.submit("a", n + 6, publishes=1)
    rig.clock.advance(40)
    gate.set()
    await rig.settle()
    assert [len(batch.publishes) for batch in rig.transport.batches[:2]] == [3, 3]


async def test_an_end_does_not_wait_for_the_rest(rig: Rig) -> None:
    """A revoke has a deadline."""
    await transact(rig, 40)
    rig.submit("a", 2, publishes=1)
    rig.lane.finish()
    await rig.settle()
    assert len(rig.transport.batches) == 2
    assert rig.task is not None
    assert rig.task.done()


async def test_a_rest_ends_with_its_session(rig: Rig) -> None:
    """The next one begins with none, and its own rest is not cut short by the old one's end."""
    await transact(rig, 40)
    rig.lane.fail(ConnectionError("cut"))
    await rig.settle()
    await rig.advance(10)
    await rig.advance(100)
    assert rig.state == "open"
    rig.submit("a", 2, publishes=1)
    await rig.settle()
    assert len(rig.transport.batches) == 2


async def test_rows_that_become_due_while_the_lane_is_busy_fire_in_one_turn() -> None:
    """They could not go before; one look at the table serves all, and the lane takes them along when it goes on."""
    async with MemoryPartition(down, "1s 1h") as orders:
        await orders.send(b"a")
        for n in range(3):
            await orders.advance(10)
            await orders.send(b"%d" % n)
        gate = orders.transport.pause(Step.COMMIT)
        await orders.advance(970)
        for _ in range(3):
            await orders.advance(10)
        assert len(orders.engine.firing.claimed) == 1
        gate.set()
        await orders.settle()
        assert len(orders.records(REDELIVERY.topic)) == 1
        await orders.advance(30)
        fired = [
            count
            for batch in orders.transport.batches
            if (count := sum(out.topic == REDELIVERY.topic for out in batch.publishes))
        ]
        assert fired == [1, 3]
