"""Rows of the pending table, which are also the values of its changelog; `core.row_keys` has their keys.

Row, version 2, big-endian::

    | version u8 = 2 | state u8 | hold u8 | flags u8 | due_ms u64 | since_ms u64 | attempt u32 | delivery u32 |
    | revision u32 | key_len i32 | value_len i32 | header_count u32 | more_len u32 |
    | header_count x (name_len u32, value_len i32) | key | value | header_count x (name, value) | more |

A length of -1 is null. Names are UTF-8; bytes that are not (lenient readers escape them as lone surrogates) survive.
No row is empty, so ``b""`` is never valid and a tombstone is never a row. State and hold are 0 in a row that waits for
its time. State is 1 in one that is held, and `hold` says by what, in bits: 1 by earlier records of its sequence (it was
never delivered, attempt and delivery are 0), 2 by an operator, 4 by its handler until an outside event (a token). The
time of a held row is the deadline of that, without one the last possible time. 8, alone: the record is dead, and later
ones of its sequence wait until somebody decides; the row has no payload, and the last time but one. State is 2 more in
a row without value and foreign headers: `more` says what the main topic has in their place. Others are a newer
version's: this one cannot judge them. `flags`, `revision` and `more` (tag u8, length u16, content; any number of these)
are for facts that a reader may ignore, and are kept. Flag 4: there is a tag 3. Flag 8:
the main topic has a copy for the next delivery. Flag 16: the row ends with a tag 4, so that tables count by its cause
without decoding it.
Tag 1: a hold that begins when the record's run has failed; its deadline, u64. Tag 2: time i64, size u32, checksum u32
and the time until which that is safe u64 of a `Reference`. Tag 3: the circuit that has counted the last failure. Tag 4:
the last failure: its cause 5 bytes, the attempts spent u32 and its time u64; a row without it was never delivered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, NoReturn

from retryapp.core.causes import CAUSE_BYTES
from retryapp.core.errors import DamagedMetadataError, DamagedRowError, NewerRowError
from retryapp.core.foreign import name_bytes
from retryapp.core.headers import OUR_HEADERS, RETRY_TIER, HeaderReader
from retryapp.core.record import Headers
from retryapp.core.row_keys import HELD_ROWS, TIME_MASK, in_queue, queue_of
from retryapp.core.values import value_type

ROW_VERSION: Final = 2
ROW_OVERHEAD_BYTES: Final = 48
"""Bytes of a row without key, value and headers."""
ALONE: Final = 1
"""Flag: the handler takes lists, and the record runs alone next."""
CANCELLED: Final = 2
"""Flag: somebody has cancelled its retries while it ran; it is not run again."""
_IN_CIRCUIT: Final = 4
"""Flag: a named circuit has counted its last failure."""
SENT: Final = 8
"""Flag: the main topic has the copy of its next delivery (`core.redelivery`)."""
_FAILED: Final = 16
"""Flag: the row ends with its last failure."""
SEQUENCE: Final = 1
"""Hold: earlier records of its sequence come first, and it was never delivered."""
OPERATOR: Final = 2
"""Hold: an operator's, until a deadline; header ``retry-due-ms`` has the due time that it had."""
TOKEN: Final = 4
"""Hold: its handler waits for a release by the token of its last delivery; ``retry-due-ms`` has the deadline."""
STOPPED: Final = 8
"""Hold: the record is dead, and its sequence has stopped; the metadata is that of its dead letter."""
ROW_HEADER_OVERHEAD_BYTES: Final = 8
"""Bytes that each header adds to its name and value."""

_NO_ROW_BYTES: Final = 1 << 62
_COMMON_HEADERS: Final = 64
"""Only rows with at most this many headers are cached (`_named`, `_cuts`): bounds the caches."""
_VERSIONS_END: Final = 0x20
"""No version reaches this: bytes that begin with a printable character are never a row."""
_FIXED: Final = struct.Struct(">BBBBQQIIIiiII")
_TIME: Final = struct.Struct(">Q")
_HOLD_AT, _FLAGS_AT, _DUE_AT = 2, 3, 4
_MORE_LEN: Final = 4
_LENGTHS: Final = struct.Struct(">iiII")
_LENGTHS_AT: Final = _FIXED.size - _LENGTHS.size
_HELD_ROW: Final = bytes((ROW_VERSION, 1, SEQUENCE))
_STOPPED_ROW: Final = bytes((ROW_VERSION, 1, STOPPED))
_PAIR: Final = struct.Struct(">Ii")
_MORE: Final = struct.Struct(">BH")
_HOLD_NEXT: Final = 1
_REFERENCE_TAG: Final = 2
_CIRCUIT_TAG: Final = 3
_REFERENCE: Final = struct.Struct(">qIIQ")
_FAILURE: Final = struct.Struct(f">{CAUSE_BYTES}sIQ")
_FAILURE_HEAD: Final = _MORE.pack(4, _FAILURE.size)
_FAILURE_AT: Final = -_FAILURE.size
_FAILURE_HEAD_AT: Final = _FAILURE_AT - _MORE.size
FAILURE_OVERHEAD_BYTES: Final = _MORE.size + _FAILURE.size
"""Bytes that its last failure adds to a row."""
COUNTED_BYTES: Final = CAUSE_BYTES + 4
"""Of a last failure, cause and attempts: the beginning."""
_FAILED_MS_AT: Final = _FAILURE_AT + COUNTED_BYTES
UNCOUNTED: Final = b"\xff" * COUNTED_BYTES
"""What `counted_in` returns of a row that does not say."""
_REFERRED: Final = 2
"""Added to the state of a row without payload."""
_KNOWN: Final = frozenset(
    bytes((ROW_VERSION, state, hold))
    for state in range(2 * _REFERRED)
    for hold in (range(1, STOPPED + 1) if state % _REFERRED else (0,))
)
"""How rows begin that this version can judge: version, state and hold."""
_OUR_NAMES: Final = {name: name.encode() for name in OUR_HEADERS}
_OUR_TEXTS: Final = {raw: name for name, raw in _OUR_NAMES.items()}


@value_type
class Reference:
    """What the main topic has of a record, at its partition and offset."""

    timestamp_ms: int
    size: int
    """Of key, value and headers (`held_bytes`)."""
    checksum: int
    """CRC-32 over them."""
    safe_until_ms: int
    """Until then the main topic keeps it, also if nobody works for a while: later a copy waits."""


@value_type
class PendingRow:
    """A record that waits: key, value and headers as they stand on its copy on the retry topic."""

    key: bytes | None
    value: bytes | None
    """Record value; empty with ``retry-null-value`` where the original was null."""
    headers: Headers
    """Foreign headers and ours, as on the copy."""
    due_at_ms: int = 0
    """The next attempt does not start before this, epoch milliseconds."""
    since_ms: int = 0
    """When it began to wait, epoch milliseconds."""
    attempt: int = 0
    """Number of the attempt that failed last, as the policy counts."""
    delivery: int = 0
    """Number of the delivery that ended last; rises with every outcome."""
    flags: int = 0
    revision: int = 0
    more: bytes = b""
    hold: int = 0
    """What holds it, in bits; 0: nothing, it waits for its time."""
    reference: Reference | None = None
    """Value and foreign headers are on the main topic; None: they are here."""
    failure: bytes = b""
    """Its last failure (`failure_bytes`); empty: it was never delivered."""

    @property
    def held(self) -> bool:
        """Whether it waits for earlier records of its sequence, and was never delivered."""
        return bool(self.hold & SEQUENCE)

    @property
    def held_by(self) -> str | None:
        """What holds it, in a word; None: it waits for its time."""
        words = (STOPPED, "stopped"), (OPERATOR, "operator"), (TOKEN, "token"), (SEQUENCE, "sequence")
        return next((word for bit, word in words if self.hold & bit), None)

    @property
    def circuit(self) -> str:
        """Name of the circuit that has counted its last failure; empty: none."""
        return _circuit_in(self.more) if self.flags & _IN_CIRCUIT else ""

    def in_circuit(self, name: str) -> PendingRow:
        """Return the row as one whose last failure a named circuit has counted."""
        fact = _MORE.pack(_CIRCUIT_TAG, len(name)) + name.encode()
        return replace(self, flags=self.flags | _IN_CIRCUIT, more=self.more + fact)

    @property
    def hold_next_ms(self) -> int | None:
        """Deadline of a hold that begins when its run has failed; None: there is none."""
        return next((int.from_bytes(content, "big") for tag, content in _facts(self.more) if tag == _HOLD_NEXT), None)

    def held_next(self, until_ms: int | None) -> PendingRow:
        """Return the row with a hold that begins when its run has failed, or without one."""
        facts = [fact for fact in _facts(self.more) if fact[0] != _HOLD_NEXT]
        if until_ms is not None:
            facts.append((_HOLD_NEXT, _TIME.pack(until_ms)))
        more = b"".join(_MORE.pack(tag, len(content)) + content for tag, content in facts)
        return replace(self, more=more, revision=self.revision + 1)

    def held_until(self, until_ms: int, now_ms: int) -> PendingRow:
        since_ms = self.since_ms if self.hold else now_ms  # from then on `max_elapsed` does not count
        return replace(self.held_next(None), hold=self.hold | OPERATOR, due_at_ms=until_ms, since_ms=since_ms)


def failure_bytes(cause: bytes, attempt: int, failed_ms: int) -> bytes:
    """Return what a row says of its last failure; what comes last tells apart failures that count alike."""
    return _FAILURE.pack(cause, attempt, failed_ms)


def counted_in(values: Iterable[bytes]) -> list[bytes]:
    """Return cause and attempts of the last failures of rows, without decoding them; ``UNCOUNTED``: it has none.

    A dead record counts with its letter: rows that stop its sequence had its failure as well once.
    """
    # so many bytes are there, if three are the head
    return [
        raw[_FAILURE_AT:_FAILED_MS_AT]
        if raw[_FAILURE_HEAD_AT:_FAILURE_AT] == _FAILURE_HEAD
        and raw[_FLAGS_AT] & _FAILED
        and raw[:_FLAGS_AT] != _STOPPED_ROW
        else UNCOUNTED
        for raw in values
    ]


def failure_in(raw: bytes) -> tuple[bytes, int, int] | None:
    """Return the cause of a row's last failure, its attempts and its time, without decoding it; None: it has none."""
    if counted_in((raw,))[0] == UNCOUNTED:
        return None
    cause, attempts, failed_ms = _FAILURE.unpack(raw[_FAILURE_AT:])
    return cause, attempts, failed_ms & TIME_MASK  # whatever is damaged, a table can keep it


def _facts(more: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _MORE.size <= len(more):
        tag, length = _MORE.unpack_from(more, at)
        at += _MORE.size + length
        yield tag, more[at - length : at]


def _circuit_in(more: bytes) -> str:
    return next((content.decode("ascii", "replace") for tag, content in _facts(more) if tag == _CIRCUIT_TAG), "")


def key_of_row(raw: bytes, identity: bytes) -> bytes:
    """Return the key of a row in the local store, without decoding it; see `row_due_ms`."""
    if len(raw) < _FIXED.size or raw[0] != ROW_VERSION:
        return bytes(_TIME.size) + identity
    due = raw[_DUE_AT : _DUE_AT + _TIME.size]
    key = (due if due < HELD_ROWS else HELD_ROWS) + identity
    if raw[_FLAGS_AT] & _IN_CIRCUIT and not raw[_HOLD_AT]:
        more_len = int.from_bytes(raw[_FIXED.size - _MORE_LEN : _FIXED.size], "big")
        return in_queue(key, queue_of(_circuit_in(raw[len(raw) - more_len :])))
    return key


def row_due_ms(raw: bytes) -> int:
    """Return when a row is due, without decoding it; 0, at once, where the bytes are no row: it is looked at then."""
    return int.from_bytes(key_of_row(raw, b""), "big") & TIME_MASK


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def encode_row(row: PendingRow) -> bytes:
    """Encode a row; raise `DamagedRowError` for parts over 2**31 - 1 bytes or numbers that do not fit."""
    lengths: list[int] = []
    parts: list[bytes] = []
    for name, value in row.headers:
        raw = _OUR_NAMES.get(name) or name_bytes(name)
        lengths += (len(raw), -1 if value is None else len(value))
        parts += (raw, value or b"")
    numbers = row.due_at_ms, row.since_ms, row.attempt, row.delivery, row.revision
    state, more, flags = int(row.hold > 0), row.more, row.flags
    if row.failure:
        more, flags = more + _FAILURE_HEAD + row.failure, flags | _FAILED
    try:
        if (told := row.reference) is not None:
            facts = _REFERENCE.pack(told.timestamp_ms, told.size, told.checksum, told.safe_until_ms)
            state, more = state + _REFERRED, _MORE.pack(_REFERENCE_TAG, len(facts)) + facts + more
        counts = _length(row.key), _length(row.value), len(row.headers), len(more)
        fixed = _FIXED.pack(ROW_VERSION, state, row.hold, flags, *numbers, *counts)
        table = struct.pack(">" + "Ii" * len(row.headers), *lengths)
    except struct.error as error:
        raise DamagedRowError("row", f"a number does not fit: {error}") from error
    return b"".join((fixed, table, row.key or b"", row.value or b"", *parts, more))


def row_header(raw: bytes, name: bytes) -> bytes | None:
    """Return the value of a row's first header of a name without decoding the others, or None.

    Raises as `decode_row` does, but not for a reference that cannot be read.
    """
    try:
        key_length, value_length, count, more = _LENGTHS.unpack_from(raw, _LENGTHS_AT)
    except struct.error:
        _refuse(raw)
    first = _FIXED.size + count * 8
    look = _named if count <= _COMMON_HEADERS else _named.__wrapped__
    total, cuts = look(raw[_FIXED.size : first], len(name))
    first += max(0, key_length) + max(0, value_length)
    if raw[:_FLAGS_AT] not in _KNOWN or min(key_length, value_length) < -1 or first + total + more != len(raw):
        _refuse(raw)
    headers = raw[first : first + total]
    for cut, value in cuts:
        if headers[cut] == name:
            return None if value is None else headers[value]
    return None


def tier_of(raw: bytes) -> str:
    """Return the tier that a row waits in, `?` when the row does not say."""
    try:
        tier = row_header(raw, _OUR_NAMES[RETRY_TIER])
    except DamagedRowError:
        return "?"
    return "?" if tier is None else _tier_text(tier)


@lru_cache(maxsize=256)  # there are a few, and each row of a recovery names one
def _tier_text(raw: bytes) -> str:
    try:
        return HeaderReader({RETRY_TIER: raw}).name(RETRY_TIER)
    except DamagedMetadataError:
        return "?"


@lru_cache(maxsize=1024)
def _named(table: bytes, length: int) -> tuple[int, tuple[tuple[slice, slice | None], ...]]:
    """Return the bytes of all headers, and where name and value of those are whose names have a length (`_cuts`)."""
    total, names, values = _cuts.__wrapped__(table)
    pairs = zip(names, values, strict=True)
    return total, tuple(pair for pair in pairs if pair[0].stop - pair[0].start == length)


@lru_cache(maxsize=256)
def _cuts(table: bytes) -> tuple[int, tuple[slice, ...], tuple[slice | None, ...]]:
    """Locate all headers; rows of one cause are alike, so the cache hits.

    Returns:
        Bytes of all headers, `_NO_ROW_BYTES` for impossible lengths; where their names are, counted from the first
        one's; where their values are, None: null.
    """
    if len(table) % _PAIR.size:
        return _NO_ROW_BYTES, (), ()
    names: list[slice] = []
    values: list[slice | None] = []
    at = 0
    for name_length, value_length in _PAIR.iter_unpack(table):
        if value_length < -1:
            return _NO_ROW_BYTES, (), ()
        value_at = at + name_length
        names.append(slice(at, value_at))
        at = value_at + max(0, value_length)
        values.append(None if value_length < 0 else slice(value_at, at))
    return at, tuple(names), tuple(values)


def is_held(raw: bytes) -> bool:
    """Tell whether a row waits for earlier records of its sequence and for nothing else, without decoding it."""
    return raw[: len(_HELD_ROW)] == _HELD_ROW


def hold_of(raw: bytes) -> int:
    """Return what holds a row, in bits, without decoding it."""
    return raw[_HOLD_AT]


def is_stopped(raw: bytes) -> bool:
    """Tell whether a row stops a sequence, behind a record that is dead, without decoding it."""
    return raw[: len(_STOPPED_ROW)] == _STOPPED_ROW


def as_sent(raw: bytes) -> bytes:
    """Return a row with the flag `SENT`, under the same key, without decoding it."""
    return raw[:_FLAGS_AT] + bytes((raw[_FLAGS_AT] | SENT,)) + raw[_FLAGS_AT + 1 :]


def is_of_key(raw: bytes, key: bytes) -> bool:
    """Tell whether the record of a row has a key, without decoding it; of bytes that are no row it may be wrong."""
    if len(raw) < _FIXED.size:
        return False
    length, _, count, _ = _LENGTHS.unpack_from(raw, _LENGTHS_AT)
    return bool(length == len(key) and raw.startswith(key, _FIXED.size + count * 8))


def is_reference(raw: bytes) -> bool:
    """Tell whether a row has no payload, without decoding it."""
    return raw[0] == ROW_VERSION and raw[1] >= _REFERRED


def decode_row(raw: bytes) -> PendingRow:
    """Decode a row.

    Raises:
        NewerRowError: a newer retryapp wrote it.
        DamagedRowError: no possible version, or lengths that do not add up to exactly these bytes.
    """
    try:
        _, _, hold, flags, due_at_ms, since_ms, attempt, delivery, revision, *lengths = _FIXED.unpack_from(raw)
    except struct.error:
        _refuse(raw)
    key_length, value_length, count, more_length = lengths
    first = _FIXED.size + count * 8
    look = _cuts if count <= _COMMON_HEADERS else _cuts.__wrapped__
    total, name_cuts, value_cuts = look(raw[_FIXED.size : first])
    value_at = first + max(0, key_length)
    names_at = value_at + max(0, value_length)
    more_at = names_at + total
    if raw[:_FLAGS_AT] not in _KNOWN or min(key_length, value_length) < -1 or more_at + more_length != len(raw):
        _refuse(raw)
    key = None if key_length < 0 else raw[first:value_at]
    value = None if value_length < 0 else raw[value_at:names_at]
    parts, more = raw[names_at:more_at], raw[more_at:]
    raw_names = [parts[cut] for cut in name_cuts]
    names = [_OUR_TEXTS.get(name) or name.decode("utf-8", "surrogateescape") for name in raw_names]
    headers = tuple(zip(names, [None if cut is None else parts[cut] for cut in value_cuts], strict=True))
    reference, failure = None, b""
    if flags & _FAILED and more[_FAILURE_HEAD_AT:_FAILURE_AT] == _FAILURE_HEAD:
        failure, more, flags = more[_FAILURE_AT:], more[:_FAILURE_HEAD_AT], flags & ~_FAILED
    numbers = due_at_ms, since_ms, attempt, delivery, flags, revision
    if is_reference(raw):
        reference, more = _split(more)
    return PendingRow(key, value, headers, *numbers, more, hold, reference, failure)


def damaged_row(raw: bytes) -> PendingRow:
    """Return what is left of a row that cannot be decoded: its bytes as a value, and its numbers, right or wrong."""
    attempt = delivery = 0
    if len(raw) >= _FIXED.size and raw[:_FLAGS_AT] in _KNOWN:
        _, _, _, _, _, _, attempt, delivery, *_ = _FIXED.unpack_from(raw)
    return PendingRow(None, raw, (), attempt=attempt, delivery=delivery)


def _split(more: bytes) -> tuple[Reference, bytes]:
    """Return the reference, which comes first, and the other facts."""
    start, end = _MORE.size, _MORE.size + _REFERENCE.size
    if more[:start] != _MORE.pack(_REFERENCE_TAG, _REFERENCE.size) or len(more) < end:
        raise DamagedRowError("row", "it has no payload, and does not say where that is")
    return Reference(*_REFERENCE.unpack(more[start:end])), more[end:]


def _refuse(raw: bytes) -> NoReturn:
    """Say why bytes are no row that this version can judge."""
    if len(raw) < _FIXED.size:
        raise DamagedRowError("row", f"{len(raw)} bytes, fewer than the {_FIXED.size} of an empty one")
    version, state, hold, *_, key_length, value_length, count, more = _FIXED.unpack_from(raw)
    if version != ROW_VERSION:
        if ROW_VERSION < version < _VERSIONS_END:
            raise NewerRowError(version, ROW_VERSION)
        raise DamagedRowError("row", f"version {version}; known here is {ROW_VERSION}")
    if count * 8 > len(raw) - _FIXED.size:
        raise DamagedRowError("row", f"{count} headers do not fit into {len(raw)} bytes")
    at = _FIXED.size + count * 8
    lengths = (key_length, value_length, *struct.unpack_from(">" + "Ii" * count, raw, _FIXED.size))
    if min(lengths) < -1 or sum(lengths) + lengths.count(-1) + more != len(raw) - at:
        raise DamagedRowError("row", f"its {len(lengths)} parts do not add up to {len(raw) - at} bytes")
    raise NewerRowError(f"{version} with state {state} and hold {hold}", ROW_VERSION)
