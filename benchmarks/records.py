"""The records that all sides get: a number, how often the handler shall fail, how long to wait, and filler.

Text, so that a peer may keep them in JSON: ``nnnnnnnnn f ddddddddddddd xxxx...``.
"""

from __future__ import annotations

from dataclasses import dataclass

ABSOLUTE_FROM = 10**11
"""A wait of at least this is an absolute due time, epoch milliseconds."""
REJECTED = -2
"""In place of a wait: the record is dead when it fails. Only our side has dead letters."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a record asks of the handler."""

    number: int
    failures: int
    """Runs that fail before one succeeds; 9: all do."""
    wait_ms: int
    """0: the policy's delay. Else a delay, an absolute due time, or `REJECTED`."""


def encode(wanted: Wanted, size: int) -> bytes:
    """Return a record's value of at least ``size`` bytes.

    >>> encode(Wanted(7, 1, 250), 30)
    b'000000007 1 0000000000250 xxxx'
    """
    return (b"%09d %d %013d " % (wanted.number, wanted.failures, wanted.wait_ms)).ljust(size, b"x")
