"""The causes of failed Spark jobs, and their remedies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Final

from retryapp.core.errors import RetryAppError
from retryapp.pipeline.errors import JobFailedError, OtherRunError

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
    text = str(error)
    is_answer = "java_exception" in vars(error) or "Trace:" in text  # of errors in Java: py4j has its own, too
    if isinstance(error, ConnectionError) or (type(error).__module__ == "py4j.protocol" and not is_answer):
        return JobFailedError(job, "Spark's Java process has ended", _JAVA_ENDED)
    if re.search(_OTHER_RUN, text):
        return OtherRunError(job, innermost(text))
    advice = _advice(text)
    if advice is None and (advice := _advice(causes := _causes(error))) is not None:
        text = causes
    return JobFailedError(job, innermost(text), advice or _OTHERWISE)


def problem_of(error: Exception) -> str:
    """Return the innermost cause that an error of PySpark's, or of Java's, names; some in Java have no message."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    told = str(error) if java is None else str(java.getMessage() or java.toString()).splitlines()[0]
    return innermost(_causes(error) or told)


def _advice(text: str) -> str | None:
    return next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, text)), None)


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
