"""Rights that are taken away from running workers: what may be read goes on, and what is said can be acted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from harness import HandlerSpec, Stage, wait_for
from harness.brokers import running_broker
from harness.operator import Operator, answered

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]


@pytest.fixture(scope="module")
def bootstrap(cache_dir: Path) -> Iterator[str]:
    """Instead of the session's, a broker that forbids what an ACL denies."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "group.min.session.timeout.ms": "1000",
    }
    with running_broker(cache_dir, settings=settings) as started:
        yield started.bootstrap


@contextmanager
def denied(stage: Stage, kind: ResourceType, name: str, operation: AclOperation = AclOperation.READ) -> Iterator[None]:
    """Deny something on something while the block runs."""
    admin = Operator(stage.bootstrap).admin
    everybody = (kind, name, ResourcePatternType.LITERAL, "User:*", "*")
    made = [  # with an ACL of its own a resource is closed but for what one allows
        AclBinding(*everybody, AclOperation.ALL, AclPermissionType.ALLOW),
        AclBinding(*everybody, operation, AclPermissionType.DENY),
    ]
    answered(admin.create_acls(made))
    try:
        yield
    finally:
        every = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        answered(admin.delete_acls([every]))


def test_a_topic_that_may_not_be_read_for_a_while(stage: Stage) -> None:
    """Its records wait, log and readiness name the topic; the other handler's go on; then all are done."""
    orders, invoices = stage.main_topic("orders", 2), stage.main_topic("invoices", 2)
    stage.program(HandlerSpec(topic=orders), HandlerSpec(topic=invoices))
    worker = stage.worker()
    stage.produce(orders, [{"id": 0}])
    wait_for(lambda: stage.service.done(orders) == {0}, "reads orders")
    stage.wait_settled(orders)  # with nothing to commit its lane stays open, and looked healthy
    with denied(stage, ResourceType.TOPIC, orders):
        stage.produce(orders, [{"id": n, "fail": n % 2} for n in range(1, 9)])
        wait_for(lambda: f"does not let this group read {orders}" in worker.log, "names the topic that is denied")
        before = stage.service.done(orders)
        stage.produce(invoices, [{"id": n, "fail": n % 2} for n in range(8)])
        wait_for(lambda: stage.service.done(invoices) == set(range(8)), "the other handler's records are done")
        assert stage.service.done(orders) == before, "nobody reads what is denied"
        status, page = worker.get("/retries/ready")
        assert (status, f"may not read {orders}" in str(page)) == (503, True)
        assert worker.ended() is False
    wait_for(lambda: stage.service.done(orders) == set(range(9)), "goes on by itself")
    for topic in (orders, invoices):
        stage.wait_settled(topic)
    wait_for(lambda: worker.get("/retries/ready")[0] == 200, "is ready again")
    assert "plan -A app --acls" in worker.log
    assert "Crashed reason" not in worker.log
    assert "Traceback" not in worker.log
    assert worker.stop() == 0


def test_a_group_that_may_not_be_joined_any_more(stage: Stage) -> None:
    """The worker ends with one line that names the right, and exit code 3; started again, it does the rest."""
    orders = stage.main_topic("orders", 2)
    stage.program(HandlerSpec(topic=orders))
    worker = stage.worker()
    with denied(stage, ResourceType.GROUP, stage.group):
        wait_for(worker.ended, "ends")
    assert worker.wait(20) == 3
    last = worker.log.strip().splitlines()[-1]
    assert last.startswith(f"retryapp: could not be a member of group {stage.group} on ")
    assert "Grant the right" in last
    assert "Traceback" not in worker.log, "that line says all"
    stage.produce(orders, [{"id": n, "fail": n % 2} for n in range(4)])
    again = stage.worker()
    wait_for(lambda: stage.service.done(orders) == set(range(4)), "all are done")
    stage.wait_settled(orders)
    assert again.stop() == 0


def test_a_topic_of_ours_that_may_not_be_written_for_a_while(stage: Stage) -> None:
    """Its hand-offs wait, with their place; nothing runs again, and the log names the topic and the right."""
    orders = stage.main_topic("orders", 1)
    stage.program(HandlerSpec(topic=orders, policy="500ms"), partitions=1)
    worker, evidence = stage.worker(), stage.evidence(orders)
    topology = stage.topology(orders)
    stage.produce(orders, [{"id": "first", "fail": 1}], 1)
    wait_for(lambda: stage.service.done(orders) == {"first"}, "reads orders")
    stage.wait_settled(orders)
    with denied(stage, ResourceType.TOPIC, topology.dlq, AclOperation.WRITE):
        stage.produce(orders, [{"id": 0, "fail": 1}, {"id": 1, "reject": 1}, *({"id": n} for n in range(2, 9))], 1)
        wait_for(lambda: "retryapp.hand_off_refused" in worker.log, "it is said")
        wait_for(lambda: stage.service.done(orders) == {"first", 0, *range(2, 9)}, "the others are done")
        assert evidence.committed(orders) == {0: 2}
    wait_for(lambda: len(evidence.dead()) == 1, "it is a dead letter")
    stage.wait_settled(orders)
    runs = Counter((visit.facts["id"], visit.attempt) for visit in stage.service.of(orders))
    assert set(runs.values()) == {1}, "nothing runs again"
    (line,) = [line for line in worker.log.splitlines() if "retryapp.hand_off_refused" in line]
    assert f"{topology.dlq} refuses a hand-off: this login may not write to it; it needs WRITE" in line
    assert "retryapp.lane_failed" not in worker.log
    assert worker.stop() == 0
