"""One broker for a whole test run, also where the run has several processes.

The first process that asks starts a keeper: this module as a program. The keeper starts the broker and stops it once no
process of the run is left. Each process holds a shared lock on a file, which the system releases however the process
ends. Where the keeper itself is killed, its guardian ends the broker.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retryapp.broker import Broker
from retryapp.broker.config import NEVER_RESTARTED
from retryapp.core.errors import EnvironmentFault
from retryapp.guardian import entrust, guard

_USERS, _STARTING, _STATE = "broker-users", "broker-starting", "broker.json"
_GUARDED = "RUN_GUARDED_BY"
"""Mark of what a guardian ends: the keeper must not end with the test process that happened to start it."""
_SETTINGS = {
    "log.initial.task.delay.ms": "86400000",  # it deletes no record for its age: a sweep at any moment would hit
    "log.retention.check.interval.ms": "86400000",  # whichever test has old timestamps just then
    **NEVER_RESTARTED,
}
_TIMEOUT_S = 150.0
"""Longer than the broker's own limit, with a download of its jars before it."""


@dataclass(frozen=True, slots=True)
class RunBroker:
    """The broker of the run; no test may stop it."""

    bootstrap: str
    data: Path
    pid: int

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])


@contextmanager
def joined(folder: Path) -> Iterator[None]:
    """Be a process of the run: the broker stays while the block runs."""
    with (folder / _USERS).open("wb") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield


def run_broker(folder: Path, cache_dir: Path) -> RunBroker:
    """Return the broker of the run; start it if no process has.

    Args:
        folder: shared by all processes of the run, each of which is `joined` to it.
        cache_dir: where the jars are.

    Raises:
        EnvironmentFault: it cannot start (no Java, offline, a full disk).
    """
    state = folder / _STATE
    with (folder / _STARTING).open("wb") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not state.exists():
            _start_keeper(folder, cache_dir)
    found = json.loads(state.read_text())
    if "error" in found:
        raise EnvironmentFault(found["error"])
    return RunBroker(found["bootstrap"], Path(found["data"]), found["pid"])


def _start_keeper(folder: Path, cache_dir: Path) -> None:
    log = folder / "broker-keeper.log"
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(cache_dir)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != _GUARDED},
            start_new_session=True,  # Ctrl-C in the terminal is for the tests; the broker outlives the last of them
        )
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not (folder / _STATE).exists():
        if keeper.poll() is not None or time.monotonic() > deadline_s:
            keeper.kill()
            keeper.wait()
            raise EnvironmentFault(f"the keeper of the broker failed: {log.read_text()[-2000:]}")
        time.sleep(0.05)
    keeper.returncode = 0  # it outlives this process; else Popen warns that its child still runs


def _keep(folder: Path, cache_dir: Path) -> None:
    """Run the broker until no process of the run is left."""
    guard()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    broker = Broker(cache_dir, data=Path(tempfile.mkdtemp(prefix="retryapp-broker-")), settings=_SETTINGS)
    entrust(broker.data)  # removed with this process
    try:
        broker.start()
        with (folder / _USERS).open("rb") as users:
            _write(folder, {"bootstrap": broker.bootstrap, "data": str(broker.data), "pid": broker.pid})
            fcntl.flock(users, fcntl.LOCK_EX)
    finally:
        broker.stop()


def _write(folder: Path, fact: dict[str, object]) -> None:
    partial = folder / f"{_STATE}.new"
    partial.write_text(json.dumps(fact))
    partial.replace(folder / _STATE)


if __name__ == "__main__":
    try:
        _keep(Path(sys.argv[1]), Path(sys.argv[2]))
    except EnvironmentFault as fault:
        _write(Path(sys.argv[1]), {"error": str(fault)})
