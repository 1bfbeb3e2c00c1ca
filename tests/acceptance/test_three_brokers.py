"""Three brokers, of which one or more go away under load: nothing lost, nothing early, nothing handed on twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.load import PARTITIONS, under_load
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from harness import HandlerSpec, Stage
from harness.operator import Operator, answered
from harness.stage import PARTITIONS as PARTITIONS_OF_STAGE
from harness.terminal import retryapp
from harness.three_brokers import NODES, ThreeBrokers, three_brokers

from retryapp.kafka import KafkaAdmin, PlanOptions, plan_topics

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def brokers(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_brokers(cache_dir, tmp_path_factory.mktemp("three-brokers")) as started:
        yield started


@pytest.fixture
def bootstrap(brokers: ThreeBrokers) -> str:
    """Of the brokers of these tests, which all run when a test begins."""
    brokers.start()
    brokers.wait_in_sync()
    return brokers.bootstrap


def lanes(stage: Stage, topic: str) -> list[str]:
    """Return the transactional ids of a handler's lanes."""
    return [f"{stage.group}.{topic}.{number}" for number in range(PARTITIONS)]


def test_the_leader_of_a_partition_is_killed(stage: Stage, brokers: ThreeBrokers) -> None:
    """Another broker leads its partitions before the first one is back."""
    with under_load(stage, brokers) as flow:
        killed = brokers.leaders(flow.topic)[0]
        brokers.kill(killed)
        brokers.wait_left_out(killed)
        flow.goes_on()
        brokers.start(killed)
        brokers.wait_in_sync()


def test_the_coordinators_are_killed(stage: Stage, brokers: ThreeBrokers) -> None:
    """First that of the lanes' transactions, then, when it is back, that of the group."""
    with under_load(stage, brokers) as flow:
        for coordinator in (
            lambda: brokers.transaction_coordinator(lanes(stage, flow.topic)[0]),
            lambda: brokers.group_coordinator(stage.group),
        ):
            killed = coordinator()
            brokers.kill(killed)
            brokers.wait_left_out(killed)
            assert coordinator() != killed
            flow.goes_on()
            brokers.start(killed)
            brokers.wait_in_sync()


def test_a_broker_is_away_and_catches_up(stage: Stage, brokers: ThreeBrokers) -> None:
    """It is the first that clients ask. A worker starts without it, and it comes back to hundreds of records."""
    with under_load(stage, brokers) as flow:
        brokers.stop(1)
        brokers.wait_left_out(1)
        stage.worker("third")
        flow.goes_on(100)
        brokers.start(1)
        brokers.wait_in_sync()


def test_a_rolling_restart(stage: Stage, brokers: ThreeBrokers) -> None:
    """One after the other, each once all copies are in sync again."""
    with under_load(stage, brokers) as flow:
        for node in NODES:
            brokers.stop(node)
            brokers.start(node)
            brokers.wait_in_sync()
            flow.goes_on()


def test_all_are_killed_at_once(stage: Stage, brokers: ThreeBrokers) -> None:
    """None can hand over anything; they find together what they had agreed on."""
    with under_load(stage, brokers):
        brokers.kill(*NODES)
        brokers.start()
        brokers.wait_in_sync()


def test_our_topics_have_three_copies_or_are_refused(stage: Stage, brokers: ThreeBrokers) -> None:
    """As the brokers' default says, with two in sync; `plan` refuses fewer, and the doctor sees one that is away."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    topology, operator = stage.topology(topic), Operator(stage.bootstrap)
    assert retryapp(stage, "topics", "create", "-A", "app")[0] == 0
    states = KafkaAdmin(stage.connection).describe_topics(topology.owned)
    copies = {name: (state.replication, state.config["min.insync.replicas"]) for name, state in states.items()}
    assert copies == dict.fromkeys(topology.owned, (3, "2"))
    assert retryapp(stage, "plan", "-A", "app")[1]["ok"]

    operator.delete_topic(topology.dlq)
    settings = {"cleanup.policy": "delete", "retention.ms": "-1", "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": "2000000"}  # fmt: skip
    answered(operator.admin.create_topics([NewTopic(topology.dlq, PARTITIONS_OF_STAGE, 1, config=settings)]))
    KafkaAdmin(stage.connection).wait_for_topics([topology.dlq])
    code, plan = retryapp(stage, "plan", "-A", "app")
    assert (code, plan["refused"]) == (1, [topology.dlq])
    (problem,) = next(step["problems"] for step in plan["topics"] if step["topic"] == topology.dlq)
    assert (problem["setting"], problem["have"], problem["want"]) == ("replication", "1", "3 or more")
    accepted = PlanOptions(allow_low_replication=True)
    assert plan_topics(KafkaAdmin(stage.connection), [topology], accepted).ok

    lost = brokers.leaders(topology.dlq)[0]
    brokers.stop(lost)
    brokers.wait_left_out(lost)
    found = [(finding["name"], finding["seen"]) for finding in retryapp(stage, "doctor", "-A", "app")[1]["findings"]]
    assert ("brokers", "2") in found
    assert (f"topic {topology.dlq}", "no leader of partition 0") in found
    assert (f"topic {topology.events}", "replicas out of sync of partition 0, 1") in found
