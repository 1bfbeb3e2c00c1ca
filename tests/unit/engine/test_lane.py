"""Turns become transactions, in order, one at a time, with rests between them."""

from __future__ import annotations

import pytest
from doubles import MAIN, RETRY, MakeRig, Rig

from retryapp.core.hops import Outgoing
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Event, Row
from retryapp.testing import Step


async def test_a_turn_is_committed_applied_settled_and_then_told(rig: Rig) -> None:
    """Observers and stations hear of it when it is durable, in this order, with the published offsets."""
    rows = (Row(b"\1" * 21, None, "1m"), Row(b"\1" * 21, b"v", "1m"))
    gate = rig.transport.pause(Step.COMMIT)
    await rig.hand_over("a", 8, publishes=2, rows=rows)
    assert (rig.settled, rig.observer.of(Event.SCHEDULED), rig.rooms) == ([], [], 0)
    gate.set()
    await rig.settle()
    (batch,) = rig.transport.batches
    assert (batch.offsets, len(batch.publishes), batch.rows) == ({MAIN: 8}, 2, [*rows])
    assert rig.transport.calls[-2:] == [Step.COMMIT, Step.APPLY]
    assert rig.settled == [("a", True, (0, 1))]
    assert [o.message for o in rig.observer.of(Event.SCHEDULED)] == ["a"]
    assert rig.rooms == 1


async def test_turns_that_come_while_a_transaction_runs_join_the_next_one_in_order(rig: Rig) -> None:
    """One transaction at a time; each turn gets the offsets of its own records."""
    gate = rig.transport.pause(Step.COMMIT)
    await rig.hand_over("a", 1, publishes=1)
    for n, name in enumerate("bcd"):
        rig.submit(name, n + 2, publishes=n)
    await rig.settle()
    assert rig.transport.calls.count(Step.COMMIT) == 1
    gate.set()
    await rig.settle()
    assert [len(batch.publishes) for batch in rig.transport.batches] == [1, 3]
    assert rig.transport.batches[1].offsets == {MAIN: 4}
    # 1 is the marker of the first transaction
    assert rig.settled == [("a", True, (0,)), ("b", True, ()), ("c", True, (2,)), ("d", True, (3, 4))]


async def test_offsets_alone_wait_for_the_tick(make_rig: MakeRig) -> None:
    """And an idle lane sends nothing."""
    rig = await make_rig(tick_s=0.25).start()
    await rig.advance(10_000)
    assert rig.transport.batches == []
    rig.submit("a", 1)
    await rig.advance(100)
    rig.submit("b", 2)
    await rig.advance(149)
    assert rig.transport.batches == []
    await rig.advance(1)
    assert [batch.offsets for batch in rig.transport.batches] == [{MAIN: 2}]
    assert [name for name, _, _ in rig.settled] == ["a", "b"]
    await rig.advance(10_000)
    assert len(rig.transport.batches) == 1
    rig.submit("c", 3)
    await rig.advance(250)
    assert rig.transport.offsets[MAIN] == 3


async def test_a_transaction_is_bounded_in_turns(make_rig: MakeRig) -> None:
    """The rest follows in the next ones, urgent or not; what waited for a tick does not wait for another."""
    rig = await make_rig(turns=3, tick_s=0.25).start()
    for n in range(7):
        rig.submit(str(n), n + 1, publishes=1 if n == 0 else 0)
    await rig.settle()
    assert [batch.offsets[MAIN] for batch in rig.transport.batches] == [3]
    await rig.advance(250)
    assert [batch.offsets[MAIN] for batch in rig.transport.batches] == [3, 6, 7]


async def test_a_transaction_is_bounded_in_bytes_but_takes_at_least_one_turn(make_rig: MakeRig) -> None:
    """However large that one is."""
    rig = await make_rig(size=200).start()
    gate = rig.transport.pause(Step.COMMIT)
    await rig.hand_over("first", publishes=1)
    for name, size in (("a", 500), ("b", 40), ("c", 40), ("d", 40)):
        rig.submit(name, publishes=1, size=size)
    gate.set()
    await rig.settle()
    assert [len(batch.publishes) for batch in rig.transport.batches] == [1, 1, 2, 1]
    assert [name for name, _, _ in rig.settled] == ["first", "a", "b", "c", "d"]


async def test_what_waits_is_bounded_in_bytes_with_headers(make_rig: MakeRig) -> None:
    """A commit that hangs must not fill the memory; there is room again when it is through."""
    rig = await make_rig(backlog_size=10_000).start()
    assert rig.lane.room > 0
    gate = rig.transport.pause(Step.COMMIT)
    await rig.hand_over("first", publishes=1)
    heavy = Outgoing(RETRY.topic, 0, None, b"v", (("h", b"x" * 6_000),))
    rig.lane.submit(rig.lane.session, Turn(publishes=(heavy,)))
    assert rig.lane.room > 0
    rig.lane.submit(rig.lane.session, Turn(publishes=(heavy,)))
    assert rig.lane.room == 0
    gate.set()
    await rig.settle()
    assert rig.lane.room > 0


async def transact(rig: Rig, ms: int) -> None:
    """Have the lane commit a turn in so many milliseconds."""
    gate = rig.transport.pause(Step.COMMIT)
    await rig.hand_over("first", 1, publishes=1)
    rig.clock.advance(ms)
    gate.set()
    await rig.settle()


@pytest.mark.parametrize(("took_ms", "rest_ms"), [(16, 16), (5_000, 20)])
async def test_what_comes_while_a_lane_rests_goes_together(rig: Rig, took_ms: int, rest_ms: int) -> None:
    """One transaction, as long after the former as that took; one that took seconds does not make the lane slow."""
    await transact(rig, took_ms)
    rig.submit("a", 2, publishes=1)
    await rig.advance(10)
    rig.submit("b", 3, publishes=1)
    await rig.advance(rest_ms - 11)
    assert len(rig.transport.batches) == 1
    await rig.advance(1)
    assert [len(batch.publishes) for batch in rig.transport.batches] == [1, 2]


@pytest.mark.parametrize(("first", "then", "sizes"), [(5, (1, 1, 1), [3, 3]), (3, (3,), [3, 3]), (3, (2,), [3])])
async def test_a_lane_does_not_rest_while_a_full_transaction_waits(
    make_rig: MakeRig, first: int, then: tuple[int, ...], sizes: list[int]
) -> None:
    """It would only lose time: nothing more can join. One turn may be as full as several."""
    rig = make_rig(changes=3)
    await rig.start()
    gate = rig.transport.pause(Step.COMMIT)
    for n in range(first):
        rig.submit("first", n + 1, publishes=1)
    await rig.settle()
    for n, publishes in enumerate(then):
        rig.submit("a", n + 6, publishes=publishes)
    rig.clock.advance(40)
    gate.set()
    await rig.settle()
    assert [len(batch.publishes) for batch in rig.transport.batches[:2]] == sizes


async def test_what_only_tells_of_commands_fills_fewer_transactions(make_rig: MakeRig) -> None:
    """Refused commands fill few transactions; a row that a command changes counts as any other."""
    rig = make_rig(changes=500)
    await rig.start()
    gate = rig.transport.pause(Step.COMMIT)
    await rig.hand_over("first", 1, publishes=1)
    for n in range(24):
        rig.submit("refusals", 0, publishes=100, control=n)
    gate.set()
    await rig.settle()
    assert [len(batch.publishes) for batch in rig.transport.batches] == [1, 1_900, 500]
    row = Row(bytes(17), None, "?")
    assert rig.turn("command", 0, publishes=8, control=1, rows=(row,)).changes == 9


async def test_an_end_does_not_wait_for_the_rest(rig: Rig) -> None:
    """A revoke has a deadline."""
    await transact(rig, 40)
    rig.submit("a", 2, publishes=1)
    rig.lane.finish()
    await rig.settle()
    assert len(rig.transport.batches) == 2
    assert rig.done


async def test_a_rest_ends_with_its_session(rig: Rig) -> None:
    """The next one begins with none, and its own rest is not cut short by the old one's end."""
    await transact(rig, 40)
    rig.lane.fail(ConnectionError("cut"))
    await rig.settle()
    await rig.advance(10)
    await rig.advance(100)
    assert rig.state == "open"
    await rig.hand_over("a", 2, publishes=1)
    assert len(rig.transport.batches) == 2
