"""Something is wrong with one record."""

from __future__ import annotations

from retryapp.core.errors.base import RetryAppError, shown


class RecordError(RetryAppError):
    """Something about one record. Never ends a worker: the record goes to the dead-letter topic with a reason."""


class UndecodableError(RecordError):
    """A record's value cannot be decoded into what the handler takes. Reason ``undecodable``; the bytes are kept."""

    def __init__(self, expected: str, problem: str) -> None:
        self.expected = expected
        self.problem = problem
        super().__init__(f"value is not {expected}: {problem}")


class DamagedMetadataError(RecordError):
    """A record's ``retry-*`` headers cannot be trusted. Reason ``damaged``."""

    def __init__(self, header: str, value: object, expected: str) -> None:
        self.header = header
        self.value = value
        self.expected = expected
        super().__init__(f"damaged retry metadata: header {header}={shown(value)}: {expected}")


class UnreadableRecordsError(RecordError):
    """Offsets of a topic could not be read: a damaged batch. Reason ``damaged``; its records are lost to the reader."""

    def __init__(self, topic: str, partition: int, first: int, last: int, problem: str) -> None:
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last
        self.problem = problem
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        super().__init__(
            f"{offsets} of {topic}[{partition}] could not be read: {problem}. Kafka's kafka-dump-log.sh shows what the "
            f"broker has of them"
        )


class NewerFormatError(DamagedMetadataError):
    """A record was written by a newer retryapp. Operator action: upgrade this worker."""

    def __init__(self, header: str, value: object, newest: int) -> None:
        self.newest = newest
        self.finding = f"{header} is {value}, known here are versions up to {newest}"
        super().__init__(header, value, f"versions up to {newest} are known here; upgrade retryapp on this worker")


class DamagedRowError(RecordError):
    """Bytes in a pending table or its changelog are no row. Operator action: remove the local store, it is rebuilt."""

    def __init__(self, what: str, problem: str) -> None:
        self.what = what
        self.problem = problem
        super().__init__(f"damaged {what} of the pending table: {problem}")


class NewerRowError(DamagedRowError):
    """A row of the pending table was written by a newer retryapp. Operator action: upgrade this worker."""

    def __init__(self, version: int | str, newest: int) -> None:
        self.version = version
        self.newest = newest
        self.finding = f"its layout is version {version}, known here are versions up to {newest}"
        super().__init__("row", f"{self.finding}; upgrade retryapp on this worker")


class DamagedEventError(RecordError):
    """A record of the events topic is no event known here. Operator action: upgrade, or find who else writes there."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"not a lifecycle event: {problem}")
