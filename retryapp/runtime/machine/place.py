"""A folder and a port for each worker process of a machine.

A process locks the first free `worker-N` of the data folder for as long as it lives, and takes the next free port.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from retryapp.core.errors import DiskFullError, InvalidSettingError, PortTakenError, StoreBrokenError

MAX_WORKERS = 256  # workers of one group on one machine
OWN_DATADIR = "give this worker a data directory of its own: RETRYAPP_DATADIR"


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A locked folder; keep it for the life of the process."""

    number: int
    path: Path
    lock: IO[str]


def _locked(path: Path) -> IO[str] | None:
    """Open a file and lock it for this process; None if another process holds the lock."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        file.close()
        if isinstance(exc, BlockingIOError):
            return None
        raise
    return file


def claim_place(base: Path) -> WorkerPlace:
    """Lock the first free `worker-N` below `base`.

    Raises:
        StoreBrokenError: the folder cannot be written or locked, or all are taken.
        DiskFullError: no room.
    """
    for number in range(1, MAX_WORKERS + 1):
        path = base / f"worker-{number}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _locked(path / "lock")
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(str(path), str(exc)) from exc
            remedy = f"Let this user write and lock files there, or {OWN_DATADIR}"
            raise StoreBrokenError(str(path), str(exc), remedy) from exc
        if lock is not None:
            return WorkerPlace(number, path, lock)
    problem = f"all of worker-1 to worker-{MAX_WORKERS} are locked by running workers"
    raise StoreBrokenError(str(base), problem, f"Stop those that are not needed, or {OWN_DATADIR}")


_reserved: list[IO[str]] = []  # locks of this process's ports; they end with the process


@atexit.register
def _close_locks() -> None:  # or Python warns of open files
    for lock in _reserved:
        lock.close()


def free_port(host: str, first: int, attempts: int = 200, *, setting: str = "RETRYAPP_WEB_PORT") -> int:
    """Return the first port from `first` on, which `setting` says, that is free and that no other worker has chosen.

    Raises:
        PortTakenError: none of `attempts` ports is free.
        InvalidSettingError: this machine does not have the address, or this user may not listen there.
    """
    denied: OSError | None = None
    for port in range(first, min(first + attempts, 65_536)):
        try:  # workers listen long after they have chosen a port
            lock = _locked(Path(tempfile.gettempdir()) / f"retryapp-port-{os.getuid()}-{port}.lock")
        except OSError:
            lock = None  # no place for a lock; a listening process is still detected
        else:
            if lock is None:
                continue
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as exc:
            if lock is not None:
                lock.close()
            if exc.errno == errno.EACCES:
                denied = exc
                continue
            if exc.errno == errno.EADDRINUSE:
                continue
            if exc.errno != errno.EADDRNOTAVAIL and not isinstance(exc, socket.gaierror):
                raise
            expected = f"expected an address of this machine: {exc}"
            raise InvalidSettingError("RETRYAPP_WEB_BIND or web_bind", host, expected) from exc
        if lock is not None:
            _reserved.append(lock)
        return port
    if denied is not None:
        expected = f"this user may not listen there ({denied.strerror}): only root listens on ports below 1024"
        raise InvalidSettingError(setting, first, expected)
    raise PortTakenError(host, first, f"None of the {attempts} ports from there on is free; set {setting}")


def local_address(servers: str) -> str | None:
    """Return the address from which this machine reaches the first of some brokers, for URLs; None without a way."""
    host, _, port = servers.partition(",")[0].rpartition(":")
    try:
        family, kind, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of UDP: nothing is sent
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    return in_url(found)


def in_url(host: str) -> str:
    """Return a host as URLs have it."""
    return f"[{host}]" if ":" in host else host
