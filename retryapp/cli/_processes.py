"""Several worker processes from one command. Restarting is the job of systemd, compose or an orchestrator.

* Each process has a process group of its own, so Ctrl-C in a terminal reaches it once: through this process.
* SIGTERM and SIGINT are passed on to all of them, which are then waited for: they know their grace time.
* When one ends, the others are stopped: fewer processes than asked for would go unnoticed, an exit is seen.
* A process whose starter was killed stops as on SIGTERM (`stop_with_parent`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import IO, Final

import click

from retryapp.cli.console import ExitCode, on_signals
from retryapp.core.errors import EnvironmentFault

LINE_BYTES: Final = 64 * 1024
"""Longer lines of output are shown in pieces of this size, so memory stays bounded."""
_LAST_OUTPUT_S: Final = 1.0
"""How long to read output after a process has ended; a grandchild may keep the pipe open without end."""


def run_processes(command: Sequence[str], count: int) -> int:
    """Run a command `count` times at once until all have ended, in the main thread; output lines begin with a name.

    Returns:
        The first exit code other than 0, else 0; 128 plus the number for a process that a signal killed, unless it is
        the signal passed on to it: then 0 for SIGTERM and 130 for SIGINT.

    Raises:
        EnvironmentFault: a process cannot be started.
    """
    events: SimpleQueue[tuple[str, int] | signal.Signals] = SimpleQueue()  # a signal handler may put at any moment
    lock = threading.Lock()
    processes: list[subprocess.Popen[bytes]] = []
    codes: list[int] = []
    sent: signal.Signals | None = None
    with on_signals(lambda number, _: events.put(signal.Signals(number)), signal.SIGTERM, signal.SIGINT):
        try:
            for number in range(1, count + 1):
                try:
                    process = _start(command)
                except OSError as error:  # no memory, too many processes
                    raise EnvironmentFault(f"cannot start process {number} of {count}: {error}") from error
                processes.append(process)
                threading.Thread(target=_follow, args=(process, f"process-{number}", lock, events), daemon=True).start()
            while len(codes) < count:
                event = events.get()
                if isinstance(event, signal.Signals):
                    sent = event
                else:
                    name, code = event
                    codes.append(_exit_code(code, sent))
                    if sent is not None or len(codes) == count:
                        continue
                    sent = signal.SIGTERM
                    ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                    click.echo(f"retryapp: {name} ended with {ending}; the others are stopped", err=True)
                for process in processes:
                    process.send_signal(sent)  # does nothing if it has ended
        finally:
            for process in processes:
                process.kill()  # after an error of our own; otherwise all have ended
    return next((code for code in codes if code), ExitCode.FINE)


def stop_with_parent(parent: int, *, every_s: float = 1.0) -> None:
    """Stop this process as SIGTERM does once the process that started it is gone.

    A starter that was killed passes nothing on: neither a stop nor output, and a handler that prints would fail.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own command line, again
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONUNBUFFERED": "1", **os.environ},
        process_group=0,
    )


def _follow(
    process: subprocess.Popen[bytes],
    name: str,
    lock: threading.Lock,
    events: SimpleQueue[tuple[str, int] | signal.Signals],
) -> None:
    """Relay the output of a process and report its end."""
    pipes = ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer))
    relays = [
        threading.Thread(target=relay, args=(source, sink, f"{name} | ".encode(), lock), daemon=True)
        for source, sink in pipes
        if source is not None
    ]
    for thread in relays:
        thread.start()
    code = process.wait()
    deadline_s = time.monotonic() + _LAST_OUTPUT_S
    for thread in relays:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    events.put((name, code))


def relay(source: IO[bytes], sink: IO[bytes], prefix: bytes, lock: threading.Lock) -> None:
    """Copy lines with a prefix until the source is closed; go on reading where the sink is closed."""
    is_open = True
    with source:
        while line := source.readline(LINE_BYTES):
            if is_open:  # else read on: a process whose pipe is full would block
                try:
                    with lock:
                        sink.write(prefix + line.rstrip(b"\r\n") + b"\n")
                        sink.flush()
                except (OSError, ValueError):
                    is_open = False


def _exit_code(code: int, sent: signal.Signals | None) -> int:
    if sent is not None and code == -sent:  # it was not up yet and had nothing to tidy
        return ExitCode.INTERRUPTED if sent is signal.SIGINT else ExitCode.FINE
    return code if code >= 0 else 128 - code
