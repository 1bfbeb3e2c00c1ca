"""Deduplication: the event id of a record of the main topic, and how long it is remembered.

A row of the table of seen events, on its changelog and on disk:

* key, 16 bytes: the start of the event id's SHA-256. Among 10**12 ids a collision has a probability below 10**-14.
* value, version 1, big-endian: ``| version u8 = 1 | origin offset u64 | expires_ms u64 |``

The record at that offset counts as the event: it alone is never a duplicate, however often it is read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from retryapp.core.checks import is_function_of
from retryapp.core.durations import Duration, named_duration_ms
from retryapp.core.errors import DamagedRowError, InvalidSettingError, NewerRowError
from retryapp.core.hops import arriving
from retryapp.core.record import Record

EventId = Callable[[Record], "str | bytes | None"]
"""Returns the event id of a record as it was produced; None where it has none."""

IDENTITY_BYTES: Final = 16
SEEN_VERSION: Final = 1

_VALUE: Final = struct.Struct(">BQQ")
_VERSIONS_END: Final = 0x20
_HEADER: Final = "header:"


class EventIdError(TypeError):
    """A function of `deduplicate=` returned something else than an event id."""


class Seen(NamedTuple):
    """A row of the table of seen events."""

    identity: bytes
    origin_offset: int
    """Offset of the record that counts, on the main topic."""
    expires_ms: int
    """Epoch milliseconds from which on the event is forgotten."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Skip records of an event that was seen before, as a producer sends them that retries without idempotence.

    Args:
        by: source of the event id: `"header:<name>"` (of several such headers the last), or a function of the
            `Record` that returns `str`, `bytes`, or None. Records without an id, or with an empty one, are never
            skipped.
        window: how long an event is remembered after the first record of it was settled; at least a second.

    Raises:
        InvalidSettingError: `by` is neither, or the window is too short.
    """

    by: str | EventId
    window: Duration = "1d"
    window_ms: int = field(init=False)
    _header: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "window_ms", named_duration_ms("deduplicate window", self.window))
        if self.window_ms < 1_000:
            raise InvalidSettingError("deduplicate window", self.window, "expected at least 1s")
        header = self.by.removeprefix(_HEADER) if isinstance(self.by, str) else None
        object.__setattr__(self, "_header", header)
        is_named = header and self.by == f"{_HEADER}{header.strip()}"
        if not is_named and not is_function_of(1, self.by):
            expected = 'expected a function of the record (no coroutine), or "header:" and the name of a header'
            raise InvalidSettingError("deduplicate", self.by, expected)

    def identity(self, record: Record) -> bytes | None:
        """Return the row key of the record's event, None without an id.

        Raises:
            EventIdError: the function returned something else than an id.
            Exception: whatever the function raises.
        """
        if record.damage is not None:
            return None
        event_id: str | bytes | None = None
        if self._header is None:
            event_id = self.by(arriving(record) if record.headers else record)  # type: ignore[operator]  # no text
        else:
            for name, value in record.headers:
                if name == self._header:
                    event_id = value
        if event_id is not None and not isinstance(event_id, (str, bytes)):
            raise EventIdError(f"an event id is str, bytes or None, not {type(event_id).__qualname__}")
        if not event_id:
            return None
        raw = event_id.encode("utf-8", "surrogatepass") if isinstance(event_id, str) else event_id
        return hashlib.sha256(raw).digest()[:IDENTITY_BYTES]


def rule_of(given: Deduplicate | str | EventId | None) -> Deduplicate | None:
    """Return the rule that an argument stands for: a rule, the source of the event id alone, or None."""
    return given if given is None or isinstance(given, Deduplicate) else Deduplicate(given)


def encode_seen(seen: Seen) -> bytes:
    return _VALUE.pack(SEEN_VERSION, seen.origin_offset, seen.expires_ms)


def decode_seen(identity: bytes, raw: bytes) -> Seen:
    """Decode a row; raise `NewerRowError` if a newer retryapp wrote it, `DamagedRowError` if it is none."""
    if len(identity) != IDENTITY_BYTES:
        raise DamagedRowError("seen event", f"a key of {len(identity)} bytes instead of {IDENTITY_BYTES}")
    if raw and SEEN_VERSION < raw[0] < _VERSIONS_END:
        raise NewerRowError(raw[0], SEEN_VERSION)
    if len(raw) != _VALUE.size or raw[0] != SEEN_VERSION:
        raise DamagedRowError("seen event", f"{len(raw)} bytes that are no row of version {SEEN_VERSION}")
    _, origin_offset, expires_ms = _VALUE.unpack(raw)
    return Seen(identity, origin_offset, expires_ms)


def live_rows(records: Iterable[tuple[bytes, bytes | None]], now_ms: int) -> list[Seen]:
    """Return the rows among changelog records that have not expired; raise `NewerRowError` as `decode_seen` does."""
    rows: list[Seen] = []
    for key, value in records:
        try:
            row = decode_seen(key, value or b"")
        except NewerRowError:
            raise
        except DamagedRowError:
            continue  # a mark, or not ours
        if row.expires_ms > now_ms:
            rows.append(row)
    return rows
