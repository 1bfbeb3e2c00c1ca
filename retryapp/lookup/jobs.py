"""Jobs: how many dead letters a filter fits, how one is begun and steered, and how far each part is."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field

from retryapp.core.causes import cause_id, cause_name
from retryapp.core.control import MarkKind, Refusal, Verb, is_mark, mark_of
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import (
    CANARY,
    HandlerCommand,
    HandlerVerb,
    JobCommand,
    JobPart,
    JobVerb,
    LetterFilter,
    Part,
    shared,
)
from retryapp.core.lifecycle import Commanded
from retryapp.core.rates import parse_rate
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic, with_dead_letters
from retryapp.kafka.commands import send_to_all
from retryapp.kafka.remembered import remembered

MOST_SAMPLES: Final = 5
_TELL_EVERY: Final = 1_000

Told = Mapping[int, Commanded | None]
"""What partitions say of a command; None: no worker has the partition now."""


class Words(TypedDict):
    """Who steers, why, and how long the answer is waited for."""

    by: str
    why: str
    wait_s: float


class Scope(BaseModel):
    """What a job takes: what its preview has counted, up to where."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    letters: Mapping[int, int] = Field(default_factory=dict)
    """By partition: how many letters, or a number in proportion where not all were counted."""
    upto: Mapping[int, Mapping[str, int]] = Field(default_factory=dict)
    """By partition and topic: the offset before which letters are taken."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a job is begun."""

    verb: Verb
    filter: LetterFilter
    id: str = field(default_factory=lambda: secrets.token_hex(5))
    rate: str | None = None
    force: bool = False
    by: str = ""
    why: str = ""


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
    keys: set[int] = field(default_factory=set)
    """Hashes of the keys of letters that it would take."""
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
        """How many it would take."""
        return self.fitting.total()

    @property
    def scope(self) -> Scope:
        """Return what a job of this preview takes; the share of what was not counted goes by its offsets."""
        return Scope(letters=self.fitting if self.complete else +self.kept, upto=self.upto)

    @property
    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        causes = [
            {"cause_id": cause, "cause": self.names[cause], "letters": count}
            for cause, count in self.causes.most_common()
        ]
        return {"letters": self.letters, "refused": dict(self.done), "causes": causes, "samples": self.samples,
                "looked": self.looked, "of": self.whole, "complete": self.complete, "keys": len(self.keys)}  # fmt: skip


def preview(
    connection: KafkaConnection,
    topology: HandlerTopology,
    verb: Verb,
    wanted: LetterFilter,
    *,
    go_on: Callable[[int, int], bool] = lambda _looked, _of: True,
) -> Preview:
    """Read all dead letters of a handler, and count those that a job would take.

    Memory is some 300 bytes for each letter that fits. `go_on` hears now and then how many of how many were read, and
    ends it with False.

    Raises:
        TopicMissingError: there is no such dead-letter topic.
        BrokerUnreachableError: no broker answered.
    """
    admin, found = KafkaAdmin(connection), Preview()
    topics = with_dead_letters(topology, admin.topic_names()).dlqs
    ranges = {topic: admin.offsets(topic) for topic in topics}
    found.whole = sum(len(kept) for kepts in ranges.values() for kept in kepts.values())
    able = MarkKind.DISCARDED if verb is Verb.RESTORE else None
    for topic, kepts in ranges.items():
        for number, kept in kepts.items():
            found.upto.setdefault(number, {})[topic] = kept.stop
            found.kept[number] += len(kept)
        if not found.complete:
            continue
        fitting: dict[tuple[int, int], tuple[str, str, int]] = {}
        state: dict[tuple[int, int], str | None] = {}
        for record in read_topic(connection, topic, stop={number: kept.stop for number, kept in kepts.items()}):
            found.looked += 1
            if found.looked % _TELL_EVERY == 0 and not go_on(found.looked, found.whole):
                found.complete = False
                break
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
            if metadata is None or not wanted.fits(metadata, record, record.timestamp_ms):
                continue
            cause = cause_id(metadata.error_type, metadata.fingerprint, metadata.error_message)
            found.names.setdefault(cause, cause_name(metadata.error_type, None, metadata.error_message))
            fitting[record.partition, record.offset] = cause, metadata.failure_id, hash(record.key)
        for (partition, offset), (cause, failure_id, key) in fitting.items():
            known = state.get((partition, offset))
            if known == able:
                found.fitting[partition] += 1
                found.causes[cause] += 1
                found.keys.add(key)
                if len(found.samples) < MOST_SAMPLES:
                    found.samples.append(failure_id)
            else:
                found.done[known or "not-discarded"] += 1
    go_on(found.whole, found.whole)
    return found


def begin(connection: KafkaConnection, topology: HandlerTopology, order: Order, scope: Scope, *, wait_s: float) -> Told:
    """Begin a job on all partitions that have letters of it; blocks. Sent again, it is refused as known.

    Raises:
        InvalidSettingError: the rate is none.
        RetryAppError: as `send_to_all` does.
    """
    every_ms = None if order.rate is None else parse_rate(order.rate).share_ms(1)
    probes = CANARY if order.verb is Verb.REPLAY else 0
    facts: Any = {"verb": order.verb, "filter": order.filter, "every_ms": every_ms, "force": order.force}
    whole = JobPart(upto={}, canary=probes, **facts)
    parts = shared(whole, scope.letters, scope.upto)
    words = {"id": order.id, "job": order.id, "verb": JobVerb.START, "by": order.by, "why": order.why}
    commands = {number: JobCommand(part=part, **words) for number, part in parts.items()}  # type: ignore[arg-type]
    told = send_to_all(connection, topology, commands, wait_s=wait_s)
    return {number: told.get(number) for number in commands}


def tell_job(
    connection: KafkaConnection, topology: HandlerTopology, job: str, verb: JobVerb, **more: Unpack[Words]
) -> Told:
    """Pause, resume or cancel a job, also where its begin still waits for a worker; blocks.

    Returns:
        What partitions say, of those that have a part that goes on, or may have one; empty: none has.
    """
    command = JobCommand(id=secrets.token_hex(8), job=job, verb=verb, by=more["by"], why=more["why"])
    told = _tell_all(connection, topology, command, more["wait_s"])
    return {number: event for number, event in told.items() if event is None or event.refused != Refusal.NO_JOB}


def tell_handler(
    connection: KafkaConnection, topology: HandlerTopology, verb: HandlerVerb, circuit: str = "", **more: Unpack[Words]
) -> Told:
    """Pause or resume a handler, or steer a circuit of it, on all partitions; blocks."""
    command = HandlerCommand(id=secrets.token_hex(8), verb=verb, circuit=circuit, by=more["by"], why=more["why"])
    return _tell_all(connection, topology, command, more["wait_s"])


def _tell_all(
    connection: KafkaConnection, topology: HandlerTopology, command: JobCommand | HandlerCommand, wait_s: float
) -> Told:
    numbers = KafkaAdmin(connection).offsets(topology.control)
    told = send_to_all(connection, topology, dict.fromkeys(numbers, command), wait_s=wait_s)
    return {number: told.get(number) for number in numbers}


def outcomes(told: Told) -> list[dict[str, Any]]:
    """Return what partitions say of a command as JSON has it."""
    return [
        {"partition": number, "outcome": "queued", "text": "no worker has this partition now"}
        if event is None
        else {"partition": number, "outcome": "refused" if event.refused else "done", "text": event.text}
        for number, event in told.items()
    ]


def part_facts(part: Part) -> dict[str, Any]:
    """Return a part, or parts in one, as JSON has it."""
    return {
        "verb": part.verb,
        "state": part.state,
        "done": part.done,
        "refused": dict(part.refused),
        "looked": part.looked,
        "letters": part.done + part.refused.total() if part.order is None else part.order.letters,
        "paused": part.paused or None,
        "by": part.by,
        "why": part.why,
    }


def job_facts(job: str, parts: Mapping[int, Part]) -> dict[str, Any]:
    """Return a whole job as JSON has it; `letters`: how many it takes, None where a part does not know."""
    letters = [part_facts(part)["letters"] for part in parts.values()]
    return {"job": job, **part_facts(summed(parts)), "letters": None if None in letters else sum(letters)}


def by_job(parts: Iterable[tuple[int, Part]]) -> dict[str, dict[int, Part]]:
    """Return the parts of partitions by job."""
    jobs: dict[str, dict[int, Part]] = {}
    for partition, part in parts:
        jobs.setdefault(part.job, {})[partition] = part
    return jobs


def parts_of(connection: KafkaConnection, topology: HandlerTopology) -> dict[str, dict[int, Part]]:
    """Return the parts that the partitions of a handler remember, by job and partition; the oldest job first."""
    known = remembered(connection, topology).items()
    return by_job((partition, part) for partition, steering in known for part in steering.parts)


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
