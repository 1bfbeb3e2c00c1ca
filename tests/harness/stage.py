"""One test's own group, topics, folder, service and workers."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from harness.evidence import Evidence
from harness.service import Service
from harness.workers import Worker
from retryapp.broker.probe import free_ports
from retryapp.core.deduplicate import Deduplicate
from retryapp.core.policy import RetryPolicy
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.ledger import Balance

PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """A handler of the user's program; its function asks the service what to do."""

    topic: str
    policy: str = "200ms 400ms"
    value: str = "dict"
    tiers: str = "single"
    concurrency: int = 8
    timeout: str = "30s"
    max_crashes: int = 3
    publishes: str = ""
    """Topic to which each attempt publishes a result before it asks the service; none where empty."""
    declares: bool = False
    """The handler says that it publishes there."""
    hot: str | None = None
    """Waits between tries in place."""
    batch: int = 0
    """Records of one call at most; 0: the function takes one record."""
    deduplicate: str | None = None
    """Where event ids are; None: duplicates are handled."""
    order: str = "none"
    on_dead: str = "release"
    caps: Mapping[str, Any] = field(default_factory=dict)
    """`max_sequences`, `max_sequence_size` and `overflow`."""
    payload: str = "copy"
    redelivery: str = "direct"
    rate_limit: str | None = None
    max_concurrent: int | None = None
    circuit: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its `CircuitBreaker`; none where empty."""
    circuits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same by name of what a record `needs`: `Unavailable` is raised where the service refuses."""
    pauses: bool = False
    """Where the service refuses, a rule pauses the partition."""


@dataclass(slots=True)
class Stage:
    """Every name is fresh, so tests cannot meet."""

    bootstrap: str
    folder: Path
    service: Service
    group: str = field(default_factory=lambda: f"g{uuid.uuid4().hex[:8]}")
    env: dict[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    handlers: dict[str, HandlerSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Show all on the pages, away from the default port, which somebody's worker on this machine may have."""
        self.env.setdefault("RETRYAPP_WEB_PORT", str(min(free_ports(1)[0], 65_000)))
        self.env.setdefault("RETRYAPP_WEB_OPERATORS", "local:admin")

    @property
    def connection(self) -> KafkaConnection:
        return KafkaConnection(self.bootstrap)

    def main_topic(self, name: str = "orders", partitions: int = PARTITIONS) -> str:
        topic = f"{name}-{self.group}"
        admin = KafkaAdmin(self.connection)
        admin.create_main_topic(topic, partitions=partitions)
        admin.wait_for_topics([topic])
        return topic

    def program(
        self, *handlers: HandlerSpec, options: Mapping[str, Any] | None = None, code: str = "", **more: Any
    ) -> None:
        """Write the user's program, with more `code` of theirs.

        `options` are arguments of `Retries`, `more` further entries of its spec.
        """
        self.handlers = {handler.topic: handler for handler in handlers}
        spec = {
            "group": self.group,
            "bootstrap": self.bootstrap,
            "service": self.service.url,
            "session_timeout_s": 3.0,
            "partitions": PARTITIONS,
            "app_options": {},
            "options": {"grace": "5s", "drain": "2s", "start_timeout": "30s", **(options or {})},
            "handlers": [asdict(handler) for handler in handlers],
            **more,
        }
        (self.folder / "app.py").write_text(Path(__file__).with_name("user_app.py").read_text() + code)
        (self.folder / "spec.json").write_text(json.dumps(spec))

    def worker(self, name: str | None = None, *, ready: bool = True, env: Mapping[str, str] | None = None) -> Worker:
        """Start `faust -A app worker`; by default return when its lanes are open."""
        command = [sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info"]
        worker = self.start(name or f"worker{len(self.workers) + 1}", command, env=env)
        if ready:
            worker.wait_ready()
        return worker

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Worker:
        file = self.folder / f"{name}.log"
        worker = Worker(name, command, log_file=file, cwd=self.folder, env={**self.env, **(env or {})})
        self.workers.append(worker)
        return worker.start()

    def topology(self, topic: str) -> HandlerTopology:
        handler = self.handlers[topic]
        return HandlerTopology(
            group=self.group,
            main=topic,
            tiers=Tiers(handler.tiers),
            delays_ms=RetryPolicy(handler.policy).delays_ms,
            publishes=(handler.publishes,) if handler.declares else (),
            seen_window_ms=Deduplicate(handler.deduplicate).window_ms if handler.deduplicate else None,
        )

    def evidence(self, topic: str) -> Evidence:
        return Evidence(self.connection, self.topology(topic))

    def producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 5})

    def produce(self, topic: str, facts: Iterable[Mapping[str, Any]], partitions: int = PARTITIONS) -> int:
        """Publish JSON objects in turn to all partitions; return how many."""
        producer = self.producer()
        count = 0
        for count, fact in enumerate(facts, 1):
            producer.produce(
                topic, json.dumps(fact).encode(), key=str(fact.get("key", fact["id"])), partition=count % partitions
            )
            if count % 1000 == 0:
                producer.poll(0)
        assert producer.flush(20) == 0, "the broker did not take all records"
        return count

    def wait_settled(self, topic: str, timeout_s: float = 40.0) -> Balance:
        """Wait until nothing waits and every offset is committed; return the ledger's count, which adds up."""
        evidence = self.evidence(topic)
        evidence.wait_settled(timeout_s)
        return evidence.balance()

    def close(self) -> None:
        """End every process; print their logs' ends and the lives of lanes (pytest shows them when the test fails)."""
        for worker in self.workers:
            worker.kill()
        for file in {worker.log_file for worker in self.workers}:
            log = file.read_text(errors="replace")
            lanes = "\n".join(line for line in log[:-8000].splitlines() if "retryapp.lane_" in line)
            print(f"----- {file.name} -----\n{lanes}\n...\n{log[-8000:]}")  # noqa: T201 - for the report


@contextmanager
def open_stage(bootstrap: str, folder: Path) -> Iterator[Stage]:
    """Have a stage with a running service while the block runs."""
    service = Service()
    service.start()
    stage = Stage(bootstrap, folder, service)
    try:
        yield stage
    finally:
        stage.close()
        service.stop()
