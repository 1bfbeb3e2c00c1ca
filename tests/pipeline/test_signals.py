"""Ctrl-C and SIGTERM to all processes at once, as terminals and supervisors send them: a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil
import pytest
from delta import rows_of
from history import Group
from quick import QUICK_JVM
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.kafka import KafkaConnection, read_offsets
from retryapp.pipeline.session import java_flags

pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")

pytestmark = [pytest.mark.timeout(900), pytest.mark.extended]
RECORDS = 2_000
PATIENCE_S = 300.0
STOP_S = 90.0


@pytest.fixture
def group(connection: KafkaConnection) -> Group:
    """Topics with four partitions and many dead letters, and their main topic."""
    made = Group.with_main(connection, partitions=4)
    for number in range(RECORDS):
        made.send(made.topology.dlq, number % 4, b"k%d" % number, b"v" * 100, encode_metadata(dead(number)))
    made.flush()
    return made


class Command:
    """A command in a process group of its own, in an empty folder."""

    def __init__(self, group: Group, folder: Path, name: str, *words: str) -> None:
        """Start it."""
        self.lake = folder / "lake"
        self.here = folder / "here"
        self.temporary = folder / "tmp"
        self.log = folder / f"{name}.err"
        self.out = folder / f"{name}.out"
        for each in (self.here, self.temporary):
            each.mkdir(exist_ok=True)
        line = [sys.executable, "-m", "retryapp.cli.main", "pipeline", name, "--json", "--memory", "512m"]
        line += ["--lake", str(self.lake), "--master", "local[2]"]
        line += ["--conf", f"spark.driver.extraJavaOptions={java_flags(*QUICK_JVM)}", *words]
        if name != "report":
            line += ["--broker", group.connection.bootstrap, "--group", group.topology.group]
        with self.log.open("wb") as errors, self.out.open("wb") as output:
            self.process = self._start(line, output, errors)

    def _start(self, line: list[str], output: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        variables = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONFAULTHANDLER": "1"}
        return subprocess.Popen(
            line, start_new_session=True, cwd=self.here, stdout=output, stderr=errors, env=variables
        )

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, while it runs."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-3_000:]
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def stop(self, number: int) -> int:
        """Signal all its processes; return its exit code once none of them is left."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, number)
        code = self.process.wait(STOP_S)
        assert psutil.wait_procs(started, timeout=STOP_S)[1] == [], "a process outlives the command"
        return code

    def end(self) -> tuple[int, dict[str, object]]:
        """Wait for its end: (exit code, JSON)."""
        code = self.process.wait(PATIENCE_S)
        return code, json.loads(self.out.read_text().splitlines()[-1])

    def kill(self) -> None:
        """Leave nothing of it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def is_clean(self) -> bool:
        """Tell whether it said nothing of its inside, and left nothing behind."""
        text = self.log.read_text() + self.out.read_text()
        traces = [word for word in ("Traceback", "\tat ", "Exception", "ERROR") if word in text]
        assert traces == [], text[-3_000:]
        assert list(self.here.iterdir()) == []
        assert list(self.temporary.glob("retryapp-spark-*")) == []
        return True


def numbers(lake: Path, kind: str) -> int:
    """Return how many batches are begun (``offsets``) or done (``commits``)."""
    return len([path for path in lake.glob(f"checkpoints/archive/v1/*/{kind}/*") if path.name.isdigit()])


def test_a_signal_to_all_processes(group: Group, tmp_path: Path) -> None:
    """SIGTERM in an archive run, Ctrl-C in an analysis: each ends with a word and 130, and a rerun continues."""
    archive = Command(group, tmp_path, "archive", "--rows-per-batch", "100")
    try:
        archive.wait_until(lambda: numbers(archive.lake, "commits") >= 1)
        assert archive.stop(signal.SIGTERM) == 130
        assert archive.is_clean()
        told = archive.end()[1]
        assert told["groups"][0]["interrupted"]  # type: ignore[index]
    finally:
        archive.kill()
    some = len(rows_of(archive.lake / "records", ("offset",)))
    assert 0 < some < RECORDS, "it was not stopped in the middle"

    analyse = Command(group, tmp_path, "analyse")
    try:
        analyse.wait_until(lambda: (analyse.lake / "derived" / "journeys").exists())
        assert analyse.stop(signal.SIGINT) == 130
        assert analyse.is_clean()
        error = analyse.end()[1]["error"]
        assert error["type"] == "Interrupted"  # type: ignore[index]
        assert "a rerun continues" in error["message"]  # type: ignore[index]
    finally:
        analyse.kill()
    found = Counter(rows_of(analyse.lake / "records", ("topic", "partition", "offset")))
    topic = group.topology.dlq
    assert found == Counter((topic, place, offset) for place, offset, _ in read_offsets(group.connection, topic))
    assert not (analyse.lake / "derived" / "state.json").exists(), "it was not stopped in the middle"

    again = Command(group, tmp_path, "analyse")
    try:
        again.wait_until(lambda: (again.lake / "derived" / "causes").exists() and not again.process.poll())
        code, told = again.end()
        assert code in {0, 1}, told  # dead letters of no main record are findings
        assert told["journeys"] == RECORDS
        assert again.is_clean()
    finally:
        again.kill()
    assert (again.lake / "derived" / "state.json").exists()


def test_sigterm_before_there_is_a_session(group: Group, tmp_path: Path) -> None:
    """The JVM has been started and does not serve yet: the command ends, and the JVM with it."""
    starting = Command(group, tmp_path, "archive")
    try:
        starting.wait_until(lambda: bool(psutil.Process(starting.process.pid).children()))
        assert starting.stop(signal.SIGTERM) == 130
        assert starting.is_clean()
    finally:
        starting.kill()
