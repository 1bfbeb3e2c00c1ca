"""The runtime: what happens when a lane dies, and when a rebalance is over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from retryapp.engine.lane.lane import LaneState
from retryapp.engine.worker import placement as module
from retryapp.engine.worker.placement import Membership, Placer, Served
from retryapp.ports import Event, TopicPartition
from retryapp.runtime.app import Runtime, end_process
from retryapp.runtime.transport import KafkaTransport, lane_place
from retryapp.runtime.view import RuntimeView
from retryapp.testing import RecordingObserver

MAIN = "orders"


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
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
    runtime.served[MAIN].complete = 2
    numbers: list[int] = []

    def place(served: Served, number: int) -> None:
        runtime.placed[served.handler.main, number] = cast("Any", None)
        numbers.append(number)

    monkeypatch.setattr(runtime, "_place", place)
    return numbers


async def test_partitions_that_our_topics_lack_are_missed_until_they_have_them(
    runtime: Runtime, observer: RecordingObserver, placed: list[int]
) -> None:
    """Reported once for each number, with every topic that must grow; then placed without another assignment."""
    served, view = runtime.served[MAIN], RuntimeView(runtime)
    runtime.app.rebalancing = False

    def closed() -> list[int]:
        runtime.placed.clear()
        return [info.partition for info in view.partitions(MAIN) if info.state == "closed"]

    await runtime._on_assigned(1, "m", {TopicPartition(MAIN, number) for number in (0, 1, 3)})
    assert (placed, closed(), view.ready()) == ([0, 1], [], True)
    runtime.intake.on_counted({MAIN: 4})
    runtime.intake.on_counted({MAIN: 4})
    runtime.intake.on_counted({})  # a broker that has just started does not know all topics
    runtime.complete(served, 0)
    assert (len(view.partitions(MAIN)), closed(), view.ready()) == (4, [2, 3], False)
    assert "retryapp topics grow -A" in str(view.partitions(MAIN)[3].last_error)
    (event,) = observer.of(Event.LANE_INCOMPLETE)
    assert all(topic in str(event.message) for topic in served.handler.topology.owned)
    assert "retryapp topics grow -A" in str(event.message)
    runtime.placed.update(dict.fromkeys([(MAIN, 0), (MAIN, 1)]))
    runtime.complete(served, 3)
    assert (placed, closed(), view.ready()) == ([0, 1], [3], False)
    assert len(observer.of(Event.LANE_INCOMPLETE)) == 2
    runtime.placed.update(dict.fromkeys([(MAIN, 0), (MAIN, 1)]))
    runtime.complete(served, 5)
    assert (placed, closed(), view.ready()) == ([0, 1, 3], [], True)


def test_only_partitions_that_a_worker_has_seen_grow_begin_at_the_first_record(runtime: Runtime) -> None:
    """With `latest` a group begins at the end; what came to a new partition before its lane opened is not passed."""
    runtime.app.conf.consumer_auto_offset_reset = "latest"
    served = runtime.served[MAIN]
    served.known, served.partitions = 2, 3
    engine: Any = SimpleNamespace(sources=(), delivering=frozenset(), partition=0)
    places = []
    for engine.partition in range(3):
        places.append(lane_place(runtime.app, served, engine))
    assert [place.start_at_end for place in places] == [True, True, False]
    engine.partition = 0
    letters = replace(served.handler.topology, letters_of="orders")
    object.__setattr__(served.handler, "topology", letters)
    assert not lane_place(runtime.app, served, engine).start_at_end, "another lane may write letters before it opens"


# -- a lane's end -----------------------------------------------------------------------------------------------------


@pytest.fixture
def placer(runtime: Runtime, consumer: Any) -> Placer:
    """Places partitions for lanes that never get as far as their clients."""
    anything: Any = SimpleNamespace()
    return Placer(
        make_transport=lambda served, engine, membership: KafkaTransport(
            place=lane_place(runtime.app, served, engine),
            settings=anything,
            reader=anything,
            clock=runtime.clock,
            consumer=consumer,
            topics=anything,
            generation=membership.generation,
            member_id=membership.member_id,
        ),
        settled=lambda: bool(consumer.settled),
        lapsed=lambda: False,
        end_process=end_process,
        patience_s=60.0,
        life="life",
        clock=runtime.clock,
        random=runtime.random,
        observer=runtime.observer,
        tick_s=0.25,
        emit=lambda *_: None,
        pump=lambda _tp: None,
        forget=lambda _tp: None,
    )


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
    task = placer.place(runtime.served[MAIN], 0, Membership(generation=1, member_id="m"), {}).task
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert exit_codes == [4]
    assert "Lane app.orders.0" in caplog.text


async def test_a_lane_without_membership_ends_the_process_when_no_assignment_comes(
    placer: Placer,
    runtime: Runtime,
    exit_codes: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An assignment within the session and rebalance time-outs would cancel the wait."""
    conf, sleep, run = runtime.app.conf, AsyncMock(), AsyncMock()
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    lane: Any = SimpleNamespace(name="app.orders.0", state=LaneState.IDLE, run=run, last_error="not a member")
    await placer._run(lane)
    assert exit_codes == [4]
    assert sleep.await_args_list[0].args[0] > conf.broker_session_timeout + conf.broker_rebalance_timeout
    assert "not a member" in caplog.text


@pytest.fixture
def recovery(runtime: Runtime) -> Any:
    """Faust's recovery, which ends rebalances; none is on its way."""
    runtime.app.sensors.add(runtime._sensor)
    found = cast("Any", runtime.app.tables).recovery
    found.signal_recovery_start.clear()
    return found


async def test_the_end_of_a_rebalance_is_that_of_the_assignment_which_faust_has_finished(
    runtime: Runtime, consumer: Any, recovery: Any
) -> None:
    """Faust also ends rebalances that another has overtaken, and those whose recovery has not begun."""
    consumer.settled, consumer._assigned_generation = False, 5
    seen = []
    for generation, recovering in ((4, False), (5, True), (5, False)):
        recovery._generation_id = generation
        (recovery.signal_recovery_start.set if recovering else recovery.signal_recovery_start.clear)()
        runtime.app.on_rebalance_start()
        runtime.app.on_rebalance_end()
        seen.append(consumer.settled)
    assert seen == [False, False, True]


async def test_the_last_of_two_overlapping_rebalances_is_settled(
    runtime: Runtime, consumer: Any, recovery: Any
) -> None:
    """Faust has one state for both, so no sensor is told of the second one's end."""
    app = runtime.app
    consumer.settled = False
    app.on_rebalance_start()
    consumer._assigned_generation = recovery._generation_id = 1
    app.on_rebalance_start()
    consumer._assigned_generation = None
    app.on_rebalance_end()
    consumer._assigned_generation = recovery._generation_id = 2
    assert not consumer.settled
    assert runtime.rebalancing_s() > 0, "the group has not come to rest"
    app.on_rebalance_end()
    assert consumer.settled, "no lane would ever open"
    assert runtime.rebalancing_s() == 0
    assert not app.rebalancing
