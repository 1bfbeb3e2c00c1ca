"""The caller's program or settings are wrong."""

from __future__ import annotations

from typing import ClassVar

from retryapp.core.errors.base import RetryAppError, shown


class ConfigurationError(RetryAppError):
    """The program, a policy or a setting is wrong; nothing was started. Operator action: correct it."""

    exit_code: ClassVar[int] = 2


class InvalidDurationError(ConfigurationError):
    """A text or ``timedelta`` is no usable duration. Operator action: write it with units, as ``30s`` or ``1h30m``."""

    def __init__(self, value: object, problem: str) -> None:
        self.value = value
        self.problem = problem
        super().__init__(
            f"{shown(value)} is not a duration: {problem}. Write a positive length with units, largest first, out of "
            f"d, h, m, s, ms (as '30s', '5m', '1h30m', '250ms'), from 1ms to 3650d, or pass a timedelta"
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


class NoHandlersError(ConfigurationError):
    """An app has no handlers. Operator action: decorate a function with ``@retries.handler(topic)``."""

    def __init__(self, app: str) -> None:
        self.app = app
        super().__init__(
            f"{app} has no handlers. Decorate one with @retries.handler('topic', policy=...) and start that module"
        )


class InvalidSettingError(ConfigurationError):
    """A setting has a value that cannot be used. Operator action: correct the variable or argument that is named."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        super().__init__(f"setting {name}={shown(value)}: {expected}")
