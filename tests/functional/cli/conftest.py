"""The command line in this process, and a handler whose topics hold waiting and dead records."""

from __future__ import annotations

import json
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness.operator import Operator
from samples import WAITING

from retryapp.cli.main import run
from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.record import Headers, Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
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

    operator: Operator
    topology: HandlerTopology
    topic_id: str

    @property
    def place(self) -> tuple[str, ...]:
        return ("--broker", self.operator.bootstrap, "--group", self.topology.group)

    def failure_id(self, partition: int, offset: int) -> str:
        return self.metadata(partition, offset).failure_id

    def metadata(self, partition: int, offset: int, **changes: Any) -> RetryMetadata:
        facts = {
            "group": self.topology.group,
            "origin": Origin(self.topology.main, self.topic_id, partition, offset),
            "attempt": 2,
            "tier": "5m",
            "error_type": "builtins.TimeoutError",
            "error_message": "no answer",
            "history": (HistoryEntry(1, 1_700_000_000_000, "builtins.OSError"),),
        }
        told = {**facts, **changes}
        return replace(WAITING, **{"delivery": told["attempt"], **told})

    def wait(
        self,
        partition: int,
        offset: int,
        due_at_ms: int,
        *,
        value: bytes = b"{}",
        headers: Headers = (),
        circuit: str = "",
        **told: Any,
    ) -> None:
        ours = encode_metadata(self.metadata(partition, offset, due_at_ms=due_at_ms, **told))
        row = PendingRow(b"k", value, headers + ours, due_at_ms)
        self.put(partition, offset, encode_row(row.in_circuit(circuit) if circuit else row))

    def put(self, partition: int, offset: int, row: bytes | None) -> None:
        identity = identity_of(self.metadata(partition, offset).origin)
        self.publish(self.topology.pending_changelog, partition, identity, row)

    def bury(self, partition: int, offset: int, *, value: bytes | None = b"{}", **changes: Any) -> None:
        told: dict[str, Any] = {"due_at_ms": None, "tier": None, "reason": "exhausted", **changes}
        headers = encode_metadata(self.metadata(partition, offset, **told))
        self.publish(self.topology.dlq, partition, b"k", value, (("trace", b"t-1"), *headers))

    def publish(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        self.operator.publish(topic, value, partition=partition, key=key, headers=list(headers))


@pytest.fixture
def shop(bootstrap: str) -> _Shop:
    """A handler with its topics, three partitions, empty."""
    topology = HandlerTopology(group=f"shop-{uuid.uuid4().hex[:8]}.eu", main=f"orders-{uuid.uuid4().hex[:8]}")
    admin = KafkaAdmin(KafkaConnection(bootstrap))
    plan = ensure_topics(admin, [topology], PlanOptions(create_main_partitions=3))
    return _Shop(Operator(bootstrap), topology, plan.states[topology.main].topic_id)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name for a module in the current folder, and for its group."""
    name = f"billing_{uuid.uuid4().hex[:8]}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETRYAPP_DATADIR", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def module(bootstrap: str, group: str, tmp_path: Path) -> str:
    """A user's module with one handler, in the current folder; its group is its name, its main topic `orders-NAME`."""
    source = f"""
        import faust
        from retryapp import Retries, RetryPolicy

        app = faust.App("{group}", broker="kafka://{bootstrap}", store="memory://")
        retries = Retries(app)

        @retries.handler("orders-{group}", policy=RetryPolicy("5m*2 30m*3 1h"), rate_limit="50/s")
        async def charge(order: bytes) -> None: ...
    """
    (tmp_path / f"{group}.py").write_text(textwrap.dedent(source))
    return group
