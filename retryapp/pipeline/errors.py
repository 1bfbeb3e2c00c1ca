"""Errors of the pipeline's environment, and the causes of failed Spark jobs, each with its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Final

from retryapp.core.errors import EnvironmentFault, RetryAppError

_OTHER_RUN: Final = "DELTA_CONCURRENT_TRANSACTION|ConcurrentTransactionException"
_ADVICE: Final = {
    "data may have been lost|KAFKA_DATA_LOSS|OffsetOutOfRange": (
        "Records were deleted before they were read: run again, the gap is recorded and the rest is archived"
    ),
    "UnknownTopicOrPartition|does not exist on this server|This server does not host": (
        "A topic was deleted while it was read: run again"
    ),
    "FileNotFoundException: File file:.*/_delta_log/": (
        "The cluster's workers do not see the lake's folder: mount it on all nodes, or give another lake (--lake)"
    ),
    "No space left|Disk quota": "The disk is full: free space where the lake and Spark's temporary files are",
    "SaslAuthentication|TopicAuthorization|GroupAuthorization|SslAuthentication": (
        "The broker refused access: correct the login in --client-config, or grant it Read on these topics"
    ),
    "DELTA_INVALID_PROTOCOL_VERSION|DELTA_UNSUPPORTED_FEATURES|DELTA_FEATURES_PROTOCOL": (
        "The table was written by a newer Delta Lake: upgrade retryapp; nothing was changed"
    ),
    "ModuleNotFoundError": "The executors' Python lacks a package: install retryapp[spark] on every node",
    "OutOfMemoryError|Java heap space": (
        "Give the driver more memory (--memory); 'archive' may take smaller batches as well (--rows-per-batch)"
    ),
    r"org\.apache\.kafka[\w.]*TimeoutException|Failed to construct kafka|No resolvable bootstrap|DisconnectException": (
        "The Kafka broker went away: start it again, or correct --broker"
    ),
    "ClassNotFoundException|Failed to find data source": "This Spark lacks a jar: see 'retryapp pipeline jars'",
}
_OTHERWISE: Final = "'retryapp --traceback ...' shows Spark's own message"
_JAVA_ENDED: Final = (
    "The system may have killed it for want of memory: see the kernel's log. A container's limit has to hold the heap "
    "(--memory) and about 1 GB more"
)
_AFTER: Final = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
MAX_CHARS: Final = 300


class SparkMissingError(EnvironmentFault):
    """PySpark is not installed, or not the version of our jars. Operator action: install the ``spark`` extra."""

    def __init__(self, needed: str, problem: str) -> None:
        super().__init__(
            f"the pipeline needs PySpark {needed} ({problem}). Install it from your clone: pip install "
            f"'/path/to/retryapp[spark]' (565 MB), or use a platform that has it"
        )


class SparkStartError(EnvironmentFault):
    """Spark did not start. Operator action: read its output; memory, Java and ``--master`` are the usual causes."""

    def __init__(self, java: str, master: str, problem: str) -> None:
        super().__init__(
            f"Spark did not start on {master}, with {java}: {problem.rstrip('.')}. Look at the lines above. It needs "
            f"Java 17, 21 or 25, about 2 GB of free memory, a master that answers (--master) and settings that Spark "
            f"takes (--conf, --memory)"
        )


class LakeUnusableError(EnvironmentFault):
    """The lake's URI cannot be used. Operator action: correct it, or grant the rights."""

    def __init__(self, uri: str, problem: str) -> None:
        super().__init__(
            f"the lake {uri} cannot be used: {problem}. Give a folder or a URI that Spark can write to: file:, s3a:, "
            f"abfss: or gs: (the last three need their Hadoop jars and credentials)"
        )


class LakeNotSharedError(LakeUnusableError):
    """A cluster's workers do not share the lake's folder. Operator action: undo the run as advised, mount it."""

    def __init__(self, uri: str, table: str, version: int) -> None:
        restore = f"run RESTORE {table} TO VERSION AS OF {version - 1} in a Spark session on this machine"
        super().__init__(
            uri,
            f"each worker of the cluster wrote rows to its own disk, where no other machine can read them. Undo that: "
            f"{restore if version else 'remove the lake, which is new'}. Then mount its folder on all nodes, or use "
            f"another lake",
        )


class NewerLakeError(EnvironmentFault):
    """The lake was written by a newer retryapp. Operator action: upgrade this one; nothing was changed."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(
            f"{what} has format version {found}, this retryapp knows {known} and older. Upgrade retryapp; nothing was "
            f"changed"
        )


class TopicChangedError(EnvironmentFault):
    """A topic was re-created while it was being read. Operator action: run again; the message says what to look at."""

    def __init__(self, topic: str, before: str, after: str, run_id: str) -> None:
        super().__init__(
            f"topic {topic} was re-created during run {run_id} (id {before}, now {after}): its rows of "
            f"this run are marked in-doubt in the gaps table. Run again: the new topic is archived from its beginning"
        )


class OtherRunError(EnvironmentFault):
    """Another run writes to the same part of the lake. Operator action: wait for it, or stop it."""

    def __init__(self, job: str, other: str, *, is_held: bool = False) -> None:
        self.is_held = is_held
        """It has not begun to write: the other run holds the lake."""
        super().__init__(
            f"the {job} run cannot write to this lake while another one does: {other}. Wait until that ends, or stop "
            f"it; nothing was written twice"
        )


class OtherClusterError(EnvironmentFault):
    """The lake has the records of another Kafka cluster. Operator action: correct ``--broker``, or use a new lake."""

    def __init__(self, lake: str, known: str, found: str) -> None:
        super().__init__(
            f"the lake {lake} has the records of Kafka cluster {known!r}, and this is {found!r}. Correct --broker, or "
            f"give each cluster a lake of its own (--lake); nothing was changed"
        )


class TableReplacedError(EnvironmentFault):
    """The table of records is gone, or another one. Operator action: put it back, or begin again as advised."""

    def __init__(self, table: str, problem: str, mark: str = "") -> None:
        again = f"; to begin again with what topics still have, remove {mark}" if mark else ""
        super().__init__(
            f"the table {table} is not the one that this lake was archived to: {problem}. Put that table back{again}. "
            f"Nothing was changed"
        )


class ErasureUnfinishedError(EnvironmentFault):
    """Files with erased records could not be removed. Operator action: grant the rights, then ``erase --resume``."""

    def __init__(self, first: str, count: int) -> None:
        super().__init__(
            f"{count} files that may hold erased records are still there, as {first}. The erasure has not ended: grant "
            f"the right to remove them, then run 'retryapp pipeline erase --resume' with the same --lake"
        )


class NameUnknownError(EnvironmentFault):
    """The lake has no such gap or cause. Operator action: take the name from the command that lists them."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"the lake has no {kind} {name!r}. 'retryapp pipeline {kind}s' with the same --lake lists them; nothing "
            f"was changed"
        )


class TableMissingError(EnvironmentFault):
    """The lake has no archive, or no analysis yet. Operator action: run that first, or correct ``--lake``."""

    def __init__(self, lake: str, *, job: str = "archive") -> None:
        what = "analysis" if job == "analyse" else "archive"
        super().__init__(
            f"the lake {lake} has no {what} yet. Run 'retryapp pipeline {job}' with this --lake first, or correct it"
        )


class JobFailedError(EnvironmentFault):
    """A Spark job ended with an error. Operator action: as advised; what was committed stays, a rerun continues."""

    def __init__(self, job: str, problem: str, advice: str) -> None:
        super().__init__(f"the {job} job failed: {problem}. {advice}. What was committed stays; a rerun continues")


@contextmanager
def failures_named(job: str) -> Iterator[None]:
    """Raise our error for one of Spark's."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        if isinstance(error, ConnectionError) and not _is_of_spark(error):
            raise  # as where the reader of our output has gone
        raise named_failure(error, job=job) from error


def _is_of_spark(error: ConnectionError) -> bool:
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(name.startswith(("py4j.", "pyspark.")) for name in names)


def named_failure(error: Exception, *, job: str) -> RetryAppError:
    said, causes = str(error), _causes(error)
    text = f"{said}\n{causes}"
    is_answer = "java_exception" in vars(error) or "Trace:" in text  # of errors in Java: py4j has its own, too
    if isinstance(error, ConnectionError) or (type(error).__module__ == "py4j.protocol" and not is_answer):
        return JobFailedError(job, "Spark's Java process has ended", _JAVA_ENDED)
    if re.search(_OTHER_RUN, text):
        return OtherRunError(job, innermost(said if re.search(_OTHER_RUN, said) else causes))
    fitting = (
        (told, advice) for told in (said, causes) for pattern, advice in _ADVICE.items() if re.search(pattern, told)
    )
    told, advice = next(fitting, (said, _OTHERWISE))
    return JobFailedError(job, innermost(told), advice)


def problem_of(error: Exception) -> str:
    """Return the innermost cause that an error of PySpark's, or of Java's, names; some in Java have no message."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    told = str(error) if java is None else str(java.getMessage() or java.toString()).splitlines()[0]
    return innermost(_causes(error) or told)


def _causes(error: Exception) -> str:
    """Return the lines of Java's stack that name causes: the message of a task that could not write has none."""
    stack = getattr(error, "_stackTrace", None) or ""  # PySpark shows it nowhere else without the JVM
    return "\n".join(line for line in stack.splitlines() if line.startswith("Caused by: "))


def innermost(text: str) -> str:
    """Return the part of Spark's message that tells most: the last cause, without the stack.

    >>> innermost("No space left SQLSTATE: XXKST")
    'No space left'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    chosen = causes[-1] if causes else _AFTER.sub("", " ".join(lines)) or "no message"
    return chosen if len(chosen) <= MAX_CHARS else f"{chosen[:MAX_CHARS]}..."
