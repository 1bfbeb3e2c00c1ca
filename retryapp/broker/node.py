"""One broker process: start until ready, stop, kill, start again."""

from __future__ import annotations

import fcntl
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from retryapp.broker import config, probe
from retryapp.core.errors import DiskFullError, EnvironmentFault, PortTakenError
from retryapp.jvm import Progress, disk_errors_named, ensure_jars, find_java, jar_folder, kafka_jars

START_SILENCE_S = 60.0
"""How long a broker that starts may write nothing to its log: a slow machine, or many files to check, take longer."""
START_TIMEOUT_S = 600.0
"""How long a start may take, whatever the log says."""
START_LONG_S = 10.0
"""A start that takes longer says so."""
STOP_TIMEOUT_S = 3.0
"""How long a broker may take to stop before it is killed: a process runner kills everything after 5 s."""

LEAST_FREE_BYTES = 300_000_000
"""Kafka needs room for its log and index files; it ends in mid-run when there is none."""

_PORT_ATTEMPTS = 3
_PROBE_S = 0.2
"""How long one question whether it is ready may take, at first."""
_MOST_PROBE_S = 2.0
"""The same later on: a slow machine needs longer for an answer."""
_POLL_S = 0.02
_KILL_S = 10.0
"""How long the system may take to end a process after SIGKILL."""
_OUTPUT = "output.txt"
_STARTING = ".starting"
_LAST_LINES = 3

OnWait = Callable[[str], None]


class BrokerFailedError(EnvironmentFault):
    """The broker process ended, or was not ready in time. Operator action: read its log, which the message names."""

    def __init__(self, problem: str, log: str) -> None:
        self.problem = problem
        self.log = log
        super().__init__(f"the Kafka broker {problem}. Its log: {log}")


class Broker:
    """A real Kafka node, in its own session: Ctrl-C in the terminal does not reach it, its owner stops it.

    Topics, settings and log are in the folder ``data``; without ``port`` it uses a free one. ``settings`` come on top
    of ours, ``heap_mb`` is Java's heap in megabytes. Nodes that are to be one cluster need one ``cluster_id``, and a
    ``node.id`` each in their settings.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        data: Path,
        port: int | None = None,
        log: Path | None = None,
        heap_mb: int = 512,
        settings: Mapping[str, str] | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self._cache_dir = cache_dir.absolute()  # the broker runs in its own folder
        self._fixed_port = port is not None
        self._port = port
        self.data = data.absolute()
        self.log = self.data / "broker.log" if log is None else log.absolute()
        self._heap_mb = heap_mb
        self._settings = dict(settings or {})
        self._cluster_id = cluster_id
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise BrokerFailedError("has no port yet: it was never started", "none")
        return self._port

    @property
    def bootstrap(self) -> str:
        return f"{probe.LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id; None when not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, *, progress: Progress | None = None, on_wait: OnWait | None = None) -> None:
        """Start and return once clients are served.

        `progress` is called for each jar that is downloaded, `on_wait` with a text when the start takes long.

        Raises:
            JavaMissingError: no Java 17 or newer.
            OfflineError: jars are missing and cannot be downloaded.
            PortTakenError: the port that was asked for is in use.
            DiskFullError: less than ``LEAST_FREE_BYTES`` are free.
            BrokerFailedError: anything else; the message has the broker's last error.
        """
        if self.pid is not None:
            return
        java = find_java()
        jars = ensure_jars(self._cache_dir, kafka_jars(), progress=progress)
        self._prepare_folder()
        with self._alone():
            self._start(java, jars, on_wait)

    def _start(self, java: Path, jars: tuple[Path, ...], on_wait: OnWait | None) -> None:
        config.ensure_formatted(
            self.data,
            java,
            jars,
            jar_folder(self._cache_dir, kafka_jars()),
            node_id=self._settings.get("node.id", str(config.NODE_ID)),
            cluster_id=self._cluster_id,
        )
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            controller_port = self._choose_ports()
            settings = config.properties(
                self.data, port=self.port, controller_port=controller_port, extra=self._settings
            )
            file = config.write_files(self.data, settings, self.log)
            command = config.java_command(java, jars, heap_mb=self._heap_mb, main_class="kafka.Kafka")
            try:
                self._launch([*command, str(file)], on_wait)
            except PortTakenError:  # somebody was quicker; only a port that we chose may be chosen again
                if self._fixed_port or attempt == _PORT_ATTEMPTS:
                    raise
                self._port = None
            else:
                return

    def stop(self) -> None:
        """Stop: SIGTERM, wait, then kill. Data stays; a killed broker checks its files at the next start."""
        if (pid := self.pid) is not None:
            stop_process(psutil.Process(pid))
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):  # the system cannot end it: nor can this process
                self._process.wait(_KILL_S)
            self._process = None

    def kill(self) -> None:
        """End at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def detach(self) -> None:
        """Let it run on without this object; stop it by its process id."""
        if self._process is not None:
            self._process.returncode = 0  # else Popen warns that its child still runs
            self._process = None

    def wait(self) -> int:
        """Wait for the process to end by itself; return its exit code, negative for a signal."""
        return self._process.wait() if self._process is not None else 0

    def _prepare_folder(self) -> None:
        with disk_errors_named(self.data):
            self.data.mkdir(parents=True, exist_ok=True)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.data).free
        if free < LEAST_FREE_BYTES:
            raise DiskFullError(str(self.data), f"a broker needs {LEAST_FREE_BYTES // 1_000_000} MB", free)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse to start on the folder of a broker that runs or is being started.

        Kafka itself finds out too late: its controller has written to the folder by then, and the running broker ends
        because of it (a fatal fault of its raft thread).
        """
        with ExitStack() as opened:
            with disk_errors_named(self.data):
                starting = opened.enter_context((self.data / _STARTING).open("wb"))
                locks = config.lock_file(self.data)
                kafkas = opened.enter_context(locks.open("r+b")) if locks.exists() else None
            try:
                fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if kafkas is not None:
                    fcntl.lockf(kafkas, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    kafkas.close()  # released at once: only a test
            except OSError as error:
                raise self._already_running() from error
            yield

    def _already_running(self) -> BrokerFailedError:
        return BrokerFailedError(f"cannot start: another one runs on {self.data}", str(self.log))

    def _choose_ports(self) -> int:
        """Fix the clients' port; return a free one for the controller."""
        if self._port is None:
            self._port, controller_port = probe.free_ports(2)
            return controller_port
        if not probe.port_is_free(self._port):
            raise self._port_taken()
        return next(port for port in probe.free_ports(2) if port != self._port)

    def _port_taken(self) -> PortTakenError:
        return PortTakenError(probe.LOOPBACK, self.port, "Stop what listens there, or choose another with --port")

    def _launch(self, command: list[str], on_wait: OnWait | None) -> None:
        already = self.log.stat().st_size if self.log.exists() else 0
        with (self.data / _OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - all words of the command are ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.data,
            )
        try:
            self._await_ready(already, on_wait)
        except BaseException:  # also Ctrl-C: nothing may be left running
            self.kill()
            raise

    def _await_ready(self, log_offset: int, on_wait: OnWait | None) -> None:
        began_s = spoke_s = now_s = time.monotonic()
        size = 0
        while not probe.broker_count(self.port, timeout_s=min(_MOST_PROBE_S, max(_PROBE_S, (now_s - began_s) / 10))):
            if self._process is None or self._process.poll() is not None:
                raise self._reason_of_end(log_offset)
            now_s = time.monotonic()
            if (grown := self._written()) != size:
                size, spoke_s = grown, now_s
            if on_wait is not None and now_s - began_s > START_LONG_S:
                on_wait(f"Kafka is not ready yet; its log: {self._log}")
                on_wait = None
            if now_s - began_s > START_TIMEOUT_S or now_s - spoke_s > START_SILENCE_S:
                problem = f"was not ready within {now_s - began_s:.0f} s, and was ended"
                raise BrokerFailedError(f"{problem}{_last_words(self._output(log_offset))}", self._log)

    def _written(self) -> int:
        return sum(file.stat().st_size for file in (self.log, self.data / _OUTPUT) if file.exists())

    def _output(self, log_offset: int) -> str:
        """Return what this start has written: to the log, from this offset on, and to stdout."""
        files = ((self.log, log_offset), (self.data / _OUTPUT, 0))
        return "".join(file.read_bytes()[at:].decode(errors="replace") for file, at in files if file.exists())

    @property
    def _log(self) -> str:
        """The file to read: Java itself writes to stdout, before there is a log."""
        return str(self.log if self.log.exists() else self.data / _OUTPUT)

    def _reason_of_end(self, log_offset: int) -> EnvironmentFault:
        code = self._process.returncode if self._process is not None else None
        text = self._output(log_offset)
        if "Address already in use" in text:
            return self._port_taken()
        if "No space left on device" in text:
            return DiskFullError(str(self.data), "No space left on device")
        if "Failed to acquire lock on file" in text:
            return self._already_running()
        return BrokerFailedError(f"exited with code {code} before it was ready{_last_words(text)}", self._log)


def _last_words(output: str) -> str:
    """Return the last error in what a broker has written, else its last lines; empty where it has written nothing."""
    causes = re.findall(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error): .+$", output, re.MULTILINE)
    errors = causes or re.findall(r"^\[.*?\] (?:ERROR|FATAL) .*$", output, re.MULTILINE)
    lines = errors[-1:] or [line for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    return f": {'; '.join(line.strip() for line in lines)}" if lines else ""


def stop_process(process: psutil.Process) -> None:
    """End a process, whoever has started it: SIGTERM, wait, SIGKILL."""
    process.send_signal(signal.SIGTERM)
    if not ends_within(process, STOP_TIMEOUT_S):
        process.send_signal(signal.SIGKILL)
        ends_within(process, _KILL_S)


def ends_within(process: psutil.Process, timeout_s: float) -> bool:
    """Wait until a process has ended; return whether it has. A zombie has ended: its parent may never collect it."""
    deadline_s = time.monotonic() + timeout_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
