"""The command line in this process, and a handler whose topics hold waiting and dead records."""

from __future__ import annotations

import json
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from retryapp.cli.main import run
from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.record import Headers, Origin
from retryapp.core.rows import PendingRow, encode_row, row_key
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, PlanOptions, ensure_topics


@dataclass(frozen=True)
class Outcome:
    """What a command printed and ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Its last line."""
        parsed: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return parsed


@pytest.fixture
def retryapp(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `retryapp` with arguments."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(int(code), printed.out, printed.err)

    return call


@dataclass
class _Shop:
    """A handler on a real broker, filled by a test."""

    connection: KafkaConnection
    topology: HandlerTopology
    topic_id: str
    base: RetryMetadata = field(init=False)

    def __post_init__(self) -> None:
        self.base = RetryMetadata(
            group=self.topology.group,
            handler="billing.charge",
            origin=Origin(self.topology.main, self.topic_id, 0, 0),
            origin_timestamp_ms=1_700_000_000_000,
            attempt=2,
            due_at_ms=1_700_000_600_000,
            started_ms=1_700_000_290_000,
            policy="abc123",
            tier="5m",
            first_failed_ms=1_700_000_000_000,
            last_failed_ms=1_700_000_300_000,
            error_type="builtins.TimeoutError",
            error_message="no answer",
            fingerprint="f00d",
            history=(HistoryEntry(1, 1_700_000_000_000, "builtins.OSError"),),
        )

    @property
    def place(self) -> tuple[str, ...]:
        return ("--broker", self.connection.bootstrap, "--group", self.topology.group)

    def failure_id(self, partition: int, offset: int) -> str:
        return self.metadata(partition, offset).failure_id

    def metadata(self, partition: int, offset: int, **changes: Any) -> RetryMetadata:
        origin = Origin(self.topology.main, self.topic_id, partition, offset)
        return replace(self.base, origin=origin, **changes)

    def wait(
        self,
        partition: int,
        offset: int,
        due_at_ms: int,
        *,
        value: bytes = b"{}",
        headers: Headers = (),
        **changes: Any,
    ) -> None:
        ours = encode_metadata(self.metadata(partition, offset, due_at_ms=due_at_ms, **changes))
        row = PendingRow(b"k", value, headers + ours, 1_700_000_300_100)
        self._publish(
            self.topology.pending_changelog, partition, row_key(due_at_ms, partition, offset), encode_row(row)
        )

    def fire(self, partition: int, offset: int, due_at_ms: int) -> None:
        self._publish(self.topology.pending_changelog, partition, row_key(due_at_ms, partition, offset), None)

    def bury(self, partition: int, offset: int, *, value: bytes | None = b"{}", **changes: Any) -> None:
        told: dict[str, Any] = {"due_at_ms": None, "tier": None, "reason": "exhausted", **changes}
        headers = encode_metadata(self.metadata(partition, offset, **told))
        self._publish(self.topology.dlq, partition, b"k", value, (("trace", b"t-1"), *headers))

    def _publish(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        producer = Producer({"bootstrap.servers": self.connection.bootstrap})
        producer.produce(topic, partition=partition, key=key, value=value, headers=list(headers))
        assert producer.flush(10) == 0


@pytest.fixture
def shop(bootstrap: str) -> _Shop:
    """A handler with its topics, three partitions, empty."""
    connection = KafkaConnection(bootstrap)
    topology = HandlerTopology(group=f"shop.{uuid.uuid4().hex[:8]}", main=f"orders-{uuid.uuid4().hex[:8]}")
    plan = ensure_topics(KafkaAdmin(connection), [topology], PlanOptions(create_main_partitions=3))
    return _Shop(connection, topology, plan.states[topology.main].topic_id)


@pytest.fixture
def module(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module with one handler, in the current folder; its group is its name, its main topic `orders-NAME`."""
    name = f"billing_{uuid.uuid4().hex[:8]}"
    source = f"""
        import faust
        from retryapp import Retries, RetryPolicy

        app = faust.App("{name}", broker="kafka://{bootstrap}", store="memory://")
        retries = Retries(app)
        plain = faust.App("{name}-plain", broker="kafka://{bootstrap}")

        @retries.handler("orders-{name}", policy=RetryPolicy("5m*2 30m*3 1h"))
        async def charge(order: bytes) -> None: ...
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETRYAPP_DATADIR", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    sys.modules.pop(name, None)
