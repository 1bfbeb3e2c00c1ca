"""Hand-offs that a topic refuses: what is done is committed, and the refused turn alone is tried again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from doubles import BACKOFF_MS, MAIN, RETRY, MakeRig, Refusing, Rig, pass_time, scheduler_of

from retryapp.core import marks
from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.publication import Destination, Publication
from retryapp.core.record import Origin
from retryapp.core.row_keys import IDENTITY_AT, identity_of
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Event, Row, Standing
from retryapp.testing import MemoryPartition, Step

BIG = b"b" * 100


def settled(rig: Rig) -> list[tuple[str, bool]]:
    """Return the turns that were settled, and whether by a commit."""
    return [(name, committed) for name, committed, _ in rig.settled]


def values(rig: Rig) -> list[bytes]:
    """Return what committed readers see of the retry topic."""
    return [(record.value or b"").rstrip(b"x") for record in rig.transport.read(RETRY)]


async def test_what_is_before_a_refused_turn_is_committed_and_what_is_after_waits(rig: Rig) -> None:
    """In the same session: nothing runs again, and no offset passes it."""
    refusing = Refusing(rig.transport, b"bad")
    for n in range(7):
        rig.submit(f"good{n}", n + 1, publishes=1)
    rig.submit("bad", 8, publishes=1)
    await rig.hand_over("late", 9, publishes=1)
    assert settled(rig) == [(f"good{n}", True) for n in range(7)]
    assert rig.transport.offsets[MAIN] == 7
    assert values(rig) == [b"good%d" % n for n in range(7)]
    assert (rig.state, rig.lane.session, rig.lane.room) == ("open", 1, 0)
    rig.submit("later", 10)
    refusing.prefixes = ()
    await rig.advance(1_000)
    await rig.advance(300)
    assert settled(rig)[7:] == [("bad", True), ("late", True), ("later", True)]
    assert (rig.transport.offsets[MAIN], rig.lane.session, rig.lane.room > 0) == (10, 1, True)
    assert rig.observer.of(Event.LANE_FAILED) == []


@pytest.mark.parametrize(
    ("turn", "offset"),
    [
        (Turn(source=MAIN, next_offset=8), 7),
        (Turn(source=MAIN, next_offset=8, beyond={7: True}), 7),
        (Turn(source=MAIN, next_offset=0, control=3), None),  # a command
        (Turn(source=MAIN, next_offset=0, steering=""), None),  # a step of a job
        (Turn(), None),
    ],
)
async def test_what_is_said_of_a_refused_turn_names_its_record_if_it_has_one(
    rig: Rig, turn: Turn, offset: int | None
) -> None:
    """Where a command is refused, the log had offset -1."""
    refusing = Refusing(rig.transport, b"bad")
    turn.publishes = (Outgoing(RETRY.topic, 0, None, b"bad", ()),)
    rig.lane.submit(rig.lane.session, turn)
    await rig.settle()
    refusing.prefixes = ()
    await rig.advance(1_000)
    said = rig.observer.of(Event.HAND_OFF_REFUSED) + rig.observer.of(Event.HAND_OFF_ACCEPTED)
    assert [each.offset for each in said] == [offset] * 2


async def test_a_refused_turn_is_tried_with_back_off_and_said_once(rig: Rig) -> None:
    """A line for each change; the page has the reason until it is over."""
    refusing = Refusing(rig.transport, b"bad")
    await rig.hand_over("bad", 1, publishes=1)
    began_ms = refusing.tries[0]
    del refusing.tries[:]
    await pass_time(rig, 90_000, 1_000)
    assert [(at - began_ms) // 1_000 for at in refusing.tries] == [1, 3, 7, 15, 31, 61]
    (refused,) = rig.observer.of(Event.HAND_OFF_REFUSED)
    assert (refused.topic, refused.offset, refused.error_type) == (MAIN.topic, 0, "HandOffRefusedError")
    assert "app.orders.retry refuses a hand-off: MessageSizeTooLargeError" in str(refused.message)
    assert str(rig.lane.refusal) == refused.message
    refusing.prefixes = ()
    await rig.advance(30_000)
    assert len(rig.observer.of(Event.HAND_OFF_ACCEPTED)) == 1
    assert rig.lane.refusal is None


async def test_due_rows_go_on_beside_refused_turns_of_both_kinds(rig: Rig) -> None:
    """They are not ordered among each other; the position of the main topic is still written down."""
    refusing = Refusing(rig.transport, b"bad")
    rig.submit("bad", 1, publishes=1)
    rig.submit("bad row", publishes=1)
    await rig.hand_over("row", publishes=1)
    for n in range(30):
        rig.submit(f"row{n}", publishes=1)
        rig.submit(f"late{n}", n + 2)
        await rig.advance(100)
    assert settled(rig) == [("row", True), *((f"row{n}", True) for n in range(30))]
    assert rig.transport.offsets[MAIN] == 0
    written = [record.value for record in rig.transport.read(rig.transport.place.changelog)]
    assert marks.read_progress(written[-1] or b"", "", MAIN.topic).positions == {MAIN.topic: 0}
    assert len(rig.observer.of(Event.HAND_OFF_REFUSED)) == 2
    refusing.prefixes = ()
    await rig.advance(30_000)
    await rig.advance(300)
    assert sorted(settled(rig)[31:]) == sorted(
        [("bad", True), ("bad row", True), *((f"late{n}", True) for n in range(30))]
    )
    assert rig.transport.offsets[MAIN] == 31


async def test_what_waited_for_a_refused_turn_keeps_its_order(rig: Rig) -> None:
    """Also behind turns that were taken back with a second one that is refused: each has the counts up to its own."""
    refusing = Refusing(rig.transport, b"bad")
    rig.submit("bad ahead", 3, publishes=1, beyond={2: True})
    for number in range(3):  # each commit allows the next transaction more turns
        rig.submit(f"row{number}", publishes=1)
        await rig.advance(100)
    rig.submit("bad", 1, publishes=1)
    for offset in (2, 3, 4):
        rig.submit(f"late{offset}", offset)
    await rig.settle()
    refusing.prefixes = ()
    await pass_time(rig, 5_000, 1_000)
    ahead = ("bad ahead", "row0", "row1", "row2")
    assert [name for name, _ in settled(rig) if name not in ahead] == ["bad", "late2", "late3", "late4"]


async def test_turns_wait_without_a_look_at_all_that_wait_already(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may: the event loop would stand still for seconds."""
    looks: list[Turn] = []
    commanded = Turn.commanded.fget
    assert commanded is not None
    monkeypatch.setattr(Turn, "commanded", property(lambda turn: looks.append(turn) or commanded(turn)))
    refusing = Refusing(rig.transport, b"bad")
    rig.submit("bad", 1, publishes=1)
    for n in range(500):
        rig.submit(f"late{n}", n + 2)
    await rig.advance(300)
    assert rig.transport.offsets[MAIN] == 0
    refusing.prefixes = ()
    await rig.advance(1_000)
    await rig.advance(300)
    assert settled(rig)[-1] == ("late499", True)
    assert len(looks) < 10 * 500


async def test_outcomes_of_rows_go_on_without_a_look_at_all_that_wait(rig: Rig) -> None:
    """Each would take milliseconds, where a command and thousands of first deliveries wait."""
    looks = 0

    class Rows(tuple[Row, ...]):
        def __iter__(self) -> Iterator[Row]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    def gone(number: int) -> Rows:
        return Rows([Row(identity(number), None, "?")])

    refusing = Refusing(rig.transport, b"bad")
    rig.submit("bad", 1, publishes=1)
    rig.submit("bad command", 0, publishes=1, control=1, rows=gone(0))
    for n in range(1, 200):
        rig.submit(f"late{n}", n + 1, rows=gone(n))
    await rig.advance(1_000)
    for n in [*range(1_000, 1_200), 0]:
        rig.submit(f"row{n}", rows=gone(n), claim=bytes(IDENTITY_AT) + identity(n))
    await pass_time(rig, 1_000, 100)
    assert settled(rig) == [(f"row{n}", True) for n in range(1_000, 1_200)], "not the one that the command is about"
    assert looks < 20 * 400
    refusing.prefixes = ()
    await pass_time(rig, 30_000, 1_000)
    names = [name for name, committed in settled(rig) if committed]
    assert len(names) == 402
    assert names.index("bad command") < names.index("row0")


def identity(number: int) -> bytes:
    """Return the identity of a row."""
    return identity_of(Origin("orders", "x", 0, number))


async def test_many_refused_turns_are_retried_one_in_a_second_and_at_once_when_one_passes(rig: Rig) -> None:
    """A denied topic costs the others little, and the back-off of one is not that of all."""
    refusing = Refusing(rig.transport, b"bad")
    for n in range(200):
        rig.submit(f"bad{n}", publishes=1)
    await rig.advance(1)
    await pass_time(rig, 60_000, 1_000)
    del refusing.tries[:]
    await pass_time(rig, 60_000, 1_000)
    assert 55 <= len(refusing.tries) <= 61
    refusing.prefixes = ()
    await pass_time(rig, 2_000, 100)
    assert len(settled(rig)) == 200
    assert rig.lane.refusal is None


async def test_a_mark_of_rows_does_not_wait_for_a_refused_turn(rig: Rig) -> None:
    """It moves no offset: suspect rows go on."""
    Refusing(rig.transport, b"bad")
    await rig.hand_over("bad", 5, publishes=1)
    rig.submit("mark", 0, rows_note="r1:life")
    await rig.advance(100)
    assert settled(rig) == [("mark", True)]


async def test_a_session_that_fails_while_a_held_turn_is_retried_gives_each_back_once(rig: Rig) -> None:
    refusing = Refusing(rig.transport, b"bad")
    await rig.hand_over("bad", 1, publishes=1)
    rig.submit("late", 2)
    await rig.advance(500)
    refusing.prefixes = ()
    rig.transport.fail(Step.COMMIT, TimeoutError("lost"))
    await rig.advance(1_000)
    assert settled(rig) == [("bad", False), ("late", False)]


async def test_turns_that_are_refused_together_only_are_committed_one_by_one(make_rig: MakeRig) -> None:
    """Nothing is held back: each of them passes alone."""
    rig = await make_rig().start()
    produce = rig.transport.broker.produce

    def too_many(name: str, epoch: int, records: Sequence[Outgoing]) -> list[int]:
        if sum(out.topic == RETRY.topic for out in records) > 2:
            raise HandOffRefusedError(RETRY.topic, "MessageSizeTooLargeError", 9)
        return produce(name, epoch, records)

    rig.transport.broker.produce = too_many  # type: ignore[method-assign]
    for n in range(20):
        rig.submit(str(n), n + 1, publishes=1)
    await rig.advance(500)
    assert settled(rig) == [(str(n), True) for n in range(20)]
    assert (rig.observer.of(Event.HAND_OFF_REFUSED), rig.lane.session) == ([], 1)


async def test_a_worker_that_lost_its_membership_takes_no_producer_after_a_refusal(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fence the new owner."""
    Refusing(rig.transport, b"bad")
    monkeypatch.setattr(rig.transport.broker, "heartbeat", lambda *_: Standing.GONE)
    rig.transport.calls.clear()
    await rig.hand_over("bad", 1, publishes=1)
    assert rig.transport.calls == [Step.PROVE, Step.CLOSE]
    assert (rig.state, settled(rig)) == ("idle", [("bad", False)])


async def test_a_lane_that_ends_gives_back_what_it_holds(rig: Rig) -> None:
    """The next owner reads it again; nothing is tried after the end."""
    refusing = Refusing(rig.transport, b"bad")
    rig.submit("bad", 1, publishes=1)
    await rig.hand_over("late", 2)
    tries = len(refusing.tries)
    rig.lane.finish()
    await rig.settle()
    assert (rig.done, settled(rig)) == (True, [("bad", False), ("late", False)])
    await rig.advance(60_000)
    assert len(refusing.tries) == tries


async def test_what_a_handler_publishes_fails_the_lane_after_the_rest_is_committed(rig: Rig) -> None:
    """The topic is the handler's: its next attempt gets the error."""
    Refusing(rig.transport, b"bad")
    rig.submit("good", 1, publishes=1)
    turn = rig.turn("bad", 2)
    turn.publishes = (Publication("payments", 0, b"k", b"bad", (), Destination("payments")),)
    rig.lane.submit(1, turn)
    await rig.settle()
    assert settled(rig) == [("good", True), ("bad", False)]
    assert [o.error_type for o in rig.observer.of(Event.LANE_FAILED)] == ["HandOffRefusedError"]
    await rig.advance(BACKOFF_MS)
    assert rig.opened[1][1][MAIN] == 1


async def test_a_dead_letter_that_is_refused_runs_no_handler_again() -> None:
    """Records before it are done, records after it wait; those that waited for a retry are delivered."""
    runs: list[bytes] = []

    async def handler(value: bytes) -> None:
        runs.append(value)
        if value == BIG or (value == b"again" and runs.count(value) == 1):
            raise TimeoutError

    async with MemoryPartition(handler, "1s") as orders:
        refusing = Refusing(orders.transport, BIG)
        refusing.topics = ".dlq"
        for value in (b"again", BIG, b"more"):
            await orders.send(value)
        await orders.advance(10_000)
        assert runs == [b"again", BIG, b"more", b"again", BIG]
        assert orders.lane.refusal is not None
        assert len(scheduler_of(orders).claimed) == 1, "the row is not delivered again"
        for n in range(5):
            await orders.send(b"healthy%d" % n)
        await orders.advance(60_000)
        assert runs[5:] == [b"healthy%d" % n for n in range(5)], "on the main topic nothing waits, nothing runs again"
        assert orders.transport.offsets[MAIN] == orders.transport.broker.logs[MAIN].end
        refusing.prefixes = ()
        await orders.advance(30_000)
        assert [record.value for record in orders.records("app.orders.dlq")] == [BIG]
        assert (len(runs), orders.lane.session, orders.lane.refusal) == (10, 1, None)
        assert not scheduler_of(orders).claimed


@pytest.mark.parametrize("passing", ["mark of rows", "repeated offset"])
async def test_what_is_after_a_held_turn_waits_although_another_was_held_and_passed(rig: Rig, passing: str) -> None:
    """A turn that moves no offset passes a held one; refused in its turn, it does not take its place."""
    Refusing(rig.transport, b"bad")
    await rig.hand_over("good", 1, publishes=1)
    rig.submit("bad", 5, publishes=1)
    await rig.hand_over("late", 6)
    produce, rig.transport.broker.produce = rig.transport.broker.produce, denied  # type: ignore[method-assign]
    await rig.advance(300)
    if passing == "mark of rows":
        rig.submit("mark", 0, rows_note="r1:life")
    else:
        rig.lane._repeat_offset()
    await rig.advance(600)
    rig.transport.broker.produce = produce  # type: ignore[method-assign]
    await pass_time(rig, 30_000, 1_000)
    assert rig.lane.refusal is not None
    assert rig.transport.offsets[MAIN] <= 4
    assert ("late", True) not in settled(rig)


def denied(_name: str, _epoch: int, _records: Sequence[Outgoing]) -> list[int]:
    raise HandOffRefusedError("app.orders.pending.changelog", "denied")


async def test_a_refusal_while_the_group_rebalances_ends_no_session(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane drains: what its handlers finish meanwhile is committed."""
    Refusing(rig.transport, b"bad")
    await rig.hand_over("bad", publishes=1)
    monkeypatch.setattr(rig.transport.broker, "heartbeat", lambda *_: Standing.REBALANCING)
    await rig.advance(1_000)
    rig.submit("drained", 3)
    await rig.advance(500)
    assert (rig.state, settled(rig)) == ("open", [("drained", True)])


async def test_a_refusal_leaves_the_confirmation_of_what_was_handed_off_before(rig: Rig) -> None:
    """Else a lane with nothing to do would never learn that the broker took the hand-off back."""
    Refusing(rig.transport, b"bad")
    await rig.hand_over("bad", publishes=1)
    await rig.hand_over("fine", 1, publishes=1)
    commits = rig.transport.calls.count(Step.COMMIT)
    await pass_time(rig, 15_000, 1_000)
    assert rig.transport.calls.count(Step.COMMIT) > commits
