"""Findings: what a check reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is. ``warning`` and ``problem`` make a command end with 1."""

    OK = "ok"
    """As required."""
    NOTE = "note"
    """Worth knowing and nothing to do, or something that could not be checked."""
    WARNING = "warning"
    """Works now and fails under a condition that the finding names."""
    PROBLEM = "problem"
    """A worker does not start, does not continue, or loses something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    name: str
    """What was checked, as ``disk`` or ``setting offsets.retention.minutes``; stable."""
    severity: Severity
    seen: str
    """What is there."""
    expected: str = ""
    """What should be; empty for nothing in particular."""
    why: str = ""
    """What would go wrong, as a clause."""
    remedy: str = ""
    """What to do, as a sentence without its full stop; empty for ``ok``."""

    @property
    def counts(self) -> bool:
        return self.severity in {Severity.WARNING, Severity.PROBLEM}

    @property
    def text(self) -> str:
        expected = f", expected {self.expected}" if self.expected else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.name}: {self.seen}{expected}{why}." + (f" {self.remedy}." if self.remedy else "")


def ok(name: str, seen: str, expected: str = "") -> Finding:
    return Finding(name=name, severity=Severity.OK, seen=seen, expected=expected)


def note(name: str, seen: str, *, expected: str = "", why: str = "", remedy: str = "") -> Finding:
    return Finding(name=name, severity=Severity.NOTE, seen=seen, expected=expected, why=why, remedy=remedy)


def warning(name: str, seen: str, *, expected: str = "", why: str, remedy: str) -> Finding:
    return Finding(name=name, severity=Severity.WARNING, seen=seen, expected=expected, why=why, remedy=remedy)


def problem(name: str, seen: str, *, expected: str = "", why: str = "", remedy: str) -> Finding:
    return Finding(name=name, severity=Severity.PROBLEM, seen=seen, expected=expected, why=why, remedy=remedy)


def numbers(partitions: list[int]) -> str:
    """Return partition numbers in words, the first ten of them."""
    more = f" and {len(partitions) - 10} more" if len(partitions) > 10 else ""
    return ", ".join(map(str, sorted(partitions)[:10])) + more
