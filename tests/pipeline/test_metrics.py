"""Metrics of the archive: of batches made by hand, and of a real run as Prometheus asks for them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from history import Group
from prometheus_client.parser import text_string_to_metric_families
from samples import dead

from retryapp.cli.main import run
from retryapp.core.errors import PortTakenError
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.pipeline.metrics import PipelineMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Samples = dict[tuple[str, str], float]
"""Name and topic (or nothing) → value."""


def scrape(address: str) -> Samples:
    """Ask as Prometheus does."""
    text = urlopen(address, timeout=10).read().decode()  # noqa: S310 - an address of the test's own
    return {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("le", "+Inf") == "+Inf"
    }


def of(samples: Samples, name: str, topic: str = "") -> float | None:
    """Return one value."""
    return samples.get((f"retryapp_pipeline_{name}", topic))


@pytest.fixture
def served() -> Iterator[tuple[PipelineMetrics, str]]:
    """Metrics on a free port."""
    metrics = PipelineMetrics()
    with metrics.served("127.0.0.1", 0) as port:
        yield metrics, f"http://127.0.0.1:{port}/metrics"


BATCH = {
    "name": "archive:billing",
    "timestamp": "2030-01-31T12:00:00.000Z",
    "numInputRows": 300,
    "processedRowsPerSecond": 150.0,
    "durationMs": {"triggerExecution": 2_000},
    "sources": [
        {
            "endOffset": {"a.dlq": {"0": 100, "1": 50}, "a.events": {"0": 7}},
            "latestOffset": json.dumps({"a.dlq": {"0": 130, "1": 55}, "a.events": {"0": 7}}),
        }
    ],
}


def test_a_batch_as_spark_tells_it(served: tuple[PipelineMetrics, str]) -> None:
    """Rows, time, rate, when it ended, and each topic's lag; queries of others, with any name or none, are left out."""
    metrics, address = served
    for name in (None, "dashboard"):
        metrics.batch_ended({**BATCH, "name": name})
    assert of(scrape(address), "rows_total") is None
    metrics.batch_ended(BATCH)
    metrics.batch_ended({**BATCH, "numInputRows": 5})
    found = scrape(address)
    assert of(found, "rows_total") == 305
    assert (of(found, "batch_seconds_count"), of(found, "batch_seconds_sum")) == (2, 4.0)
    assert of(found, "rows_per_second") == 150
    assert of(found, "last_batch_timestamp_seconds") == 1_896_091_202
    assert (of(found, "behind_offsets", "a.dlq"), of(found, "behind_offsets", "a.events")) == (35, 0)
    metrics.batch_ended({**BATCH, "sources": [{"endOffset": None, "latestOffset": None}]})
    assert of(scrape(address), "rows_total") == 605


def test_a_round_says_until_when_nothing_is_lost(served: tuple[PipelineMetrics, str]) -> None:
    """What is not read arrived after the round had looked, so retention takes it that much later."""
    metrics, address = served
    metrics.round_ended(
        "archive",
        "billing",
        began_ms=1_000_000,
        ended_ms=1_005_000,
        read={("a.dlq", 0): 10},
        ends={("a.dlq", 0): 12, ("a.events", 0): 3},
        retention_ms={"a.dlq": 60_000, "a.events": None},
        gaps=2,
    )
    found = scrape(address)
    assert of(found, "last_round_timestamp_seconds") == 1_005
    assert of(found, "loss_timestamp_seconds", "a.dlq") == 1_060
    assert of(found, "loss_timestamp_seconds", "a.events") == float("inf")
    assert of(found, "behind_offsets", "a.dlq") == 2
    assert of(found, "gaps_total") == 2


def test_a_port_that_is_taken_is_named() -> None:
    """Before anything is started, with the option to change."""
    with (
        socket.create_server(("127.0.0.1", 0)) as held,
        pytest.raises(PortTakenError, match="--metrics-port"),
        PipelineMetrics().served("127.0.0.1", held.getsockname()[1]),
    ):
        pytest.fail("it is taken")


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_a_run_of_the_archive_is_seen_over_http(
    spark: SparkSession,
    connection: KafkaConnection,
    topology: HandlerTopology,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Rows, batches, lag and rounds of `archive --every --metrics-port`, while it runs; afterwards nobody listens."""
    group = Group(connection, topology)
    group.make(partitions=2)
    for number in range(5):
        group.dead(number % 2, dead(number))
    scrapes: list[Samples] = []
    addresses: list[str] = []

    def operator() -> None:
        said, deadline_s = "", time.monotonic() + 200
        while time.monotonic() < deadline_s:
            said += capfd.readouterr().err
            found = re.search(r"metrics: (http://\S+)", said)
            if found is not None:
                addresses[:] = [found.group(1)]
                scrapes.append(scrape(addresses[0]))
                rows, rounds = of(scrapes[-1], "rows_total"), of(scrapes[-1], "last_round_timestamp_seconds")
                if rows == 5 and rounds is not None and not added.is_set():
                    group.dead(0, dead(5))
                    added.set()
                if rows == 6 and rounds is not None and of(scrapes[-1], "behind_offsets", topology.dlq) == 0:
                    break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    added = threading.Event()
    person = threading.Thread(target=operator)
    person.start()
    began_s = time.time()  # noqa: TID251 - what the program's own clock is held against
    words = ["--broker", connection.bootstrap, "--group", topology.group, "--lake", str(tmp_path / "lake")]
    code = run(["pipeline", "archive", *words, "--every", "50ms", "--metrics-port", "0"])
    ended_s = time.time()  # noqa: TID251
    person.join()
    assert code == 0
    last = scrapes[-1]
    assert of(last, "rows_total") == 6
    assert (of(last, "batch_seconds_count") or 0) >= 2
    assert 0 < (of(last, "batch_seconds_sum") or 0) < ended_s - began_s
    assert (of(last, "rows_per_second") or 0) > 0
    assert began_s < (of(last, "last_batch_timestamp_seconds") or 0) <= ended_s
    assert began_s < (of(last, "last_round_timestamp_seconds") or 0) <= ended_s
    assert of(last, "gaps_total") == 0
    kept_ms = int(KafkaAdmin(connection).describe_topics([topology.dlq])[topology.dlq].config["retention.ms"])
    assert began_s < (of(last, "loss_timestamp_seconds", topology.dlq) or 0) - kept_ms / 1_000 <= ended_s
    assert {of(last, "behind_offsets", topic) for topic in topology.owned} <= {0, None}
    with pytest.raises(OSError, match="refused"):
        scrape(addresses[0])
