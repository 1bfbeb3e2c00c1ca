"""The runtime: which lanes are opened, how much of the intake they are given, and what happens when one dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.engine.lane import LaneState
from retryapp.engine.progress import OffsetWindow
from retryapp.ports import Event, Observation, TopicPartition
from retryapp.runtime import placement as module
from retryapp.runtime.app import Runtime
from retryapp.runtime.placement import Membership, Placer
from retryapp.testing import RecordingObserver

MAIN, RETRY, REDELIVERY = "orders", "app.orders.retry", "app.orders.redelivery"


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which this process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    return codes


# -- which lanes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def observer(runtime: Runtime) -> RecordingObserver:
    """Hears what the runtime says; the handler's main topic has two partitions."""
    made = RecordingObserver()
    runtime.observer = made  # type: ignore[assignment]
    runtime.served[MAIN].partitions = 2
    return made


@pytest.fixture
def placed(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Partition numbers for which a lane was made."""
    numbers: list[int] = []
    monkeypatch.setattr(runtime, "_place", lambda _served, number, *_: numbers.append(number))
    return numbers


def numbers(topics: dict[str, range]) -> set[TopicPartition]:
    """Return an assignment."""
    return {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}


def incomplete(observer: RecordingObserver) -> list[Observation]:
    """Return what was said of lanes that cannot open."""
    return observer.of(Event.LANE_INCOMPLETE)


async def test_a_lane_needs_its_number_of_every_topic(
    runtime: Runtime, observer: RecordingObserver, placed: list[int]
) -> None:
    """Faust may give the numbers of one handler's topics to several workers; the partition stays paused, by name."""
    await runtime._on_assigned(1, "m", numbers({MAIN: range(2), RETRY: range(2), REDELIVERY: range(1)}))
    assert placed == [0]
    (said,) = incomplete(observer)
    assert (said.handler, said.partition) == (MAIN, 1)
    assert said.message == f"stays paused: another worker has this number of {REDELIVERY}"
    assert runtime.assigned


async def test_a_main_topic_that_has_grown_is_told_and_its_new_partition_stays_paused(
    runtime: Runtime, observer: RecordingObserver, placed: list[int]
) -> None:
    """Nobody has the new number of our topics, because they do not have it: waiting would not help."""
    await runtime._on_assigned(1, "m", numbers({MAIN: range(3), RETRY: range(2), REDELIVERY: range(2)}))
    assert placed == [0, 1]
    (said,) = incomplete(observer)
    assert (said.handler, said.partition) == (MAIN, 2)
    assert said.message is not None
    assert "has grown" in said.message
    assert f"add partitions to {REDELIVERY}, {RETRY}" in said.message


async def test_topics_that_have_all_grown_are_placed(
    runtime: Runtime, observer: RecordingObserver, placed: list[int]
) -> None:
    """After the operator has added the partitions a new number is as good as any."""
    await runtime._on_assigned(1, "m", numbers({MAIN: range(3), RETRY: range(3), REDELIVERY: range(3)}))
    assert (placed, incomplete(observer)) == ([0, 1, 2], [])


# -- how much ---------------------------------------------------------------------------------------------------------


class Place:
    """A partition with windows but no deliveries: what is accepted stays in flight."""

    def __init__(self, runtime: Runtime, *, max_in_flight: int = 1000, max_bytes: int = 10**9) -> None:
        self.window: OffsetWindow[Any] = OffsetWindow()
        self.max_in_flight, self.max_bytes = max_in_flight, max_bytes
        self.errors: list[Exception] = []
        self.engine = self
        self.lane = SimpleNamespace(session=1, fail=self.errors.append)
        self.tp = TopicPartition(MAIN, 0)
        runtime._by_tp[self.tp] = self  # type: ignore[assignment]

    def room(self, _tp: TopicPartition) -> int:
        """Return how many records may come in."""
        return self.max_in_flight - len(self.window) if self.window.bytes < self.max_bytes else 0

    def room_bytes(self, _tp: TopicPartition) -> int:
        """Return how many bytes may come in."""
        return self.max_bytes - self.window.bytes

    def accept(self, _tp: TopicPartition, _session: int, records: list[Any]) -> None:
        """Take records."""
        for record in records:
            self.window.add(record.offset, len(record.value))


class Agent:
    """Our agent of the main topic: takes a batch when the test says so."""

    def __init__(self, runtime: Runtime) -> None:
        self.batches: list[Any] = []
        self.running = True
        runtime._channels[MAIN] = self  # type: ignore[assignment]

    def put_now(self, batch: Any) -> bool:
        """See `IntakeChannel.put_now`."""
        self.batches.append(batch)
        return self.running


@pytest.mark.usefixtures("consumer")
async def test_what_the_engine_is_given_is_bounded_in_bytes(runtime: Runtime, records: Any) -> None:
    """A partition of large records is in flight with a few of them; the bound is passed by less than one record."""
    agent, place = Agent(runtime), Place(runtime, max_bytes=1_000)
    runtime.intake.put({place.tp: records(place.tp, 50, size=300)}, {})
    (batch,) = agent.batches
    assert [record.offset for record in batch.records] == [0, 1, 2, 3]
    runtime._accept(batch)
    assert place.window.bytes == 1_200
    assert len(agent.batches) == 1, "no byte is left, although a thousand records would be"
    assert runtime.intake.waiting(place.tp) == 46


@pytest.mark.usefixtures("consumer")
async def test_the_engine_is_given_one_batch_at_a_time_and_the_next_when_it_was_taken(
    runtime: Runtime, records: Any
) -> None:
    """Batches of a partition keep their order, and room is counted with the former batch in it."""
    agent, place = Agent(runtime), Place(runtime, max_in_flight=3)
    runtime.intake.put({place.tp: records(place.tp, 2)}, {})
    runtime.intake.put({place.tp: records(place.tp, 5, start=2)}, {})
    assert [[record.offset for record in batch.records] for batch in agent.batches] == [[0, 1]]
    runtime._accept(agent.batches[-1])
    assert [[record.offset for record in batch.records] for batch in agent.batches] == [[0, 1], [2]]


@pytest.mark.usefixtures("consumer")
async def test_a_batch_that_its_agent_cannot_take_is_read_again(runtime: Runtime, records: Any) -> None:
    """While Faust restarts an agent nothing may be skipped: the lane reads from the committed offset again."""
    agent, place = Agent(runtime), Place(runtime)
    agent.running = False
    runtime.intake.put({place.tp: records(place.tp, 2)}, {})
    (error,) = place.errors
    assert str(error) == "the agent of orders is not running"


@pytest.mark.usefixtures("consumer")
async def test_records_that_cannot_be_accepted_are_read_again(runtime: Runtime, records: Any) -> None:
    """An error in an agent would make Faust acknowledge and skip the batch."""
    agent, place = Agent(runtime), Place(runtime)
    place.accept = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    runtime.intake.put({place.tp: records(place.tp, 2)}, {})
    runtime._accept(agent.batches[0])
    assert [type(error) for error in place.errors] == [ZeroDivisionError]


# -- a lane's end -----------------------------------------------------------------------------------------------------


async def ended(error: BaseException | None) -> asyncio.Task[None]:
    """Return a lane's task that has ended."""

    async def run() -> None:
        if error is not None:
            raise error

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    return task


LANE: Any = SimpleNamespace(name="app.orders.0", last_error="not a member")


@pytest.fixture
def placer(runtime: Runtime) -> Placer:
    """Places partitions for lanes that never get as far as their clients."""
    anything: Any = SimpleNamespace()
    return Placer(
        app=runtime.app,
        delivery=runtime.options.delivery,
        settings=anything,
        reader=anything,
        clock=runtime.clock,
        random=runtime.random,
        observer=runtime.observer,
        tick_s=0.25,
        pump=runtime.pump,
        forget=lambda _tp: None,
    )


async def test_a_lane_that_dies_ends_the_process(exit_codes: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """It would hold its partition and do nothing, in silence; a supervisor starts the process again."""
    module._end_if_broken(LANE, await ended(ValueError("what nobody thought of")))
    assert exit_codes == [4]
    assert "what nobody thought of" in caplog.text


async def test_every_lane_is_watched(
    runtime: Runtime,
    consumer: Any,
    placer: Placer,
    exit_codes: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also in the steps before and after its own life."""

    async def die(*_: Any) -> None:
        raise ValueError("what nobody thought of")

    monkeypatch.setattr(Placer, "_run", die)
    task = placer.place(runtime.served[MAIN], 0, Membership(consumer=consumer, generation=1, member_id="m")).task
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert exit_codes == [4]
    assert "Lane app.orders.0" in caplog.text


async def test_a_lane_that_ends_as_it_should_leaves_the_process_alone(exit_codes: list[int]) -> None:
    """Finished lanes and those that a rebalance cancels are everyday."""
    module._end_if_broken(LANE, await ended(None))
    module._end_if_broken(LANE, await ended(asyncio.CancelledError()))
    assert exit_codes == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Sleeps take no time; their lengths are noted."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return slept


def lane_that(run: Any, *, state: Any) -> Any:
    """Return a lane with a life of its own."""
    return SimpleNamespace(name=str(state), state=state, run=run, last_error="not a member")


async def end_at_once() -> None:
    """Live no longer than this."""


async def test_a_lane_without_membership_ends_the_process_when_no_assignment_comes(
    placer: Placer, consumer: Any, exit_codes: list[int], impatient: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """An assignment within the session and rebalance time-outs would cancel the wait."""
    conf = placer.app.conf
    await placer._run(lane_that(end_at_once, state=LaneState.IDLE), consumer)
    assert exit_codes == [4]
    assert impatient[0] > conf.broker_session_timeout + conf.broker_rebalance_timeout
    assert "not a member" in caplog.text


async def test_a_lane_that_idles_waits_for_the_next_assignment(
    placer: Placer, consumer: Any, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    """Only the wait's end ends the process; a lane that was finished does not wait."""
    waited: list[str] = []

    async def note(lane: Any, _patience_s: float) -> None:
        waited.append(lane.name)

    monkeypatch.setattr(module, "_await_assignment", note)
    for state in (LaneState.IDLE, LaneState.CLOSED):
        await placer._run(lane_that(end_at_once, state=state), consumer)
    assert (waited, exit_codes) == (["idle"], [])


async def test_the_end_of_a_rebalance_is_that_of_the_assignment_which_faust_has_finished(
    runtime: Runtime, consumer: Any
) -> None:
    """Faust also ends rebalances that another has overtaken."""
    sensor, recovery = runtime._sensor, runtime.app.tables.recovery
    consumer.settled, consumer._assigned_generation = False, 5
    seen = []
    for generation in (4, 5):
        recovery._generation_id = generation
        sensor.on_rebalance_end(runtime.app, sensor.on_rebalance_start(runtime.app))
        seen.append(consumer.settled)
    assert seen == [False, True]


async def test_a_lane_waits_for_the_end_of_the_rebalance(placer: Placer, consumer: Any) -> None:
    """Until then Faust moves positions."""
    consumer.settled = False
    ran = asyncio.Event()

    async def run() -> None:
        ran.set()

    task = asyncio.create_task(placer._run(lane_that(run, state=LaneState.CLOSED), consumer))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ran.is_set()
    consumer.settled = True
    await asyncio.wait_for(task, 5)
    assert ran.is_set()


BROKEN_LANE = """
import asyncio, logging
from types import SimpleNamespace
from retryapp.runtime.placement import _end_if_broken

async def die():
    raise ValueError("what nobody thought of")

async def main():
    task = asyncio.create_task(die())
    task.add_done_callback(lambda task: _end_if_broken(SimpleNamespace(name="app.orders.0"), task))
    await asyncio.sleep(30)

logging.basicConfig()
asyncio.run(main())
"""


def test_the_end_of_the_process_is_its_exit_code_and_a_line_that_says_why() -> None:
    """Nothing is left to run: not even a service that would not stop."""
    done = subprocess.run([sys.executable, "-c", BROKEN_LANE], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4
    assert "Lane app.orders.0 ended with an error" in done.stderr
    assert "ValueError('what nobody thought of')" in done.stderr
    assert "exit code 4" in done.stderr
