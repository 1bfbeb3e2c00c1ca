"""A folder and a port for each worker process of a machine.

Each process locks the first free `worker-N` below the data folder (the lock ends with the process, however it ends),
and takes the next free port for its pages.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from retryapp.core.errors import DiskFullError, PortTakenError, StoreBrokenError

MAX_WORKERS = 256
"""Workers of one group on one machine."""
OWN_DATADIR = "give this worker a data directory of its own: RETRYAPP_DATADIR or --datadir"
"""What to do if a folder is in use."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A locked folder; keep it for the life of the process."""

    number: int
    path: Path
    lock: IO[str]

    def release(self) -> None:
        """Give the folder back."""
        with contextlib.suppress(OSError):
            self.lock.close()


def claim_place(base: Path) -> WorkerPlace:
    """Lock the first free `worker-N` below `base`.

    Raises:
        StoreBrokenError: the folder cannot be written, or all are taken.
        DiskFullError: no room.
    """
    for number in range(1, MAX_WORKERS + 1):
        path = base / f"worker-{number}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / "lock").open("a+")
        except OSError as exc:
            if exc.errno == errno.ENOSPC:
                raise DiskFullError(str(path), str(exc)) from exc
            raise StoreBrokenError(str(path), str(exc), f"Let this user write there, or {OWN_DATADIR}") from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return WorkerPlace(number, path, lock)
    problem = f"all of worker-1 to worker-{MAX_WORKERS} are locked by running workers"
    raise StoreBrokenError(str(base), problem, f"Stop those that are not needed, or {OWN_DATADIR}")


_reserved: dict[int, IO[str]] = {}
"""Locks of this process's ports; they end with the process."""


def _reserve(port: int) -> bool:
    """Claim a port among the workers of this machine, which listen long after they have chosen one."""
    try:
        lock = (Path(tempfile.gettempdir()) / f"retryapp-port-{os.getuid()}-{port}.lock").open("a")
    except OSError:
        return True  # no place for a lock; a listening process is still detected
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _reserved[port] = lock
    return True


def _release(port: int) -> None:
    lock = _reserved.pop(port, None)
    if lock is not None:
        lock.close()


@atexit.register
def _release_all() -> None:
    """Close the locks, or Python warns of open files."""
    for port in list(_reserved):
        _release(port)


def free_port(host: str, first: int, attempts: int = 200) -> int:
    """Return the first port from `first` on that is free and that no other worker has chosen.

    Raises:
        PortTakenError: none of `attempts` ports is free.
    """
    for port in range(first, min(first + attempts, 65_536)):
        if not _reserve(port):
            continue
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                _release(port)
                continue
            return port
    raise PortTakenError(host, first, f"None of the {attempts} ports from there on is free; set RETRYAPP_WEB_PORT")
