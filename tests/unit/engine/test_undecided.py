"""A broker leaves an acknowledged transaction without an end (Kafka 4.3.1, stopped as the only one): it gets one."""

from __future__ import annotations

import pytest
from doubles import CHANGELOG, MAIN, BankDownError, pass_time, serving

from retryapp.ports import Event
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step, VirtualClock


class Calls:
    """Fails at first."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, value: bytes) -> None:
        self.seen.append(value)
        if self.seen.count(value) == 1:
            raise BankDownError


def leave_undecided(transport: MemoryLaneTransport, *, same_producer: bool = True) -> None:
    """Take the end of the last transaction away from the changelog.

    Whoever begins it anew does not end it, the next transaction of its producer on that partition does.
    """
    broker = transport.broker
    log, end = broker.logs[CHANGELOG], broker.end_transaction
    txn = log.entries[-1].txn
    assert txn is not None
    txn.committed = None
    log.open.append(txn)
    log.end -= 1

    def end_both(name: str, epoch: int) -> None:
        there = log.entries[-1].txn
        end(name, epoch)
        if same_producer and there is not txn and txn in log.open:
            log.open.remove(txn)
            txn.committed = True

    broker.end_transaction = end_both  # type: ignore[method-assign]


def faults(orders: MemoryPartition) -> list[str]:
    failed = (seen for seen in orders.observer.seen if seen.event is Event.LANE_FAILED)
    return [(seen.error_type or "").rpartition(".")[2] for seen in failed]


async def parked(calls: Calls) -> MemoryLaneTransport:
    async with serving(calls, "1m", b"one") as (orders, _):
        await orders.send(b"two")
    return orders.transport


@pytest.mark.parametrize("dies", [None, False, True], ids=["it lives", "it dies before its commit", "it dies after it"])
@pytest.mark.parametrize("store", ["has read it", "is lost"])
async def test_a_lane_whose_last_transaction_has_no_end_has_it_end_and_opens(store: str, dies: bool | None) -> None:
    """Its offset has moved, so without its rows a lane that opens would lose their records.

    A worker that dies before or after its own transaction for that is committed leaves it to the next one.
    """
    calls = Calls()
    transport = await parked(calls)
    leave_undecided(transport)
    if store == "is lost":
        transport.lose_store()
    if dies is not None:
        dying = transport.pause(Step.COMMIT, durable=dies)
        async with MemoryPartition(calls, "1m", transport=transport) as orders:
            await orders.advance(1_000)
            assert dying.reached
            assert calls.seen == [b"one", b"two"]
    async with MemoryPartition(calls, "1m", transport=transport) as orders:
        await orders.advance(1_000)
        assert faults(orders) == ([] if dies else ["CommitUndecidedError"])
        assert orders.waiting == {"1m": 2}
        await orders.to_rest()
        assert sorted(calls.seen) == [b"one", b"one", b"two", b"two"]


async def test_a_lane_without_a_store_waits_for_the_end_of_its_last_transaction() -> None:
    """Its markers took longer than a look at them: it opened without those rows, and its next store missed them."""
    calls = Calls()
    transport = await parked(calls)
    leave_undecided(transport, same_producer=False)
    transport.lose_store()
    log = transport.broker.logs[CHANGELOG]
    async with MemoryPartition(calls, "1m", transport=transport) as orders:
        await pass_time(orders, 1_000, 50)
        assert set(faults(orders)) == {"CommitUndecidedError"}
        (txn,) = log.open
        txn.committed = True
        log.open.clear()
        await pass_time(orders, 10_000, 500)
        assert orders.waiting == {"1m": 2}
        await orders.to_rest()
        assert sorted(calls.seen) == [b"one", b"one", b"two", b"two"]


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("cut", [False, True])
async def test_a_changelog_that_has_lost_its_end_is_refused_as_before(
    monkeypatch: pytest.MonkeyPatch, *, cut: bool, trusted: bool, unread: bool
) -> None:
    """Nothing is written to one that was cut; nor does a lane open whose transaction belongs to another producer.

    A worker's first lane asks for the broker's time with a record, and notes this life if the main topic has unread
    ones: in the place of what is lost, either would hide it.
    """

    def anchor(clock: VirtualClock, **_: float) -> None:
        clock.trusted = True

    monkeypatch.setattr(VirtualClock, "anchor", anchor)
    calls = Calls()
    transport = await parked(calls)
    transport.clock.trusted = trusted
    if unread:
        transport.append(MAIN, None, b"three")
    log = transport.broker.logs[CHANGELOG]
    if cut:
        del log.entries[-2:]
        log.end = log.entries[-1].record.offset + 1
    else:
        leave_undecided(transport, same_producer=False)
    count = len(log.entries)
    async with MemoryPartition(calls, "1m", transport=transport) as orders:
        await pass_time(orders, 1_000, 50)
        assert set(faults(orders)) == {"StoreAheadError"}
        assert (len(log.entries) == count) is cut
        assert calls.seen == [b"one", b"two"]
