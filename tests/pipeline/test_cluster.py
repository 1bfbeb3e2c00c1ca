"""A real cluster: a master, two workers, the archive job on both, and an executor killed in mid-batch."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta import rows_of
from history import Group
from samples import dead
from standalone import Cluster

from retryapp.core.headers import encode_metadata
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.timeout(400), pytest.mark.extended]
RECORDS = 2_000
PATIENCE_S = 240.0
MOST_BYTES = 4 * 2**30


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until something is so, while the driver runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, log.read_text()[-3_000:]
        assert time.monotonic() < deadline_s, log.read_text()[-3_000:]
        time.sleep(0.05)


def test_an_executor_killed_in_mid_batch(
    cluster: Cluster, connection: KafkaConnection, topology: HandlerTopology, tmp_path: Path
) -> None:
    """Its tasks run again elsewhere: each record is there once, and Python functions ran on both workers."""
    group = Group(connection, topology)
    group.make(partitions=4)
    for number in range(RECORDS):
        group.send(topology.dlq, number % 4, b"k%d" % number, b"v" * 100, encode_metadata(dead(number)))
    group.flush()
    lake, log = tmp_path / "lake", tmp_path / "driver.log"
    notes = lake / "checkpoints" / "archive" / "v1"
    command = [sys.executable, "-m", "retryapp.cli.main", "pipeline", "archive", "--json", "--memory", "512m"]
    command += ["--broker", connection.bootstrap, "--group", topology.group, "--lake", str(lake)]
    command += ["--master", cluster.url, "--rows-per-batch", "1000"]
    command += [word for name, value in cluster.settings.items() for word in ("--conf", f"{name}={value}")]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    cluster.processes.append(process)
    wait_until(lambda: len(cluster.executors()) == 2, process, log)
    wait_until(lambda: done(notes, "commits") >= 1 and done(notes, "offsets") > done(notes, "commits"), process, log)
    held = cluster.memory_bytes()
    cluster.executors()[0].kill()
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-3_000:]
    found = Counter(rows_of(lake / "records", ("topic", "partition", "offset")))
    read = read_offsets(connection, topology.dlq)
    assert found == Counter((topology.dlq, partition, offset) for partition, offset, _ in read)
    assert found.total() == RECORDS
    assert {row[0] for row in rows_of(lake / "records", ("unreadable",))} == {None}
    assert held <= MOST_BYTES, f"{held / 2**30:.1f} GiB"


def done(notes: Path, kind: str) -> int:
    """Return how many batches are begun (``offsets``) or done (``commits``)."""
    return len([path for path in notes.glob(f"*/{kind}/*") if path.name.isdigit()])
