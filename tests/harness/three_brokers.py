"""Three brokers that are one cluster, as in production: what is there when one of them is killed, stopped or away.

All topics have three copies, of which two have to be in sync. Times are short, so that a test sees a failover in
seconds: a broker that is killed is missed after `broker.session.timeout.ms`, one that does not fetch is out of sync
after `replica.lag.time.max.ms`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import KafkaError
from confluent_kafka.admin import AdminClient, TopicMetadata

from harness.brokers import skip_without_broker
from retryapp.broker import Broker
from retryapp.broker.config import new_id
from retryapp.broker.probe import LOOPBACK, free_ports
from retryapp.guardian import guard
from retryapp.stage import wait_for

NODES = (1, 2, 3)
HEAP_MB = 320
STOP_S = 30.0
"""How long a broker may take to hand over what it leads, and to end."""
SYNC_S = 60.0
SETTINGS = MappingProxyType(
    {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "transaction.state.log.num.partitions": "4",
        "replica.lag.time.max.ms": "3000",  # 30 s by default
    }
)


class ThreeBrokers:
    """Three nodes; each of them is a broker, and those of `controllers` (by default all) vote on the metadata."""

    def __init__(
        self,
        cache_dir: Path,
        folder: Path,
        *,
        controllers: Sequence[int] = NODES,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        cluster_id, ports = new_id(), free_ports(2 * len(NODES))
        plain = dict(zip(NODES, ports[: len(NODES)], strict=True))
        voting = dict(zip(NODES, ports[len(NODES) :], strict=True))
        voters = ",".join(f"{node}@{LOOPBACK}:{voting[node]}" for node in controllers)
        self.bootstrap = ",".join(f"{LOOPBACK}:{port}" for port in plain.values())
        self.nodes = {
            node: Broker(
                cache_dir,
                port=plain[node],
                data=folder / f"node{node}",
                heap_mb=HEAP_MB,
                cluster_id=cluster_id,
                settings={
                    **SETTINGS,
                    **settings,
                    "node.id": str(node),
                    "controller.quorum.voters": voters,
                    **(_both_roles(plain[node], voting[node]) if node in controllers else _broker_only(plain[node])),
                },
            )
            for node in NODES
        }
        self._admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "topic.metadata.refresh.interval.ms": 1_000}
        )

    def start(self, *nodes: int) -> None:
        """Start these nodes (by default all), side by side: none serves before most of the voters are there."""
        with ThreadPoolExecutor(len(NODES)) as pool:
            for _ in pool.map(lambda node: self.nodes[node].start(), nodes or NODES):
                pass

    def kill(self, *nodes: int) -> None:
        """End these nodes at once, as a machine that loses power would."""
        for node in nodes:
            pid = self.nodes[node].pid
            assert pid is not None, f"node {node} runs"
            os.kill(pid, signal.SIGKILL)  # all of them, before any end is waited for
        for node in nodes:
            self.nodes[node].kill()

    def stop(self, node: int) -> None:
        """Stop a node as an operator does: it hands over what it leads first."""
        broker = self.nodes[node]
        assert broker.pid is not None, f"node {node} runs"
        os.kill(broker.pid, signal.SIGTERM)
        wait_for(lambda: broker.pid is None, f"node {node} has ended", timeout_s=STOP_S)
        broker.stop()

    def close(self) -> None:
        for broker in self.nodes.values():
            broker.kill()

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the node that leads each partition; -1 where none does."""
        return {number: partition.leader for number, partition in self._topic(topic).partitions.items()}

    def group_coordinator(self, group: str) -> int:
        return self._coordinator(CoordinationType.GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self._coordinator(CoordinationType.TRANSACTION, transactional_id)

    def wait_in_sync(self) -> None:
        """Wait until every partition, Kafka's own included, has a leader and all its copies in sync."""

        def in_sync() -> bool:
            return {*NODES} == {*self._admin.list_topics(timeout=10).brokers} and all(
                partition.leader in NODES and {*partition.isrs} == {*partition.replicas}
                for topic in self._admin.list_topics(timeout=10).topics.values()
                for partition in topic.partitions.values()
            )

        wait_for(in_sync, "all copies are in sync", timeout_s=SYNC_S, every_s=0.2)

    def wait_left_out(self, *nodes: int) -> None:
        """Wait until these nodes lead nothing and no copy of theirs counts as in sync."""

        def left_out() -> bool:
            return not any(
                partition.leader in nodes or {*nodes} & {*partition.isrs}
                for topic in self._admin.list_topics(timeout=10).topics.values()
                for partition in topic.partitions.values()
            )

        wait_for(left_out, f"nodes {nodes} are left out", timeout_s=SYNC_S, every_s=0.2)

    def _topic(self, topic: str) -> TopicMetadata:
        return self._admin.list_topics(topic, timeout=10).topics[topic]

    def _coordinator(self, kind: int, name: str) -> int:
        async def ask() -> int | None:
            client = AIOKafkaClient(bootstrap_servers=self.bootstrap)
            try:
                await client.bootstrap()
                found: int = await client.coordinator_lookup(kind, name)
            except KafkaError:  # it moves just now
                return None
            finally:
                await client.close()
            return found

        return wait_for(lambda: asyncio.run(ask()), f"{name} has a coordinator", every_s=0.2)


def _both_roles(port: int, controller_port: int) -> dict[str, str]:
    return {"listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}"}


def _broker_only(port: int) -> dict[str, str]:
    return {"process.roles": "broker", "listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}


@contextmanager
def three_brokers(cache_dir: Path, folder: Path, *, controllers: Sequence[int] = NODES) -> Iterator[ThreeBrokers]:
    """Run three brokers while the block runs, with their data in a folder; skip the test where none can start."""
    guard()
    brokers = ThreeBrokers(cache_dir, folder, controllers=controllers)
    try:
        with skip_without_broker():
            brokers.start()
        brokers.wait_in_sync()
        yield brokers
    finally:
        brokers.close()
