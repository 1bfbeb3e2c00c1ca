"""Topics that are there already and do not serve, and topics that nobody may make by merely asking for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from harness import HandlerSpec, Service, Stage, wait_for

from retryapp.broker import Broker
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]


def refusal(stage: Stage) -> str:
    """Start a worker that has to end by itself with 3; return the one line that says why."""
    worker = stage.worker(ready=False)
    assert worker.wait(40) == 3, worker.log
    (line,) = (line for line in worker.log.splitlines() if line.startswith("retryapp: ") and " worker-" not in line)
    assert "Traceback" not in worker.log
    return line


def made(stage: Stage) -> set[str]:
    """Return the topics of this stage's group that the broker has."""
    return {name for name in KafkaAdmin(stage.connection).topic_names() if stage.group in name}


def create(stage: Stage, topic: str, partitions: int, **config: str) -> None:
    """Make a topic, as somebody else would."""
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.create_topics([wanted])[topic].result(10)
    KafkaAdmin(stage.connection).wait_for_topics([topic])


def delete(stage: Stage, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.delete_topics([topic])[topic].result(10)
    wait_for(lambda: topic not in made(stage), f"{topic} is gone")


@pytest.mark.timeout(120)
def test_topics_that_do_not_serve_are_refused_one_by_one(stage: Stage) -> None:
    """Each start names the topic, what it has, what is needed and how to set it; then all that waited is done."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    stage.produce(topic, [{"id": n, "fail": n % 3} for n in range(12)])
    ours: HandlerTopology = stage.topology(topic)
    serves = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000000", "retention.ms": "-1"}
    create(stage, ours.redelivery, 2, **serves, **{"cleanup.policy": "compact"})  # loses all but one record of a key
    create(stage, ours.dlq, 1, **serves)
    before = made(stage)
    wrong = {
        ours.redelivery: ("cleanup.policy=compact", "needed is delete"),
        ours.dlq: ("partitions=1", "needed is 2"),
    }
    while wrong:
        said = refusal(stage)
        (found,) = (name for name in wrong if f"'{name}'" in said)
        for text in wrong.pop(found):
            assert text in said
        assert made(stage) == before, "nothing was made before all was in order"
        assert not stage.service.visits
        if found == ours.redelivery:
            assert f"kafka-configs.sh --alter --topic {found}" in said
            set_policy(stage, found, "delete")
        else:
            delete(stage, found)
            before.discard(found)
    stage.worker()
    stage.wait_settled(topic)
    assert stage.service.done(topic) == set(range(12))
    assert made(stage) == {topic, *ours.owned}, "and nothing else was made"


def set_policy(stage: Stage, topic: str, policy: str) -> None:
    """Set a clean-up policy, as the message says."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    for future in admin.incremental_alter_configs([change]).values():
        future.result(10)


@pytest.fixture
def making_stage(broker: Broker, cache_dir: Path, tmp_path: Path) -> Iterator[Stage]:
    """A stage on a broker that makes every topic that a client asks for; the session's is asked for first, to skip."""
    assert broker.bootstrap
    own = Broker(cache_dir, settings={"auto.create.topics.enable": "true", "num.partitions": "7"})
    own.start()
    service = Service()
    service.start()
    stage = Stage(own.bootstrap, tmp_path, service)
    yield stage
    stage.close()
    service.stop()
    own.close()


@pytest.mark.timeout(120)
def test_a_broker_that_makes_what_is_asked_for(making_stage: Stage) -> None:
    """No client of a worker asks for a topic that is not there: a wrong name is refused, and stays a name."""
    stage = making_stage
    producer = stage.producer()
    producer.produce("asked-for", b"x")
    assert producer.flush(20) == 0, "the broker makes what a client asks for"
    assert "asked-for" in KafkaAdmin(stage.connection).topic_names()
    missing = f"nowhere-{stage.group}"
    stage.program(HandlerSpec(topic=missing))
    said = refusal(stage)
    assert missing in said
    assert "does not exist" in said
    assert made(stage) == set()
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    stage.worker()
    stage.produce(topic, [{"id": 1, "fail": 1}])
    stage.wait_settled(topic)
    assert stage.service.done(topic) == {1}
    assert made(stage) == {topic, *stage.topology(topic).owned}
    states = KafkaAdmin(stage.connection).describe_topics(stage.topology(topic).owned)
    assert {state.partitions for state in states.values()} == {2}, "none of ours was made by the broker"
