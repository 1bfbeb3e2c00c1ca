"""A broker that keeps running: started by one command, found and stopped by another.

Its data folder holds ``broker.json`` with process id and port. The command line, which has the folder, distinguishes it
from another process with a recycled id.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil

from retryapp.broker.config import properties_file
from retryapp.broker.node import Broker, BrokerFailedError, OnWait, stop_process
from retryapp.broker.probe import LOOPBACK, broker_count
from retryapp.jvm import Progress, disk_errors_named, kafka_jars, one_process_at_a_time

_STATE = "broker.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBroker:
    """A running broker."""

    pid: int
    port: int
    data: str
    log: str
    version: str

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def ready(self) -> bool:
        """Whether it serves clients now; asks it."""
        return broker_count(self.port) > 0

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "bootstrap": self.bootstrap}


def start_kept_broker(
    cache_dir: Path, data: Path, *, port: int, progress: Progress | None = None, on_wait: OnWait | None = None
) -> tuple[KeptBroker, bool]:
    """Start a broker that outlives this process; return once it serves clients.

    Returns:
        The broker, and whether it was started now (False: it ran already).

    Raises:
        BrokerFailedError: one runs on this folder with another port, or it did not start.
        EnvironmentFault: as `Broker.start`.
    """
    with ExitStack() as opened:
        with disk_errors_named(data):
            data.mkdir(parents=True, exist_ok=True)
            opened.enter_context(one_process_at_a_time(data / ".start.lock"))  # else two brokers on one folder
        running = broker_status(data)
        if running is not None and running.port != port:
            problem = f"of {data} is already running on port {running.port}: stop it first or use that port"
            raise BrokerFailedError(problem, running.log)
        if running is not None:
            return running, False
        broker = Broker(cache_dir, port=port, data=data)
        broker.start(progress=progress, on_wait=on_wait)
        try:
            with disk_errors_named(data):
                kept = write_state(broker)
        except BaseException:  # no command could find this broker, and stop it
            broker.stop()
            raise
        broker.detach()
        return kept, True


def write_state(broker: Broker) -> KeptBroker:
    """Write a running broker's state to its data folder, so that other commands find it."""
    pid = broker.pid
    if pid is None:
        raise BrokerFailedError("exited right after it was ready", str(broker.log))
    kept = KeptBroker(
        pid=pid,
        port=broker.port,
        data=str(broker.data),
        log=str(broker.log),
        version=kafka_jars().version,
    )
    partial = broker.data / f"{_STATE}.new"
    partial.write_text(json.dumps(asdict(kept)))
    partial.replace(broker.data / _STATE)
    return kept


def broker_status(data: Path) -> KeptBroker | None:
    """Return the running broker of a data folder, if any."""
    try:
        state = json.loads((data / _STATE).read_text())
        # other builds may have written more than is asked for
        kept = KeptBroker(**{each.name: state[each.name] for each in fields(KeptBroker)})
        words = psutil.Process(kept.pid).cmdline()  # a zombie has none
        runs = words[-1:] == [str(properties_file(Path(kept.data)))]
    except (OSError, ValueError, TypeError, KeyError, psutil.Error):
        return None
    return kept if runs else None


def last_port(data: Path) -> int | None:
    """Return the port that the broker of a data folder has, or had last: its clients still ask there."""
    try:
        settings = properties_file(data).read_text()
    except OSError:
        return None
    found = re.search(r"^listeners=PLAINTEXT://[^:]+:(\d+),", settings, re.MULTILINE)
    return None if found is None else int(found[1])


def stop_kept_broker(data: Path) -> KeptBroker | None:
    """Stop the broker of a data folder; return it, or None when none ran.

    Raises:
        BrokerFailedError: it is another user's.
        EnvironmentFault: the folder is.
    """
    kept = broker_status(data)
    if kept is not None:
        try:
            stop_process(psutil.Process(kept.pid))
        except psutil.AccessDenied as error:
            problem = f"(pid {kept.pid}) belongs to another user, who has to stop it"
            raise BrokerFailedError(problem, kept.log) from error
        except psutil.NoSuchProcess:
            pass
    with disk_errors_named(data):
        (data / _STATE).unlink(missing_ok=True)
    return kept
