"""What a check has to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from retryapp.core.errors import BrokerUnreachableError, RetryAppError


class Severity(StrEnum):
    """How bad it is. ``warning`` and ``problem`` make a command end with 1."""

    OK = "ok"
    """As it has to be."""
    NOTE = "note"
    """Worth knowing, nothing to be done; or something that could not be looked at."""
    WARNING = "warning"
    """Works now, and goes wrong under a condition that the finding names."""
    PROBLEM = "problem"
    """A worker does not start, does not go on, or loses something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    """What was looked at, as ``disk`` or ``setting offsets.retention.minutes``; the same for the same thing."""
    severity: Severity
    seen: str
    """What is there."""
    expected: str = ""
    """What should be; empty where nothing special is."""
    why: str = ""
    """What would go wrong, as a clause."""
    remedy: str = ""
    """What to do, as a sentence without its full stop; empty for ``ok``."""

    @property
    def counts(self) -> bool:
        """Whether somebody has to act."""
        return self.severity in {Severity.WARNING, Severity.PROBLEM}

    @property
    def text(self) -> str:
        """One line for a log."""
        wanted = f", expected is {self.expected}" if self.expected else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.name}: {self.seen}{wanted}{why}." + (f" {self.remedy}." if self.remedy else "")


def ok(name: str, seen: str, expected: str = "") -> Finding:
    """Return that something is as it has to be."""
    return Finding(name=name, severity=Severity.OK, seen=seen, expected=expected)


def note(name: str, seen: str, *, expected: str = "", why: str = "", remedy: str = "") -> Finding:
    """Return something worth knowing."""
    return Finding(name=name, severity=Severity.NOTE, seen=seen, expected=expected, why=why, remedy=remedy)


def looked_at(name: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds; where it fails by a named error, that error is the finding.

    Args:
        name: of the finding that stands for the failure.
        look: the check.

    Raises:
        BrokerUnreachableError: passed on: nothing that comes after could be asked either.
    """
    try:
        yield from look()
    except BrokerUnreachableError:
        raise
    except RetryAppError as error:
        yield Finding(
            name=name,
            severity=Severity.PROBLEM,
            seen=str(error),
            expected="an answer",
            remedy="Mend what it names, and look again",
        )


def unanswered(name: str, error: BrokerUnreachableError) -> Finding:
    """Return that one question was not answered, by brokers that answer others."""
    return Finding(
        name=name,
        severity=Severity.PROBLEM,
        seen=error.problem,
        expected="an answer",
        why="brokers answer other questions, so a part of them is missing: a coordinator, or one of several brokers",
        remedy="Look at the brokers' logs, and at the findings about their settings",
    )


def counted(count: int, noun: str) -> str:
    """Say a number of things.

    >>> counted(1, "topic"), counted(2, "topic")
    ('1 topic', '2 topics')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def mebibytes(count: int) -> str:
    """Say a number of bytes.

    >>> mebibytes(300 << 20), mebibytes(5 << 30)
    ('300 MiB', '5.0 GiB')
    """
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
