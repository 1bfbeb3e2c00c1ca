"""Offsets that cannot be and topics that were deleted: the lane stays shut, says why, and works again once decided."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from acceptance.books import delete_group, partitions
from harness import HandlerSpec, Stage, Worker, wait_for
from harness.operator import Operator
from harness.terminal import retryapp

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(120)]

WAITING = set(range(4))
HEALTHY = set(range(4, 8))
LATER = set(range(8, 12))


def last_errors(worker: Worker, topic: str) -> str:
    """Return what the worker's pages say of the lanes of a handler, a line a partition."""
    return "\n".join(f"{row['state']} {row['last_error']}" for row in partitions(worker, topic))


def test_lanes_whose_offsets_cannot_be_stay_shut_until_somebody_decides(stage: Stage) -> None:
    """Offsets behind the end or before the start: nothing is delivered, nothing is skipped; other lanes work."""
    topic = stage.main_topic(partitions=3)
    stage.program(HandlerSpec(topic=topic, policy="1h"), partitions=3)
    first = stage.worker()
    stage.produce(topic, [{"id": n, "fail": int(n < 3)} for n in range(15)], 3)  # one a partition waits
    evidence = stage.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 3), "it is at rest")
    assert first.stop() == 0
    kept = {(topic, partition): offset for partition, offset in evidence.committed(topic).items()}
    operator = Operator(stage.bootstrap)
    delete_group(stage)
    operator.set_offsets(stage.group, {**kept, (topic, 0): 1_000, (topic, 1): 1})
    operator.delete_records(topic, 1, 3)

    second = stage.worker(ready=False)
    reasons = (
        f"{topic}[0]: the group is at offset 1000, but the topic has 0 to 5: the topic was cut or made again",
        f"{topic}[1]: the group is at offset 1, but the topic has 3 to 5: up to 2 records were deleted unread",
    )

    def all_told() -> bool:
        said = last_errors(second, topic)
        return all(reason in said for reason in reasons)

    wait_for(all_told, "every lane says what is wrong")
    failed = second.log.count("retryapp.lane_failed")
    wait_for(lambda: second.log.count("retryapp.lane_failed") >= failed + len(reasons), "they go on failing")
    assert all_told()
    wait_for(lambda: last_errors(second, topic).count("open ") == 1, "the other is open")
    assert second.get("/retries/ready")[0] == 503
    assert len(stage.service.visits) == 15
    assert second.stop() == 0

    operator.set_offsets(stage.group, kept)
    stage.worker()
    stage.produce(topic, [{"id": n} for n in range(15, 21)], 3)
    wait_for(lambda: stage.service.done(topic) == set(range(3, 21)), "all go on")
    again = Counter(visit.facts["id"] for visit in stage.service.visits)
    assert (len(again), set(again.values())) == (21, {1}), "everything was delivered once"


def test_records_that_are_deleted_under_an_open_lane_are_not_skipped_in_silence(stage: Stage) -> None:
    """The client library would go on behind them by itself; the lane closes instead and says what is gone."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="1h"), partitions=1)
    worker = stage.worker()
    operator = Operator(stage.bootstrap)
    worker.signal(signal.SIGSTOP)
    stage.produce(topic, [{"id": 0}], 1)  # answers the fetch that is on its way
    stage.produce(topic, [{"id": n} for n in range(1, 5)], 1)
    operator.delete_records(topic, 0, 3)
    worker.signal(signal.SIGCONT)
    wait_for(lambda: "records were deleted unread" in last_errors(worker, topic), "the lane says what is gone")
    assert "where reading was to go on, is not on the topic any more" in worker.log
    assert {visit.facts["id"] for visit in stage.service.visits} <= {0}
    assert worker.stop() == 0

    operator.set_offsets(stage.group, {(topic, 0): 3})
    stage.worker()
    wait_for(lambda: stage.service.done(topic) >= {3, 4}, "it goes on where it was told to")


def test_a_pending_changelog_that_was_made_again(stage: Stage) -> None:
    """Nothing is delivered and the log says what to do; after that, it goes on without what waited.

    The group's offset on the main topic tells: the topic has no record that could.
    """
    topic = stage.main_topic(partitions=2)
    stage.program(HandlerSpec(topic=topic, policy="15s"), partitions=2)
    topology = stage.topology(topic)
    operator = Operator(stage.bootstrap)
    worker = stage.worker()
    stage.produce(topic, [{"id": n, "fail": int(n in WAITING)} for n in sorted(WAITING | HEALTHY)])
    evidence = stage.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, len(WAITING)), "four wait")
    assert stage.service.done(topic) == HEALTHY
    assert worker.stop() == 0
    operator.delete_topic(topology.pending_changelog)

    shut = stage.worker(ready=False)
    stage.produce(topic, [{"id": n} for n in sorted(LATER)])
    wait_for(lambda: shut.log.count("ChangelogReplacedError") >= 2, "both lanes say it")
    assert f"{topology.pending_changelog} was deleted and made again" in shut.log
    assert f"--topic {topic} --to-current --execute" in shut.log
    assert shut.get("/retries/ready")[0] == 503
    assert stage.service.done(topic) == HEALTHY
    assert shut.stop() == 0

    current = {(topic, partition): offset for partition, offset in evidence.committed(topic).items()}
    operator.set_offsets(topology.group, current)
    goes_on = stage.worker()
    wait_for(lambda: stage.service.done(topic) == HEALTHY | LATER, "what came later is done", timeout_s=60)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 0), "nothing waits")
    assert "dropped and rebuilt: it is a copy of" in goes_on.log
    assert goes_on.stop() == 0


def test_a_main_topic_that_is_made_again_under_a_running_worker(stage: Stage) -> None:
    """The worker ends to be started again; the new topic is read from its beginning, and what waited is delivered."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="20s"), partitions=1)
    worker = stage.worker()
    stage.produce(topic, [{"id": n, "fail": int(n in WAITING)} for n in sorted(WAITING | HEALTHY)], 1)
    evidence = stage.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, len(WAITING)), "four wait")
    worker.signal(signal.SIGSTOP)
    Operator(stage.bootstrap).delete_topic(topic)
    assert stage.main_topic(partitions=1) == topic
    new = set(range(100, 120))  # more than the former one had: its offset is one of these
    stage.produce(topic, [{"id": n} for n in sorted(new)], 1)
    worker.signal(signal.SIGCONT)
    wait_for(worker.ended, "the worker ends", timeout_s=60)
    assert worker.exit_code == 4
    assert f"{topic} was deleted and made again" in worker.log
    stage.worker()
    wait_for(lambda: stage.service.done(topic) == WAITING | HEALTHY | new, "everything is done", timeout_s=60)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 0), "nothing waits")


def test_a_deleted_topic_of_one_handler_keeps_no_lane_of_another_closed(stage: Stage) -> None:
    """Nor, without its control topic, another from its commands: a worker asks about all topics at once."""
    orders, bills = stage.main_topic("orders", 4), stage.main_topic("bills", 4)
    stage.program(HandlerSpec(topic=orders), HandlerSpec(topic=bills), partitions=4)
    operator, topology = Operator(stage.bootstrap), stage.topology(orders)
    first, second = stage.worker(), stage.worker()
    operator.delete_topic(topology.dlq)
    second.kill()

    def all_open(topic: str) -> bool:
        return [row["state"] for row in partitions(first, topic)] == ["open"] * 4

    for topic in (bills, orders):
        wait_for(lambda topic=topic: all_open(topic), f"the other worker has opened {topic}", timeout_s=25)  # type: ignore[misc]
    assert "took longer than" not in first.log
    operator.delete_topic(topology.control)
    wait_for(lambda: "Commands could not be read" in first.log, "it is told")
    assert f"{topology.control}[" in first.log
    where = ("-A", "app", "--topic", bills, "--why", "end of the month")
    code, said = retryapp(stage, "handler", "pause", *where)
    assert (code, {each["outcome"] for each in said["partitions"]}) == (0, {"done"})
    assert retryapp(stage, "handler", "resume", *where)[0] == 0
    for topic in (orders, bills):
        stage.produce(topic, [{"id": n} for n in range(8)], 4)
        wait_for(lambda topic=topic: stage.service.done(topic) == {*range(8)}, "what comes is delivered")  # type: ignore[misc]
