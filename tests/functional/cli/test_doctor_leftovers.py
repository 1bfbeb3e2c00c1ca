"""``retryapp doctor`` on a real broker: what former handlers and groups left behind, expired offsets, silent lanes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from retryapp.core import marks
from retryapp.core.rows import PendingRow, encode_row, row_key
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.doctor import Finding, Severity, Subject, examine
from retryapp.kafka import KafkaAdmin, KafkaConnection, PlanOptions, ensure_topics
from retryapp.runtime.store import FORMAT_VERSION, Store, StoreIdentity

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Cluster:
    """Handlers of one test, and what it does to them."""

    def __init__(self, bootstrap: str, datadir: Path) -> None:
        self.bootstrap = bootstrap
        self.connection = KafkaConnection(bootstrap)
        self.group = f"g{uuid.uuid4().hex[:8]}"
        self.datadir = datadir / self.group
        self.client = AdminClient({"bootstrap.servers": bootstrap})

    def handler(self, main: str, group: str | None = None, **more: Any) -> HandlerTopology:
        """Make the topics of a handler; two partitions."""
        made = HandlerTopology(group=group or self.group, main=f"{main}-{self.group}", **more)
        ensure_topics(KafkaAdmin(self.connection), [made], PlanOptions(create_main_partitions=2))
        return made

    def publish(self, topic: str, key: bytes, value: bytes | None, partition: int = 0) -> None:
        """Publish one record."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(topic, partition=partition, key=key, value=value)
        assert producer.flush(10) == 0

    def wait_in(self, topology: HandlerTopology, offset: int = 0) -> None:
        """Let one record wait."""
        row = encode_row(PendingRow(b"k", b"v", (), 1))
        self.publish(topology.pending_changelog, row_key(2_000_000_000_000, 0, offset), row)

    def commit(self, offsets: dict[str, int], partition: int = 0) -> None:
        """Set committed offsets of the group, which has no members."""
        places = [TopicPartition(topic, partition, offset) for topic, offset in offsets.items()]
        wanted = [ConsumerGroupTopicPartitions(self.group, places)]
        self.client.alter_consumer_group_offsets(wanted)[self.group].result(10)

    def findings(self, *topologies: HandlerTopology, later_ms: int = 0, protocol: str = "faust") -> dict[str, Finding]:
        """Examine the group with these handlers; the clock may be ahead."""
        subject = Subject(
            connection=self.connection,
            group=self.group,
            topologies=topologies or None,
            datadir=self.datadir,
            web_bind="127.0.0.1",
            web_port=None,
            store_format=FORMAT_VERSION,
            protocols=frozenset({protocol}),
        )
        report = examine(subject, wall_ms=lambda: time.time_ns() // 1_000_000 + later_ms)
        return {finding.name: finding for finding in report.findings}


@pytest.fixture
def cluster(bootstrap: str, tmp_path: Path) -> Cluster:
    """A group of its own on the session's broker."""
    return Cluster(bootstrap, tmp_path)


def test_a_handler_that_is_not_declared_any_more_is_found_with_what_waits(cluster: Cluster) -> None:
    """And what is declared is not; one whose table is empty may be deleted."""
    orders, returns, cards = (cluster.handler(name) for name in ("orders", "returns", "cards"))
    cluster.wait_in(returns)
    cluster.wait_in(returns, 1)
    cluster.wait_in(cards)
    cluster.publish(cards.pending_changelog, row_key(2_000_000_000_000, 0, 0), None)
    found = cluster.findings(orders)
    assert f"handler of {orders.main}" not in found
    left = found[f"handler of {returns.main}"]
    assert left.severity is Severity.WARNING
    assert "tables: 2 records" in left.seen
    empty = found[f"handler of {cards.main}"]
    assert empty.severity is Severity.NOTE
    names = empty.remedy.split("'")[1].replace("\\", "").split("|")
    assert set(names) == set(cards.owned)
    everything = cluster.findings()
    assert not [name for name in everything if name.startswith("handler of")], "without the app all of them are its own"


def test_a_group_that_is_gone_is_found_by_its_tables(cluster: Cluster) -> None:
    """The same main topic under a former name; another main topic is none of our business."""
    orders = cluster.handler("orders")
    former = cluster.handler("orders", group=f"{cluster.group}-v2")
    stranger = cluster.handler("visits", group=f"{cluster.group}-other")
    cluster.wait_in(former)
    cluster.wait_in(stranger)
    found = cluster.findings(orders)
    left = found[f"group {former.group} on {orders.main}"]
    assert left.severity is Severity.WARNING
    assert "it is gone, and what waits in its tables: 1 record" in left.seen
    assert not [name for name in found if stranger.group in name]


def test_a_tier_that_a_policy_has_no_more_is_found_with_what_was_not_read(cluster: Cluster) -> None:
    """A record in it would never come back."""
    before = cluster.handler("orders", tiers=Tiers.PER_DELAY, delays_ms=(5 * MINUTE_MS, HOUR_MS))
    now = HandlerTopology(cluster.group, before.main, tiers=Tiers.PER_DELAY, delays_ms=(HOUR_MS,))
    dropped = f"{before.prefix}.retry.5m"
    cluster.publish(dropped, b"k", b"v")
    cluster.publish(dropped, b"k", b"v", partition=1)
    cluster.commit({dropped: 1}, partition=1)
    waiting = cluster.findings(now)[f"topic {dropped}"]
    assert waiting.severity is Severity.WARNING
    assert "up to 1 record in it" in waiting.seen
    cluster.commit({dropped: 1}, partition=0)
    assert cluster.findings(now)[f"topic {dropped}"].severity is Severity.NOTE
    assert f"topic {dropped}" not in cluster.findings(before)


def test_stores_of_a_group_that_is_gone_are_found(cluster: Cluster, tmp_path: Path) -> None:
    """Beside the folder of the group that is looked at."""
    orders = cluster.handler("orders")
    identity = StoreIdentity(topic="former.orders.pending.changelog", topic_id="abcd1234", partition=0)
    path = tmp_path / "former" / "worker-1" / "retryapp" / "former.orders" / "pending" / "0"
    Store(path, identity, now_ms=1, max_age_ms=None).close()
    found = cluster.findings(orders)["store folder former"]
    assert (found.severity, str(tmp_path / "former") in found.remedy) == (Severity.NOTE, True)


def test_offsets_that_the_broker_forgot_are_told_with_what_a_worker_will_do(cluster: Cluster) -> None:
    """It goes on where its changelog says, unless what follows there is gone; the changelog's word is the runtime's."""
    orders = cluster.handler("orders")
    topic_id = KafkaAdmin(cluster.connection).describe_topics([orders.main])[orders.main].topic_id
    for number in range(3):
        cluster.publish(orders.main, b"k", b"%d" % number)
    cluster.wait_in(orders)
    forgotten = cluster.findings(orders)[f"offsets of {orders.main}"]
    assert forgotten.severity is Severity.PROBLEM
    positions = {orders.main: 2, orders.redelivery: 0, orders.retry_topics[0]: 0}
    cluster.publish(orders.pending_changelog, marks.PROGRESS, marks.progress_value(positions, topic_id))
    found = cluster.findings(orders)
    expired = found[f"offsets of {orders.main}, expired"]
    assert (expired.severity, "partition 0" in expired.seen) == (Severity.NOTE, True)
    assert found[f"offsets of {orders.main}"].seen == "none yet for 1 of 2 partitions"
    cluster.client.delete_records([TopicPartition(orders.main, 0, 3)])[TopicPartition(orders.main, 0, 3)].result(10)
    gone = cluster.findings(orders)[f"offset of {orders.main}[0]"]
    assert gone.severity is Severity.PROBLEM
    assert gone.why.startswith("1 records were deleted")


def test_a_silent_lane_is_found_while_somebody_is_in_the_group(cluster: Cluster) -> None:
    """Records to read and nothing written for hours; it is not said of a group without members."""
    orders = cluster.handler("orders")
    cluster.publish(orders.main, b"k", b"v", partition=1)
    cluster.commit(dict.fromkeys(orders.consumed, 0))
    cluster.commit(dict.fromkeys(orders.consumed, 0), partition=1)
    cluster.publish(orders.pending_changelog, marks.CLOCK, b"", partition=1)
    lane = f"lane of {orders.main}[1]"
    assert lane not in cluster.findings(orders, later_ms=3 * HOUR_MS)
    member = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": cluster.group, "enable.auto.commit": False})
    member.subscribe([orders.main])
    try:
        _until(lambda: member.poll(0.2) is not None or bool(member.assignment()))
        silent = cluster.findings(orders, later_ms=3 * HOUR_MS, protocol="range")[lane]
        soon = cluster.findings(orders, protocol="range")
    finally:
        member.close()
    assert silent.severity is Severity.WARNING
    assert "nothing for 3h" in silent.seen
    assert "1 offset to read" in silent.seen
    assert lane not in soon
    assert soon[f"lanes of {orders.main}"].severity is Severity.OK


def _until(condition: Callable[[], bool], attempts: int = 150) -> None:
    for _ in range(attempts):
        if condition():
            return
    raise AssertionError("it never was")
