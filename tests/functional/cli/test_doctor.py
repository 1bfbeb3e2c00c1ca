"""``retryapp doctor`` on a real broker: what is fine is told as fine, and what is broken is found with its remedy."""

from __future__ import annotations

import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faust
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from harness.brokers import running_broker

from retryapp import Retries
from retryapp.cli.doctor import PROTOCOL
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import Finding, Subject, examine, quick_findings
from retryapp.kafka import KafkaAdmin, KafkaConnection, PlanOptions, ensure_topics, plan_topics, read_topic
from retryapp.runtime.store import FORMAT_VERSION

NOW_MS = 1_700_000_000_000


@pytest.fixture
def module(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module with one handler; its group is its name, its main topic `orders-NAME`."""
    name = f"billing_{uuid.uuid4().hex[:8]}"
    source = f"""
        import faust
        from retryapp import Retries, RetryPolicy

        app = faust.App("{name}", broker="kafka://{bootstrap}", store="memory://")
        retries = Retries(app)

        @retries.handler("orders-{name}", policy=RetryPolicy("5m*2 1h"))
        async def charge(order: bytes) -> None: ...
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETRYAPP_DATADIR", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def topology(bootstrap: str, module: str) -> HandlerTopology:
    """Its topics, made, three partitions."""
    delays = (300_000, 3_600_000)
    made = HandlerTopology(group=module, main=f"orders-{module}", delays_ms=delays)
    ensure_topics(KafkaAdmin(KafkaConnection(bootstrap)), [made], PlanOptions(create_main_partitions=3))
    return made


@pytest.fixture
def client(bootstrap: str) -> AdminClient:
    """For what the tests break."""
    return AdminClient({"bootstrap.servers": bootstrap})


def by_name(done: Any) -> dict[str, dict[str, str]]:
    """Findings of a JSON report."""
    return {finding["name"]: finding for finding in done.json["findings"]}


def test_a_development_broker_and_a_fresh_app_are_fine(retryapp, module, topology, bootstrap):
    """Exit 0, nothing written, nothing left behind."""
    done = retryapp("doctor", "-A", module, "--json")
    assert done.code == 0, done.out
    assert done.json["ok"] is done.json["reachable"] is True
    found = by_name(done)
    assert found["version"]["seen"].startswith("Kafka 4.3 ")
    assert (
        found[f"topics of {topology.main}"]["seen"] == "6 of 6 as they have to be, 3 partitions, retries kept for 7d1h"
    )
    assert found["setting group.min.session.timeout.ms"]["expected"].startswith("15000 or less")
    assert found["replicas"]["severity"] == found["rights"]["severity"] == "ok"
    assert found[f"group {module}"]["severity"] == "note"
    assert found[f"offsets of {topology.main}"]["seen"] == "none yet for 3 of 3 partitions"
    assert not Path("data").exists()
    assert [r for t in topology.owned[:-1] for r in read_topic(KafkaConnection(bootstrap), t)] == []

    shown = retryapp("doctor", "-A", module)
    assert shown.code == 0
    assert "nothing found" in shown.out


def test_writing_measures_the_clock_and_no_reader_sees_it(retryapp, module, topology, bootstrap):
    """The broker is on this machine, so the clocks agree; the transaction was aborted."""
    found = by_name(retryapp("doctor", "-A", module, "--write", "--json"))
    assert found["clock"]["severity"] == "ok"
    assert "give or take" in found["clock"]["seen"]
    assert found["rights on transactions"]["severity"] == "ok"
    assert list(read_topic(KafkaConnection(bootstrap), topology.events)) == []
    after = by_name(retryapp("doctor", "-A", module, "--json"))["clock"]
    assert "ms at most (age of the newest record)" in after["seen"]


def test_the_protocols_name_is_the_runtimes():
    """The command says it again, so that looking at a group does not load Faust."""
    app = faust.App("names", broker="kafka://127.0.0.1:1")
    Retries(app)
    assert app.conf.PartitionAssignor(app).name == PROTOCOL


def test_a_group_can_be_looked_at_without_its_app(retryapp, module, topology, bootstrap):
    """Its topics tell the handlers; a group without any is an error that names it."""
    done = retryapp("doctor", "--broker", bootstrap, "--group", module, "--json")
    assert done.code == 0, done.out
    assert "not measured against the longest wait" in by_name(done)[f"topics of {topology.main}"]["seen"]
    none = retryapp("doctor", "--broker", bootstrap, "--group", f"{module}x")
    assert none.code == 3
    assert f"{module}x" in none.err


def test_what_is_wrong_is_found_with_its_remedy(retryapp, module, topology, client):
    """Topic settings, a foreign group member, offsets: exit 1, each by name."""
    retention = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topology.retry_topics[0], incremental_configs=[retention])
    client.incremental_alter_configs([resource])[resource].result(10)
    client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(module, [TopicPartition(topology.main, 1, 99)])])[
        module
    ].result(10)
    foreign = Consumer({"bootstrap.servers": client_address(client), "group.id": module, "client.id": "foreign"})
    foreign.subscribe([topology.main])
    try:
        wait_until(lambda: foreign.poll(0.1) is None and bool(foreign.assignment()))
        done = retryapp("doctor", "-A", module, "--json")
        shown = retryapp("doctor", "-A", module)
    finally:
        foreign.close()
    assert done.code == shown.code == 1
    found = by_name(done)
    topic = found[f"topic {topology.retry_topics[0]}"]
    assert (topic["severity"], topic["seen"], topic["expected"]) == (
        "problem",
        "retention.ms=60000",
        "608400000 or more",
    )
    assert "kafka-configs.sh" in topic["remedy"]
    assert found[f"offset of {topology.main}[1]"]["seen"] == "99"
    assert found[f"group {module}"]["severity"] == "problem"
    assert "protocol range" in found[f"group {module}"]["seen"]
    assert f"problem: topic {topology.retry_topics[0]}: retention.ms=60000" in shown.out
    assert shown.out.splitlines()[-1].startswith("3 problems, 0 warnings")


def test_a_missing_main_topic_is_found(retryapp, module):
    """Nothing was made yet."""
    done = retryapp("doctor", "-A", module, "--json")
    assert done.code == 1
    found = by_name(done)
    assert found[f"topic orders-{module}"]["seen"] == "it does not exist"
    assert found["stores"]["severity"] == "ok", "what comes after is looked at all the same"
    assert (
        "no events topic"
        in by_name(retryapp("doctor", "-A", module, "--write", "--json"))["rights on transactions"]["why"]
    )


HALF_CONFIGURED = {
    "auto.create.topics.enable": "true",
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.max.timeout.ms": "10000",
    "group.max.session.timeout.ms": "10000",
    "offsets.retention.minutes": "1440",
    "transaction.partition.verification.enable": "false",
}
"""Settings of a broker on which a worker would wait for ever, or lose what it knows."""


@pytest.fixture
def half_configured(cache_dir: Path) -> Iterator[str]:
    """A broker with these settings, of one test alone."""
    with running_broker(cache_dir, settings=HALF_CONFIGURED) as started:
        yield started.bootstrap


@pytest.mark.broker
def test_a_half_configured_broker_is_found_out(half_configured, tmp_path):
    """Each setting by its name; what follows from them, by trying."""
    topology = HandlerTopology(group="g", main="orders")
    ensure_topics(KafkaAdmin(KafkaConnection(half_configured)), [topology], PlanOptions(create_main_partitions=1))
    subject = Subject(
        connection=KafkaConnection(half_configured),
        group="g",
        topologies=None,
        datadir=tmp_path,
        web_bind="127.0.0.1",
        web_port=None,
        store_format=FORMAT_VERSION,
        protocols=frozenset({PROTOCOL}),
        write=True,
        timeout_s=4.0,
    )
    report = examine(subject, wall_ms=lambda: time.time_ns() // 1_000_000)
    assert report.reachable
    assert not report.clean
    counting = {finding.name: finding.severity.value for finding in report.findings if finding.counts}
    assert counting == {
        "version": "warning",
        "setting auto.create.topics.enable": "warning",
        "setting offsets.retention.minutes": "warning",
        "setting transaction.state.log.replication.factor": "problem",
        "setting offsets.topic.replication.factor": "problem",
        "group g": "problem",
        "offsets": "problem",
        "setting transaction.max.timeout.ms": "problem",
        "setting group.max.session.timeout.ms": "problem",
        "rights on transactions": "problem",
    }


def test_no_broker_is_exit_3_and_the_machine_is_still_told(retryapp, tmp_path, monkeypatch):
    """With the address and the reason."""
    monkeypatch.setenv("RETRYAPP_DATADIR", str(tmp_path))
    done = retryapp("doctor", "--broker", "127.0.0.1:1", "--group", "g", "--json")
    assert done.code == 3
    found = by_name(done)
    assert done.json["reachable"] is False
    assert "refused" in found["broker"]["seen"]
    assert found["broker"]["expected"] == "a broker at 127.0.0.1:1 that lets us in"
    assert found["disk"]["severity"] == "ok"


@pytest.mark.parametrize(
    "words", [(), ("--broker", "h:1"), ("--group", "g"), ("-A", "billing", "--broker", "h:1"), ("-A", "no_such_module")]
)
def test_usage_errors_are_exit_2(retryapp, words):
    """Neither an app nor a place, or both."""
    done = retryapp("doctor", *words)
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1


def test_the_quick_form_is_silent_about_what_is_fine(bootstrap, topology, tmp_path):
    """And says what counts; a broker that does not answer is not its business."""
    connection = KafkaConnection(bootstrap)
    states = plan_topics(KafkaAdmin(connection), [topology]).states

    def quick(session_timeout_ms: int = 15_000, now_ms: Callable[[], int] | None = None) -> tuple[Finding, ...]:
        return quick_findings(
            connection,
            [topology],
            PlanOptions(),
            states,
            session_timeout_ms=session_timeout_ms,
            datadir=tmp_path / "none",
            wall_ms=now_ms or (lambda: 2_000_000_000_000),
        )

    assert quick() == ()
    (found,) = quick(session_timeout_ms=3_600_000)
    assert found.name == "setting group.max.session.timeout.ms"
    (late,) = quick(now_ms=lambda: NOW_MS)
    assert late.name == "clock"
    assert "ahead by" in late.seen
    unreachable = quick_findings(
        KafkaConnection("127.0.0.1:1"),
        [topology],
        PlanOptions(),
        {},
        session_timeout_ms=15_000,
        datadir=tmp_path,
        wall_ms=lambda: NOW_MS,
        timeout_s=0.5,
    )
    assert unreachable == ()


def client_address(client: AdminClient) -> str:
    """Where a client's broker listens."""
    (broker,) = client.list_topics(timeout=10).brokers.values()
    return f"{broker.host}:{broker.port}"


def wait_until(condition: Callable[[], bool], attempts: int = 200) -> None:
    """Ask until it is so; each question takes a while itself."""
    for _ in range(attempts):
        try:
            if condition():
                return
        except KafkaException:
            continue
    raise AssertionError("it never was")
