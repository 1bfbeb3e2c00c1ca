"""Jobs before and while they run: how many dead letters a filter fits, and how far each part is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from retryapp.core.causes import cause_id, cause_name
from retryapp.core.control import MarkKind, Verb, is_mark, mark_of
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import LetterFilter, Part
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic, with_dead_letters
from retryapp.kafka.remembered import remembered

MOST_SAMPLES = 5
_TELL_EVERY = 10_000


@dataclass(slots=True)
class Preview:
    """What a job would do now."""

    fitting: Counter[int] = field(default_factory=Counter)
    """Letters that it would take, by partition."""
    done: Counter[str] = field(default_factory=Counter)
    """Letters that fit, and that it would refuse, by what became of them (`core.control.MarkKind`)."""
    causes: Counter[str] = field(default_factory=Counter)
    """Letters that it would take, by the id of their cause."""
    names: dict[str, str] = field(default_factory=dict)
    """Of the causes."""
    samples: list[str] = field(default_factory=list)
    """Failure ids of some."""
    looked: int = 0
    upto: dict[int, dict[str, int]] = field(default_factory=dict)
    """By partition and topic: the offset before which letters were counted."""

    @property
    def letters(self) -> int:
        """How many it would take."""
        return self.fitting.total()


def preview(
    connection: KafkaConnection,
    topology: HandlerTopology,
    verb: Verb,
    wanted: LetterFilter,
    *,
    tell: Callable[[int, int], None] = lambda _looked, _of: None,
) -> Preview:
    """Read all dead letters of a handler, and count those that a job would take.

    Memory is some 300 bytes for each letter that fits. `tell` hears now and then how many of how many were read.

    Raises:
        TopicMissingError: there is no such dead-letter topic.
        BrokerUnreachableError: no broker answered.
    """
    admin, found = KafkaAdmin(connection), Preview()
    topics = with_dead_letters(topology, admin.topic_names()).dlqs
    ranges = {topic: admin.offsets(topic) for topic in topics}
    whole = sum(len(kept) for kepts in ranges.values() for kept in kepts.values())
    able = MarkKind.DISCARDED if verb is Verb.RESTORE else None
    for topic, kepts in ranges.items():
        fitting: dict[tuple[int, int], tuple[str, str]] = {}
        state: dict[tuple[int, int], str | None] = {}
        for record in read_topic(connection, topic, stop={number: kept.stop for number, kept in kepts.items()}):
            found.looked += 1
            if found.looked % _TELL_EVERY == 0:
                tell(found.looked, whole)
            if is_mark(record.headers):
                mark = mark_of(record.headers, record.value)
                if mark is not None and (record.partition, mark.letter) in fitting:
                    known = None if mark.mark is MarkKind.RESTORED else str(mark.mark)
                    state[record.partition, mark.letter] = known
                continue
            try:
                metadata = decode_metadata(record.headers)
            except DamagedMetadataError:
                continue
            if metadata is None or not wanted.fits(metadata, record.key, record.timestamp_ms):
                continue
            cause = cause_id(metadata.error_type, metadata.fingerprint, metadata.error_message)
            found.names.setdefault(cause, cause_name(metadata.error_type, None, metadata.error_message))
            fitting[record.partition, record.offset] = cause, metadata.failure_id
        for number, kept in kepts.items():
            found.upto.setdefault(number, {})[topic] = kept.stop
        for (partition, offset), (cause, failure_id) in fitting.items():
            known = state.get((partition, offset))
            if known == able:
                found.fitting[partition] += 1
                found.causes[cause] += 1
                if len(found.samples) < MOST_SAMPLES:
                    found.samples.append(failure_id)
            else:
                found.done[known or "not-discarded"] += 1
    tell(whole, whole)
    return found


def parts_of(connection: KafkaConnection, topology: HandlerTopology) -> dict[str, dict[int, Part]]:
    """Return the parts that the partitions of a handler remember, by job and partition; the oldest job first."""
    jobs: dict[str, dict[int, Part]] = {}
    for partition, steering in remembered(connection, topology).items():
        for part in steering.parts:
            jobs.setdefault(part.job, {})[partition] = part
    return jobs


def summed(parts: Mapping[int, Part]) -> Part:
    """Return a job as one part: it goes on while one of its parts does."""
    whole = next(iter(parts.values())).model_copy(update={"refused": Counter(), "looked": 0, "done": 0, "at": {}})
    for part in parts.values():
        whole.refused += part.refused
        whole.looked += part.looked
        whole.done += part.done
    order = ("running", "paused", "cancelled", "ended")
    whole.state = min((part.state for part in parts.values()), key=lambda state: order.index(state))
    whole.paused = "; ".join(dict.fromkeys(part.paused for part in parts.values() if part.paused))
    return whole
