"""How fast pages are with many records: ``python -m tools.measure_pages --waiting 1000000 --dead 1000000``.

A real broker has so many rows and dead letters, two real workers have read them, and a reader asks one of the workers
for each page, again and again. Shown is the time until the reader has the whole page.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.stage import flush, publish
from retryapp.broker.probe import free_ports
from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import RetryMetadata
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.settings import load_settings
from retryapp.stage import Child, Run, wait_for

DAY_MS: Final = 86_400_000
READY_S: Final = 900.0
POLICY: Final = "5m*2 30m*3 1h"
PROGRAM: Final = """
import faust
from retryapp import Retries, RetryPolicy

app = faust.App("billing", broker="kafka://{bootstrap}", store="rocksdb://")
retries = Retries(app)


@retries.handler("orders", policy=RetryPolicy("{policy}"))
async def charge(order: bytes) -> None:
    raise ConnectionError("the bank does not answer")
"""
CAUSES: Final = (("app.LedgerError", "HTTP 503: maintenance"), ("app.AddressError", "no such postcode 'N1'"))


def metadata(origin: Origin, number: int, now_ms: int, **more: Any) -> RetryMetadata:
    """Return the metadata of a record that has failed."""
    error_type, message = CAUSES[number % len(CAUSES)]
    return RetryMetadata(
        group="billing", handler="billing.charge", origin=origin, origin_timestamp_ms=now_ms, started_ms=now_ms,
        policy="p", first_failed_ms=now_ms, last_failed_ms=now_ms, error_type=error_type, error_message=message,
        fingerprint=error_type, **more,
    )  # fmt: skip


def fill(connection: KafkaConnection, topology: HandlerTopology, waiting: int, dead: int, partitions: int) -> None:
    """Write rows that are due within a day, and dead letters, to their topics."""
    topic_id = KafkaAdmin(connection).describe_topics(["orders"])["orders"].topic_id
    producer = connection.client(Producer, linger_ms=50)
    now_ms = time.time_ns() // 1_000_000
    for number in range(waiting + dead):
        partition, key = number % partitions, f"key-{number % 1_000}".encode()
        origin = Origin("orders", topic_id, partition, number)
        if number < waiting:
            due_ms = now_ms + DAY_MS // 24 + number * DAY_MS // waiting
            found = metadata(origin, number, now_ms, attempt=1, delivery=1, due_at_ms=due_ms, tier="5m")
            row = encode_row(PendingRow(key, b"x" * 200, encode_metadata(found), due_ms, now_ms, 1, 1))
            publish(producer, topology.pending_changelog, partition, identity_of(origin), row)
        else:
            found = metadata(origin, number, now_ms, attempt=7, delivery=7, reason="exhausted")
            publish(producer, topology.dlq, partition, key, b"x" * 200, encode_metadata(found))
    flush(producer)
    consumer = connection.client(Consumer, group_id="billing", enable_auto_commit=False)
    begin = [TopicPartition("orders", number, 0) for number in range(partitions)]  # rows without offsets are refused
    consumer.commit(offsets=begin, asynchronous=False)
    consumer.close()


class Reader:
    """Asks one worker."""

    def __init__(self, port: int) -> None:
        self._client = http.client.HTTPConnection("localhost", port)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a page."""
        try:
            self._client.request("GET", f"/retries/{path}")
            answer = self._client.getresponse()
            return answer.status, answer.read()
        except OSError:  # it does not listen yet
            self._client.close()
            return 0, b""

    def facts(self, path: str) -> Any:
        """Return what a page says as JSON; None without an answer."""
        status, body = self.get(path + ("&" if "?" in path else "?") + "format=json")
        return json.loads(body) if status == 200 else None

    def times_ms(self, path: str, requests: int) -> list[float]:
        """Return how long each of so many answers took, the shortest first.

        Raises:
            RuntimeError: an answer was an error.
        """
        times = []
        for _ in range(requests):
            began_s = time.perf_counter()
            status, body = self.get(path)
            times.append((time.perf_counter() - began_s) * 1_000)
            if status != 200:
                raise RuntimeError(f"{path}: {status} {body[:300]!r}")
            time.sleep(0.02)
        return sorted(times)


def has(reader: Reader, waiting: int, dead: int) -> Callable[[], bool]:
    """Return whether a worker's overview has these numbers for the whole group."""

    def read() -> bool:
        facts = reader.facts("")
        group = facts["handlers"][0]["group"] if facts and facts["handlers"] else {}
        return (group.get("pending"), group.get("dead")) == (waiting, dead) and not group["unknown_partitions"]

    return read


def measure(reader: Reader, requests: int) -> None:
    """Ask for each page."""
    waiting, dead = (reader.facts(f"orders/{name}?limit=50")["records"] for name in ("pending", "dead"))
    rows = [f"orders/pending/{each['partition']}/{each['origin_offset']}" for each in waiting]
    letters = [f"orders/dead/{each['partition']}/{each['offset']}" for each in dead]
    row, letter = (next(path for path in paths if reader.get(path)[0] == 200) for paths in (rows, letters))  # its own
    pages = {
        "overview": "", "handler": "orders/", "partitions": "orders/partitions", "pending": "orders/pending",
        "pending, 500": "orders/pending?limit=500", "pending, a key": "orders/pending?key=key-7",
        "dead": "orders/dead", "dead, 500": "orders/dead?limit=500", "dead, a key": "orders/dead?key=key-7",
        "one that waits": row, "one dead letter": letter, "metrics": "metrics",
    }  # fmt: skip
    for name, path in pages.items():
        times = reader.times_ms(path, requests)
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"{name:<16} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   largest {times[-1]:6.1f} ms", flush=True)


def main() -> None:
    """Start, fill, wait, ask, print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--waiting", type=int, default=1_000_000, help="rows in all")
    options.add_argument("--dead", type=int, default=1_000_000, help="dead letters in all")
    options.add_argument("--partitions", type=int, default=8)
    options.add_argument("--requests", type=int, default=100, help="for each page")
    chosen = options.parse_args()
    with Run() as run:
        broker = run.broker(load_settings().cache_dir, heap_mb=1_024)
        Path(run.folder, "billing.py").write_text(PROGRAM.format(bootstrap=broker.bootstrap, policy=POLICY))
        place: Any = {"cwd": run.folder, "env": {"RETRYAPP_WEB_OPERATORS": "local:admin"}}
        command = [sys.executable, "-m", "retryapp.cli.main"]
        topics = [*command, "topics", "create", "-A", "billing", "--create-main", str(chosen.partitions)]
        if code := run.child("topics", topics, **place).wait(60.0):
            raise RuntimeError(f"topics create ended with {code}: {run.children[-1].log}")
        topology = HandlerTopology(group="billing", main="orders", delays_ms=RetryPolicy(POLICY).delays_ms)
        print(f"writing {chosen.waiting:,} rows and {chosen.dead:,} dead letters", flush=True)
        fill(KafkaConnection(broker.bootstrap), topology, chosen.waiting, chosen.dead, chosen.partitions)
        ports, began_s = free_ports(2), time.monotonic()
        workers = [_worker(run, command, number, port, place) for number, port in enumerate(ports)]
        reader = Reader(ports[0])
        wait_for(has(reader, chosen.waiting, chosen.dead), "the overview has all", timeout_s=READY_S, every_s=1.0)
        print(f"two workers have them after {time.monotonic() - began_s:.0f} s", flush=True)
        measure(reader, chosen.requests)
        if any(worker.ended() for worker in workers):
            raise RuntimeError("a worker has ended meanwhile")


def _worker(run: Run, command: list[str], number: int, port: int, place: Any) -> Child:
    words = ["worker", "billing", "--port", str(port), "--datadir", str(run.folder / f"data-{number}")]
    return run.child(f"worker-{number}", [*command, *words], **place)


if __name__ == "__main__":
    main()
