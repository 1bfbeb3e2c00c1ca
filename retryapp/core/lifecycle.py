"""Lifecycle events: what the retry and dead-letter topics cannot say, as versioned JSON on the events topic.

=============  =====================================================  ==============================
kind           sent when                                              record key
=============  =====================================================  ==============================
``succeeded``  a delivery succeeded after at least one failure        failure id
``skipped``    a record was passed over: a duplicate, or as the       failure id
               handler or a rule said
``held``       a record waits for earlier ones of its sequence         failure id
``discarded``  what would be dead has no dead-letter topic             failure id
``failed``     the same of a dead letter, which stays where it is      failure id
``handled``    a handler of dead letters is done with one              failure id
``superseded`` a newer record of its key has replaced it              failure id
``policy``     a worker starts with this policy                       ``policy:{group}/{main}``
``progress``   at most 60 s apart, per partition of the main topic    ``progress:{group}/{main}/{p}``
``command``    a command was obeyed or refused                         failure id
``circuit``    the circuit of a partition has changed its state       ``circuit:{group}/{main}/{p}``
=============  =====================================================  ==============================

Layout, version 1: one JSON object in UTF-8, times in epoch milliseconds UTC. Unknown fields are ignored, so that a
newer worker may add some; a changed meaning takes a new ``v``. What becomes of a record is ordered by (failure id,
delivery), never by a timestamp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from retryapp.core.errors import DamagedEventError

EpochMs = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class LifecycleEvent(BaseModel, ABC):
    """What all events have in common."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    v: Literal[1] = 1
    group: str
    handler: str

    @property
    @abstractmethod
    def key(self) -> bytes:
        """Record key on the events topic."""

    def to_json(self) -> bytes:
        return self.__pydantic_serializer__.to_json(self)  # as `model_dump_json`, without a text in between


class RecordEvent(LifecycleEvent, ABC):
    """What events of one record have in common."""

    kind: str
    failure_id: str
    origin: str

    @property
    def key(self) -> bytes:
        return self.failure_id.encode("utf-8")


class Succeeded(RecordEvent):
    """A delivery succeeded after at least one failure."""

    kind: Literal["succeeded"] = "succeeded"
    replays: Count = 0
    """How often the record was replayed; attempts count anew in each."""
    attempt: Annotated[int, Field(ge=1)]
    delivery: int = Field(ge=1, default_factory=lambda data: data.get("attempt", 1))
    """Number of the delivery that succeeded; of older workers' events the attempt."""
    started_ms: EpochMs
    ended_ms: EpochMs
    lateness_ms: Count
    """Begin minus due time."""
    worker: str = ""
    """The worker that ran it, as ``host/worker-1``; empty: not known."""


class Skipped(RecordEvent):
    """A record was skipped: an earlier record was the same event, or the handler or a rule said so."""

    kind: Literal["skipped"] = "skipped"
    why: str = "duplicate"
    """``duplicate``, or the text of ``Skip``, or of the error that a rule skips."""
    first_offset: Count | None = None
    """Of a duplicate: offset of the record that counts as the event, on the same partition."""
    delivery: Count = 0
    """Number of the delivery that ended so; 0: it was not delivered."""
    attempt: Count = 0
    replays: Count = 0
    rule: str | None = None
    """The rule that skipped it."""
    worker: str = ""
    """The worker whose handler has skipped it; empty: none, or not known."""
    at_ms: EpochMs


class Held(RecordEvent):
    """A record waits, undelivered, for an earlier one of its sequence; what becomes of it follows."""

    kind: Literal["held"] = "held"
    at_ms: EpochMs


class Discarded(RecordEvent):
    """A record is dead, and its handler has no dead-letter topic: what a dead letter would say of it."""

    kind: Literal["discarded", "failed"] = "discarded"
    """``failed``: it is a dead letter itself, and stays on its topic."""
    reason: str
    error_type: str
    error_message: str
    fingerprint: str
    rule: str | None = None
    attempt: Count
    delivery: Count
    replays: Count = 0
    policy: str
    origin_timestamp_ms: int
    first_failed_ms: EpochMs
    started_ms: EpochMs
    ended_ms: EpochMs
    worker: str | None = None
    """The worker that ran the last attempt; None: not known."""


class Handled(RecordEvent):
    """A handler of dead letters is done with one."""

    kind: Literal["handled"] = "handled"
    at_ms: EpochMs


class Superseded(RecordEvent):
    """A newer record of its key has replaced a record that waited, or would have waited."""

    kind: Literal["superseded"] = "superseded"
    by_offset: Count
    """Offset of the newer record, on the same partition."""
    delivery: Count = 0
    """Number of the delivery that ended last; 0: it was not delivered."""
    attempt: Count = 0
    replays: Count = 0
    at_ms: EpochMs


class PolicyUsed(LifecycleEvent):
    """A worker has started with this policy; records carry only its digest."""

    kind: Literal["policy"] = "policy"
    main: str
    text: str
    digest: str
    at_ms: EpochMs

    @property
    def key(self) -> bytes:
        return f"policy:{self.group}/{self.main}".encode()


class PartitionEvent(LifecycleEvent, ABC):
    """What events of one partition of the main topic have in common."""

    kind: str
    main: str
    partition: Count

    @property
    def key(self) -> bytes:
        return f"{self.kind}:{self.group}/{self.main}/{self.partition}".encode()


class Progress(PartitionEvent):
    """Counts of one partition of the main topic, in ranges that join without gaps.

    Offsets have gaps (transaction marks, compaction), so records are counted, not computed from offsets.
    """

    kind: Literal["progress"] = "progress"
    from_offset: Count
    """First offset of the range: ``to_offset`` of the event before."""
    to_offset: Count
    from_ms: EpochMs
    to_ms: EpochMs
    received: Count
    """Records read in the range."""
    first_try_ok: Count
    """Of these, done at their first delivery."""
    failed: Count
    """Of these, failed at their first delivery, or superseded before it."""
    skipped: Count = 0
    """Of these, passed over without a delivery, or skipped at their first one."""
    held: Count = 0
    """Of these, neither: they wait for earlier records of their sequence, or for a release that their handler wants."""

    @model_validator(mode="after")
    def _in_order(self) -> Progress:
        if self.to_offset < self.from_offset:
            raise ValueError(f"to_offset={self.to_offset} is before from_offset={self.from_offset}")
        return self


class CircuitChanged(PartitionEvent):
    """The circuit of a partition has changed its state (``core.circuit``)."""

    kind: Literal["circuit"] = "circuit"
    from_state: str
    to_state: str
    cause: str
    """Why it opened, or closed although probes fail; else empty."""
    circuit: str = ""
    """Its name; empty: the handler's own."""
    at_ms: EpochMs


class Commanded(PartitionEvent):
    """A command was obeyed or refused (``core.control``): what was done, and who said why."""

    kind: Literal["command"] = "command"
    command: str
    """Id of the command; empty where it could not be read, or where there is none."""
    verb: str
    failure_id: str
    """Empty where it could not be read."""
    refused: str | None = None
    """A `Refusal`; None: it was obeyed."""
    text: str
    """The outcome in words."""
    before: str | None = None
    """State of the record (``core.control.row_state``, or the letter's offset); None: it has none."""
    after: str | None = None
    by: str = ""
    why: str = ""
    offset: Count | None = None
    """Offset of the command on the control topic; None: a part of a job has paused itself, has ended, or has refused a
    letter."""
    job: str = ""
    """Id of the job that it is about; empty: of none."""
    circuit: str = ""
    """Name of the circuit that it is about; empty: the handler's own, or of none."""
    edited: str = ""
    """Of a replay: the parts of the record that were edited; empty: none."""
    original: str = ""
    """Of an edited one: coordinates of the letter, and the hash of its value."""
    at_ms: EpochMs

    @property
    def key(self) -> bytes:
        """The failure id, where there is one."""
        return self.failure_id.encode() or super().key


AnyEvent = (
    Commanded | Succeeded | Skipped | Held | Discarded | Handled | Superseded | PolicyUsed | Progress | CircuitChanged
)
Event = Annotated[AnyEvent, Field(discriminator="kind")]

VERSION: Final = 1
KINDS: Final = frozenset(kind for each in get_args(AnyEvent) for kind in get_args(each.model_fields["kind"].annotation))

_ADAPTER: Final[TypeAdapter[AnyEvent]] = TypeAdapter(Event)


def decode_event(raw: bytes) -> AnyEvent:
    """Decode an event; raise `DamagedEventError` with the name of the wrong field."""
    try:
        return _ADAPTER.validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "value"
        raise DamagedEventError(f"{field}: {first['msg']}") from error


class _Stamp(BaseModel):
    kind: str
    v: int


def newer_event(raw: bytes) -> tuple[str, int] | None:
    """Return kind and version of an event that only a newer worker can decode; None for anything else.

    >>> newer_event(b'{"v":1,"kind":"unheard"}'), newer_event(b'{"v":2,"kind":"policy"}'), newer_event(b'{"v":1}')
    (('unheard', 1), ('policy', 2), None)
    """
    try:
        said = _Stamp.model_validate_json(raw)
    except ValidationError:
        return None
    is_newer = said.v > VERSION or (said.v == VERSION and said.kind not in KINDS)
    return (said.kind, said.v) if is_newer else None
