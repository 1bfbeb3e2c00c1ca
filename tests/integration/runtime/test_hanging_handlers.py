"""Handlers that hang, in a real worker: their neighbours are done, they end dead, and the worker ends when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from harness import wait_for

from retryapp.broker.probe import free_ports
from retryapp.core.headers import decode_metadata
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic

HANGING = 7
"""More than the event loop's executor has threads on a small machine; twice as many runs, fewer than the limit."""

PROGRAM = """
import asyncio
import threading

import faust
from retryapp import Retries, RetryPolicy

app = faust.App({group!r}, broker="kafka://{bootstrap}", store="rocksdb://", broker_session_timeout=6.0)
retries = Retries(app, grace="1s", drain="1s", start_timeout="30s")
policy = RetryPolicy("200ms", timeout="500ms")


@retries.handler({plain!r}, value=bytes, policy=policy, concurrency=4)
def plain(value: bytes) -> None:
    if value == b"hang":
        threading.Event().wait()


@retries.handler({stubborn!r}, value=bytes, policy=policy, concurrency=4)
async def stubborn(value: bytes) -> None:
    while value == b"hang":
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """Two handlers' topics and their worker."""

    topologies: tuple[HandlerTopology, HandlerTopology]
    process: subprocess.Popen[bytes]
    log: Path


@pytest.fixture
def place(bootstrap: str, make_topic: Callable[[], str], tmp_path: Path) -> Iterator[_Place]:
    """A worker with a plain function and a coroutine that swallows its cancellation."""
    group, plain, stubborn = f"g{uuid.uuid4().hex[:8]}", make_topic(), make_topic()
    (tmp_path / "app.py").write_text(PROGRAM.format(group=group, bootstrap=bootstrap, plain=plain, stubborn=stubborn))
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info"],
            cwd=tmp_path,
            env={**os.environ, "RETRYAPP_WEB_PORT": str(min(free_ports(1)[0], 65_000))},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _Place((HandlerTopology(group, plain), HandlerTopology(group, stubborn)), process, log)
    finally:
        process.kill()
        process.wait(10)
        print(log.read_text(errors="replace")[-6_000:])  # noqa: T201 - for the failure report


def test_hanging_handlers_cost_their_own_records_and_nothing_else(bootstrap: str, place: _Place) -> None:
    """Each of their records is dead after its attempts, all others are done, and SIGTERM ends the worker."""
    connection = KafkaConnection(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap})
    for topology in place.topologies:
        for value in [b"hang", b"fine"] * HANGING:
            producer.produce(topology.main, value, partition=0)
    assert producer.flush(10) == 0

    def reasons(topology: HandlerTopology) -> Counter[tuple[bytes | None, str | None]]:
        if topology.dlq not in KafkaAdmin(connection).describe_topics([topology.dlq]):
            return Counter()
        letters = [(record.value, decode_metadata(record.headers)) for record in read_topic(connection, topology.dlq)]
        return Counter((value, metadata.reason if metadata else None) for value, metadata in letters)

    wanted = Counter({(b"hang", "exhausted"): HANGING})
    wait_for(lambda: all(reasons(t) == wanted for t in place.topologies), "all that hang are dead", timeout_s=50)
    log = place.log.read_text()
    assert "lane_failed" not in log
    assert log.count("retryapp.run_abandoned") == 2 * 2 * HANGING

    place.process.send_signal(signal.SIGTERM)
    began_s = time.monotonic()
    assert place.process.wait(20) == 0
    assert time.monotonic() - began_s < 12, "nobody waits for what hangs"
