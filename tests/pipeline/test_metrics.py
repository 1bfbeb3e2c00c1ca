"""Metrics of the archive: of a round made by hand, and of a real run as Prometheus asks for them."""

from __future__ import annotations

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


def test_a_round_says_until_when_nothing_is_lost(served: tuple[PipelineMetrics, str]) -> None:
    """What is not read arrived after the round had looked, so retention takes it that much later."""
    metrics, address = served
    kept_ms = {"a.dlq": 60_000, "a.events": None}
    metrics.round_ended("billing", began_ms=1_000_000, ended_ms=1_005_000, gaps=2, retention_ms=kept_ms)
    found = scrape(address)
    assert of(found, "last_round_timestamp_seconds") == 1_005
    assert of(found, "loss_timestamp_seconds", "a.dlq") == 1_060
    assert of(found, "loss_timestamp_seconds", "a.events") == float("inf")
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
    """`archive --every --metrics-port` serves them while it runs, and closes the port at its end."""
    group = Group(connection, topology)
    group.make(partitions=2)
    group.dead(0, dead(0))
    scrapes: list[tuple[str, Samples]] = []

    def operator() -> None:
        said, deadline_s = "", time.monotonic() + 200
        while time.monotonic() < deadline_s:
            said += capfd.readouterr().err
            found = re.search(r"metrics: (http://\S+)", said)
            if found is not None:
                scrapes.append((found.group(1), scrape(found.group(1))))
                if of(scrapes[-1][1], "last_round_timestamp_seconds"):
                    break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    person = threading.Thread(target=operator)
    person.start()
    began_s = time.time()  # noqa: TID251 - what the program's own clock is held against
    words = ["--broker", connection.bootstrap, "--group", topology.group, "--lake", str(tmp_path / "lake")]
    code = run(["pipeline", "archive", *words, "--every", "50ms", "--metrics-port", "0"])
    ended_s = time.time()  # noqa: TID251
    person.join()
    assert code == 0
    address, last = scrapes[-1]
    assert began_s < (of(last, "last_round_timestamp_seconds") or 0) <= ended_s
    assert of(last, "gaps_total") == 0
    kept_ms = int(KafkaAdmin(connection).describe_topics([topology.dlq])[topology.dlq].config["retention.ms"])
    assert began_s < (of(last, "loss_timestamp_seconds", topology.dlq) or 0) - kept_ms / 1_000 <= ended_s
    with pytest.raises(OSError, match="refused"):
        scrape(address)
