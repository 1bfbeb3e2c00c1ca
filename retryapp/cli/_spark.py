"""What the commands of ``retryapp pipeline`` share: options, the Spark session, and how they are stopped."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from retryapp.cli._options import BROKERS, LENGTH, Decorator, matching, pair, pipeline_client_config
from retryapp.cli._target import connect
from retryapp.cli.broker import download_progress
from retryapp.cli.console import on_signals, stderr_console
from retryapp.jvm import spark_jars
from retryapp.kafka import reach
from retryapp.pipeline.errors import TableMissingError, failures_named
from retryapp.pipeline.session import SessionOptions, active_session, brought_along, start_session
from retryapp.settings import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from retryapp.pipeline.lake import Lake

R = TypeVar("R")

LAKE: Final = "lake"
"""Folder of the default lake, in ``RETRYAPP_DATADIR``."""
STOPPED: Final = "what was committed stays, and a rerun continues"
STOP_S: Final = 15.0
CANCEL_POLL_S: Final = 0.1

MASTER: Final = matching(
    "URL",
    r"local(\[[^\]]+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn",
    "local[2], spark://HOST:PORT, k8s://..., or yarn",
)
MEMORY: Final = matching("size", r"[1-9]\d*[kmgtKMGT]", "a whole number and a unit, as 512m or 2g")

group_option = click.option(
    "--group",
    "groups",
    metavar="NAME",
    required=True,
    multiple=True,
    help="Consumer group = the Faust app's id; may be repeated.",
)


def wait_option(default: str | None, text: str) -> Decorator:
    """Add ``--wait`` as ``wait_s``; None where neither the user nor ``default`` says how long."""
    return click.option(
        "--wait", "wait_s", metavar="LENGTH", type=LENGTH, default=default, show_default=default is not None,
        callback=lambda _context, _option, length_ms: None if length_ms is None else length_ms / 1_000, help=text,
    )  # fmt: skip


def print_waiting(holder: str) -> None:
    stderr_console.print(f"waiting for another run: {holder}", highlight=False)


def lake_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add the options of the lake and of Spark; the job gets ``lake`` and ``session``."""

    @click.option("--lake", metavar="URI", help="Folder or URI of the lake. [default: .retryapp/lake]")
    @click.option(
        "--master", metavar="URL", type=MASTER, help="Spark's master. [default: this machine, all processors]"
    )
    @click.option(
        "--memory", metavar="SIZE", type=MEMORY, default="2g", show_default=True,
        help="Heap of the driver, in Java's notation.",
    )  # fmt: skip
    @click.option(
        "--conf",
        type=pair("NAME=VALUE", "spark.ui.enabled=true"),
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of Spark; may be repeated.",
    )
    @wraps(function)
    def with_lake(*, lake: str | None, master: str | None, memory: str, conf: tuple[str, ...], **others: Any) -> R:
        settings = load_settings()
        pairs = {name: value for name, _, value in (each.partition("=") for each in conf)}
        options = SessionOptions(cache_dir=settings.cache_dir, master=master, memory=memory, conf=pairs)
        return function(lake=str(settings.datadir / LAKE) if lake is None else lake, session=options, **others)

    return with_lake


def broker_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add ``--broker`` and ``--client-config``; the job gets ``connection``, to a cluster that answers."""

    @click.option("--broker", type=BROKERS, metavar="HOST:PORT", required=True, help="Bootstrap address.")
    @pipeline_client_config
    @wraps(function)
    def with_broker(*, broker: str, client_config: Path | None, **others: Any) -> R:
        connection = connect(broker, client_config)
        reach(connection)
        return function(connection=connection, **others)

    return with_broker


@contextmanager
def _own_session(options: SessionOptions) -> Iterator[SparkSession]:
    """Start a session, and stop it at the end; nothing is left in the working folder."""
    with TemporaryDirectory(prefix="retryapp-spark-", ignore_cleanup_errors=True) as scratch:
        ours = {"spark.sql.warehouse.dir": Path(scratch, "warehouse").as_uri()}
        with download_progress(spark_jars(), "Spark's connectors") as progress:
            session = start_session(replace(options, conf={**ours, **options.conf}), progress=progress)
        try:
            yield session
        except KeyboardInterrupt:  # this thread may wait for an answer of Java's that never comes
            stopping = threading.Thread(target=session.stop, daemon=True)
            stopping.start()
            stopping.join(STOP_S)
            raise
        except BaseException:
            with _java_may_be_gone():
                session.stop()
            raise
        else:
            session.stop()


@contextmanager
def lake_job(
    lake: str, options: SessionOptions, *, before_new: Callable[[str], object] | None = None
) -> Iterator[tuple[Lake, threading.Event]]:
    """Yield the lake in a session, and the event of ``interruptible``; a session that was there keeps its log.

    What fails in Spark is an error of ours, with its remedy. Without ``before_new``, as of ``open_lake``, the lake has
    to be there.
    """
    is_ours = not brought_along() and active_session() is None
    job = str(click.get_current_context().info_name)
    session = _own_session(options) if is_ours else nullcontext(start_session(options))
    with session as spark, interruptible(spark, quiet=is_ours) as stopped, failures_named(job):
        from retryapp.pipeline.lake import open_lake

        yield open_lake(spark, lake, before_new=before_new or _refuse_new), stopped


def _refuse_new(uri: str) -> NoReturn:
    raise TableMissingError(uri)  # as a wrong --lake names it


def _java_may_be_gone() -> AbstractContextManager[None]:
    """Suppress what py4j raises where Java has ended, of which the error under way tells."""
    from py4j.protocol import Py4JError

    return suppress(Py4JError, ConnectionError)


@contextmanager
def cancelled_by(stopped: threading.Event, spark: SparkSession, *, quiet: bool = False) -> Iterator[None]:
    """Cancel the body's jobs, and no others of the session, once an event is set; it then ends as by Ctrl-C.

    With ``quiet`` Spark logs nothing from then on, for good: it has pages about jobs that were cancelled.

    Raises:
        KeyboardInterrupt: the body was cancelled; what it was about to write was not written.
    """
    over, tag, context = threading.Event(), f"retryapp-{secrets.token_hex(6)}", spark.sparkContext
    context.addJobTag(tag)

    def cancel() -> None:
        while not over.wait(CANCEL_POLL_S):
            if stopped.is_set():  # again and again: between two jobs there is nothing to cancel
                if quiet:
                    context.setLogLevel("OFF")
                context.cancelJobsWithTag(tag)

    canceller = threading.Thread(target=cancel, name="retryapp-cancel", daemon=True)
    canceller.start()
    try:
        yield
    except Exception as error:  # whatever a job that was cancelled raises in the code around it
        if stopped.is_set():
            raise KeyboardInterrupt(STOPPED) from error
        raise
    finally:
        over.set()
        canceller.join()
        with _java_may_be_gone():
            context.removeJobTag(tag)


@contextmanager
def interruptible(spark: SparkSession, *, quiet: bool = False) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, which ends the body wherever it is; a second Ctrl-C does so at once.

    It needs a session: Spark handles Ctrl-C itself when it starts, and kills all jobs.
    """
    stopped = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stopped.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopped.set()

    with on_signals(on_signal, signal.SIGTERM, signal.SIGINT), cancelled_by(stopped, spark, quiet=quiet):
        yield stopped
