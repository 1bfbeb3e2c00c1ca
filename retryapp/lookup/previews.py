"""What a job would do: how many dead letters fit a filter, of which causes, and what became of others that fit.

A letter is counted when it is read, and moved when a later mark says what became of it. So at any moment the numbers
are those of what was read so far. Memory: 13 bytes for each letter that fits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from retryapp.core.causes import MAX_CAUSES, OTHER_CAUSE, cause_id, cause_name
from retryapp.core.classify import DeadReason
from retryapp.core.control import LetterMark, MarkKind, Refusal, Verb, is_mark, is_open, mark_of
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import LetterFilter
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, dead_letter_topics, read_record, read_topic

MOST_SAMPLES: Final = 5
_KEPT_SAMPLES: Final = 100
"""Some of them may turn out to be replayed."""
_TELL_EVERY: Final = 1_000
_OPEN: Final = "not-discarded"
"""What became of a letter that cannot be restored: nothing."""


class Scope(BaseModel):
    """What a job takes: what its preview has counted, up to where."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    letters: Mapping[int, int] = Field(default_factory=dict)
    """By partition: how many letters, or a number in proportion where not all were counted."""
    complete: bool = True
    """Whether all were."""
    upto: Mapping[int, Mapping[str, int]] = Field(default_factory=dict)
    """By partition and topic: the offset before which letters are taken."""


@dataclass(slots=True)
class Preview:
    """What a job would do now."""

    fitting: Counter[int] = field(default_factory=Counter)
    """Letters that it would take, by partition."""
    done: Counter[str] = field(default_factory=Counter)
    """Letters that fit and that it would refuse, by what became of them (`core.control.MarkKind`) or `NO_REPLAY`."""
    causes: Counter[str] = field(default_factory=Counter)
    """Letters that it would take, by the id of their cause; `OTHER_CAUSE`: of those beyond the first `MAX_CAUSES`."""
    names: dict[str, str] = field(default_factory=dict)
    """Of the causes."""
    samples: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """Failure ids of some, by topic, partition and offset."""
    looked: int = 0
    whole: int = 0
    """Offsets of the dead-letter topics: at least as many as there are letters."""
    complete: bool = True
    """Whether all were looked at."""
    upto: dict[int, dict[str, int]] = field(default_factory=dict)
    """By partition and topic: the offset before which letters were counted."""
    kept: Counter[int] = field(default_factory=Counter)
    """Offsets by partition."""

    @property
    def letters(self) -> int:
        return self.fitting.total()

    @property
    def scope(self) -> Scope:
        """Return what a job of this preview takes; the share of what was not counted goes by its offsets."""
        letters = +self.fitting if self.complete else +self.kept
        return Scope(letters=letters, complete=self.complete, upto=self.upto)

    @property
    def facts(self) -> dict[str, Any]:
        causes = [
            {"cause_id": cause, "cause": self.names[cause], "letters": count}
            for cause, count in (+self.causes).most_common()
        ]
        return {"letters": self.letters, "refused": dict(+self.done), "causes": causes, "samples": self.examples,
                "looked": self.looked, "of": self.whole, "complete": self.complete}  # fmt: skip

    @property
    def examples(self) -> list[str]:
        """Failure ids of some that it would take."""
        return [*self.samples.values()][:MOST_SAMPLES]

    def copy(self) -> Preview:
        """Return it as it is now, for others to read while counting goes on."""
        kept = {"fitting", "done", "causes", "names", "samples"}
        return replace(self, **{name: getattr(self, name).copy() for name in kept})


class _Letters:
    """Those that fit, of one partition of a topic, the oldest first."""

    def __init__(self) -> None:
        self.offsets, self.causes, self.states = array("q"), array("I"), bytearray()


class _Count:
    """Counts into a preview."""

    def __init__(self, verb: Verb, wanted: LetterFilter) -> None:
        self.found = Preview()
        self._wanted = wanted
        self._replays = verb is Verb.REPLAY
        self._able = MarkKind.DISCARDED if verb is Verb.RESTORE else None
        """The state of letters that the job takes; None: open."""
        self._letters: dict[tuple[str, int], _Letters] = {}
        self._causes: dict[str, int] = {}
        """Numbers of causes, in the order in which they came."""
        self._names: list[str] = []
        """Causes by number."""

    def take(self, record: Record) -> None:
        self.found.looked += 1
        if is_mark(record.headers):
            mark = mark_of(record.headers, record.value)
            if mark is not None:
                self._mark(record.topic, record.partition, mark)
            return
        try:
            metadata = decode_metadata(record.headers)
        except DamagedMetadataError:
            return
        if metadata is not None and self._wanted.fits(metadata, record, record.timestamp_ms):
            self._add(record, metadata)

    def _add(self, record: Record, metadata: RetryMetadata) -> None:
        found = self.found
        cause = cause_id(metadata.error_type, metadata.fingerprint, metadata.error_message)
        name = cause_name(metadata.error_type, None, metadata.error_message)
        if cause not in self._causes and len(self._causes) >= MAX_CAUSES:
            cause = name = OTHER_CAUSE
        found.names.setdefault(cause, name)
        if cause not in self._causes:
            self._causes[cause] = len(self._causes)
            self._names.append(cause)
        letters = self._letters.setdefault((record.topic, record.partition), _Letters())
        letters.offsets.append(record.offset)
        letters.causes.append(self._causes[cause])
        refused = NO_REPLAY.get(metadata.reason) if self._replays else None
        letters.states.append(_STATES.index(refused))
        self._move(letters, -1, 1, (record.topic, record.partition, record.offset), metadata.failure_id)

    def _mark(self, topic: str, partition: int, mark: LetterMark) -> None:
        letters = self._letters.get((topic, partition))
        at = -1 if letters is None else bisect_left(letters.offsets, mark.letter)
        if letters is None or at == len(letters.offsets) or letters.offsets[at] != mark.letter:
            return  # of one that does not fit
        place = topic, partition, mark.letter
        self._move(letters, at, -1, place, mark.failure_id)
        state = 0 if is_open(mark.mark) else _STATES.index(mark.mark)
        letters.states[at] += state - letters.states[at] % _KINDS
        self._move(letters, at, 1, place, mark.failure_id)

    def _move(self, letters: _Letters, at: int, by: int, place: tuple[str, int, int], name: str) -> None:
        """Count a letter in, or out."""
        found, state = self.found, _STATES[letters.states[at]]
        if state is not self._able:
            found.done[_OPEN if state is None else str(state)] += by
            return
        found.fitting[place[1]] += by
        found.causes[self._names[letters.causes[at]]] += by
        if by < 0:
            found.samples.pop(place, None)
        elif len(found.samples) < _KEPT_SAMPLES:
            found.samples[place] = name

    def fitting(self) -> Iterator[tuple[str, int, int]]:
        """Yield where letters are that the job takes."""
        for (topic, partition), letters in self._letters.items():
            for offset, state in zip(letters.offsets, letters.states, strict=True):
                if _STATES[state] is self._able:
                    yield topic, partition, offset


_MARKED: Final = tuple(kind for kind in MarkKind if not is_open(kind))
NO_REPLAY: Final[Mapping[str | None, Refusal]] = {
    DeadReason.CRASHED: Refusal.CRASHED,
    DeadReason.DAMAGED: Refusal.DAMAGED,
    DeadReason.GONE: Refusal.DAMAGED,
    DeadReason.TOO_LARGE: Refusal.TOO_LARGE,
}
"""Why no job replays letters with these reasons."""
_STATES: Final = tuple(state for first in (None, *dict.fromkeys(NO_REPLAY.values())) for state in (first, *_MARKED))
"""What became of letters: first of those that a job may take, then of those that it refuses to replay, by why."""
_KINDS: Final = 1 + len(_MARKED)


def preview(
    connection: KafkaConnection,
    topology: HandlerTopology,
    verb: Verb,
    wanted: LetterFilter,
    *,
    go_on: Callable[[Preview], bool] = lambda _found: True,
) -> Preview:
    """Read all dead letters of a handler, and count those that a job would take.

    `go_on` hears now and then how far it is, and ends it with False.

    Raises:
        TopicMissingError: there is no such dead-letter topic.
        BrokerUnreachableError: no broker answered.
    """
    admin, count = KafkaAdmin(connection), _Count(verb, wanted)
    found, stops = count.found, dict[str, dict[int, int]]()
    found.complete = False
    for topic in dead_letter_topics(admin, topology):
        for number, kept in admin.offsets(topic).items():
            stops.setdefault(topic, {})[number] = kept.stop
            found.upto.setdefault(number, {})[topic] = kept.stop
            found.kept[number] += len(kept)
            found.whole += len(kept)
    for record in _letters(connection, stops):
        count.take(record)
        if found.looked % _TELL_EVERY == 0 and not go_on(found):
            return found
    found.complete = True
    if len(found.samples) < min(MOST_SAMPLES, found.letters):  # those that were kept are replayed, or discarded, since
        for place in islice(count.fitting(), MOST_SAMPLES):
            letter = read_record(connection, *place)
            metadata = None if letter is None else decode_metadata(letter.headers)
            if metadata is not None:
                found.samples[place] = metadata.failure_id
    return found


def _letters(connection: KafkaConnection, stops: Mapping[str, Mapping[int, int]]) -> Iterator[Record]:
    for topic, stop in stops.items():
        yield from read_topic(connection, topic, stop=stop)
