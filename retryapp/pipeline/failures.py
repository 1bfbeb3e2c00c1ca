"""What a failed Spark job means, and what to do about it."""

from __future__ import annotations

from typing import Final

from retryapp.core.errors import RetryAppError
from retryapp.pipeline.errors import JobFailedError

_ADVICE: Final = (
    (
        ("Concurrent update to the log", "Multiple streaming jobs", "ConcurrentModification", "CONCURRENT_QUERY"),
        "Another run of the same groups works on this lake: wait for it, or stop it",
    ),
    (
        ("data may have been lost", "KAFKA_DATA_LOSS", "OffsetOutOfRange"),
        "Records were deleted before they were read: run again, the gap is recorded and the rest is archived",
    ),
    (
        ("UnknownTopicOrPartition", "does not exist on this server", "This server does not host"),
        "A topic was deleted while it was read: run again",
    ),
    (
        ("TimeoutException", "Failed to construct kafka", "No resolvable bootstrap", "DisconnectException"),
        "The Kafka broker went away: start it again, or correct --broker",
    ),
    (("No space left", "Disk quota"), "The disk is full: free space where the lake and Spark's temporary files are"),
    (
        ("SaslAuthentication", "TopicAuthorization", "GroupAuthorization", "SslAuthentication"),
        "The broker refused us: correct the login or the rights in --client-config",
    ),
    (("ModuleNotFoundError",), "The executors' Python lacks a package: install retryapp[spark] on every node"),
    (
        ("Incomplete log file", "Malformed log", "IllegalStateException: batch", "offset log", "commit log"),
        "The checkpoint is damaged and is left alone from now on: run again, it starts from the table's own offsets",
    ),
    (("OutOfMemoryError", "Java heap space"), "Give the driver more memory (--memory), or take smaller batches"),
)
_OTHERWISE: Final = "'retryapp --traceback ...' shows Spark's own words"
MAX_CHARS: Final = 300


def named_failure(error: Exception, *, job: str) -> RetryAppError:
    """Return the error of ours that says what a failed query means.

    Args:
        error: what Spark raised.
        job: the job's name.
    """
    text = str(error)
    advice = next((advice for words, advice in _ADVICE if any(word in text for word in words)), _OTHERWISE)
    return JobFailedError(job, innermost(text), advice)


def innermost(text: str) -> str:
    """Return the line of Spark's message that tells most: the last cause, without the stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    chosen = causes[-1] if causes else lines[0] if lines else "no message"
    return chosen if len(chosen) <= MAX_CHARS else f"{chosen[:MAX_CHARS]}..."
