"""What cannot work is said at start: one line that names the thing and the remedy, and its exit code; no traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from harness import HandlerSpec, Stage, Worker, wait_for

from retryapp.broker.probe import free_ports
from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

Change = Callable[[Stage, str], None]


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
    stage.program(HandlerSpec(topic="nowhere-to-be-found"))
    refused(stage, 3, "nowhere-to-be-found", "does not exist", "create")
    found = KafkaAdmin(stage.connection).topic_names()
    assert not [name for name in found if "nowhere" in name]


def test_a_missing_main_topic_is_made_when_asked(stage: Stage) -> None:
    """With `create_main_partitions` the worker makes it and runs."""
    topic = f"wished-{stage.group}"
    stage.program(HandlerSpec(topic=topic), options={"create_main_partitions": 3})
    stage.worker()
    described = KafkaAdmin(stage.connection).describe_topics(stage.topology(topic).owned)
    assert {state.partitions for state in described.values()} == {3}


def test_topics_that_do_not_match(stage: Stage) -> None:
    """When the main topic has grown, a start ends with 3 and names topic, setting and both numbers."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    assert stage.worker().stop() == 0
    client = AdminClient({"bootstrap.servers": stage.bootstrap})
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    refused(stage, 3, f"{stage.group}.{topic}.", "partitions", "2", "3")


def test_the_other_delivery_mode(stage: Stage) -> None:
    """A worker of the other mode is refused while one runs, and starts after a full stop."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    first = stage.worker()
    stage.program(HandlerSpec(topic=topic), options={"delivery": "at_least_once"})
    refused(stage, 3, stage.group, "at_least_once", "full stop")
    assert first.stop() == 0
    second = stage.worker()
    stage.produce(topic, [{"id": 1, "fail": 1}])
    wait_for(lambda: stage.service.done(topic) == {1}, "it works")
    assert second.stop() == 0


def wrong_policy(stage: Stage, topic: str) -> None:
    """A bare number."""
    stage.program(replace(stage.handlers[topic], policy="5 10m"))


def second_handler(stage: Stage, topic: str) -> None:
    """Two handlers of one topic."""
    handler = stage.handlers[topic]
    stage.program(handler, handler)


def own_agent(stage: Stage, topic: str) -> None:
    """An agent of the user's on the main topic."""
    stage.program(stage.handlers[topic], agent=topic)


def exactly_once(stage: Stage, topic: str) -> None:
    """Faust's own exactly_once."""
    stage.program(stage.handlers[topic], app_options={"processing_guarantee": "exactly_once"})


def bad_setting(stage: Stage, topic: str) -> None:
    """A variable without a unit."""
    stage.env["RETRYAPP_GRACE"] = "25"
    stage.program(stage.handlers[topic], options={"grace": None})


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (wrong_policy, ("policy", "'5'")),
        (second_handler, ("orders", "handle")),
        (own_agent, ("orders", "count_clicks", "handle")),
        (exactly_once, ("processing_guarantee", "exactly_once")),
        (bad_setting, ("RETRYAPP_GRACE", "25")),
    ],
)
def test_a_wrong_program(stage: Stage, change: Change, wanted: tuple[str, ...]) -> None:
    """Exit 2 with the thing and its value, before anything is consumed."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    change(stage, topic)
    refused(stage, 2, *wanted)


def test_no_broker_for_longer_than_the_start_may_take(stage: Stage) -> None:
    """A worker waits for a broker and says so, and gives up after `start_timeout` with the address."""
    port = free_ports(1)[0]
    stage.bootstrap = f"127.0.0.1:{port}"
    stage.program(HandlerSpec(topic="orders"), options={"start_timeout": "4s"})
    worker = stage.worker(ready=False)
    refused(stage, 3, f"127.0.0.1:{port}", worker=worker)
    assert "Waiting for a broker" in worker.log


def test_two_workers_in_one_folder(stage: Stage) -> None:
    """Two plain workers started at once in one folder get a folder and a port each, and say them first of all."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    workers = [stage.worker(ready=False), stage.worker(ready=False)]
    for worker in workers:
        worker.wait_ready()
    places = [
        re.fullmatch(r"retryapp: .* (worker-\d): data (\S+), pages (\S+)", w.log.splitlines()[0]) for w in workers
    ]
    assert {match.group(1) for match in places if match} == {"worker-1", "worker-2"}
    assert len({match.group(2) for match in places if match}) == 2
    assert len({match.group(3) for match in places if match}) == 2
    assert [worker.stop() for worker in workers] == [0, 0]
