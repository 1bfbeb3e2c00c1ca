"""Turns become transactions, in order, one at a time; every error ends in one procedure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from retryapp.core.errors import LaneClosedError
from retryapp.core.hops import Outgoing
from retryapp.engine.lane import Lane, LaneLimits, NotMemberError, RebalancingError
from retryapp.engine.turn import Turn
from retryapp.ports import Event, Observation, Removal, Row, TopicPartition
from retryapp.testing import MemoryLaneTransport, RecordingObserver, Step, VirtualClock

MAIN = TopicPartition("orders", 0)
RETRY = TopicPartition("app.orders.retry", 0)
OPENING = [Step.HOLD, Step.PROVE, Step.FENCE, Step.PROVE, Step.COMMITTED, Step.RECOVER, Step.RELEASE]
GIVEN_UP = [Step.HOLD, Step.CLOSE]
BACKOFF_MS = 100


class Rig:
    """A lane with doubles all round; notes what it is told."""

    def __init__(self, clock: VirtualClock, limits: LaneLimits | None = None) -> None:
        self.clock = clock
        self.transport = MemoryLaneTransport([MAIN, RETRY], clock)
        self.observer = RecordingObserver()
        self.opened: list[tuple[int, Mapping[TopicPartition, int]]] = []
        self.closed = 0
        self.rooms = 0
        self.settled: list[tuple[str, bool, tuple[int, ...]]] = []
        self.lane = Lane(
            name="app.orders.0",
            handler="orders",
            partition=0,
            transport=self.transport,
            clock=clock,
            observer=self.observer,
            on_open=lambda session, starts: self.opened.append((session, starts)),
            on_close=self._on_close,
            on_room=self._on_room,
            limits=limits,
        )
        self.task: asyncio.Task[None] | None = None

    def _on_close(self) -> None:
        self.closed += 1

    def _on_room(self) -> None:
        self.rooms += 1

    async def start(self) -> Rig:
        """Run the lane until it is open or waits."""
        self.task = asyncio.create_task(self.lane.run())
        await self.settle()
        return self

    @property
    def state(self) -> str:
        """Where the lane stands, as text: mypy would take a checked enum member for the state for ever."""
        return self.lane.state.value

    async def settle(self) -> None:
        """Let the lane do what it can at this time."""
        for _ in range(60):
            await asyncio.sleep(0)

    async def advance(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(ms)
        await self.settle()

    def turn(self, name: str, next_offset: int = -1, *, publishes: int = 0, size: int = 1, **more: object) -> Turn:
        """Make a turn that notes how it was settled."""
        out = tuple(Outgoing(RETRY.topic, 0, None, name.encode() + b"x" * size, ()) for _ in range(publishes))
        return Turn(
            source=MAIN if next_offset >= 0 else None,
            next_offset=next_offset,
            publishes=out,
            observations=(Observation(event=Event.PARKED, handler="orders", message=name),),
            on_settled=lambda committed, offsets: self.settled.append((name, committed, offsets)),
            **more,  # type: ignore[arg-type]
        )

    def submit(self, name: str, next_offset: int = -1, *, publishes: int = 0, **more: object) -> None:
        """Submit such a turn in the lane's session."""
        self.lane.submit(self.lane.session, self.turn(name, next_offset, publishes=publishes, **more))  # type: ignore[arg-type]


MakeRig = Callable[..., Rig]


@pytest.fixture
async def make_rig(clock: VirtualClock) -> AsyncIterator[MakeRig]:
    """Make a rig; its lane is ended with the test."""
    rigs: list[Rig] = []

    def make(**limits: object) -> Rig:
        rigs.append(Rig(clock, LaneLimits(**limits)))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        if rig.task is not None:
            rig.task.cancel()
            await asyncio.gather(rig.task, return_exceptions=True)


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """A lane that is open."""
    return await make_rig().start()


# -- opening ----------------------------------------------------------------------------------------------------------


async def test_opening_holds_proves_fences_proves_again_and_reads_before_records_flow(make_rig: MakeRig) -> None:
    """In this order, each step once; the session begins at the committed offsets, before the first record comes."""
    rig = make_rig()
    rig.transport.offsets[MAIN] = 17
    released = rig.transport.pause(Step.RELEASE)
    await rig.start()
    assert rig.transport.calls == OPENING
    assert rig.opened == [(1, {MAIN: 17, RETRY: 0})]
    assert not rig.transport.released
    released.set()
    await rig.settle()
    assert rig.transport.released == {MAIN: 17, RETRY: 0}
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


async def test_back_off_doubles_up_to_its_limit(make_rig: MakeRig) -> None:
    """A lane that cannot open neither spins nor sleeps for long."""
    rig = make_rig(first_backoff_s=0.1, last_backoff_s=0.5)
    rig.transport.fail(Step.FENCE, ConnectionError(), times=5)
    await rig.start()
    assert await waits_for_an_opening(rig, 5) == [100, 200, 400, 500, 500]
    assert rig.state == "open"


async def test_a_lane_that_opens_well_and_fails_each_transaction_slows_down(make_rig: MakeRig) -> None:
    """An opening proves nothing."""
    rig = await make_rig(first_backoff_s=0.1, last_backoff_s=0.5).start()
    rig.transport.fail(Step.COMMIT, ConnectionError(), times=5)
    waits = []
    for _ in range(5):
        assert rig.state == "open"
        rig.submit("poison", publishes=1)
        await rig.settle()
        waits += await waits_for_an_opening(rig, 1)
    assert waits == [100, 200, 400, 500, 500]


async def test_a_lane_that_fails_soon_after_each_opening_slows_down_whatever_it_committed_before(
    make_rig: MakeRig,
) -> None:
    """Sound records ahead of one that breaks its transaction must not make the loop fast again."""
    rig = await make_rig(first_backoff_s=0.1, last_backoff_s=0.5).start()
    waits = []
    for _ in range(4):
        rig.submit("sound", publishes=1)
        await rig.advance(400)
        rig.lane.fail(RuntimeError())
        await rig.settle()
        waits += await waits_for_an_opening(rig, 1)
    assert waits == [100, 200, 400, 500]


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
    assert str(rig.lane.last_error).startswith("TimeoutError")


@pytest.mark.parametrize("error", [NotMemberError("left"), RebalancingError("ending")])
@pytest.mark.parametrize("before", [0, 1], ids=["before fencing", "after fencing"])
async def test_no_member_no_lane(make_rig: MakeRig, error: Exception, before: int) -> None:
    """It idles until the next assignment: another worker may own the lane, so nothing is tried again."""
    rig = make_rig()
    rig.transport.fail(Step.PROVE, error, after=before)
    await rig.start()
    await rig.advance(3_600_000)
    assert (rig.state, rig.lane.last_error) == ("idle", str(error))
    assert rig.task is not None
    assert rig.task.done()
    assert rig.transport.calls.count(Step.FENCE) == before
    assert (rig.transport.calls[-1], rig.opened, rig.closed) == (Step.CLOSE, [], 0)


@pytest.mark.parametrize("step", [Step.RELEASE, Step.COMMIT])
async def test_membership_lost_after_the_session_began_ends_the_session(make_rig: MakeRig, step: Step) -> None:
    """What was begun is told that it is over, and its turns are dropped."""
    rig = make_rig()
    rig.transport.fail(step, NotMemberError("left"))
    await rig.start()
    if step is Step.COMMIT:
        rig.submit("a", publishes=1)
        await rig.settle()
        assert rig.settled == [("a", False, ())]
    assert (rig.state, len(rig.opened), rig.closed) == ("idle", 1, 1)
    with pytest.raises(LaneClosedError):
        rig.submit("b", publishes=1)


# -- serving ----------------------------------------------------------------------------------------------------------


async def test_a_turn_is_committed_applied_settled_and_then_told(rig: Rig) -> None:
    """Observers and stations hear of it when it is durable, in this order, with the published offsets."""
    row, removal = Row(b"\0" * 20, b"v", "1m"), Removal(b"\0" * 19 + b"\1", "1m")
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("a", 8, publishes=2, puts=(row,), removes=(removal,))
    await rig.settle()
    assert (rig.settled, rig.observer.of(Event.PARKED), rig.rooms) == ([], [], 0)
    gate.set()
    await rig.settle()
    (batch,) = rig.transport.batches
    assert (batch.offsets, len(batch.publishes), batch.puts, batch.removes) == ({MAIN: 8}, 2, [row], [removal])
    assert rig.transport.calls[-2:] == [Step.COMMIT, Step.APPLY]
    assert rig.settled == [("a", True, (0, 1))]
    assert [o.message for o in rig.observer.of(Event.PARKED)] == ["a"]
    assert rig.rooms == 1


async def test_turns_that_come_while_a_transaction_runs_join_the_next_one_in_order(rig: Rig) -> None:
    """One transaction at a time; each turn gets the offsets of its own records."""
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("a", 1, publishes=1)
    await rig.settle()
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


async def test_an_urgent_turn_takes_waiting_offsets_along(rig: Rig) -> None:
    """It does not wait for the tick, and nothing overtakes what is before it."""
    rig.submit("a", 1)
    rig.submit("b", 2, publishes=1)
    await rig.settle()
    assert [(batch.offsets, len(batch.publishes)) for batch in rig.transport.batches] == [({MAIN: 2}, 1)]
    assert [name for name, _, _ in rig.settled] == ["a", "b"]


async def test_a_transaction_is_bounded_in_turns(make_rig: MakeRig) -> None:
    """The rest follows in the next ones, urgent or not."""
    rig = await make_rig(turns=3, tick_s=0.25).start()
    for n in range(7):
        rig.submit(str(n), n + 1, publishes=1 if n == 0 else 0)
    await rig.settle()
    assert [batch.offsets[MAIN] for batch in rig.transport.batches] == [3]
    for expected in ([3, 6], [3, 6, 7]):
        await rig.advance(250)
        assert [batch.offsets[MAIN] for batch in rig.transport.batches] == expected


async def test_a_transaction_is_bounded_in_bytes_but_takes_at_least_one_turn(make_rig: MakeRig) -> None:
    """However large that one is."""
    rig = await make_rig(size=200).start()
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("first", publishes=1)
    await rig.settle()
    for name, size in (("a", 500), ("b", 40), ("c", 40), ("d", 40)):
        rig.submit(name, publishes=1, size=size)
    gate.set()
    await rig.settle()
    assert [len(batch.publishes) for batch in rig.transport.batches] == [1, 1, 2, 1]
    assert [name for name, _, _ in rig.settled] == ["first", "a", "b", "c", "d"]


async def test_a_transaction_is_bounded_in_records_but_takes_at_least_one_turn(make_rig: MakeRig) -> None:
    """Each is written to a local store in the event loop."""
    rig = await make_rig(changes=4).start()
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("first", publishes=1)
    await rig.settle()
    for name, publishes in (("a", 9), ("b", 2), ("c", 2), ("d", 1)):
        rig.submit(name, publishes=publishes)
    gate.set()
    await rig.settle()
    assert [len(batch.publishes) for batch in rig.transport.batches] == [1, 9, 4, 1]


async def test_what_waits_is_bounded_in_bytes_with_headers(make_rig: MakeRig) -> None:
    """A commit that hangs must not fill the memory; there is room again when it is through."""
    rig = await make_rig(backlog_size=10_000).start()
    assert rig.lane.room > 0
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("first", publishes=1)
    await rig.settle()
    heavy = Outgoing(RETRY.topic, 0, None, b"v", (("h", b"x" * 6_000),))
    rig.lane.submit(rig.lane.session, Turn(publishes=(heavy,)))
    assert rig.lane.room > 0
    rig.lane.submit(rig.lane.session, Turn(publishes=(heavy,)))
    assert rig.lane.room == 0
    gate.set()
    await rig.settle()
    assert rig.lane.room > 0


async def test_room_is_what_is_left_of_the_backlog(make_rig: MakeRig) -> None:
    """Sources are told not to bring more than that, and nothing while the lane is not open."""
    rig = make_rig(backlog=3)
    assert rig.lane.room == 0
    await rig.start()
    assert rig.lane.room == 3
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("a", 1, publishes=1)
    await rig.settle()
    rig.submit("b", 2)
    rig.submit("c", 3)
    assert rig.lane.room == 1
    gate.set()
    await rig.advance(250)
    assert rig.lane.room == 3


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True], ids=["not committed", "committed, answer lost"])
async def test_an_unknown_commit_is_settled_by_reading_and_never_repeated(rig: Rig, durable: bool) -> None:
    """Its turns are dropped with all others; the next session begins where the broker says."""
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"), durable=durable)
    rig.submit("a", 5, publishes=1)
    rig.submit("b", 6)
    await rig.settle()
    assert rig.settled == [("a", False, ()), ("b", False, ())]
    assert (rig.observer.of(Event.PARKED), rig.closed, rig.lane.room) == ([], 1, 0)
    await rig.advance(BACKOFF_MS)
    assert rig.opened[1] == (2, {MAIN: 6 if durable else 0, RETRY: 0})
    await rig.advance(10_000)
    assert rig.transport.calls.count(Step.COMMIT) == 1
    assert len(rig.transport.read(RETRY)) == (1 if durable else 0)


async def test_after_an_error_the_lane_holds_closes_and_opens_again_from_the_first_step(rig: Rig) -> None:
    """In this order: no record flows and no producer lives in between."""
    rig.transport.calls.clear()
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"))
    rig.submit("a", publishes=1)
    await rig.settle()
    await rig.advance(BACKOFF_MS)
    assert rig.transport.calls == [Step.COMMIT, *GIVEN_UP, *OPENING]
    assert [o.error_type for o in rig.observer.of(Event.LANE_FAILED)] == ["ConnectionError"]


async def test_turns_made_while_an_unknown_commit_ran_are_dropped_too(rig: Rig) -> None:
    """They may build on what did not happen."""
    gate = rig.transport.pause(Step.COMMIT)
    rig.submit("a", 1, publishes=1)
    await rig.settle()
    rig.submit("b", 2, publishes=1)
    rig.lane.fail(RuntimeError("agent died"))
    gate.set()
    await rig.settle()
    assert rig.settled == [("a", True, (0,)), ("b", False, ())]
    assert len(rig.transport.batches) == 1


async def test_turns_of_an_old_session_are_refused(rig: Rig) -> None:
    """Before, while and after the lane opens again: their records are read again."""
    old = rig.lane.session
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"))
    rig.submit("a", publishes=1)
    await rig.settle()
    with pytest.raises(LaneClosedError, match=r"app\.orders\.0"):
        rig.lane.submit(old, rig.turn("late", publishes=1))
    await rig.advance(BACKOFF_MS)
    assert rig.state == "open"
    with pytest.raises(LaneClosedError):
        rig.lane.submit(old, rig.turn("later", publishes=1))
    rig.submit("new", publishes=1)
    await rig.settle()
    assert [(name, committed) for name, committed, _ in rig.settled] == [("a", False), ("new", True)]


async def test_a_local_store_that_cannot_be_written_closes_the_lane(rig: Rig) -> None:
    """The transaction is committed: its turns count as unknown, and the store is made anew from the changelog."""
    row = Row(b"\0" * 20, b"v", "1m")
    rig.transport.fail(Step.APPLY, OSError("disk"))
    rig.submit("a", 4, puts=(row,))
    await rig.settle()
    assert (rig.settled, rig.closed, rig.transport.calls[-2:]) == ([("a", False, ())], 1, GIVEN_UP)
    await rig.advance(BACKOFF_MS)
    assert rig.opened[1] == (2, {MAIN: 4, RETRY: 0})
    assert rig.transport.pending is not None
    assert rig.transport.pending.get(row.key) == b"v"
    assert rig.transport.calls.count(Step.COMMIT) == 1


async def test_a_transaction_that_hangs_is_given_up_at_its_deadline(make_rig: MakeRig) -> None:
    """Its outcome is as unknown as that of any other error."""
    rig = await make_rig(commit_s=30).start()
    rig.transport.pause(Step.COMMIT)
    rig.submit("a", publishes=1)
    await rig.settle()
    await rig.advance(29_999)
    assert rig.state == "open"
    await rig.advance(1)
    assert (rig.settled, rig.transport.calls[-2:]) == ([("a", False, ())], GIVEN_UP)


async def test_holding_that_fails_does_not_keep_the_lane_from_closing(rig: Rig) -> None:
    """The consumer may be gone; both errors are told."""
    rig.transport.fail(Step.COMMIT, ConnectionError("cut"))
    rig.transport.fail(Step.HOLD, RuntimeError("no consumer"))
    rig.submit("a", publishes=1)
    await rig.settle()
    assert rig.transport.calls[-2:] == GIVEN_UP
    assert "cut" in str(rig.lane.last_error)
    assert "no consumer" in str(rig.lane.last_error)
    await rig.advance(BACKOFF_MS)
    assert rig.state == "open"


async def test_a_fault_outside_makes_the_lane_open_again(rig: Rig) -> None:
    """An idle lane hears of it at once, once."""
    rig.lane.fail(RuntimeError("agent died"))
    await rig.settle()
    assert rig.lane.last_error == "RuntimeError: agent died"
    await rig.advance(BACKOFF_MS)
    assert (rig.lane.session, rig.state) == (2, "open")
    await rig.advance(60_000)
    assert rig.lane.session == 2


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


# -- the end ----------------------------------------------------------------------------------------------------------


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
