"""Records that may have killed a worker run in groups that halve, each named by a mark before it starts."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import MAIN, BankDownError, Gate, Refusing, committed, reopen, serving
from suspected import ENDS, GATHER_MS, Killer, beside, disk_rows, found, marks, names, with_rows, without_life
from test_beyond import noted

from retryapp.core.deduplicate import Deduplicate
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.policy import RetryPolicy
from retryapp.core.verdicts import Reject
from retryapp.engine.delivery import deliver
from retryapp.engine.delivery.alone import STILL_S
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Event
from retryapp.testing import MemoryPartition, Step

# -- groups -----------------------------------------------------------------------------------------------------------


async def test_half_of_the_suspects_run_together_and_then_the_other_half() -> None:
    """A false suspicion costs two group times; each group is named before it starts, with those that follow."""
    gate, transport = Gate(), found("r1:old", *names(9))
    async with MemoryPartition(gate, transport=transport, concurrency=8, max_in_flight=8) as orders:
        assert list(gate.running) == names(4)
        assert marks(orders) == [(0, "r2<9"), (0, "g4@0-4<9")]
        gate.let_all()
        await orders.settle()
        assert gate.done == names(9)
        assert (gate.most, marks(orders)[2:]) == (4, [(4, "g4@4-8"), (8, "r2@0<9")])
        await orders.advance(1_000)
        assert (orders.transport.offsets[MAIN], without_life(orders.transport.broker.notes[MAIN])) == (
            9,
            "r0",
        )


@pytest.mark.parametrize("rows", [False, True])
async def test_each_group_is_said_once(*, rows: bool) -> None:
    """Which records run by themselves, at most a few by their offsets, and why."""
    gate, transport = await with_rows(17) if rows else (Gate(), found("r1:old", *names(17)))
    for _ in range(ENDS * rows):
        async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=17):
            pass
        gate.running.clear()
    async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=17, max_in_flight=17) as orders:
        for name in names(9):
            gate.let(name)
        await orders.settle()
        said = orders.observer.of(Event.SUSPECTED)
        assert [(each.topic, each.partition, each.offset, each.count) for each in said] == [
            (MAIN.topic, MAIN.partition, 0, 9),
            (MAIN.topic, MAIN.partition, 9, 8),
        ]
        assert (said[1].message or "").startswith("offsets 9, 10, 11, 12, 13 and 3 more may have killed their worker")


async def test_how_often_one_has_killed_alone_is_said() -> None:
    """And after how many such ends it is dead."""
    killer, said = Killer(b"0"), list[str]()
    transport = found("r1:old", b"0")
    for _ in range(2):
        async with MemoryPartition(killer, transport=transport, max_in_flight=1, max_crashes=3) as orders:
            await orders.advance(GATHER_MS)
            said += [each.message or "" for each in orders.observer.of(Event.SUSPECTED)]
    assert [text.partition("if ")[2] for text in said] == [
        "3 workers die of that. Records after them wait",
        "3 workers die of that; so far 1. Records after them wait",
    ]


async def test_nothing_of_a_group_runs_before_its_mark_is_durable() -> None:
    """Else its end would be uncounted."""
    gate, transport = Gate(), found("r1:old", *names(4))
    marking = transport.pause(Step.COMMIT, after=1)
    async with MemoryPartition(gate, transport=transport, max_in_flight=4, concurrency=4) as orders:
        assert (marking.reached, list(gate.running)) == (True, [])
        marking.set()
        await orders.settle()
        assert list(gate.running) == names(2)


async def test_a_group_is_made_of_those_that_there_are() -> None:
    """Nobody says that the log has no more of them: a short wait does."""
    async with serving(Gate(), "1s 10s", transport=found("r1:old", *names(6)), concurrency=8) as (orders, gate):
        await orders.advance(GATHER_MS - 1)
        assert list(gate.running) == []
        await orders.advance(1)
        assert list(gate.running) == names(3)


@pytest.mark.parametrize("at", range(8))
async def test_one_that_kills_is_found_by_halves(at: int) -> None:
    """Among eight: a group of four, of two, and three lives in which it ran alone. All others are done."""
    killer = Killer(b"%d" % at)
    transport = found("r1:old", *names(8))
    ends = 0
    while ends < 20 and await killer.ends_a_life(transport, concurrency=8, max_in_flight=8, max_crashes=3):
        ends += 1
    assert ends == 2 + 3
    assert sorted(set(killer.done)) == [name for name in names(8) if name != killer.poison]
    assert transport.offsets[MAIN] == 8
    async with MemoryPartition(killer, "1s 1h", transport=transport) as orders:
        (letter,) = orders.dead_letters
        assert (letter.reason, letter.attempt, letter.origin.offset) == ("crashed", 1, at)
        assert "3 workers ended while this record ran alone" in letter.error_message


@pytest.mark.parametrize(
    ("order", "most", "ends"),
    [
        (Order.NONE, 1, 4 + 3),
        (Order.NONE, 2, 3 + 3),
        (Order.NONE, 5, 2 + 2 + 3),
        (Order.PARTITION, 1, 4 + 3),
        (Order.PARTITION, 5, 2 + 3),
    ],
)
async def test_one_that_kills_behind_many_outcomes_on_their_way_is_found(order: Order, most: int, ends: int) -> None:
    """They are not in flight: each death with no suspect running doubles the suspects. In an order each runs alone."""
    killer = Killer(b"12")
    transport = found("r0:old", *names(20))
    options: Any = {"concurrency": 1, "max_in_flight": most, "max_crashes": 3, "order": order}
    found_after = 0
    while found_after < 20 and await killer.ends_a_life(transport, **options):
        found_after += 1
    assert found_after == ends
    async with MemoryPartition(killer, "1s 1h", transport=transport) as orders:
        assert [letter.origin.offset for letter in orders.dead_letters] == [12]
        assert (transport.offsets[MAIN], without_life(transport.broker.notes[MAIN])) == (20, "r0")


async def test_a_lane_that_opens_again_does_not_suspect_what_its_life_has_outlived() -> None:
    """Nor what comes after it, until a worker dies of that."""
    gate, transport = Gate(), found("r1:old", *names(9))
    async with MemoryPartition(gate, transport=transport, max_in_flight=2, concurrency=2) as orders:
        for name in names(2):
            await gate.end(orders, name)
        await orders.advance(1_000)
        assert marks(orders)[-1] == (2, "r2@0<9")
        await reopen(orders)
        await orders.settle()
        assert list(gate.running) == [b"2", b"3"]
    gate.running.clear()
    async with MemoryPartition(gate, transport=transport, max_in_flight=2, concurrency=2) as orders:
        for name in names(6)[2:]:
            assert (list(gate.running), marks(orders)[-1][1].partition("@")[0]) == ([name], "s1")
            await gate.end(orders, name)
        assert list(gate.running) == [b"6", b"7"]


async def test_only_the_group_that_ran_is_suspect_in_the_next_life() -> None:
    """The others were not running, so they run as always once it is over; those that are settled ran to their end."""
    gate, transport = Gate(), found("g4:old@0-4<8", *names(12))
    async with MemoryPartition(gate, transport=transport, concurrency=12, max_in_flight=12) as orders:
        assert list(gate.running) == names(2)
        await gate.end(orders, b"0")
        await orders.advance(1_000)
    gate.running.clear()
    async with MemoryPartition(gate, transport=transport, concurrency=12, max_in_flight=12) as orders:
        assert list(gate.running) == [b"1"]
        assert marks(orders)[-1] == (1, "s1@1")
        await gate.end(orders, b"1")
        assert list(gate.running) == names(12)[2:]
        assert marks(orders)[-1] == (2, "r0")


async def test_a_settled_neighbour_does_not_clear_the_mark() -> None:
    """The offset moves within the group, and its mark stays until all of it is settled."""
    gate, transport = Gate(), found("r1:old", *names(8))
    async with MemoryPartition(gate, transport=transport, max_in_flight=8, concurrency=8) as orders:
        gate.let(b"0")
        await gate.end(orders, b"1")
        await orders.advance(1_000)
        assert transport.offsets[MAIN] == 2
        assert without_life(transport.broker.notes[MAIN]) == "g4@0-4<8"


async def test_unclean_ends_count_while_a_record_of_the_first_one_waits() -> None:
    """However far its neighbours have come in each life; once all of them are settled, counting begins again."""
    gate, transport = Gate(), found("", *names(6))
    for settled in (b"0", b"1"):
        async with MemoryPartition(gate, transport=transport, max_in_flight=4, concurrency=4) as orders:
            await gate.end(orders, settled)
            await orders.advance(1_000)
        gate.running.clear()
    async with MemoryPartition(gate, transport=transport, max_in_flight=4, concurrency=4) as orders:
        assert list(gate.running) == [b"2", b"3"]
        assert marks(orders)[-1] == (2, "g2@2-4<6")
        gate.let_all()
        await orders.advance(1_000)
        assert without_life(transport.broker.notes[MAIN]) == "r0"


async def test_no_mark_moves_the_offset_past_a_record_that_waits_before_the_suspects() -> None:
    """A life that kept an order has marked them: an earlier record had waited for its sequence, and has no outcome."""
    async with serving(Gate(), "1s 10s", transport=found("g2:old@1-3<3", *names(4)), concurrency=8) as (orders, gate):
        await orders.advance(GATHER_MS)
        assert list(gate.running) == [b"1"]
        await gate.end(orders, b"1")
        assert ([*gate.running], committed(orders)) == ([b"2"], 0)
        assert noted(orders.transport) == {1: True}  # durable before the other half runs
    gate.running.clear()
    async with MemoryPartition(gate, transport=orders.transport, concurrency=8) as orders:
        gate.let_all()
        await orders.advance(GATHER_MS)
        await orders.advance(10_000)
        assert ({*gate.done}, committed(orders)) == ({*names(4)}, 4)


async def test_a_lane_that_opens_again_suspects_the_same_records() -> None:
    """Its life has not ended: neither half is proven."""
    gate, transport = Gate(), found("r1:old", *names(8))
    async with MemoryPartition(gate, transport=transport, max_in_flight=8, concurrency=8) as orders:
        await reopen(orders)
        await orders.settle()
        assert list(gate.running) == names(4)
        gate.let_all()
        await orders.advance(1_000)
        assert (gate.most, sorted(gate.done)) == (4, names(8))


# -- what waits -------------------------------------------------------------------------------------------------------


async def test_nothing_runs_before_the_burial_of_a_suspect_is_durable() -> None:
    """It is not called again. What is after it may be the one that ended its workers: the offset has to move first."""
    gate, transport = Gate(), found("s3:old@0", b"a", b"b")
    burying = transport.pause(Step.COMMIT)
    async with MemoryPartition(gate, transport=transport, concurrency=4) as orders:
        assert (burying.reached, list(gate.running)) == (True, [])
        burying.set()
        await orders.settle()
        assert list(gate.running) == [b"b"]
        (letter,) = orders.dead_letters
        assert (letter.reason, letter.attempt, letter.origin.offset) == ("crashed", 1, 0)


@pytest.mark.parametrize("rows", [False, True], ids=["first deliveries", "rows"])
@pytest.mark.parametrize("buried", [False, True], ids=["an outcome", "a burial"])
async def test_nothing_else_runs_while_a_suspects_outcome_is_refused(rows: bool, buried: bool) -> None:
    """Its topic does not take it: the lane says so, and the next group starts once it is durable, and not before."""
    gate, transport = await with_rows(4, "1s") if rows else (Gate(), found("", *names(4)))
    sign, first = "", 0
    if rows:
        sign, first = "w", int.from_bytes(disk_rows(transport)[0][0][:8], "big")
    mark = (f"s3:old@{first}.0" if rows else "s3:old@0") if buried else "r2:old"
    transport.broker.notes[MAIN] = f"{'r0:old ' if rows else ''}{sign}{mark}"
    refusing = Refusing(transport, b"0")
    refusing.topics = ".dlq"
    async with MemoryPartition(gate, "1s", transport=transport, concurrency=4, max_in_flight=4) as orders:
        if not buried:
            assert list(gate.running) == names(2)
            gate.let(b"0", Reject("never"))
            gate.let(b"1")
        await orders.settle()
        await orders.advance(10_000)
        assert orders.lane.refusal is not None
        assert (list(gate.running), orders.lane.session) == ([], 1)
        refusing.prefixes = ()
        await orders.advance(30_000)
        assert list(gate.running) == (names(4)[1:] if buried else names(4)[2:])
        assert [letter.origin.offset for letter in orders.dead_letters] == [0]


async def test_a_skipped_duplicate_is_not_among_the_suspects() -> None:
    """It does not run; what its mark says is not held against the next one."""
    gate = Gate()
    gate.let_all()
    rule = Deduplicate("header:event-id", window="1h")
    async with serving(gate, "1s", b"first", headers=(("event-id", b"e"),), deduplicate=rule) as (orders, _):
        await orders.advance(1_000)
    gate.open = False
    transport = orders.transport
    transport.append(MAIN, None, b"again", (("event-id", b"e"),))
    for value in (b"a", b"b"):
        transport.append(MAIN, None, value)
    transport.broker.notes[MAIN] = "s3:old@1"
    async with MemoryPartition(gate, "1s", deduplicate=rule, transport=transport, concurrency=2) as orders:
        await orders.advance(GATHER_MS)
        assert list(gate.running) == [b"a", b"b"]
        assert (marks(orders)[-1], orders.dead_letters) == ((2, "r0"), [])


# -- several partitions of a worker -----------------------------------------------------------------------------------


async def test_groups_of_several_partitions_run_together_and_one_alone_does_not() -> None:
    """It would be held responsible for what a group of another partition did. What is not suspect goes on."""
    gates = first, second, third, healthy = Gate(), Gate(), Gate(), Gate()
    options = {"max_in_flight": 4, "concurrency": 4}
    one = MemoryPartition(first, transport=found("r2:old", *names(4)), **options)
    two, three = beside(one, second, "r2:old", *names(4)), beside(one, third, "s1:old@0", b"a", b"b")
    async with one, two, three, beside(one, healthy, "", b"c"):
        assert [list(gate.running) for gate in gates] == [names(2), names(2), [], [b"c"]]
        for gate, partition in ((first, one), (second, two)):
            gate.let(b"0")
            await gate.end(partition, b"1")
        await three.settle()
        assert [list(gate.running) for gate in gates] == [[], [], [b"a"], [b"c"]]
        third.let(b"a")
        await three.settle()
        assert [list(gate.running) for gate in gates] == [names(4)[2:], names(4)[2:], [b"b"], [b"c"]]


async def test_nothing_of_its_worker_runs_beside_a_record_that_one_more_death_gives_up() -> None:
    """What is no suspect yet could end the worker in its place; what runs already is waited for."""
    first, second = Gate(), Gate()
    healthy = MemoryPartition(second, concurrency=4)
    async with healthy:
        await healthy.send(b"before")
        async with beside(healthy, first, "s2:old@0", *names(2)) as orders:
            await healthy.send(b"after")
            assert ([*first.running], [*second.running], marks(orders)) == ([], [b"before"], [])
            second.let(b"before")
            await healthy.settle()
            await orders.settle()
            assert ([*first.running], [*second.running], marks(orders)) == ([b"0"], [], [(0, "s3@0")])
            (said,) = orders.observer.of(Event.SUSPECTED)
            assert "so far 2; nothing else begins in its worker. " in (said.message or "")
            first.let(b"0")
            await orders.settle()
            await healthy.settle()
            assert ([*first.running], [*second.running]) == ([b"1"], [b"after"])


async def test_a_kill_while_a_suspect_waits_for_its_worker_to_be_still_counts_for_nothing() -> None:
    """Its mark of before is there, and the next life runs it."""
    first, second = Gate(), Gate()
    healthy = MemoryPartition(second, concurrency=4)
    async with healthy:
        await healthy.send(b"before")
        async with beside(healthy, first, "s2:old@0", b"suspect") as orders:
            assert ([*first.running], [*second.running], marks(orders)) == ([], [b"before"], [])
    async with MemoryPartition(first, transport=orders.transport) as orders:
        await orders.advance(GATHER_MS)
        assert ([*first.running], marks(orders)) == ([b"suspect"], [(0, "s3@0")])


async def test_a_run_that_takes_long_does_not_keep_its_worker_still() -> None:
    """After 30 s the suspect runs beside it, and others begin."""
    first, second = Gate(), Gate()
    healthy = MemoryPartition(second, RetryPolicy("1s", timeout="1h"), concurrency=4)
    async with healthy:
        await healthy.send(b"long")
        async with beside(healthy, first, "s2:old@0", *names(2)) as orders:
            await healthy.send(b"after")
            assert ([*first.running], [*second.running]) == ([], [b"long"])
            await healthy.advance(round(STILL_S * 1_000))
            await orders.settle()
            assert ([*first.running], [*second.running]) == ([b"0"], [b"long", b"after"])


async def test_what_was_held_back_for_a_suspect_runs_in_the_session_that_is_there_by_then() -> None:
    """Its lane has opened again meanwhile; it runs once."""
    first, second = Gate(), Gate()
    healthy = MemoryPartition(second, concurrency=4)
    async with healthy, beside(healthy, first, "s2:old@0", b"suspect") as orders:
        assert list(first.running) == [b"suspect"]
        await healthy.send(b"after")
        await reopen(healthy)
        assert list(second.running) == []
        first.let(b"suspect")
        await orders.settle()
        await healthy.settle()
        second.let_all()
        await healthy.settle()
        assert second.done == [b"after"]


async def test_a_suspect_does_not_begin_once_its_handler_is_paused_while_it_waits_for_another() -> None:
    """Nor is there a mark against it."""
    first, second = Gate(), Gate()
    one = MemoryPartition(first, transport=found("s1:old@0", b"a"), max_in_flight=4, concurrency=4)
    two = beside(one, second, "s1:old@0", b"b")
    async with one, two:
        assert (list(first.running), list(second.running)) == ([b"a"], [])
        before = marks(two)
        await two.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        first.let(b"a")
        await one.settle()
        await two.settle()
        assert (list(second.running), marks(two)) == ([], before)
        await two.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME))
        await two.settle()
        assert list(second.running) == [b"b"]


async def test_a_refused_outcome_of_a_record_that_ran_alone_does_not_hold_up_other_partitions() -> None:
    """It has not ended its worker, and its mark says so before another partition's suspect runs alone."""
    first, second = Gate(), Gate()
    async with MemoryPartition(first, transport=found("s1:old@0", *names(2))) as one:
        refusing = Refusing(one.transport, b"0")
        async with beside(one, second, "s1:old@0", b"a") as two:
            assert (list(first.running), list(second.running)) == ([b"0"], [])
            first.let(b"0", Reject("never"))
            await one.settle()
            await two.settle()
            assert (list(first.running), list(second.running)) == ([], [b"a"])
            assert without_life(one.transport.broker.notes[MAIN]) == "r0"
            assert (one.transport.offsets[MAIN], len(refusing.tries) > 0) == (0, True)


async def test_a_record_that_runs_alone_does_so_until_its_session_has_ended() -> None:
    """Its lane is to close, and a row of the same session does not begin; its last transaction takes long."""
    first, second = Gate(), Gate()
    policy = RetryPolicy("30s", timeout="10m")
    async with serving(first, policy, b"row") as (one, _):
        first.let(b"row", BankDownError())
        await one.settle()
    one.transport.append(MAIN, None, b"alone")
    one.transport.broker.notes[MAIN] = "s1:old@1"
    one = MemoryPartition(first, policy, transport=one.transport, concurrency=4)
    async with one, beside(one, second, "s1:old@0", b"other") as two:
        await one.advance(20_000)
        assert (list(first.running), list(second.running)) == ([b"alone"], [])
        commit = one.transport.pause(Step.COMMIT)
        one.lane.submit(1, Turn(hurried=True))
        await one.settle()
        one.lane.fail(RuntimeError("a fault of ours"))
        await one.advance(15_000)
        await two.settle()
        assert (commit.reached, list(first.running), list(second.running)) == (True, [b"alone"], [])
        commit.set()
        await one.settle()
        await two.settle()
        assert (list(first.running), list(second.running)) == ([], [b"other"])


async def test_no_mark_of_a_suspect_that_comes_late_passes_records_that_run() -> None:
    """The handler had an order, whose marks move no offset, and has none any more: the others were before the suspects.

    Where the worker dies then, the next one begins them again.
    """
    gate, transport = Gate(), found("g2:old@2-4", *names(3))
    async with MemoryPartition(gate, transport=transport, concurrency=8) as orders:
        await orders.advance(GATHER_MS)
        assert list(gate.running) == [b"2"]
        await gate.end(orders, b"2")
        assert list(gate.running) == [b"0", b"1"]
        await orders.send(b"3")
        await orders.advance(GATHER_MS)
        assert list(gate.running) == [b"0", b"1", b"3"]
    gate = Gate()
    gate.let_all()
    async with MemoryPartition(gate, transport=transport, concurrency=8) as orders:
        await orders.to_rest()
        assert {b"0", b"1"} <= {*gate.done}


async def test_a_burial_that_cannot_be_written_down_is_a_letter_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours would bring its lane down each time, with a run that never ends."""

    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("odd")

    monkeypatch.setattr(deliver, "after_failure", fail)
    transport = found("s3:old@0", b"a")
    async with MemoryPartition(Gate(), transport=transport) as orders:
        await orders.advance(1_000)
        assert [letter.reason for letter in orders.dead_letters] == ["damaged"]
        assert (orders.engine.running, orders.observer.of(Event.LANE_FAILED)) == (0, [])
