"""A worker's life: what its lanes are given at the start, and what a revoke and a stop do, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import faust
import pytest
from faust.types import TP
from faust.worker import Worker
from kafka_fakes import until

from retryapp.engine.lane.lane import LaneState
from retryapp.engine.lane.turn import Turn
from retryapp.engine.worker import ownership
from retryapp.engine.worker.placement import Placed, Placer
from retryapp.ports import TopicPartition
from retryapp.runtime import app as module
from retryapp.runtime.app import Runtime
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.worker import RetryWorker

MAIN = "orders"
TPS = {TopicPartition(MAIN, 0)}


# -- the start --------------------------------------------------------------------------------------------------------

Start = Callable[..., Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a runtime whose topics are there, and give it partition 0; its lanes' tasks end at once."""

    async def end_at_once(*_: Any) -> None:
        pass

    async def begin(runtime: Runtime, *, partitions: int = 1, max_bytes: int = 1_000_000) -> Placed:
        served = runtime.served[MAIN]

        def prepare() -> None:
            served.partitions = served.complete = partitions
            served.max_bytes = max_bytes

        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # it would change how pytest's own write
        monkeypatch.setattr(runtime, "prepare", prepare)
        monkeypatch.setattr(Placer, "_run", end_at_once)
        assert isinstance(runtime.app.consumer, RetryConsumer)
        runtime.app.consumer._thread.thread_loop.close()  # never run
        await runtime.start()
        await runtime._on_assigned(1, "m", TPS)
        placed = runtime.placed[MAIN, 0]
        await runtime.stop()
        return placed

    return begin


@pytest.mark.parametrize(
    ("max_bytes", "batch", "chosen", "used"), [(3_000_000, 1_048_576, None, "zstd"), (70_000, 70_000, "lz4", "lz4")]
)
async def test_clients_have_the_settings_of_the_app_and_of_its_topics(
    runtime: Runtime, start: Start, max_bytes: int, batch: int, chosen: str | None, used: str
) -> None:
    """The client library never splits a batch; what it counts of a request is not compressed yet."""
    conf: Any = runtime.app.conf
    conf.broker_client_id, conf.broker_request_timeout, conf.producer_compression_type = "shop", 7.0, chosen
    conf.broker_credentials = faust.SASLCredentials(username="me", password="p")  # noqa: S106 - of nobody
    settings = (await start(runtime, max_bytes=max_bytes)).transport.settings
    assert settings.max_batch_size == batch
    assert max_bytes < settings.max_request_size <= max_bytes + 65_536
    assert (settings.client_id, settings.request_timeout_ms, settings.compression_type) == ("shop", 7_000, used)
    assert settings.connection["bootstrap_servers"] == ["127.0.0.1:1"]
    assert settings.connection["sasl_plain_username"] == "me"


# -- the end of an assignment -----------------------------------------------------------------------------------------


class _Partition:
    """Engine and lane of one partition, which note what is done with them."""

    def __init__(
        self, runtime: Runtime, number: int = 0, *, state: LaneState = LaneState.OPEN, obedient: bool = True
    ) -> None:
        self.said: list[object] = []
        self.drained = asyncio.Event()
        self.drained.set()
        self.state = state
        self.gone = asyncio.Event()
        self.obedient = obedient
        self.task = asyncio.create_task(self._live())
        anything: Any = self
        placed = Placed(engine=anything, lane=anything, transport=anything, task=self.task)
        runtime.placed[MAIN, number] = placed
        for tp in TPS:
            runtime.feed.placed[tp] = placed

    async def _live(self) -> None:
        await self.gone.wait()
        await asyncio.sleep(0)
        self.said.append("committed")

    def idle(self, _tp: TopicPartition) -> bool:
        return False

    async def run_out(self) -> None:
        await self.drained.wait()

    async def drain(self, deadline_s: float) -> None:
        self.said.append(pytest.approx(deadline_s, abs=1.0))
        await self.drained.wait()

    def finish(self) -> None:
        self.said.append("finish")
        if self.obedient:
            self.gone.set()

    def end(self) -> None:
        self.said.append("end")


FATAL = "Task catch-up ended with an error that it could not handle (ValueError('a fault of ours'))"


@pytest.mark.parametrize(
    ("part", "call", "expected"),
    [
        ("", "catch_up", [("Task %s ended with an error", "catch-up"), (FATAL,)]),
        ("recent", "look", [("Task %s ended with an error", "recent")]),
    ],
)
async def test_an_error_that_ends_a_task_of_the_worker_ends_its_process_or_is_told(
    runtime: Runtime, start: Start, monkeypatch: pytest.MonkeyPatch, part: str, call: str, expected: list[Any]
) -> None:
    """Else no offset would be settled any more, or numbers of the pages be old, silently; a cancelled one is none."""
    told: list[tuple[object, ...]] = []
    assigned = runtime._on_assigned

    def broken() -> bool:
        raise ValueError("a fault of ours")

    async def wait(*facts: Any) -> None:
        await assigned(*facts)
        await until(lambda: told)

    monkeypatch.setattr(module, "end_process", lambda why: told.append((why,)))
    monkeypatch.setattr(module.logger, "error", lambda *facts, **_: told.append(facts))
    monkeypatch.setattr(getattr(runtime, part) if part else runtime, call, broken)
    monkeypatch.setattr(runtime, "_on_assigned", wait)
    await start(runtime)
    assert told == expected


async def test_a_revoke_waits_for_handlers_then_commits_and_only_then_goes_on(
    runtime: Runtime, consumer: RetryConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done is committed by who did it; Faust's part, after which others may begin, comes last."""
    partition = _Partition(runtime)

    async def fausts_part(*_: Any) -> None:
        partition.said.append("revoked")

    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_revoked", fausts_part)
    monkeypatch.setattr(runtime.feed, "catch_up", lambda: partition.said.append("caught up"))
    runtime.assigned = True
    await consumer.on_partitions_revoked({TP(MAIN, 0)})
    assert partition.said == ["caught up", 5.0, "finish", "committed", "end", "revoked"]
    assert (runtime.placed, runtime.feed.placed, runtime.assigned) == ({}, {}, False)


@pytest.mark.usefixtures("no_fausts_part")
async def test_a_revoke_forgets_what_waits_here_and_what_was_put_off(
    consumer: RetryConsumer, thread: Any, records: Any
) -> None:
    """Others read it from what is committed; and whether a partition may flow is for the next assignment to say."""
    ours, users = TP(MAIN, 0), TP("clicks", 0)
    consumer.intake.put({ours: records(ours, 3)}, {})
    consumer.settled = False
    consumer.pause_partitions({users})
    consumer.resume_partitions({users})
    await consumer.on_partitions_revoked({ours, users})
    assert consumer.intake.waiting(TopicPartition(*ours)) == 0
    consumer.settled = True
    assert [found async for found in consumer.getmany(1.0)] == []
    assert thread.polled == [{ours}]


async def test_a_stop_gives_handlers_their_grace(runtime: Runtime) -> None:
    """Faust tells of it before it stops anything."""
    partition = _Partition(runtime)
    await runtime.app.on_before_shutdown.send()
    assert partition.said == [25.0, "finish", "committed", "end"]


async def test_a_signal_hands_over_before_faust_stops_to_fetch(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes for partitions that go on meanwhile is delivered. Whatever becomes of the hand-over, Faust stops."""
    worker = RetryWorker.__new__(RetryWorker)
    worker.app, worker._signal_stop_time = runtime.app, 1.0
    partition = _Partition(runtime)

    async def stop(_self: Worker) -> None:
        partition.said.append("stopped")

    async def broken(_grace_s: float) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(Worker, "stop", stop)
    await worker.stop()
    assert partition.said == [25.0, "finish", "committed", "end", "stopped"]
    monkeypatch.setattr(runtime, "leave", broken)
    with pytest.raises(ValueError, match="of ours"):
        await worker.stop()
    assert partition.said[-2:] == ["stopped", "stopped"]


async def test_a_crash_hands_over_once_faust_has_stopped_to_fetch(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing goes on as always in a worker that has crashed; Faust tells of its end."""
    worker = RetryWorker.__new__(RetryWorker)
    worker.app = runtime.app
    partition = _Partition(runtime)

    async def stop(_self: Worker) -> None:
        partition.said.append("stopped")

    monkeypatch.setattr(Worker, "stop", stop)
    await worker.stop()
    assert partition.said == ["stopped"]
    await runtime.app.on_before_shutdown.send()
    assert partition.said == ["stopped", 25.0, "finish", "committed", "end"]


@pytest.mark.parametrize("state", [LaneState.OPENING, LaneState.OPEN])
async def test_a_lane_that_does_not_finish_is_given_up(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, state: LaneState
) -> None:
    """An open one in bounded time: without a broker its last transaction never ends. Others have nothing to commit."""
    for name in ("_FINISH_S", "_LEAST_FINISH_S"):
        monkeypatch.setattr(ownership, name, 0.01 if state is LaneState.OPEN else 3_600.0)
    partition = _Partition(runtime, state=state, obedient=False)
    await runtime._on_revoked()
    assert partition.task.cancelled()
    assert partition.said[-1] == "end"
    assert runtime.placed == {}


# -- the time ---------------------------------------------------------------------------------------------------------


async def test_a_worker_that_doubts_its_clock_asks_again_and_again(
    runtime: Runtime, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing fires there may be nothing else that the broker acknowledges."""
    placed = await start(runtime)
    monkeypatch.setattr(module, "_ASK_TIME_S", 0.0)
    turns: list[Turn] = []
    monkeypatch.setattr(placed.lane, "submit", lambda _session, turn: turns.append(turn))
    runtime.placed[MAIN, 0] = placed
    now_ms = int(runtime.clock.counted_ms())
    assert not runtime.catch_up(), "nothing is known yet: the lane's opening asks"
    for ahead_ms in (0, 60_000):
        runtime.clock.anchor(sent_ms=now_ms, acked_ms=now_ms + 1, appended_ms=now_ms + ahead_ms)
    assert runtime.catch_up()
    assert not turns, "its lane is not open"
    placed.lane.state = LaneState.OPEN
    asking = asyncio.create_task(runtime._catch_up_regularly())
    await until(lambda: len(turns) >= 3)
    asking.cancel()
    for _ in range(2):
        runtime.clock.anchor(sent_ms=now_ms, acked_ms=now_ms + 1, appended_ms=now_ms + 60_000)
    assert not runtime.catch_up()
    assert {(out.topic, out.partition, out.key) for turn in turns for out in turn.publishes} == {
        ("app.orders.pending.changelog", 0, b"clock")
    }
    runtime.placed.clear()
