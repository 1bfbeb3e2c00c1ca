"""``retryapp doctor`` on a real broker: no false alarms, and what is broken is found with its remedy."""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from harness import wait_for
from harness.brokers import running_broker
from harness.operator import Operator

from retryapp.core import marks
from retryapp.core.hops import Outgoing
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import Finding, Severity, Subject, examine, quick_findings
from retryapp.doctor.examine import left_behind
from retryapp.kafka import KafkaAdmin, KafkaConnection, PlanOptions, Positions, ensure_topics, read_topic
from retryapp.kafka.writer import write_together
from retryapp.runtime.machine.clock import SystemClock

LATER_MS = 2_000_000_000_000


@pytest.fixture
def topology(bootstrap: str, module: str) -> HandlerTopology:
    """Its topics, created, three partitions."""
    made = HandlerTopology(group=module, main=f"orders-{module}", delays_ms=(300_000, 3_600_000))
    ensure_topics(KafkaAdmin(KafkaConnection(bootstrap)), [made], PlanOptions(create_main_partitions=3))
    return made


def by_name(done: Any) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in done.json["findings"]}


def examined(
    operator: Operator, group: str, topologies: tuple[HandlerTopology, ...], datadir: Path, **more: Any
) -> dict[str, Finding]:
    """Findings about a group, by name."""
    subject = Subject(
        connection=operator.connection,
        group=group,
        topologies=topologies,
        options=PlanOptions(),
        session_timeout_ms=15_000,
        datadir=datadir,
        **more,
    )
    report = examine(subject, wall_ms=SystemClock().wall_ms)
    assert report.reachable
    return {finding.name: finding for finding in report.findings}


def test_a_development_broker_and_a_fresh_app_are_fine(retryapp, module, topology, bootstrap):
    """Exit 0; nothing written, nothing left behind."""
    done = retryapp("doctor", "-A", module, "--json")
    assert done.code == 0, done.out
    assert done.json["ok"] is done.json["reachable"] is True
    found = by_name(done)
    assert found[f"topics of {topology.main}"]["seen"] == "6 of 6 ok, 3 partitions"
    assert found["setting group.min.session.timeout.ms"]["expected"].startswith("15000 or less")
    assert found["setting transaction.partition.verification.enable"]["severity"] == "ok"
    assert found["replicas"]["severity"] == found["rights"]["severity"] == "ok"
    assert found[f"group {module}"]["severity"] == "note"
    assert found[f"offsets of {topology.main}"]["seen"] == "none yet for 3 of 3 partitions"
    assert not Path("data").exists()
    assert [r for t in topology.owned[:-1] for r in read_topic(KafkaConnection(bootstrap), t)] == []
    assert "no problems" in retryapp("doctor", "-A", module).out


def test_writing_measures_the_clock_and_no_reader_sees_it(retryapp, module, topology, bootstrap):
    """The broker is on this machine, so the clocks agree; the transaction was aborted."""
    found = by_name(retryapp("doctor", "-A", module, "--write", "--json"))
    assert found["clock"]["severity"] == found["rights on transactions"]["severity"] == "ok"
    assert "give or take" in found["clock"]["seen"]
    assert list(read_topic(KafkaConnection(bootstrap), topology.events)) == []
    assert by_name(retryapp("doctor", "-A", module, "--json"))["clock"]["seen"] == "not compared"


def test_what_is_wrong_is_found_with_its_remedy(retryapp, module, topology, bootstrap):
    """Topic settings, a foreign group member, offsets: exit 1, each by name."""
    operator, changelog = Operator(bootstrap), topology.pending_changelog
    operator.configure(changelog, "cleanup.policy", "delete")
    operator.set_offsets(module, {(topology.main, 1): 99})
    foreign = Consumer({"bootstrap.servers": bootstrap, "group.id": module, "client.id": "foreign"})
    foreign.subscribe([topology.main])
    try:
        wait_for(lambda: foreign.poll(0.1) is None and bool(foreign.assignment()), "the foreign program is a member")
        done = retryapp("doctor", "-A", module, "--json")
        shown = retryapp("doctor", "-A", module)
    finally:
        foreign.close()
    assert done.code == shown.code == 1
    found = by_name(done)
    topic = found[f"topic {changelog}"]
    assert (topic["seen"], topic["expected"]) == ("cleanup.policy=delete", "compact")
    assert f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --topic {changelog} " in topic["remedy"]
    offset = found[f"offset of {topology.main}[1]"]
    assert offset["seen"] == "99"
    assert f"kafka-consumer-groups.sh --bootstrap-server {bootstrap} --group {module} " in offset["remedy"]
    assert "protocol range" in found[f"group {module}"]["seen"]
    assert f"problem: topic {changelog}: cleanup.policy=delete" in shown.out
    assert shown.out.splitlines()[-1].startswith("3 problems, 0 warnings")


def test_a_missing_main_topic_is_found(retryapp, module):
    """Nothing was created yet; what comes after is checked all the same."""
    done = retryapp("doctor", "-A", module, "--write", "--json")
    assert done.code == 1
    found = by_name(done)
    assert found[f"topic orders-{module}"]["seen"] == "does not exist"
    assert "no events topic" in found["rights on transactions"]["why"]


def test_a_main_topic_that_was_deleted_is_found(retryapp, module, topology, bootstrap):
    """Its handler's topics are still there; what comes after is checked all the same."""
    Operator(bootstrap).delete_topic(topology.main)
    done = retryapp("doctor", "-A", module, "--json")
    assert done.code == 1, done.out
    found = by_name(done)
    assert found[f"topic {topology.main}"]["seen"] == "does not exist"
    assert "clock" in found


NOWHERE = """
import faust
from retryapp import Retries, RetryPolicy

app = faust.App("nowhere", broker="kafka://127.0.0.1:1", store="memory://")

@Retries(app).handler("orders", policy=RetryPolicy("1m"))
async def charge(order: bytes) -> None: ...
"""

HALF_CONFIGURED = {
    "auto.create.topics.enable": "true",
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.max.timeout.ms": "10000",
    "group.max.session.timeout.ms": "10000",
    "offsets.retention.minutes": "1440",
    "transaction.partition.verification.enable": "false",
}
"""Settings of a broker on which a worker would wait without end, or lose what it knows."""


@pytest.mark.broker
@pytest.mark.extended
def test_a_half_configured_broker_is_found_out(cache_dir, tmp_path):
    """Each setting by its name; what follows from them, by trying."""
    topology = HandlerTopology(group="g", main="orders")
    with running_broker(cache_dir, settings=HALF_CONFIGURED) as broker:
        operator = Operator(broker.bootstrap)
        ensure_topics(KafkaAdmin(operator.connection), [topology], PlanOptions(create_main_partitions=1))
        found = examined(operator, "g", (topology,), tmp_path, write=True, timeout_s=4.0)
    assert {name: finding.severity.value for name, finding in found.items() if finding.counts} == {
        "setting transaction.partition.verification.enable": "warning",
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


def test_no_broker_is_exit_3_and_the_machine_is_still_checked(retryapp, tmp_path, monkeypatch):
    """With the address and the reason."""
    monkeypatch.setenv("RETRYAPP_DATADIR", str(tmp_path))
    (tmp_path / "nowhere.py").write_text(NOWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    done = retryapp("doctor", "-A", "nowhere", "--json")
    assert done.code == 3
    found = by_name(done)
    assert done.json["reachable"] is False
    assert "refused" in found["broker"]["seen"]
    assert found["broker"]["expected"] == "a broker at 127.0.0.1:1 that accepts this client"
    assert found["disk"]["severity"] == "ok"


def test_the_quick_form_returns_only_what_counts(bootstrap, topology, tmp_path):
    """A broker that does not answer is not its business."""

    def quick(address: str = bootstrap, session_timeout_ms: int = 15_000) -> tuple[Finding, ...]:
        return quick_findings(
            KafkaConnection(address),
            [topology],
            PlanOptions(),
            session_timeout_ms=session_timeout_ms,
            datadir=tmp_path / "none",
            timeout_s=5.0 if address == bootstrap else 0.5,
        )

    assert quick() == ()
    assert [found.name for found in quick(session_timeout_ms=3_600_000)] == ["setting group.max.session.timeout.ms"]
    assert quick("127.0.0.1:1") == ()


def identity(topology: HandlerTopology, offset: int) -> bytes:
    return identity_of(Origin(topology.main, "t", 0, offset))


def wait_in(operator: Operator, topology: HandlerTopology, offset: int = 0) -> None:
    row = encode_row(PendingRow(b"k", b"v", (), LATER_MS))
    operator.publish(topology.pending_changelog, row, key=identity(topology, offset), partition=0)


def test_what_former_handlers_left_behind(bootstrap, tmp_path):
    """A handler that the app has no more, with what waits in its table."""
    group, operator = f"g{uuid.uuid4().hex[:8]}", Operator(bootstrap)
    orders, returns, cards = (
        HandlerTopology(group=group, main=f"{main}-{group}") for main in ("orders", "returns", "cards")
    )
    ensure_topics(KafkaAdmin(operator.connection), [orders, returns, cards], PlanOptions(create_main_partitions=2))
    wait_in(operator, returns)
    wait_in(operator, returns, 1)
    wait_in(operator, cards)
    operator.publish(cards.pending_changelog, None, key=identity(cards, 0), partition=0)

    def leftovers(*topologies: HandlerTopology) -> dict[str, Severity]:
        found = examined(operator, group, topologies, tmp_path)
        return {name: finding.severity for name, finding in found.items() if name.startswith("handler of")}

    former = {f"handler of {returns.main}": Severity.WARNING, f"handler of {cards.main}": Severity.NOTE}
    assert leftovers(orders) == former
    assert leftovers(orders, returns, cards) == {}
    assert left_waiting(bootstrap, orders, tmp_path) == [f"handler of {returns.main}", "2 waiting records"]
    state = KafkaAdmin(operator.connection).describe_topics([returns.pending_changelog])[returns.pending_changelog]
    for changelog, waiting in (("another", "2 waiting records"), (state.topic_id, "1 waiting record")):
        progress = {"next": {}, "floor": 2, "changelog": changelog}
        operator.publish(returns.pending_changelog, json.dumps(progress).encode(), key=marks.PROGRESS, partition=0)
        assert left_waiting(bootstrap, orders, tmp_path) == [f"handler of {returns.main}", waiting]
    texts = {found.name: found.text for found in left_behind(KafkaAdmin(operator.connection), [orders], deadline_s=0)}
    assert "may have waiting records (`retryapp doctor` counts them)" in texts[f"handler of {returns.main}"]
    operator.publish(cards.pending_changelog, b"{}", key=marks.PROGRESS, partition=0)
    assert left_waiting(bootstrap, orders, tmp_path) == [], "a damaged record of a topic that a start does not need"


def left_waiting(bootstrap: str, topology: HandlerTopology, folder: Path) -> list[str]:
    """Return what a start says of the handlers that the app has no more: name, and what waits."""
    found = quick_findings(
        KafkaConnection(bootstrap), [topology], PlanOptions(), session_timeout_ms=15_000, datadir=folder
    )
    return [text for each in found for text in (each.name, *re.findall(r"\d+ waiting records?", each.text))]


def test_unread_records_near_their_deletion(bootstrap, topology, tmp_path):
    """Whatever holds them back: half of the retention is over for the first one. The end of a transaction is none."""
    operator, main, name = Operator(bootstrap), topology.main, f"unread records of {topology.main}"
    now_ms = SystemClock().wall_ms()
    operator.configure(main, "retention.ms", str(20 * 3_600_000))
    old = {"timestamp": now_ms - 11 * 3_600_000}
    operator.publish(main, b"1", b"2", partition=0, **old)
    operator.publish(main, b"3", partition=0)
    operator.publish(main, b"1", partition=1, **old)
    write_together(operator.connection, main, [Outgoing(main, 2, b"", b"", ())])

    def found() -> Finding | None:
        return examined(operator, topology.group, (topology,), tmp_path).get(name)

    assert found() is None, "a group that has not begun has nothing unread"
    operator.set_offsets(topology.group, {(main, 0): 0, (main, 1): 1, (main, 2): 1})
    problem = found()
    assert problem is not None
    assert problem.severity is Severity.PROBLEM
    assert problem.seen.startswith("the oldest is 11h")
    assert problem.seen.endswith("old, in partition 0")
    operator.set_offsets(topology.group, {(main, 0): 2})
    assert found() is None
    operator.configure(main, "retention.ms", "-1")
    operator.set_offsets(topology.group, {(main, 0): 0})
    assert found() is None


def test_offsets_that_the_broker_forgot(bootstrap, topology, tmp_path):
    """A worker continues where its changelog says, unless what follows was deleted; the changelog is the runtime's."""
    operator, main = Operator(bootstrap), topology.main

    def found() -> dict[str, Finding]:
        return examined(operator, topology.group, (topology,), tmp_path)

    topic_id = KafkaAdmin(operator.connection).describe_topics([main])[main].topic_id
    operator.publish(main, b"1", b"2", b"3", partition=0)
    wait_in(operator, topology)
    assert found()[f"offsets of {main}"].severity is Severity.PROBLEM
    positions = {main: 2}
    mark = marks.progress_value(positions, topic_id)
    operator.publish(topology.pending_changelog, mark, key=marks.PROGRESS, partition=0)
    known = found()
    expired = known[f"offsets of {main}, expired"]
    assert (expired.severity, "partition 0" in expired.seen) == (Severity.NOTE, True)
    assert known[f"offsets of {main}"].seen == "none yet for 2 of 3 partitions"
    operator.delete_records(main, 0, 3)
    gone = found()[f"offset of {main}[0]"]
    assert gone.severity is Severity.PROBLEM
    assert gone.why.startswith("1 record deleted")


def test_a_damaged_progress_record_is_a_finding(bootstrap, topology, tmp_path):
    """It ended the command, where the group had no offsets."""
    operator, changelog = Operator(bootstrap), topology.pending_changelog
    operator.publish(changelog, b"{", key=marks.PROGRESS, partition=0)
    operator.publish(topology.main, b"1", partition=0)
    found = examined(operator, topology.group, (topology,), tmp_path)["offsets"]
    assert (found.severity, f"{changelog}[0]@" in found.seen) == (Severity.PROBLEM, True)


def test_offsets_that_workers_commit_meanwhile_are_fine(bootstrap, topology, tmp_path, monkeypatch):
    """Records come, and one lane commits or notes that it has read them, just before the doctor asks how far it is."""
    operator, main, changelog = Operator(bootstrap), topology.main, topology.pending_changelog
    topic_id = KafkaAdmin(operator.connection).describe_topics([main])[main].topic_id
    group_offsets = Positions.group_offsets

    def committed(positions: Positions, group: str, places: Any) -> Any:
        operator.publish(main, b"1", b"2", partition=0)
        operator.set_offsets(group, {(main, 0): 2})
        return group_offsets(positions, group, places)

    def noted(connection: KafkaConnection, topic: str, partitions: list[int]) -> Any:
        if (topic, partitions) == (changelog, [1]):
            operator.publish(main, b"1", b"2", partition=1)
            operator.publish(changelog, marks.progress_value({main: 2}, topic_id), key=marks.PROGRESS, partition=1)
        return read_topic(connection, topic, partitions=partitions)

    monkeypatch.setattr(Positions, "group_offsets", committed)
    monkeypatch.setattr(sys.modules[examine.__module__], "read_topic", noted)
    found = examined(operator, topology.group, (topology,), tmp_path)
    assert "offsets" not in found
    assert [name for name, finding in found.items() if name.startswith("offset") and finding.counts] == []
    assert "partition 1" in found[f"offsets of {main}, expired"].seen
