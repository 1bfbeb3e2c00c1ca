"""`python -m benchmarks.archive`: how many records a second the pipeline archives, and what each costs.

Steps: a broker of its own; records of one group as workers leave them (six of ten wait, one is dead, three succeeded,
payload of 200 bytes); a first run over some of them, so that Spark's JVM is warm (Java compiles what is hot for half a
minute of processor time); the measured run over the rest. With other programs on the machine the rate says little, and
the processor time per record says more.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import psutil
from confluent_kafka import Producer

from benchmarks import machine
from benchmarks.stage import flush
from retryapp.core.headers import encode_metadata
from retryapp.core.lifecycle import Succeeded
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.record import Origin, failure_id
from retryapp.core.topology import HandlerTopology, topic_specs
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.kafka.writer import produce
from retryapp.settings import load_settings
from retryapp.stage import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WANTED_PER_S = 40_000
PARTITIONS = 4
PAYLOAD_BYTES = 200
TOPOLOGY = HandlerTopology("bench", "orders")
MAX_MESSAGE_BYTES = 1_048_588
ERROR = "requests.exceptions.ConnectionError"
WAITING = RetryMetadata(
    group=TOPOLOGY.group, handler="shop.billing.charge", origin=Origin(TOPOLOGY.main, "kq8G0bTz", 0, 0),
    origin_timestamp_ms=1_900_000_000_000, attempt=1, delivery=1, due_at_ms=1_900_000_060_000,
    started_ms=1_900_000_000_100,
    policy="5f1c2d3e", tier="1m", first_failed_ms=1_900_000_000_350, last_failed_ms=1_900_000_000_350,
    error_type=ERROR, error_message="", fingerprint="8f3a9c0de1",
    history=(HistoryEntry(1, 1_900_000_000_350, ERROR),),
)  # fmt: skip
TRACE = "Traceback (most recent call last):\n" + '  File "shop/billing.py", line 12, in charge\n' * 6


def records(count: int, first: int) -> Iterator[tuple[str, int, bytes, bytes, Any]]:
    """Yield topic, partition, key, value and headers of records as workers leave them."""
    rng = random.Random(first)  # noqa: S311 - the same records each time
    for number in range(first, first + count):
        partition, kind = number % PARTITIONS, number % 10
        origin = Origin(TOPOLOGY.main, "kq8G0bTz", partition, number)
        if kind >= 7:
            event = Succeeded(
                group=TOPOLOGY.group, handler=WAITING.handler, failure_id=failure_id(TOPOLOGY.group, origin),
                origin=origin.text, attempt=2, started_ms=1_900_000_060_010, ended_ms=1_900_000_060_200, lateness_ms=10,
            )  # fmt: skip
            yield TOPOLOGY.events, partition, event.key, event.to_json(), ()
            continue
        message = f"10.0.0.{number % 250}:443 refused after {number % 900} ms"
        metadata, topic = replace(WAITING, origin=origin, error_message=message), TOPOLOGY.retry_topics[0]
        if kind == 6:
            metadata = replace(metadata, due_at_ms=None, tier=None, reason="exhausted", error_trace=TRACE)
            topic = TOPOLOGY.dlq
        key = b"customer-%d" % (number % 5_000)
        yield topic, partition, key, rng.randbytes(PAYLOAD_BYTES), encode_metadata(metadata)


def write(connection: KafkaConnection, count: int, first: int) -> None:
    producer = connection.client(Producer, linger_ms=20, compression_type="lz4")
    for topic, partition, key, value, headers in records(count, first):
        produce(producer, topic, value, key, partition=partition, headers=list(headers))
    flush(producer)


def processor_s() -> Counter[str]:
    """Return the processor time that our child processes have used so far, in ms, by program."""
    used: Counter[str] = Counter()
    for child in psutil.Process().children(recursive=True):
        try:
            times, java, words = child.cpu_times(), "java" in child.name(), child.cmdline()
        except psutil.NoSuchProcess:
            continue
        spark = any("SparkSubmit" in word for word in words)
        used["python workers" if not java else "spark" if spark else "broker"] += int(
            (times.user + times.system) * 1000
        )
    return used


def show(figures: dict[str, Any], load: float) -> None:
    """Print figures, and what they were taken on."""
    place = {"load_before": round(load, 2), "processors": os.cpu_count(), "machine": machine.describe()}
    click.echo(json.dumps({**figures, **place}, indent=2))


@contextmanager
def spark_session(*, brief: bool) -> Iterator[SparkSession]:
    """Run a session of the pipeline, of the size that both benchmarks use."""
    from retryapp.pipeline.session import SessionOptions, start_session

    spark = start_session(SessionOptions(cache_dir=load_settings().cache_dir, memory="3g", brief=brief))
    try:
        yield spark
    finally:
        spark.stop()


@click.command()
@click.option("--records", "count", type=click.IntRange(min=1_000), default=1_000_000, show_default=True)
@click.option("--warm", type=click.IntRange(min=1_000), default=400_000, show_default=True)
def main(count: int, warm: int) -> None:
    """Measure the archive's rate; prints one JSON object."""
    from retryapp.pipeline.archive import Archive
    from retryapp.pipeline.lake import open_lake

    with Run() as run:
        connection = KafkaConnection(run.broker(load_settings().cache_dir).bootstrap)
        admin = KafkaAdmin(connection)
        admin.create(
            topic_specs(TOPOLOGY, partitions=PARTITIONS, main_max_message_bytes=MAX_MESSAGE_BYTES, replication=1)
        )
        admin.wait_for_topics(TOPOLOGY.owned)
        with spark_session(brief=False) as spark:
            lake = open_lake(spark, str(run.folder / "lake"))
            job = Archive(connection, lake, TOPOLOGY.group, now_ms=lambda: time.time_ns() // 1_000_000)
            write(connection, warm, 0)
            job.run_once()
            write(connection, count, warm)
            load, before = os.getloadavg()[0], processor_s()
            result = job.run_once()
            used = processor_s() - before
    if result.rows != count:
        raise RuntimeError(f"{result.rows} of {count} records were archived")
    figures = {
        "records": count,
        "warm_records": warm,
        "elapsed_s": round(result.elapsed_ms / 1_000, 1),
        "rows_per_s": round(result.rows_per_s),
        "wanted_per_s": WANTED_PER_S,
        "cpu_us_per_row": {name: round(ms * 1e3 / count, 1) for name, ms in used.items()},
    }
    show(figures, load)


if __name__ == "__main__":
    main()
