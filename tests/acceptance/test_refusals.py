"""What cannot work is said at start: one line that names the thing and the remedy, and its exit code; no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import HandlerSpec, Stage, Worker, open_stage
from harness.brokers import running_broker

from retryapp.broker.probe import free_ports
from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]


def refused(stage: Stage, exit_code: int, *wanted: str, worker: Worker | None = None) -> None:
    """Check that a worker ends by itself with this code, and that its last line says all of `wanted`."""
    started = worker or stage.worker(ready=False)
    code = started.wait(40)
    lines = [line for line in started.log.splitlines() if line.startswith("retryapp: ") and " worker-" not in line]
    assert code == exit_code, started.log
    assert len(lines) == 1, started.log
    for text in wanted:
        assert text in lines[0]
    assert "Traceback" not in started.log
    assert not stage.service.visits


def test_a_missing_main_topic(stage: Stage) -> None:
    """Exit 3, the topic and what to do; nothing is created."""
    topic = f"nowhere-{stage.group}"
    stage.program(HandlerSpec(topic=topic))
    refused(stage, 3, topic, "does not exist", "create")
    found = KafkaAdmin(stage.connection).topic_names()
    assert not [name for name in found if stage.group in name]


def test_an_agent_of_the_users_on_a_main_topic(stage: Stage) -> None:
    """Exit 2 with both names, before anything is consumed."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic), agent=topic)
    refused(stage, 2, topic, "count_clicks", "handle")


@pytest.mark.extended
def test_a_data_folder_that_cannot_be_written(stage: Stage, tmp_path: Path) -> None:
    """Exit 3 with the folder and why, before a record is touched."""
    stage.program(HandlerSpec(topic=stage.main_topic()))
    folder = tmp_path / "data"
    folder.write_text("not a folder")
    stage.env["RETRYAPP_DATADIR"] = str(folder)
    refused(stage, 3, str(folder), "Not a directory")


@pytest.mark.extended
def test_no_broker_for_longer_than_the_start_may_take(stage: Stage) -> None:
    """A worker waits for a broker and says so, and gives up after `start_timeout` with the address."""
    port = free_ports(1)[0]
    stage.bootstrap = f"127.0.0.1:{port}"
    stage.program(HandlerSpec(topic="orders"), options={"start_timeout": "4s"})
    worker = stage.worker(ready=False)
    refused(stage, 3, f"127.0.0.1:{port}", worker=worker)
    assert "Waiting for a broker" in worker.log


@pytest.fixture
def making_stage(cache_dir: Path, tmp_path: Path) -> Iterator[Stage]:
    """A stage on a broker that makes every topic that a client asks for."""
    settings = {"auto.create.topics.enable": "true", "num.partitions": "7"}
    with running_broker(cache_dir, settings=settings) as own, open_stage(own.bootstrap, tmp_path) as made:
        yield made


@pytest.mark.extended
@pytest.mark.timeout(120)
def test_a_broker_that_makes_what_is_asked_for(making_stage: Stage) -> None:
    """No client of a worker asks for a topic that is not there: a wrong name is refused, and stays a name."""
    stage, admin = making_stage, KafkaAdmin(making_stage.connection)
    producer = stage.producer()
    producer.produce("asked-for", b"x")
    assert producer.flush(20) == 0, "the broker makes what a client asks for"
    stage.program(HandlerSpec(topic=f"nowhere-{stage.group}"))
    refused(stage, 3, f"nowhere-{stage.group}", "does not exist")
    assert not [name for name in admin.topic_names() if stage.group in name]
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    stage.worker()
    stage.produce(topic, [{"id": 1, "fail": 1}])
    stage.wait_settled(topic)
    ours = stage.topology(topic).owned
    assert {name for name in admin.topic_names() if stage.group in name} == {topic, *ours}
    assert {state.partitions for state in admin.describe_topics(ours).values()} == {2}, "the broker made none of ours"
