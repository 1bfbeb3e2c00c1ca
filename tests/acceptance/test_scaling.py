"""Fleets that change: partition counts that differ, workers that come and go, deploys.

What is checked each time: nobody fences a neighbour, and nothing stops for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from acceptance.books import check_books, partitions
from harness import HandlerSpec, Stage, Worker, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]


def lanes(workers: Iterable[Worker], *topics: str) -> Counter[tuple[str, int]]:
    """Return by (handler, partition) how many workers say that their lane of it is open."""
    found: Counter[tuple[str, int]] = Counter()
    for worker in workers:
        for topic in topics:
            found.update((topic, row["partition"]) for row in partitions(worker, topic) if row["state"] == "open")
    return found


def check_no_fences(*workers: Worker) -> None:
    """No lane of any worker has failed, let alone been fenced by another."""
    lines = [line for worker in workers for line in worker.log.splitlines() if "retryapp.lane_failed" in line]
    assert not lines


@pytest.mark.timeout(180)
def test_handlers_with_unlike_partition_counts_from_one_to_three_workers_and_back(stage: Stage) -> None:
    """4 and 6 partitions: at each size of the fleet every lane is open exactly once, and none ever fails."""
    four, six = stage.main_topic("four", 4), stage.main_topic("six", 6)
    stage.program(*(HandlerSpec(topic=topic, policy="300ms 600ms", concurrency=4) for topic in (four, six)))
    wanted = Counter({(four, n): 1 for n in range(4)} | {(six, n): 1 for n in range(6)})
    count, workers = 0, [stage.worker("worker1")]
    for change in ("join", "join", "leave", "leave"):
        for topic, size in ((four, 4), (six, 6)):
            stage.produce(topic, [{"id": n, "fail": n % 3} for n in range(count, count + 60)], size)
        count += 60
        if change == "join":
            workers.append(stage.worker(f"worker{len(workers) + 1}", ready=False))
        else:
            assert workers.pop(0).stop() == 0
        wait_for(lambda: lanes(workers, four, six) == wanted, f"every lane is open once after a {change}", every_s=0.2)
    for topic in (four, six):
        stage.wait_settled(topic, timeout_s=60)
        check_books(stage, topic, count, (300, 600))
    assert len({visit.pid for visit in stage.service.visits}) == 3, "all three had a share"
    check_no_fences(*stage.workers)


@pytest.mark.timeout(180)
def test_a_rolling_deploy_adds_a_tier_and_another_takes_it_away(stage: Stage) -> None:
    """Workers of both policies share the partitions at once: tiers are history, and no lane waits for one."""
    topic = stage.main_topic(partitions=4)
    short = HandlerSpec(topic=topic, policy="300ms 900ms", tiers="per-delay", concurrency=4)
    longer = HandlerSpec(topic=topic, policy="300ms 600ms 900ms", tiers="per-delay", concurrency=4)
    wanted = Counter({(topic, n): 1 for n in range(4)})

    stage.program(short)
    old = stage.worker("before")
    load(stage, topic, 0, fail=3)
    for name, handler, start, fail in (("during", longer, 120, 4), ("after", short, 360, 3)):
        stage.program(handler)
        new = stage.worker(name, ready=False)
        wait_for(lambda new=new: lanes([new], topic), f"{name} has a share")  # type: ignore[misc]
        load(stage, topic, start, fail=3)
        wait_for(lambda both=(old, new): lanes(both, topic) == wanted, "every lane is open once")  # type: ignore[misc]
        assert old.stop() == 0
        load(stage, topic, start + 120, fail=fail)
        wait_for(lambda new=new: lanes([new], topic) == wanted, f"{name} has every lane")  # type: ignore[misc]
        stage.wait_settled(topic, timeout_s=60)
        old = new
    stage.program(longer)  # so that its topics are read too
    check_books(stage, topic, 600, (300, 600, 900), same_policy=False)
    assert {len(stage.evidence(topic).copies(tier)) > 0 for tier in stage.topology(topic).retry_topics} == {True}
    check_no_fences(*stage.workers)


def load(stage: Stage, topic: str, start: int, *, fail: int) -> None:
    """Publish 120 records, of which each fails up to `fail - 1` times."""
    stage.produce(topic, [{"id": n, "fail": n % fail} for n in range(start, start + 120)], 4)
