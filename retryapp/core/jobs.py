"""Jobs: one command about many dead letters, of which each partition does its part; and what a partition remembers.

A job has an id. Its start, and later commands about it, go to the control topics of all partitions in one transaction,
so all see the same commands in the same order. Each partition reads its dead letters in the order of their topic, from
the first one up to an end that was set when the job was previewed: what dies again lies behind that end, and is not
taken a second time. Its filter looks at the letter alone, so preview and job agree.

What a partition remembers (`Steering`) is in the progress record of its changelog, which ends each transaction: where
each part is, is durable together with what the part has done.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from retryapp.core.causes import cause_id
from retryapp.core.circuit import MOST_SPELLS, KeptCircuit
from retryapp.core.control import JOB_ID, MAX_COMMAND_BYTES, MAX_WORDS, OF_LETTERS, Command, Verb
from retryapp.core.errors import DamagedCommandError
from retryapp.core.foreign import split_headers, unshield
from retryapp.core.hops import Outgoing
from retryapp.core.masking import parts_of, places_of
from retryapp.core.metadata import MAX_EPOCH_MS, RetryMetadata
from retryapp.core.record import Headers
from retryapp.core.text import counted

JOB_AGE_MS: Final = 24 * 3_600_000
"""How long the start of a job waits for a worker, by the broker's time; an older one is refused."""
MOST_JOBS: Final = 8
"""Jobs that go on at once: what is remembered of them is written with every transaction."""
MOST_ENDED: Final = 5
"""Jobs that are remembered after their end: each transaction writes them. Events have all."""
MOST_NAMED: Final = 1_000
"""Letters that a part refuses and says so of each, with an event; the others are counted alone."""
MOST_EARLY: Final = 1_000
"""Releases that are kept because their deliveries go on."""
CANARY: Final = 10
"""Replays of a job whose outcomes are waited for before the others go."""
LEAST_CANARY: Final = 3
"""The same of one partition, so that one unlucky record does not decide."""
LAST_OUTCOMES: Final = 100
"""A job pauses itself when more than half of so many last ones have failed again."""

_Text = Annotated[str, Field(max_length=400)]
_Count = Annotated[int, Field(ge=0)]


class LetterFilter(BaseModel):
    """Which dead letters a job is about: those that all given fields fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # unknown is no licence to take more letters
    v: Literal[1] = 1
    reason: _Text | None = None
    error_type: _Text | None = None
    cause: _Text | None = None
    """Id of the cause (`core.causes.cause_id`)."""
    message: _Text | None = None
    """Part of the error's message, in upper or lower case."""
    key: _Text | None = None
    """The record's key, as UTF-8."""
    header: Annotated[str, Field(max_length=400, pattern=r"\A[^=]+=")] | None = None
    """``NAME=TEXT``: one of the record's own headers, as UTF-8."""
    field: Annotated[str, Field(max_length=400, pattern=r"\A/[^=]*=")] | None = None
    """``/POINTER=TEXT``: a field of a value that is JSON (RFC 6901; ``*`` is every element of a list)."""
    from_ms: Annotated[int, Field(ge=0, le=MAX_EPOCH_MS)] | None = None
    """Died then or later, by the broker's time."""
    until_ms: Annotated[int, Field(ge=0, le=MAX_EPOCH_MS)] | None = None
    """Died before."""

    @property
    def deep(self) -> bool:
        """Whether it asks for what the index of dead letters does not have."""
        return (self.message, self.header, self.field) != (None, None, None)

    def fits(self, metadata: RetryMetadata, record: Any, died_ms: int) -> bool:
        """Tell whether a letter, or a record that waits and has failed then, is one of those."""
        return (
            self.reason in (None, metadata.reason)
            and self.error_type in (None, metadata.error_type)
            and (self.from_ms is None or died_ms >= self.from_ms)
            and (self.until_ms is None or died_ms < self.until_ms)
            and (self.key is None or record.key == self.key.encode())
            and (self.message is None or self.message.lower() in metadata.error_message.lower())
            and (
                self.cause is None
                or self.cause == cause_id(metadata.error_type, metadata.fingerprint, metadata.error_message)
            )
            and (self.header is None or _has_header(self.header, record.headers))
            and (self.field is None or _has_field(self.field, record.value))
        )


def _has_header(wanted: str, headers: Headers) -> bool:
    name, _, text = wanted.partition("=")
    return (name, text.encode()) in unshield(split_headers(tuple(headers))[0])


def _has_field(wanted: str, value: bytes | None) -> bool:
    pointer, _, text = wanted.partition("=")
    with suppress(ValueError, RecursionError):  # it is no JSON, or is too deep
        for container, key in places_of(json.loads(value or b""), parts_of(pointer)):
            found = container[key]
            if (found if isinstance(found, str) else json.dumps(found)) == text:
                return True
    return False


def _of_letters(verb: Verb) -> Verb:
    if verb not in OF_LETTERS:
        raise ValueError(f"a job cannot {verb}")
    return verb


class JobPart(BaseModel):
    """What one partition has to do."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    verb: Annotated[Verb, Field(strict=False), AfterValidator(_of_letters)]
    filter: LetterFilter
    upto: Mapping[str, _Count]
    """By dead-letter topic: the offset before which letters are taken."""
    every_ms: Annotated[float, Field(ge=1e-6, le=1e9)] | None = None
    """Time between two letters of the whole job. None: as fast as they are done."""
    share: tuple[_Count, _Count, _Count] = (0, 1, 1)
    """Which turns of the rate are this partition's (`core.rates.SharedTurns`): first, after the last, of how many."""
    canary: _Count = 0
    force: bool = False
    """Also letters that a newer record of their key may have replaced; those that ended their workers never."""
    letters: _Count | None = None
    """How many its preview has counted; None: it had not looked at all."""

    @model_validator(mode="after")
    def _has_share(self) -> JobPart:
        first, after, of = self.share
        if not first < after <= of:
            raise ValueError("share: first < after <= of")
        return self


def shared(
    whole: JobPart, fitting: Mapping[int, int], upto: Mapping[int, Mapping[str, int]], *, complete: bool = True
) -> dict[int, JobPart]:
    """Return the parts of a job, by partition: of those that have letters that fit.

    The rate and the canary of `whole` are shared in proportion to the letters. So a part that stalls slows the job and
    makes no other faster. Unless all were counted, `complete`, the numbers are in proportion alone.
    """
    letters, first = sum(fitting.values()), 0
    parts = {}
    for partition, some in fitting.items():
        canary = min(some, max(LEAST_CANARY, math.ceil(whole.canary * some / letters))) if whole.canary else 0
        share = first, first + some, letters
        known = some if complete else None
        changed = {"canary": canary, "share": share, "upto": dict(upto[partition]), "letters": known}
        parts[partition], first = whole.model_copy(update=changed), first + some
    return parts


class JobVerb(StrEnum):
    """What a command about a job asks for."""

    START = "job-start"
    PAUSE = "job-pause"
    RESUME = "job-resume"
    CANCEL = "job-cancel"


class JobCommand(BaseModel):
    """A record of the control topic that is about a job."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    v: Literal[1] = 1
    id: Annotated[str, Field(pattern=JOB_ID)]
    """Of the command; of a start, that of the job."""
    job: Annotated[str, Field(pattern=JOB_ID)]
    verb: Annotated[JobVerb, Field(strict=False)]
    part: JobPart | None = None
    """Of a start."""
    by: Annotated[str, Field(max_length=MAX_WORDS)] = ""
    why: Annotated[str, Field(max_length=MAX_WORDS)] = ""

    def to_record(self, topic: str, partition: int) -> Outgoing:
        return Outgoing(topic, partition, self.job.encode(), self.model_dump_json(exclude_none=True).encode(), ())


class HandlerVerb(StrEnum):
    """What a command about a handler asks for."""

    PAUSE = "handler-pause"
    RESUME = "handler-resume"
    OPEN = "outage-open"
    """Force the circuit open."""
    CLOSE = "outage-close"
    """Have the circuit probe."""


HANDLER_VERBS: Final = {verb.removeprefix("handler-"): verb for verb in HandlerVerb}
"""As people and programs write them: `pause`, `resume`, `outage-open`, `outage-close`."""


class HandlerCommand(BaseModel):
    """A record of the control topic that is about the handler itself. It never expires: the last one counts."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    v: Literal[1] = 1
    id: Annotated[str, Field(pattern=JOB_ID)]
    verb: Annotated[HandlerVerb, Field(strict=False)]
    circuit: Annotated[str, Field(max_length=MAX_WORDS)] = ""
    """Which is meant; empty: the handler's own."""
    by: Annotated[str, Field(max_length=MAX_WORDS)] = ""
    why: Annotated[str, Field(max_length=MAX_WORDS)] = ""

    def to_record(self, topic: str, partition: int) -> Outgoing:
        return Outgoing(topic, partition, b"handler", self.model_dump_json(exclude_none=True).encode(), ())


class PartState(StrEnum):
    """What a part does."""

    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"
    CANCELLED = "cancelled"


class NewerOrder(BaseModel):
    """What a newer build has a part do: nothing is done for it here, and it is written as it was read."""

    model_config = ConfigDict(frozen=True, extra="allow")
    letters: Any = None


class Part(BaseModel):
    """A part of a job, and how far it is."""

    job: str
    verb: str
    state: Annotated[PartState | str, Field(union_mode="left_to_right")] = PartState.RUNNING
    """A newer build may have others: such a part goes on, and nothing is done for it here."""
    order: Annotated[JobPart | NewerOrder | Any, Field(union_mode="left_to_right")] = None
    """What it has to do; None once it is over. What is none here is kept as it is."""
    by: str = ""
    why: str = ""
    since_ms: int = 0
    """When it began, epoch milliseconds; 0: an earlier build has begun it."""
    at: dict[str, int] = Field(default_factory=dict)
    """Next offset by dead-letter topic."""
    looked: int = 0
    """Letters that it has looked at."""
    done: int = 0
    refused: Counter[str] = Field(default_factory=Counter)
    """Letters that fit and were refused, by `core.control.Refusal`; of the first `MOST_NAMED` events say which."""
    probed: int = 0
    """How many were done when the last canary began."""
    paused: str = ""
    """Why it is paused, or was before it was over; of one that has ended, that most of its last replays failed."""
    outcomes: int = 0
    """Replays of which this session has seen what their first attempt came to; not written down."""
    failed_again: int = 0
    """How many of these failed; not written down."""

    @property
    def over(self) -> bool:
        return self.state in (PartState.ENDED, PartState.CANCELLED)

    @property
    def text(self) -> str:
        """Its state, and what it has done, for people."""
        return f"{self.state}: {self.counts}"

    @property
    def counts(self) -> str:
        """What it has done, for people."""
        left = ", ".join(f"{count:,} {word}" for word, count in sorted(self.refused.items()))
        return f"{self.done:,} done{left and f'; left out: {left}'}; {counted(self.looked, 'letter')} looked at"


class Level(BaseModel):
    """Since when the partition is paused, or its circuit forced open, by whom, and why."""

    since_ms: int
    by: str = ""
    why: str = ""
    how: str = "paused"
    revision: int | None = None
    """Offset of its command on the control topic; without one, of the next command then; None: not known yet."""
    record: str = ""
    """Failure id of the record whose failure has paused its partition, by a rule; empty: somebody has."""

    @property
    def text(self) -> str:
        return self.how + (f" by {self.by}" if self.by else "") + (f": {self.why}" if self.why else "")


_OF_A_SESSION: Final[Any] = {"parts": {"__all__": {"outcomes", "failed_again"}}}


class Steering(BaseModel):
    """What a partition remembers of commands, and of its circuits."""

    v: Literal[1] = 1
    paused: Level | None = None
    """A command that was sent before it does not end it."""
    forced: Level | None = None
    """Since when the handler's own circuit is forced open."""
    outages: dict[str, Level] = Field(default_factory=dict)
    """The same of circuits with names."""
    pauses: list[tuple[int, int]] = Field(default_factory=list)
    """Begin and end of the last pauses and forced outages, epoch milliseconds."""
    ended: dict[str, list[tuple[int, int]]] = Field(default_factory=dict)
    """The same of the outages of circuits with names."""
    circuits: dict[str, KeptCircuit] = Field(default_factory=dict)
    """Circuits that have opened once, by name; the handler's own has an empty one."""
    parts: list[Part] = Field(default_factory=list)
    """Those that go on, and the last ones that are over; the oldest first."""
    releases: dict[str, dict[int, int]] = Field(default_factory=dict)
    """Releases that came before their deliveries ended: by id of the main topic, and offset, the delivery's number."""

    ahead: dict[str, list[int]] = Field(default_factory=dict)
    """By id of the control topic: offsets of commands that were obeyed although earlier ones still wait."""

    def part(self, job: str) -> Part | None:
        return next((part for part in self.parts if part.job == job), None)

    @property
    def going_on(self) -> list[Part]:
        """Parts that are not over."""
        return [part for part in self.parts if not part.over]

    @property
    def forced_open(self) -> Mapping[str, Level]:
        """Circuits that are forced open; the name of the handler's own is empty."""
        return self.outages if self.forced is None else {"": self.forced, **self.outages}

    @property
    def all_pauses(self) -> Mapping[str, list[tuple[int, int]]]:
        """Pauses and all outages of the handler under an empty name, and outages of circuits with names."""
        pauses = {"": self.pauses, **self.ended}
        return pauses | {name: [*pauses.get(name, ()), *kept.spells] for name, kept in self.circuits.items()}

    def obey(self, command: HandlerCommand, now_ms: int, revision: int) -> None:
        """Note that it is paused or forced open, or not any more; who did it first counts."""
        facts: Any = {"since_ms": now_ms, "by": command.by, "why": command.why, "revision": revision}
        match command.verb:
            case HandlerVerb.PAUSE:
                self.paused = self.paused or Level(**facts)
            case HandlerVerb.OPEN if command.circuit:
                self.outages.setdefault(command.circuit, Level(how="forced open", **facts))
            case HandlerVerb.CLOSE if command.circuit:
                if (level := self.outages.pop(command.circuit, None)) is not None:
                    some = [*self.ended.get(command.circuit, ()), (level.since_ms, now_ms)]
                    self.ended[command.circuit] = some[-MOST_SPELLS:]
            case HandlerVerb.OPEN:
                self.forced = self.forced or Level(how="forced open", **facts)
            case HandlerVerb.RESUME:
                self._note_end(self.paused, now_ms)
                self.paused = None
            case HandlerVerb.CLOSE:
                self._note_end(self.forced, now_ms)
                self.forced = None

    def _note_end(self, level: Level | None, now_ms: int) -> None:
        if level is not None:
            self.pauses = [*self.pauses, (level.since_ms, now_ms)][-MOST_SPELLS:]

    def over(self, part: Part, state: PartState) -> None:
        """Note that a part is over; of those, a few are kept."""
        part.state, part.order, part.at = state, None, {}
        ended = [each for each in self.parts if each.over]
        gone = ended[: max(0, len(ended) - MOST_ENDED)]
        self.parts = [each for each in self.parts if each not in gone]

    @property
    def written(self) -> str:
        """Return it as text; empty where there is nothing to remember."""
        levels, pauses = (self.paused, self.forced_open), (self.pauses, self.ended)
        some = any((*levels, *pauses, self.circuits, self.parts, self.releases, self.ahead))
        return self.model_dump_json(exclude_defaults=True, exclude=_OF_A_SESSION) if some else ""


def read_steering(text: str) -> Steering:
    """Read the text; nothing is remembered of one that cannot be read, as a newer version's."""
    try:
        return Steering.model_validate_json(text) if text else Steering()
    except ValidationError:
        return Steering()


AnyCommand = Command | JobCommand | HandlerCommand


def decode_command(value: bytes | None) -> AnyCommand:
    """Decode a record of the control topic; raise `DamagedCommandError`, which names the field."""
    if value is None or len(value) > MAX_COMMAND_BYTES:
        problem = "no value" if value is None else f"{len(value)} bytes, more than {MAX_COMMAND_BYTES}"
        raise DamagedCommandError(problem)
    try:
        return _COMMANDS.validate_json(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"] if part not in _KINDS) or "value"
        raise DamagedCommandError(f"{field}: {first['msg']}") from error


def _kind(value: Any) -> str:
    verb = str(value.get("verb")) if isinstance(value, dict) else ""
    if verb in _OF_HANDLERS:
        return _HANDLER
    return _JOB if verb.startswith("job-") else _ONE


_OF_HANDLERS: Final = frozenset(map(str, HandlerVerb))
_KINDS = _ONE, _JOB, _HANDLER = "command", "job", "handler"
_COMMANDS: Final[TypeAdapter[AnyCommand]] = TypeAdapter(
    Annotated[
        Annotated[Command, Tag(_ONE)] | Annotated[JobCommand, Tag(_JOB)] | Annotated[HandlerCommand, Tag(_HANDLER)],
        Discriminator(_kind),
    ]
)
