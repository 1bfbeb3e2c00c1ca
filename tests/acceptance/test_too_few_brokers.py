"""Too few copies in sync: brokers refuse writes. Workers say so, lose and repeat nothing, and go on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.books import results
from acceptance.load import under_load
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from harness import HandlerSpec, Stage, Worker, wait_for
from harness.operator import Operator, answered
from harness.three_brokers import ThreeBrokers, three_brokers

from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def brokers(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """Three brokers, of which the first alone keeps the metadata: they go on when the two others are away."""
    with three_brokers(cache_dir, tmp_path_factory.mktemp("three-brokers"), controllers=(1,)) as started:
        yield started


@pytest.fixture
def bootstrap(brokers: ThreeBrokers) -> str:
    """Of the brokers of these tests, which all run when a test begins."""
    brokers.start()
    brokers.wait_in_sync()
    return brokers.bootstrap


def test_two_of_three_are_killed(stage: Stage, brokers: ThreeBrokers) -> None:
    """The third leads everything and takes nothing; not even the group can give its workers partitions."""
    with under_load(stage, brokers) as flow:
        brokers.kill(2, 3)
        brokers.wait_left_out(2, 3)
        assert {*brokers.leaders(flow.topic).values()} == {1}
        # a busy broker may let the first request's time pass
        wait_for(lambda: refusal(stage, flow.topic) == "NOT_ENOUGH_REPLICAS", "it refuses", timeout_s=120)
        for worker in stage.workers:
            not_ready(worker)
        brokers.start()
        brokers.wait_in_sync()


def test_one_is_away_and_the_changelog_asks_for_all(stage: Stage, brokers: ThreeBrokers) -> None:
    """All else goes on: log and page name the cause and the remedy."""
    with under_load(stage, brokers) as flow:
        brokers.stop(2)
        brokers.wait_left_out(2)
        changelog = stage.topology(flow.topic).pending_changelog
        Operator(stage.bootstrap).configure(changelog, "min.insync.replicas", "3")
        for worker in stage.workers:  # a lane learns of it by a refusal, or because its last transaction does not end
            worker.wait_for_line(r"retryapp\.lane_failed .* error_type=(TooFewCopies|MarkersLate)Error")
            not_ready(worker, "Bring back the brokers that are away")
        brokers.start(2)
        brokers.wait_in_sync()


@pytest.mark.parametrize(
    ("replicas", "first", "why"),
    [
        pytest.param([2], [0], "it has no leader", id="no-leader"),
        # a transaction that was under way would wait for the copies
        pytest.param([1, 2], [], "copies in sync: 1, min.insync.replicas: 2", id="few-copies"),
    ],
)
def test_a_topic_that_handlers_publish_to_takes_nothing(
    stage: Stage, brokers: ThreeBrokers, replicas: list[int], first: list[int], why: str
) -> None:
    """Its records fail their attempts and wait; those after them go on, by the same lane."""
    topic, out, closed = stage.main_topic(partitions=1), stage.main_topic("payments"), f"closed-{stage.group}"
    operator = Operator(stage.bootstrap)
    made = NewTopic(closed, 1, replica_assignment=[replicas], config={"min.insync.replicas": str(len(replicas))})
    answered(operator.admin.create_topics([made]))
    # a look at a topic takes too long while its brokers change: the attempt fails, and the next one looks again
    stage.program(HandlerSpec(topic=topic, policy="2s*1000", publishes=out))
    worker = stage.worker()
    stage.produce(topic, [*({"id": number, "to": closed} for number in first), {"id": 3}], 1)
    wait_for(lambda: [result["id"] for _, result in results(stage, closed)] == first, "it publishes")
    wait_for(lambda: [result["id"] for _, result in results(stage, out)] == [3], "it publishes to the other")
    brokers.stop(2)
    wait_for(lambda: lost_copies(stage, closed), "the topic has lost a copy")
    stage.produce(topic, [{"id": 1, "to": closed}, {"id": 2}], 1)
    evidence = stage.evidence(topic)
    wait_for(lambda: any(why in metadata.error_message for _, metadata in evidence.retries()), "it fails", timeout_s=90)
    wait_for(
        lambda: sorted(result["id"] for _, result in results(stage, out)) == [2, 3],
        "the other is published",
        timeout_s=90,
    )
    wait_for(lambda: evidence.waiting() == 1, "the first waits")
    assert worker.log.count("retryapp.lane_failed") == len(first)


def lost_copies(stage: Stage, topic: str) -> bool:
    state = KafkaAdmin(stage.connection).describe_topics([topic])[topic]
    return bool(state.leaderless or state.lagging)


def not_ready(worker: Worker, why: str = "") -> None:
    """Wait until a worker says that it is not ready, and why."""

    def said() -> bool:
        status, body = worker.get("/retries/ready")
        return status == 503 and why in body

    wait_for(said, f"{worker.name} is not ready: {why}", timeout_s=60, every_s=0.2)


def refusal(stage: Stage, topic: str) -> str:
    """Publish a record without trying again; return the name of the broker's refusal."""
    answers: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": stage.bootstrap, "retries": 0, "log_level": 0})
    producer.produce(topic, b"", on_delivery=lambda error, _: answers.append(error))
    assert producer.flush(30) == 0
    (error,) = answers
    assert error is not None, "it was taken"
    return error.name()
