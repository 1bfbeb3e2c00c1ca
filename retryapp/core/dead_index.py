"""What the index of dead letters keeps of each, and its bytes: what lists show and jobs select by, never values.

Bytes, big-endian; a store of another layout is rebuilt (`runtime.stores.store.FORMAT_VERSION`)::

    | flags u8 | append_ms i64 | first_failed_ms i64 | last_failed_ms i64 | attempt u32 | replays u32 |
    | cause 5 bytes | key hash 8 bytes | 6 x length u16 | failure id | reason | error type | message | key | damage |

Texts are cut, so a letter takes some 100 bytes on disk; the dead-letter topic has the whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeVar

from retryapp.core.causes import CAUSE_BYTES, cause_bytes, cause_id, cause_name, cause_text
from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import (
    RETRY_ATTEMPT,
    RETRY_ERROR_MESSAGE,
    RETRY_ERROR_TYPE,
    RETRY_FINGERPRINT,
    RETRY_FIRST_FAILED_MS,
    RETRY_LAST_FAILED_MS,
    RETRY_REASON,
    RETRY_REPLAYS,
    HeaderReader,
    failure_id_of,
    reader_of,
)
from retryapp.core.metadata import MAX_COUNT, MAX_NAME_BYTES
from retryapp.core.record import Headers
from retryapp.core.salvage import readable, single
from retryapp.core.text import cut_text
from retryapp.core.values import keyword_value_type

MAX_MESSAGE_BYTES: Final = 80
"""Bytes of an error's message that the index keeps."""
MAX_KEY_BYTES: Final = 32
"""The same of a record's key."""
MAX_TYPE_BYTES: Final = 80
_MAX_DAMAGE_BYTES: Final = 240
HASH_BYTES: Final = 8
CLOCKS_MS: Final = 60_000
"""How far apart the append times of two letters are if they tell which one is older: each broker has its own clock."""

T = TypeVar("T")

_FIXED: Final = struct.Struct(f">BqqqII{CAUSE_BYTES}s{HASH_BYTES}s6H")
_KEYLESS, _CAUSELESS, _DAMAGED, _OTHER = 1, 2, 4, 8


@keyword_value_type
class IndexedLetter:
    """One dead letter as the index has it. None is what its headers do not say, or not readably."""

    offset: int
    """On the dead-letter topic."""
    append_ms: int
    """When it was appended there, epoch milliseconds; -1: unknown."""
    failure_id: str | None
    reason: str | None
    attempt: int | None
    replays: int
    """How often it had been replayed before it died."""
    error_type: str | None
    message: str | None
    """Beginning of the error's message, at most ``MAX_MESSAGE_BYTES``."""
    first_failed_ms: int | None
    last_failed_ms: int | None
    cause_id: str | None
    cause: str | None
    """Name of the cause; None where the table keeps no name (`MAX_CAUSES`)."""
    key: bytes | None
    """Beginning of the record's key, at most ``MAX_KEY_BYTES``."""
    key_hash: bytes
    damaged: str | None
    """What is wrong with its headers; None: nothing."""
    other: bool = False
    """It was counted as one of the other causes, without a name of their own."""
    mark: str | None = None
    """What became of the letter since; None: nothing."""
    job: str | None = None
    """The job that did it."""

    @property
    def has_whole_key(self) -> bool:
        return hash_of(self.key or b"") == self.key_hash

    @property
    def age(self) -> LetterAge:
        return LetterAge(self.append_ms, self.reason, self.replays)


class LetterAge(NamedTuple):
    """What tells which letter of a record is the newest."""

    append_ms: int
    reason: str | None
    replays: int


def newest_letter(letters: Sequence[T], age: Callable[[T], LetterAge]) -> T:
    """Return the newest of the letters of one record; of each dead-letter topic, the last one.

    Their times tell, for whoever sets an offset back has a record die anew, with numbers that begin anew. Where they
    are within ``CLOCKS_MS``, as after a replay, its number tells. Nothing replays a damaged letter, so none comes after
    it; and it may not know its number.
    """
    latest_ms = max(age(letter).append_ms for letter in letters)

    def order(letter: T) -> tuple[bool, bool, int]:
        at_ms, reason, replays = age(letter)
        return at_ms >= latest_ms - CLOCKS_MS, reason == DeadReason.DAMAGED, replays

    return max(letters, key=order)


def hash_of(content: bytes) -> bytes:
    """Return the hash under which keys and failure ids are indexed."""
    return blake2b(content, digest_size=HASH_BYTES).digest()


def index_letter(offset: int, headers: Headers, key: bytes | None, append_ms: int) -> IndexedLetter:
    """Return what the index keeps of a dead letter; damaged headers are no reason to leave it out.

    Only the headers that the index needs are read: all of them, with traceback and history, take three times as long.
    """
    facts: dict[str, Any] = {}
    try:
        read = reader_of(headers)
        damaged = "the record carries no retry metadata" if read is None else None
        if read is not None:
            facts = _facts(read)
    except DamagedMetadataError as error:
        damaged = cut_text(str(error), _MAX_DAMAGE_BYTES)
    if damaged is not None:
        reason = readable(partial(HeaderReader(single(headers)).text, RETRY_REASON), None)
        reason = None if reason is None else cut_text(reason, MAX_NAME_BYTES)
        facts = {**_NOTHING, "failure_id": failure_id_of(headers), "reason": reason}
    kept = None if key is None else key[:MAX_KEY_BYTES]
    return IndexedLetter(
        offset=offset, append_ms=append_ms, key=kept, key_hash=hash_of(key or b""), damaged=damaged, **facts
    )


def _facts(read: HeaderReader) -> dict[str, Any]:
    read.version()
    identity = read.failure_id()
    error_type, message = read.name(RETRY_ERROR_TYPE), read.text(RETRY_ERROR_MESSAGE)
    return {
        "failure_id": identity,
        "reason": cut_text(read.name(RETRY_REASON), MAX_NAME_BYTES),
        "attempt": min(MAX_COUNT, read.number(RETRY_ATTEMPT)),
        "replays": min(MAX_COUNT, read.number(RETRY_REPLAYS)) if RETRY_REPLAYS in read.found else 0,
        "error_type": cut_text(error_type, MAX_TYPE_BYTES),
        "message": cut_text(message, MAX_MESSAGE_BYTES),
        "first_failed_ms": read.number(RETRY_FIRST_FAILED_MS),
        "last_failed_ms": read.number(RETRY_LAST_FAILED_MS),
        "cause_id": cause_id(error_type, read.name(RETRY_FINGERPRINT), message),
        "cause": cause_name(error_type, None, message),
    }


_NOTHING: Final[dict[str, Any]] = {
    **dict.fromkeys(("attempt", "error_type", "message", "first_failed_ms", "last_failed_ms", "cause_id", "cause")),
    "replays": 0,
}


def encode_letter(letter: IndexedLetter) -> bytes:
    """Encode all but the offset, the cause's name and the mark, which are kept apart."""
    cause = cause_bytes(letter.cause_id)
    flags = _KEYLESS * (letter.key is None) | _CAUSELESS * (cause is None) | _OTHER * letter.other
    texts = (letter.failure_id, letter.reason, letter.error_type, letter.message)
    parts = [*((text or "").encode() for text in texts), letter.key or b"", (letter.damaged or "").encode()]
    first, last = (-1 if at is None else at for at in (letter.first_failed_ms, letter.last_failed_ms))
    fixed = _FIXED.pack(
        flags | _DAMAGED * (letter.damaged is not None), letter.append_ms, first, last, letter.attempt or 0,
        letter.replays, cause or b"", letter.key_hash, *map(len, parts),
    )  # fmt: skip
    return b"".join((fixed, *parts))


def counted_as(raw: bytes) -> tuple[bytes | None, int]:
    """Return the cause under which an encoded letter was counted, None for others, and its attempts."""
    flags, _, _, _, attempts, _, cause, *_ = _FIXED.unpack_from(raw)
    return None if flags & (_CAUSELESS | _OTHER) else cause, attempts


def decode_letter(
    offset: int,
    raw: bytes,
    name_of: Callable[[bytes], str | None] | None = None,
    mark: str | None = None,
    job: str | None = None,
) -> IndexedLetter:
    """Decode a letter; `name_of` knows names of causes: without it there is none."""
    flags, append_ms, first, last, attempt, replays, cause, key_hash, *lengths = _FIXED.unpack_from(raw)
    ends = accumulate(lengths, initial=_FIXED.size)
    failure, reason, error_type, message, key, damage = (raw[start:end] for start, end in pairwise(ends))
    damaged, named = bool(flags & _DAMAGED), None
    if name_of is not None and not flags & _CAUSELESS:
        named = name_of(cause) or cause_name(error_type.decode(), None, message.decode())
    return IndexedLetter(
        offset=offset,
        append_ms=append_ms,
        failure_id=failure.decode() or None,
        reason=reason.decode() or None,
        attempt=None if damaged else attempt,
        replays=replays,
        error_type=None if damaged else error_type.decode(),
        message=None if damaged else message.decode(),
        first_failed_ms=None if damaged else first,
        last_failed_ms=None if damaged else last,
        cause_id=None if flags & _CAUSELESS else cause_text(cause),
        cause=named,
        key=None if flags & _KEYLESS else key,
        key_hash=key_hash,
        damaged=damage.decode() if damaged else None,
        other=bool(flags & _OTHER),
        mark=mark,
        job=job,
    )
