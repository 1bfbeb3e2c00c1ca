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
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final

import click

from retryapp.cli.console import ExitCode, on_signals
from retryapp.core.errors import EnvironmentFault

_PARENT_LOOK_S: Final = 1.0
_Events = SimpleQueue["subprocess.Popen[bytes] | signal.Signals"]
_LOOK_S: Final = 0.5  # a signal that comes just before the wait begins does not end it: its handler runs after it


def run_processes(command: Sequence[str], count: int, *, check: Sequence[str]) -> int:
    """Run a command `count` times at once until all have ended, in the main thread; all write to our own output.

    `check` runs first, alone: what it refuses, each of the others would refuse too.

    Returns:
        The first exit code other than 0, else 0; 128 plus the number for a process that a signal killed, unless it is
        the signal passed on to it: then 0 for SIGTERM and 130 for SIGINT.

    Raises:
        EnvironmentFault: a process cannot be started.
    """
    events: _Events = SimpleQueue()  # a signal handler may put any time
    with on_signals(lambda number, _: events.put(signal.Signals(number)), signal.SIGTERM, signal.SIGINT):
        codes, stopped = _run_all([check], events, is_check=True)
        if not stopped and not any(codes):
            codes, _ = _run_all([command] * count, events)
    return next((code for code in codes if code), ExitCode.FINE)


def _run_all(commands: Sequence[Sequence[str]], events: _Events, *, is_check: bool = False) -> tuple[list[int], bool]:
    """Run commands until all have ended; return their exit codes, and whether a signal or an end stopped them."""
    processes: list[subprocess.Popen[bytes]] = []
    codes: list[int] = []
    sent: signal.Signals | None = None
    try:
        for number, command in enumerate(commands, start=1):
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603 - ours
            except OSError as error:  # no memory, too many processes
                raise EnvironmentFault(f"cannot start process {number} of {len(commands)}: {error}") from error
            processes.append(process)
            threading.Thread(target=_await_end, args=(process, events), daemon=True).start()
        while len(codes) < len(commands):
            try:
                event = events.get(timeout=_LOOK_S)
            except Empty:
                continue
            if isinstance(event, signal.Signals):
                sent = event
            else:
                code = event.returncode
                codes.append(_exit_code(code, sent))
                ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                if is_check and sent is None and code not in {*ExitCode}:  # a refusal has said why
                    click.echo(f"retryapp: the check of the app ended with {ending}", err=True)
                if sent is not None or len(codes) == len(commands):
                    continue
                sent = signal.SIGTERM
                click.echo(f"retryapp: process {event.pid} ended with {ending}; the others are stopped", err=True)
            for process in processes:
                process.send_signal(sent)  # does nothing if it has ended
    finally:
        for process in processes:
            process.kill()  # after an error of our own; otherwise all have ended
    return codes, sent is not None


def stop_with_parent(parent: int) -> None:
    """Stop this process as SIGTERM does once the one that started it is gone: nothing passes a stop on any more."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _await_end(process: subprocess.Popen[bytes], events: _Events) -> None:
    process.wait()
    events.put(process)


def _exit_code(code: int, sent: signal.Signals | None) -> int:
    if sent is not None and code == -sent:  # it was not up yet and had nothing to tidy
        return ExitCode.INTERRUPTED if sent is signal.SIGINT else ExitCode.FINE
    return code if code >= 0 else 128 - code
