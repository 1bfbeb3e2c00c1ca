"""A last record behind which nothing comes, and a system that has nothing to do: time alone moves them."""

from __future__ import annotations

import time

import pytest
from harness import HandlerSpec, Stage, wait_for

from retryapp import Delivery
from retryapp.testing import MemoryPartition, VirtualClock

SECOND, HOUR = 1_000, 3_600_000
LATE_MS = 1_500
"""Far above what it takes; far below what a look at the table once a minute would take."""


@pytest.mark.broker
@pytest.mark.acceptance
def test_the_last_record_comes_on_time_with_no_traffic_behind_it(stage: Stage) -> None:
    """Nothing else is published on any topic: neither in its first wait nor at a worker that found it waiting."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="1500ms 7s"))
    first = stage.worker()
    stage.produce(topic, [{"id": "last", "fail": 2}])
    wait_for(lambda: len(stage.service.visits) == 2, "it came again")
    evidence = stage.evidence(topic)
    wait_for(lambda: evidence.waiting() == 1 and len(evidence.retries()) == 2, "it waits again")
    assert first.stop() == 0
    stage.worker("second")
    ready_ms = time.time_ns() // 1_000_000
    wait_for(lambda: len(stage.service.visits) == 3, "it came to the second worker")
    due = evidence.due_times()
    late = [
        visit.at_ms - max(due[visit.failure_id, visit.attempt], ready_ms if visit.attempt == 3 else 0)
        for visit in stage.service.visits[1:]
    ]
    print(f"lateness of the second and third attempt: {late} ms")  # noqa: T201 - for the report
    assert all(visit.at_ms >= due[visit.failure_id, visit.attempt] for visit in stage.service.visits[1:])
    assert max(late) < LATE_MS
    stage.wait_settled(topic)


async def test_a_week_without_traffic() -> None:
    """Each attempt of the last record starts at its millisecond; while nothing happens the lane only renews itself."""
    clock = VirtualClock()
    began_ms = clock.wall_ms()
    seen: list[int] = []

    async def handle(_value: bytes, delivery: Delivery) -> None:
        seen.append(clock.wall_ms() - began_ms)
        if delivery.attempt <= 4:
            raise RuntimeError("not yet")

    async with MemoryPartition(handle, "30s 1h 12h 3d", clock=clock) as partition:
        await partition.send(b"last")
        commits = []
        for _ in range(7 * 24):
            ends_ms, before = clock.wall_ms() + HOUR, len(partition.transport.batches)
            while (due_ms := next_due_ms(partition, ends_ms)) is not None:
                await partition.advance(due_ms - 1 - clock.wall_ms())
                attempts = len(seen)
                await partition.advance(1)
                assert len(seen) == attempts + 1, "it comes at its millisecond, and not one before"
            await partition.advance(ends_ms - clock.wall_ms())
            commits.append(len(partition.transport.batches) - before)
        assert not partition.waiting
        assert not partition.dead_letters
    hours = [30 * SECOND, HOUR, 12 * HOUR, 72 * HOUR]
    assert seen == [sum(hours[:n]) for n in range(5)]
    busy = {0, *(sum(hours[:n]) // HOUR for n in range(5))}
    quiet = {hour: n for hour, n in enumerate(commits) if n and hour not in busy}
    assert quiet, "the lane kept its name with the broker"
    assert set(quiet.values()) == {1}
    # one more commit behind the last hand-off of a burst, which hours that pass in one step bring in the next one
    assert all(hour % 24 == 0 or hour - 1 in busy for hour in quiet)
    assert sum(commits) < 30


def next_due_ms(partition: MemoryPartition, until_ms: int) -> int | None:
    """Return when the next row is due, if that is within the time."""
    table = partition.transport.pending
    assert table is not None
    _, due_ms = table.due(0, 1)
    return due_ms if due_ms is not None and due_ms <= until_ms else None
