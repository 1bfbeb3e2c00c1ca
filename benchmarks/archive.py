"""`python -m benchmarks.archive`: how many records a second the pipeline archives, and what each costs.

Steps: a broker of its own; records of one group as workers leave them (six of ten wait, one is dead, three succeeded,
payload of 200 bytes); a first run over some of them, so that Spark's JVM is warm (Java compiles what is hot for half a
minute of processor time); the measured run over the rest. The
machine's load is part of the result: with other programs on it, the rate says little, and the processor time per record
says more.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import psutil
from confluent_kafka import Producer

from benchmarks import machine
from retryapp.core.headers import encode_metadata
from retryapp.core.lifecycle import Succeeded
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.record import Origin, failure_id
from retryapp.core.topology import HandlerTopology, topic_specs
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.settings import current_settings
from retryapp.stage import Run

WANTED_PER_S = 40_000
PARTITIONS = 4
PAYLOAD_BYTES = 200
TOPOLOGY = HandlerTopology("bench", "orders")
MAX_MESSAGE_BYTES = 1_048_588
_BUFFER = 500_000

WAITING = RetryMetadata(
    group=TOPOLOGY.group,
    handler="shop.billing.charge",
    origin=Origin(TOPOLOGY.main, "kq8G0bTz", 0, 0),
    origin_timestamp_ms=1_900_000_000_000,
    attempt=1,
    due_at_ms=1_900_000_060_000,
    started_ms=1_900_000_000_100,
    policy="5f1c2d3e",
    tier="1m",
    first_failed_ms=1_900_000_000_350,
    last_failed_ms=1_900_000_000_350,
    error_type="requests.exceptions.ConnectionError",
    error_message="",
    fingerprint="8f3a9c0de1",
    history=(HistoryEntry(1, 1_900_000_000_350, "requests.exceptions.ConnectionError"),),
)
TRACE = "Traceback (most recent call last):\n" + '  File "shop/billing.py", line 12, in charge\n' * 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured."""

    records: int
    warm_records: int
    """Archived before, by the same JVM."""
    elapsed_s: float
    rows_per_s: float
    wanted_per_s: int
    cpu_us_per_row: dict[str, float]
    """By program: Spark's JVM, its Python workers, and the broker."""
    load_before: float
    """Load average of the last minute when the run began: beside nothing else it is near 0."""
    processors: int


def records(count: int, first: int) -> Iterator[tuple[str, int, bytes, bytes, Any]]:
    """Yield topic, partition, key, value and headers of records as workers leave them."""
    rng = random.Random(first)  # noqa: S311 - the same records each time
    for number in range(first, first + count):
        partition, kind = number % PARTITIONS, number % 10
        origin = Origin(TOPOLOGY.main, "kq8G0bTz", partition, number)
        key, message = b"customer-%d" % (number % 5_000), f"10.0.0.{number % 250}:443 refused after {number % 900} ms"
        if kind < 6:
            waits = replace(WAITING, origin=origin, error_message=message)
            yield TOPOLOGY.retry_topics[0], partition, key, rng.randbytes(PAYLOAD_BYTES), encode_metadata(waits)
        elif kind < 7:
            died = replace(
                WAITING, origin=origin, error_message=message, due_at_ms=None, tier=None, reason="exhausted",
                error_trace=TRACE,
            )  # fmt: skip
            yield TOPOLOGY.dlq, partition, key, rng.randbytes(PAYLOAD_BYTES), encode_metadata(died)
        else:
            event = Succeeded(
                group=TOPOLOGY.group,
                handler=WAITING.handler,
                failure_id=failure_id(TOPOLOGY.group, origin),
                origin=origin.text,
                attempt=2,
                started_ms=1_900_000_060_010,
                ended_ms=1_900_000_060_200,
                lateness_ms=10,
            )
            yield TOPOLOGY.events, partition, event.key, event.to_json(), ()


def write(bootstrap: str, count: int, first: int) -> None:
    """Publish records."""
    options: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "compression.type": "lz4",
        "queue.buffering.max.messages": _BUFFER,
    }
    producer = Producer(options)
    for topic, partition, key, value, headers in records(count, first):
        while True:
            try:
                producer.produce(topic, partition=partition, key=key, value=value, headers=list(headers))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("the broker did not take the records")


def processor_s() -> dict[str, float]:
    """Return the processor time that our child processes have used so far, by program."""
    used: dict[str, float] = {}
    for child in psutil.Process().children(recursive=True):
        try:
            times, name = child.cpu_times(), _program(child)
        except psutil.NoSuchProcess:
            continue
        used[name] = used.get(name, 0.0) + times.user + times.system
    return used


def _program(process: psutil.Process) -> str:
    if "java" not in process.name():
        return "python workers"
    return "spark" if any("SparkSubmit" in word for word in process.cmdline()) else "broker"


def measure(count: int, warm: int) -> Figures:
    """Archive records and return the figures."""
    from retryapp.pipeline.archive import Archive
    from retryapp.pipeline.lake import open_lake
    from retryapp.pipeline.session import SessionOptions, start_session

    with Run() as run:
        broker = run.broker(current_settings().cache_dir)
        connection = KafkaConnection(broker.bootstrap)
        admin = KafkaAdmin(connection)
        specs = topic_specs(
            TOPOLOGY,
            partitions=PARTITIONS,
            main_max_message_bytes=MAX_MESSAGE_BYTES,
            replication=1,
            longest_wait_ms=60_000,
        )
        admin.create(specs)
        admin.wait_for_topics(TOPOLOGY.owned)
        spark = start_session(SessionOptions(cache_dir=current_settings().cache_dir, memory="3g"))
        try:
            lake = open_lake(spark, str(run.folder / "lake"))
            job = Archive(spark, connection, lake, TOPOLOGY.group, now_ms=lambda: time.time_ns() // 1_000_000)
            write(broker.bootstrap, warm, 0)
            job.run_once()
            write(broker.bootstrap, count, warm)
            load, before = os.getloadavg()[0], processor_s()
            result = job.run_once()
            after = processor_s()
        finally:
            spark.stop()
    if result.rows != count:
        raise RuntimeError(f"{result.rows} of {count} records were archived")
    used = {name: after[name] - before.get(name, 0.0) for name in after}
    return Figures(
        records=count,
        warm_records=warm,
        elapsed_s=round(result.elapsed_ms / 1_000, 1),
        rows_per_s=round(result.rows_per_s),
        wanted_per_s=WANTED_PER_S,
        cpu_us_per_row={name: round(spent * 1e6 / count, 1) for name, spent in used.items()},
        load_before=round(load, 2),
        processors=os.cpu_count() or 1,
    )


@click.command()
@click.option("--records", "count", type=click.IntRange(min=1_000), default=1_000_000, show_default=True)
@click.option("--warm", type=click.IntRange(min=1_000), default=400_000, show_default=True)
def main(count: int, warm: int) -> None:
    """Measure the archive's rate; prints one JSON object."""
    figures = measure(count, warm)
    click.echo(json.dumps({**asdict(figures), "machine": machine.describe()}, indent=2))


if __name__ == "__main__":
    main()
