"""Commands: what people ask of a record that waits or is dead, and the marks that dead letters get.

A command is a record of the control topic, on the partition of the record that it is about, as versioned JSON in UTF-8;
its key is the failure id. The lane of that partition obeys or refuses it in a turn of its own, with an event
(`core.lifecycle.Commanded`). Unknown fields are ignored.

A mark is a record of a dead-letter topic, behind the letter that it is about, on the same partition: so time retention
never takes a mark before its letter, and what reads that topic alone knows what became of each letter. Its header
``retry-mark`` names it, the value is JSON, and key and value of the letter are not repeated.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from retryapp.core.durations import MAX_DURATION_MS
from retryapp.core.errors import InvalidSettingError
from retryapp.core.foreign import shield, split_headers, unshield
from retryapp.core.headers import RETRY_MARK
from retryapp.core.hops import Outgoing
from retryapp.core.masking import Mask
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.record import Headers, Record
from retryapp.core.values import keyword_value_type, value_type

COMMAND_AGE_MS: Final = 15 * 60_000
"""How long a command waits for a worker, by the broker's time; an older one is refused."""
MAX_COMMAND_BYTES: Final = 262_144
"""An edited value is in its command."""
HOLD_MS: Final = 7 * 86_400_000
"""How long a record is held, unless somebody releases it or says otherwise."""
JOB_ID: Final = r"^[0-9A-Za-z._:-]{1,64}$"
"""Shape of the ids of commands and jobs."""
_MAX_DIGITS: Final = 10
_SOME_CHANGE: Final = "a value, a key, headers or drop"
MAX_WORDS: Final = 500
"""Characters of what a command says of who sends it, and why."""


class Verb(StrEnum):
    """What a command asks for."""

    RETRY_NOW = "retry-now"
    RESCHEDULE = "reschedule"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REPLAY = "replay"
    DISCARD = "discard"
    RESTORE = "restore"


OF_LETTERS: Final = frozenset({Verb.REPLAY, Verb.DISCARD, Verb.RESTORE})
"""Verbs about dead letters; the others are about records that wait."""


class Refusal(StrEnum):
    """Why a command was refused."""

    MALFORMED = "malformed"
    MISPLACED = "misplaced"
    """It is about another group, topic or partition than that of the control record."""
    EXPIRED = "expired"
    """No worker had the partition for so long."""
    NOT_WAITING = "not-waiting"
    WAITING = "waiting"
    """A dead letter whose record waits already."""
    RUNNING = "running"
    TOO_LATE = "too-late"
    """The delivery that a token names has ended otherwise, or its deadline has passed."""
    HELD = "held"
    """Earlier records of its sequence wait."""
    NOT_HELD = "not-held"
    CHANGED = "changed"
    """Its state is not the one that the command names."""
    DAMAGED = "damaged"
    NO_LETTER = "no-letter"
    NOT_NEWEST = "not-newest"
    """The record has died again since."""
    REPLAYED = "replayed"
    HANDLED = "handled"
    """Its handler of dead letters is done with it: replayed only with `force`."""
    DISCARDED = "discarded"
    NOT_DISCARDED = "not-discarded"
    OTHER_TOPIC = "other-topic"
    """The main topic was deleted and created again since."""
    TOO_LARGE = "too-large"
    CRASHED = "crashed"
    """It ended its workers: only singly, with `force`."""
    SUPERSEDED = "superseded"
    """A newer record of its key may have replaced it: only with `force`."""
    JOB_KNOWN = "job-known"
    """This job has begun already."""
    NO_JOB = "no-job"
    """It is over, or unknown."""
    TOO_MANY = "too-many"
    """So many jobs go on that no other begins."""
    ORDERED = "ordered"
    """The key of a record cannot be edited where records of a key keep an order."""
    NO_CIRCUIT = "no-circuit"
    """The handler has no circuit that could be forced open."""
    NOT_READY = "not-ready"
    """The dead letters of the partition are still being read; or the main topic cannot be, where a record waits by
    reference."""


class InvalidEditError(InvalidSettingError, ValueError):
    """What `Edit.of` was given makes no edit. Operator action: correct the argument that is named."""


class Edit(BaseModel):
    """What a replay changes of its record. Bytes are text here, as `encoding` says; see `of`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # a part that is not known must not be left out
    idempotency: Literal["keep", "new"]
    """``new``: the idempotency key ends with ``-e1``, later ``-e2``, so services act again. There is no default."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    value: str | None = None
    """None: as it was, as for the key."""
    key: str | None = None
    headers: Mapping[str, str] = Field(default_factory=dict)
    """Each takes the place of all headers of its name, or comes last."""
    drop: tuple[str, ...] = ()
    """Names of headers that go."""

    @classmethod
    def of(
        cls,
        idempotency: str,
        *,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        drop: Sequence[str] = (),
    ) -> Edit:
        """Make one of bytes.

        Raises:
            InvalidEditError: nothing is changed, or an argument is none: `idempotency` neither `keep` nor `new`, say.
        """
        _check_edit(idempotency, {"value": value, "key": key}, headers or {}, drop)

        def texts(encoding: str, text: Callable[[bytes], str]) -> Edit:
            parts = {name: text(data) for name, data in (("value", value), ("key", key)) if data is not None}
            own = {name: text(data) for name, data in (headers or {}).items()}
            return cls.model_validate(
                {"idempotency": idempotency, "encoding": encoding, "headers": own, "drop": (*drop,), **parts}
            )

        try:
            return texts("utf-8", bytes.decode)
        except UnicodeDecodeError:
            return texts("base64", lambda data: b64encode(data).decode())

    @model_validator(mode="after")
    def _can_be_done(self) -> Edit:
        if self.value is None and self.key is None and not self.headers and not self.drop:
            raise ValueError(f"it changes nothing: give {_SOME_CHANGE}")
        for text in (self.value, self.key, *self.headers.values()):
            self._bytes(text)
        return self

    def parts(self, letter: Record, value: bytes | None, edited: Record) -> str:
        """Return the parts of a dead letter, with this value, that it has changed: a page sends all of it."""
        changed = {
            "value": self.value is not None and edited.value != value,
            "key": edited.key != letter.key,
            "headers": edited.headers != split_headers(letter.headers)[0],
        }
        return ", ".join(name for name, is_changed in changed.items() if is_changed) or "nothing"

    def _bytes(self, text: str | None) -> bytes:
        return b64decode(text or "", validate=True) if self.encoding == "base64" else (text or "").encode()

    def is_masked(self, mask: Mask) -> bool:
        """Tell whether it would put in what was shown in place of something that is masked."""
        headers = {name: self._bytes(text) for name, text in self.headers.items()}
        return any(mask.is_in(self._bytes(text), headers) for text in (self.value, self.key))

    def applied_to(self, letter: Record) -> Record:
        """Return a dead letter with the changes; its headers are as they travel."""
        left = {name: self._bytes(text) for name, text in self.headers.items()}
        headers = list[tuple[str, bytes | None]]()
        for name, data in unshield(split_headers(letter.headers)[0]):
            if name in left:
                headers.append((name, left.pop(name)))
            elif name not in self.drop and name not in self.headers:
                headers.append((name, data))
        return replace(
            letter,
            key=letter.key if self.key is None else self._bytes(self.key),
            value=letter.value if self.value is None else self._bytes(self.value),
            headers=shield((*headers, *left.items())),
        )


def _check_edit(idempotency: object, parts: Mapping[str, object], headers: object, drop: object) -> None:
    """Raise `InvalidEditError` unless an edit can be made: callers without type checks give anything.

    Of a value, key or header it shows the type: errors are logged, and payloads must not be.
    """
    if idempotency not in ("keep", "new"):
        raise InvalidEditError("idempotency", idempotency, "expected keep or new")
    for name, part in parts.items():
        if not isinstance(part, bytes | None):
            raise InvalidEditError(name, type(part), 'expected bytes, as "…".encode(), or None: as it was')
    by_name = isinstance(headers, Mapping) and all(map(_is_header, headers.items()))
    if not by_name:
        expected = "expected the bytes of each by its name, as {'tenant': b'acme'}"
        raise InvalidEditError("headers", type(headers), expected)
    if not isinstance(drop, tuple | list) or not all(isinstance(name, str) for name in drop):
        raise InvalidEditError("drop", drop, "expected names of headers, as ('trace',)")
    if not headers and not drop and all(part is None for part in parts.values()):
        raise InvalidEditError("edit", None, f"expected {_SOME_CHANGE}")


def _is_header(item: tuple[object, object]) -> bool:
    name, data = item
    return isinstance(name, str) and isinstance(data, bytes)


def digest_of(value: bytes | None) -> str:
    """Return the hash of a record's value, as `sha256sum` prints it; of null its name."""
    return "null" if value is None else f"sha256:{hashlib.sha256(value).hexdigest()}"


class Command(BaseModel):
    """A command."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    v: Literal[1] = 1
    id: Annotated[str, Field(pattern=JOB_ID)]
    """Names the command in its outcome."""
    verb: Annotated[Verb, Field(strict=False)]
    failure_id: Annotated[str, Field(min_length=1, max_length=2_000)]
    by: Annotated[str, Field(max_length=MAX_WORDS)] = ""
    """Who says that they send it: Kafka does not show consumers who has written a record."""
    why: Annotated[str, Field(max_length=MAX_WORDS)] = ""
    state: Annotated[str, Field(max_length=200)] | None = None
    """State that the record must have (`row_state`, or the letter's offset); None: any."""
    due_at_ms: Annotated[int, Field(ge=0, le=MAX_EPOCH_MS)] | None = None
    """Of `reschedule`."""
    hold_ms: Annotated[int, Field(ge=1, le=MAX_DURATION_MS)] | None = None
    """Of `hold`: how long, if nobody releases it; None: `HOLD_MS`."""
    delivery: Annotated[int, Field(ge=1)] | None = None
    """Of `release`: the delivery that has raised `Defer`, or will; None: whatever holds the record."""
    force: bool = False
    """Of `replay`: also a record that ended its workers, one that may be superseded, or a letter that was handled."""
    edit: Edit | None = None
    """Of `replay`: what it changes."""

    @model_validator(mode="after")
    def _edits_a_letter(self) -> Command:
        if self.edit is not None:
            if self.verb is not Verb.REPLAY:
                raise ValueError("edit belongs to replay")
            if (size := len(self.model_dump_json(exclude_none=True).encode())) > MAX_COMMAND_BYTES:
                raise ValueError(f"the edit takes {size} bytes, and a command at most {MAX_COMMAND_BYTES}")
        return self

    @model_validator(mode="after")
    def _has_time(self) -> Command:
        if (self.due_at_ms is None) == (self.verb is Verb.RESCHEDULE):
            raise ValueError("due_at_ms belongs to reschedule, and to it alone")
        if self.hold_ms is not None and self.verb is not Verb.HOLD:
            raise ValueError("hold_ms belongs to hold alone")
        if self.delivery is not None and self.verb is not Verb.RELEASE:
            raise ValueError("a token is for release alone")
        return self

    def to_record(self, topic: str, partition: int) -> Outgoing:
        return Outgoing(
            topic, partition, self.failure_id.encode(), self.model_dump_json(exclude_none=True).encode(), ()
        )


def token_of(failure_id: str, delivery: int) -> str:
    """Return what names a delivery of a record, for URLs; it is an address, no secret.

    >>> token_of("billing/orders@kq8G0bTz/3/1042", 2)
    'Mi9iaWxsaW5nL29yZGVyc0BrcThHMGJUei8zLzEwNDI'
    """
    return urlsafe_b64encode(f"{delivery}/{failure_id}".encode()).decode().rstrip("=")


def named_by(name: str) -> dict[str, Any]:
    """Return the fields of a `Command` about a record that a failure id or a token names.

    Raises:
        ValueError: it is neither.
    """
    if "/" in name:
        return {"failure_id": name}
    try:
        text = b64decode(name + "=" * (-len(name) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        text = ""
    delivery, _, failure_id = text.partition("/")
    if not delivery.isdecimal() or len(delivery) > _MAX_DIGITS or not failure_id:
        raise ValueError(f"{name!r} is neither a failure id (group/topic@id/partition/offset) nor a token")
    return {"failure_id": failure_id, "delivery": int(delivery)}


def row_state(replays: int, attempt: int, due_at_ms: int) -> str:
    """Return the state of a record that waits, for `Command.state`.

    >>> row_state(0, 3, 1700000000000)
    'r0.a3.d1700000000000'
    """
    return f"r{replays}.a{attempt}.d{due_at_ms}"


class MarkKind(StrEnum):
    """What became of a dead letter."""

    REPLAYED = "replayed"
    RECOVERED = "recovered"
    """It was replayed, and its handler is done with it."""
    DISCARDED = "discarded"
    RESTORED = "restored"
    """It was discarded, and is a dead letter again."""
    HANDLED = "handled"
    """Its handler of dead letters is done with it."""
    SKIPPED = "skipped"
    """Its handler of dead letters has passed it over."""
    FAILED = "failed"
    """Its handler of dead letters has given up."""


_OPEN: Final = (None, MarkKind.RESTORED, MarkKind.SKIPPED, MarkKind.FAILED)


def is_open(mark: str | None) -> bool:
    """Tell whether a letter with this mark, or without one, is open: it waits for an operator."""
    return mark in _OPEN


@keyword_value_type
class LetterMark:
    """A mark of a dead letter; checked only where it is read (`mark_of`)."""

    __pydantic_config__ = ConfigDict(extra="ignore", strict=True)
    v: Literal[1] = 1
    mark: Annotated[MarkKind, Field(strict=False)]
    failure_id: str
    letter: Annotated[int, Field(ge=0, lt=1 << 63)]
    """Offset of the letter, on the same topic and partition."""
    delivery: Annotated[int, Field(ge=0)]
    """Number of the letter's delivery; of `recovered` the one that succeeded."""
    replays: Annotated[int, Field(ge=0)]
    """How often the record has been replayed with this."""
    command: str
    by: str = ""
    why: str = ""
    edited: str = ""
    """Of a replay: the parts of the record that were edited; empty: none."""
    original: str = ""
    """Of an edited one: coordinates of the letter, and the hash of its value."""

    def to_record(self, topic: str, partition: int) -> OutgoingMark:
        headers: Headers = ((RETRY_MARK, self.mark.encode()),)
        return OutgoingMark(topic, partition, self.failure_id.encode(), _MARKS.serializer.to_json(self), headers, self)


_MARKS: Final = TypeAdapter(LetterMark)


@value_type
class OutgoingMark(Outgoing):
    """A mark that is to be published."""

    told: LetterMark
    """What its value says."""


def mark_of(headers: Headers, value: bytes | None) -> LetterMark | None:
    """Return the mark that a record of a dead-letter topic is; None for a letter, and for one that cannot be read."""
    if not is_mark(headers):
        return None
    try:
        return _MARKS.validate_json(value or b"")
    except ValidationError:
        return None


def is_mark(headers: Headers) -> bool:
    """Tell whether a record of a dead-letter topic is a mark, and no letter."""
    return RETRY_MARK in [name for name, _ in headers]
