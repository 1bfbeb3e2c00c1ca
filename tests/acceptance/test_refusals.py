"""What cannot work is said at start: one line that names the thing and the remedy, and its exit code; no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import HandlerSpec, Stage, open_stage
from harness.brokers import running_broker
from harness.operator import Operator

from retryapp.kafka import Action, KafkaAdmin, plan_topics

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]


def refused(stage: Stage, exit_code: int, *wanted: str) -> None:
    """Check that a worker ends by itself with this code, and that its last line says all of `wanted`."""
    started = stage.worker(ready=False)
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
    agent = f'@app.agent(app.topic("{topic}"))\nasync def count_clicks(stream): ...\n'
    stage.program(HandlerSpec(topic=topic), code=agent)
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
@pytest.mark.timeout(120)
def test_a_broker_that_makes_what_is_asked_for(cache_dir: Path, tmp_path: Path) -> None:
    """No client of a worker asks for a topic that is not there: a wrong name is refused, and stays a name."""
    settings = {"auto.create.topics.enable": "true", "num.partitions": "7"}
    with running_broker(cache_dir, settings=settings) as own, open_stage(own.bootstrap, tmp_path) as stage:
        admin = KafkaAdmin(stage.connection)
        Operator(stage.bootstrap).publish("asked-for", b"x")  # the broker makes what a client asks for
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
        assert {state.partitions for state in admin.describe_topics(ours).values()} == {2}, "the broker made none"


def test_a_missing_topic_that_a_handler_publishes_to(stage: Stage) -> None:
    """Exit 3 before a record is handled; once it is there the worker starts, and the plan lists it."""
    topic, out = stage.main_topic(), f"receipts-{stage.group}"
    stage.program(HandlerSpec(topic=topic, publishes=out, declares=True))
    refused(stage, 3, out, "does not exist", f"handler of {topic} publishes to it")
    assert stage.main_topic("receipts") == out
    plan = plan_topics(KafkaAdmin(stage.connection), [stage.topology(topic)])
    assert [(step.role, step.action) for step in plan.steps if step.topic == out] == [("published", Action.OK)]
    stage.worker()
