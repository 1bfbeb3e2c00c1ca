"""Jobs: how one is begun and steered, how far each part is, and which letters it has refused."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from retryapp.core.control import Refusal, Verb
from retryapp.core.errors import DamagedEventError
from retryapp.core.jobs import (
    CANARY,
    JOB_AGE_MS,
    MOST_NAMED,
    HandlerCommand,
    HandlerVerb,
    JobCommand,
    JobPart,
    JobVerb,
    LetterFilter,
    Part,
    PartState,
    shared,
)
from retryapp.core.lifecycle import Commanded, decode_event
from retryapp.core.rates import parse_rate
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.kafka.commands import send_to_all
from retryapp.kafka.remembered import Queued, remembered, remembered_and_queued
from retryapp.lookup.outcomes import outcome_of
from retryapp.lookup.previews import Scope
from retryapp.lookup.reading import Reading

_PASSED: Final = frozenset({
    Refusal.REPLAYED, Refusal.HANDLED, Refusal.DISCARDED, Refusal.NOT_DISCARDED, Refusal.NOT_NEWEST, Refusal.WAITING
})  # fmt: skip
"""Refusals of letters that stay as a preview has said: they were done with before, or are not what a job is about."""
_QUEUED: Final = "no worker has answered yet: the command waits for the one that has this partition"

Told = Mapping[int, Commanded | None]
"""What partitions say of a command; None: no worker has the partition now."""


class Words(TypedDict):
    """Who steers, why, and how long the answer is waited for."""

    by: str
    why: str
    wait_s: float


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
    parts = shared(whole, scope.letters, scope.upto, complete=scope.complete)
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
    """Return what partitions say, as JSON has it; `refused`: the word of a refusal (`core.control.Refusal`)."""
    return [
        {
            "partition": number,
            "outcome": outcome_of(event),
            "refused": None if event is None else event.refused,
            "text": _QUEUED if event is None else event.text,
        }
        for number, event in told.items()
    ]


def passed(part: Part) -> int:
    """Return how many of the refused letters need no action: they were done with before."""
    return sum(count for word, count in part.refused.items() if word in _PASSED)


def part_facts(part: Part) -> dict[str, Any]:
    """Return a part, or parts in one, as JSON has it.

    `passed`: how many of the refused stay as the preview said. `failed_again`: of so many `outcomes` of replays as the
    workers that have the partitions have seen; None: of none.
    """
    taken = part.done + part.refused.total() - passed(part)
    ordered = getattr(part.order, "letters", None)  # a newer build may have something else
    return {
        "verb": part.verb,
        "state": part.state,
        "done": part.done,
        "refused": dict(part.refused),
        "passed": passed(part),
        "looked": part.looked,
        "letters": taken if part.order is None else ordered if isinstance(ordered, int) else None,
        "paused": part.paused or None,
        "by": part.by,
        "why": part.why,
        "outcomes": part.outcomes,
        "failed_again": part.failed_again if part.outcomes else None,
    }


def job_facts(job: str, parts: Mapping[int, Part]) -> dict[str, Any]:
    """Return a whole job as JSON has it; `letters`: how many it takes, None where a part does not know."""
    letters = [part_facts(part)["letters"] for part in parts.values()]
    return {"job": job, **part_facts(summed(parts)), "letters": None if None in letters else sum(letters)}


class JobProgress(NamedTuple):
    """How far a job is."""

    parts: Mapping[int, Part]
    """Those that have begun, by partition."""
    not_begun: Sequence[int] = ()
    """Partitions on which it still waits for a worker."""
    start: Part | None = None
    """As it was begun; needed where it waits on all partitions."""
    pauses: Mapping[int, str] = {}
    """By partition who has paused deliveries, where what it replays waits for that."""

    @property
    def _known(self) -> Mapping[int, Part]:
        return self.parts or ({} if self.start is None else dict.fromkeys(self.not_begun, self.start))

    @property
    def whole(self) -> Part:
        """Return it as one part. What has ended on some partitions, and is to begin on others, still runs."""
        whole = summed(self._known)
        if self.not_begun and whole.state is PartState.ENDED:
            whole.state = PartState.RUNNING
        return whole

    def facts(self, job: str) -> dict[str, Any]:
        """Return the job as JSON has it."""
        facts = job_facts(job, self._known) | {"state": self.whole.state, "not_begun": list(self.not_begun)}
        return facts | ({"letters": None} if self.not_begun else {})

    def details(self, job: str) -> dict[str, Any]:
        """Return the same, and each of its parts by partition."""
        return {
            **self.facts(job),
            "deliveries_paused": {str(number): text for number, text in self.pauses.items()},
            "partitions": {str(number): part_facts(part) for number, part in self.parts.items()},
        }


def by_job(parts: Iterable[tuple[int, Part]]) -> dict[str, dict[int, Part]]:
    """Return parts by job and partition, the oldest job first."""
    jobs: dict[str, dict[int, Part]] = {}
    for partition, part in parts:
        jobs.setdefault(part.job, {})[partition] = part
    return dict(sorted(jobs.items(), key=lambda each: min(part.since_ms for part in each[1].values())))


def parts_of(connection: KafkaConnection, topology: HandlerTopology) -> dict[str, dict[int, Part]]:
    """Return the parts that the partitions of a handler remember, as `by_job` has them."""
    known = remembered(connection, topology).items()
    return by_job((partition, part) for partition, steering in known for part in steering.parts)


def progress_of(connection: KafkaConnection, topology: HandlerTopology, now_ms: int) -> dict[str, JobProgress]:
    """Return how far the jobs are that the partitions of a handler remember, the oldest first, and those that wait.

    A job begins no more where its start has waited for longer than `JOB_AGE_MS`: a worker refuses it.
    """
    known = remembered_and_queued(connection, topology)
    jobs = by_job((partition, part) for partition, steering in known.steerings.items() for part in steering.parts)
    paused = {number: each.paused.text for number, each in known.steerings.items() if each.paused is not None}
    found: dict[str, JobProgress] = {}
    for job in dict.fromkeys((*jobs, *known.starts)):
        parts, starts = jobs.get(job, {}), known.starts.get(job, {})
        late = [each for each, sent in starts.items() if each not in parts and now_ms - sent.sent_ms <= JOB_AGE_MS]
        if not (parts or late):
            continue
        progress = JobProgress(parts, sorted(late), _as_begun(starts[late[0]]) if late else None)
        going_on = {number for number, part in parts.items() if not part.over} | {*late}
        waits = paused.keys() & going_on if progress.whole.verb == Verb.REPLAY else set[int]()
        found[job] = progress._replace(pauses={number: paused[number] for number in sorted(waits)})
    return found


def _as_begun(start: Queued[JobCommand]) -> Part:
    command = start.command
    verb = "" if command.part is None else command.part.verb
    return Part(job=command.job, verb=verb, by=command.by, why=command.why, since_ms=start.sent_ms)


def summed(parts: Mapping[int, Part]) -> Part:
    """Return a job as one part: it goes on while one of its parts does."""
    none = {"refused": Counter(), "looked": 0, "done": 0, "at": {}, "outcomes": 0, "failed_again": 0}
    whole = next(iter(parts.values())).model_copy(update=none)
    for part in parts.values():
        whole.refused += part.refused
        whole.looked += part.looked
        whole.done += part.done
        whole.outcomes += part.outcomes
        whole.failed_again += part.failed_again
    whole.state = min((part.state for part in parts.values()), key=_rank)
    whole.paused = "; ".join(dict.fromkeys(part.paused for part in parts.values() if part.paused))
    return whole


def _rank(state: str) -> int:
    """Return what sorts the states of parts: the first one is that of the whole; one of a newer build goes on."""
    over = (PartState.CANCELLED, PartState.ENDED)
    return 2 + over.index(state) if state in over else int(state != PartState.RUNNING)


class Refused(NamedTuple):
    """Letters that a job has refused: partition, failure id (None of a damaged one), word and sentence of each."""

    letters: list[dict[str, Any]]
    complete: bool
    """Whether all events were looked at; each part has some for its first `core.jobs.MOST_NAMED`."""


def read_refused(
    connection: KafkaConnection,
    topology: HandlerTopology,
    job: str,
    parts: Mapping[int, Part],
    go_on: Callable[[], bool] = lambda: True,
    *,
    most: int | None = None,
) -> Refused:
    """Read which letters a job has refused, from the events since it began; blocks.

    `parts` are of `parts_of`; `go_on` ends it with False, and so do `most` letters.

    Raises:
        BrokerUnreachableError: no broker answered.
    """
    letters = list[dict[str, Any]]()
    named = {number: min(MOST_NAMED, part.refused.total()) for number, part in parts.items() if part.refused}
    total = sum(named.values())
    reading = Reading(connection, go_on)
    for record in reading.since(topology.events, named, min(part.since_ms for part in parts.values())):
        if len(letters) == most:
            return Refused(letters, complete=False)
        if job.encode() not in (record.value or b""):
            continue
        with suppress(DamagedEventError):  # of a newer worker
            event = decode_event(record.value or b"")
            if isinstance(event, Commanded) and event.job == job and event.refused and not event.command:
                facts = {"failure_id": event.failure_id or None, "refused": event.refused, "text": event.text}
                letters.append({"partition": record.partition, **facts})
                if len(letters) == total:
                    break
    return Refused(sorted(letters, key=lambda letter: int(letter["partition"])), reading.complete)
