"""Fleets that change: partition counts that differ, workers that come and go, deploys.

Faust places topics with unlike partition counts apart, so a partition number of a handler may lie on two workers. What
is checked each time: nobody fences a neighbour, nothing stops for good, the log says what waits for what.
"""

from __future__ import annotations

import re
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


def incomplete(worker: Worker) -> list[tuple[int, str]]:
    """Return what the worker's log says of lanes that wait: partition and for what."""
    lines = [line for line in worker.log.splitlines() if "retryapp.lane_incomplete" in line]
    found = [re.search(r"partition=(\d+).*stays paused: ([^']*)'", line) for line in lines]
    assert all(found), lines
    return [(int(match.group(1)), match.group(2)) for match in found if match]


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
    """The new topic is only the new worker's: numbers whose others are elsewhere wait there, and the log says so."""
    topic = stage.main_topic(partitions=4)
    short = HandlerSpec(topic=topic, policy="300ms 900ms", tiers="per-delay", concurrency=4)
    longer = HandlerSpec(topic=topic, policy="300ms 600ms 900ms", tiers="per-delay", concurrency=4)
    wanted = Counter({(topic, n): 1 for n in range(4)})

    stage.program(short)
    before = stage.worker("before")
    load(stage, topic, 0, fail=3)
    stage.program(longer)
    (tier,) = (name for name in stage.topology(topic).retry_topics if name.endswith("600ms"))
    during = stage.worker("during", ready=False)
    wait_for(lambda: incomplete(during), "the new worker says what waits")
    assert {what for _, what in incomplete(during)} == {
        f"another worker has this number of {others(stage, topic, tier)}"
    }
    load(stage, topic, 120, fail=3)
    wait_for(lambda: lanes([before, during], topic) == wanted, "every lane is open once")
    wait_for(lambda: stage.service.done(topic) == set(range(240)), "both do their work")
    assert before.stop() == 0
    load(stage, topic, 240, fail=4)
    wait_for(lambda: lanes([during], topic) == wanted, "the new one has every lane")
    stage.wait_settled(topic)
    assert stage.evidence(topic).copies(tier), "the new tier was used"

    stage.program(short)
    after = stage.worker("after", ready=False)
    told = len(incomplete(during))
    load(stage, topic, 360, fail=3)
    wait_for(lambda: lanes([after], topic), "the last one has a share")
    wait_for(lambda: lanes([during, after], topic) == wanted, "every lane is open once")
    assert len(incomplete(during)) > told, "it still has all numbers of the old tier, and says what they wait for"
    assert during.stop() == 0
    wait_for(lambda: lanes([after], topic) == wanted, "the last one has every lane")
    stage.program(longer)  # so that its topics are read too
    stage.wait_settled(topic, timeout_s=60)
    check_books(stage, topic, 480, (300, 600, 900), same_policy=False)
    check_no_fences(before, during, after)


def load(stage: Stage, topic: str, start: int, *, fail: int) -> None:
    """Publish 120 records, of which each fails up to `fail - 1` times."""
    stage.produce(topic, [{"id": n, "fail": n % fail} for n in range(start, start + 120)], 4)


def others(stage: Stage, topic: str, tier: str) -> str:
    """Return the consumed topics of a handler but for one, as the log lists them."""
    return ", ".join(sorted(name for name in stage.topology(topic).consumed if name != tier))
