"""Rights that are taken away from running workers: what may be read goes on, and what is said can be acted on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from harness import HandlerSpec, Stage, open_stage, wait_for
from harness.brokers import running_broker

from retryapp.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]

ENVIRONMENT = 3


@pytest.fixture(scope="module")
def guarded(cache_dir: Path) -> Iterator[Broker]:
    """A broker that forbids what an ACL denies."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "group.min.session.timeout.ms": "1000",
    }
    with running_broker(cache_dir, settings=settings) as started:
        yield started


@pytest.fixture
def inside(guarded: Broker, tmp_path: Path) -> Iterator[Stage]:
    """A stage on that broker."""
    with open_stage(guarded.bootstrap, tmp_path) as stage:
        yield stage


@contextmanager
def denied(stage: Stage, kind: ResourceType, name: str) -> Iterator[None]:
    """Deny READ on something while the block runs."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    everybody = (kind, name, ResourcePatternType.LITERAL, "User:*", "*")
    made = [  # with an ACL of its own a resource is closed but for what one allows
        AclBinding(*everybody, AclOperation.ALL, AclPermissionType.ALLOW),
        AclBinding(*everybody, AclOperation.READ, AclPermissionType.DENY),
    ]
    for future in admin.create_acls(made).values():
        future.result(20)
    try:
        yield
    finally:
        every = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for gone in admin.delete_acls([every]).values():
            gone.result(20)


def test_a_topic_that_may_not_be_read_for_a_while(inside: Stage) -> None:
    """Its records wait and the log names the topic and the right; the other handler's go on; then all are done."""
    orders, invoices = inside.main_topic("orders", 2), inside.main_topic("invoices", 2)
    inside.program(HandlerSpec(topic=orders), HandlerSpec(topic=invoices))
    worker = inside.worker()
    inside.produce(orders, [{"id": 0}])
    wait_for(lambda: inside.service.done(orders) == {0}, "reads orders")
    with denied(inside, ResourceType.TOPIC, orders):
        inside.produce(orders, [{"id": n, "fail": n % 2} for n in range(1, 9)])
        wait_for(lambda: f"does not let this group read {orders}" in worker.log, "names the topic that is denied")
        before = inside.service.done(orders)
        inside.produce(invoices, [{"id": n, "fail": n % 2} for n in range(8)])
        wait_for(lambda: inside.service.done(invoices) == set(range(8)), "the other handler's records are done")
        assert inside.service.done(orders) == before, "nobody reads what is denied"
        assert worker.ended() is False
    wait_for(lambda: inside.service.done(orders) == set(range(9)), "goes on by itself")
    for topic in (orders, invoices):
        inside.wait_settled(topic, ledger=True)
    assert "plan --acls" in worker.log
    assert "Crashed reason" not in worker.log
    assert worker.stop() == 0


def test_a_group_that_may_not_be_joined_any_more(inside: Stage) -> None:
    """The worker ends with one line that names the right, and exit code 3; started again, it does the rest."""
    orders = inside.main_topic("orders", 2)
    inside.program(HandlerSpec(topic=orders))
    worker = inside.worker()
    with denied(inside, ResourceType.GROUP, inside.group):
        wait_for(worker.ended, "ends")
    assert worker.wait(20) == ENVIRONMENT
    last = worker.log.strip().splitlines()[-1]
    assert last.startswith(f"retryapp: could not be a member of group {inside.group} on ")
    assert "grant the right" in last
    inside.produce(orders, [{"id": n, "fail": n % 2} for n in range(4)])
    again = inside.worker()
    wait_for(lambda: inside.service.done(orders) == set(range(4)), "all are done")
    inside.wait_settled(orders, ledger=True)
    assert again.stop() == 0
