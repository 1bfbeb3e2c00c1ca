"""The page of one record's journey: what it has been through, what is planned, and where it is now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from retryapp.core.causes import cause_id
from retryapp.core.control import mark_of
from retryapp.core.errors import DamagedEventError, DamagedMetadataError, DamagedRowError, RetryAppError
from retryapp.core.headers import RETRY_ORIGIN, decode_metadata
from retryapp.core.hops import REPLAY, next_counted_ms
from retryapp.core.lifecycle import Commanded, RecordEvent, Succeeded, decode_event
from retryapp.core.metadata import DEFERRED, RetryMetadata
from retryapp.core.record import Origin, Record, failure_id, idempotency_key
from retryapp.core.rows import CANCELLED, decode_row
from retryapp.core.schedule import parse_schedule
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, with_dead_letters
from retryapp.lookup.circuits import mark_held_back, what_holds
from retryapp.lookup.failures import failures_of
from retryapp.lookup.reading import Reading
from retryapp.lookup.records import Facts, pending_summary
from retryapp.ports import ELSEWHERE, HandlerInfo, PendingEntry
from retryapp.web.addresses import find_address, origin_asked
from retryapp.web.answers import Answers
from retryapp.web.errors import bad_parameter, not_found
from retryapp.web.figures import OPEN, web_url
from retryapp.web.group import Group
from retryapp.web.query import Question
from retryapp.web.turns import Turns

READ_S: Final = 5.0
"""How long a page reads topics for one record."""
AHEAD_MS: Final = 3_600_000
"""How far the clock of a producer may be ahead: brokers take no more by default (`message.timestamp.after.max.ms`)."""
MOST_PLANNED: Final = 20
_REFUSED: Final = "refused, "
_REPLAYED: Final = ""
"""Kind of a copy whose letter's mark is the step that is shown."""
_UNKNOWN: Final = dict.fromkeys(
    (
        "attempt",
        "by",
        "cause_id",
        "due_at_ms",
        "duration_ms",
        "edited",
        "error_type",
        "first_failed_ms",
        "job",
        "message",
        "reason",
        "replays",
        "text",
        "worker",
    )
)

_readings: Final = Turns(2)


async def journey(answers: Answers, question: Question) -> Facts:
    """Return what the topics say of a record, whoever has it now, and whether it waits, is dead or done."""
    info = answers.get_handler_or_404(question.main)
    origin = origin_asked(info, question)
    name = failure_id(info.group, origin)
    if origin.partition >= info.partitions:
        raise bad_parameter("id", name, f"a failure id of {info.group}/{info.main}")
    answers.check_broker()
    asked = (info.main, read_journey, origin, await _begun(answers, origin))
    group: Group
    found: Journey
    group, found = await asyncio.gather(
        answers.everywhere(info.main, answers.view.partitions(info.main)),
        _readings.read(answers.view.on_topics, *asked, seconds=READ_S),
    )
    if not found.steps and found.complete:
        hint = "It may be done at its first delivery, run now, or have left the topics by their retention"
        raise not_found("no-journey", f"no topic of {info.main} says anything of {name}", hint)
    item = answers.view.partition(info.main, origin.partition)
    row = answers.view.pending_find(origin) if item is not None and item.state == OPEN else None
    owner = "" if item is None or item.state != ELSEWHERE else web_url(item.owner_url) or ""
    steps: list[Facts] = [{**_UNKNOWN, **step} for step in found.steps]
    last = _last_failure(row, steps)
    if item is not None and row is not None and last:
        mark_held_back(last, what_holds([item]), answers.now_ms())
    return {
        "main": info.main,
        "failure_id": name,
        "idempotency_key": idempotency_key(name, found.edited),
        "origin": {"partition": origin.partition, "offset": origin.offset},
        "first_failed_ms": min((step["first_failed_ms"] for step in steps if step["first_failed_ms"]), default=None),
        "jobs": sorted({step["job"] for step in steps} & {part.job for _, part in group.parts}),
        "steps": steps,
        "looked": found.looked,
        "complete": found.complete,
        "planned": planned(info, last),
        "held_back_by": last.get("held_back_by"),
        "max_attempts": info.max_attempts,
        "find": owner + find_address(info, origin),
    }


async def _begun(answers: Answers, origin: Origin) -> int | None:
    """Return an instant before the record was sent; None where it is gone, with its topic or without."""
    if origin.topic_id != answers.view.topic_id(origin.topic):
        return None
    try:
        record = await answers.read_record(origin.topic, origin.partition, origin.offset)
    except RetryAppError:
        return None
    since_ms = 0 if record is None else record.timestamp_ms - AHEAD_MS
    return since_ms if 0 < since_ms <= answers.now_ms() else None


def _last_failure(row: PendingEntry | None, steps: Sequence[Facts]) -> Facts:
    """Return the last failed attempt and when the next is due: as its row says, or its last step where none is here.

    ``counted_ms`` is from when ``max_elapsed`` counts. Empty after anything else: a command may have changed the time,
    or ended the retries.
    """
    if row is not None:
        return _failed_in(row)
    last = next((step for step in reversed(steps) if not (step.get("text") or "").startswith(_REFUSED)), {})
    if last.get("kind") != "failed":
        return {}
    spent = (step for step in steps if step["kind"] == "failed" and step["attempt"])
    first = next((step for step in spent if step["replays"] == last["replays"]), None)
    return {**last, "counted_ms": last.get("due_at_ms") if first is None else first["at_ms"]}


def _failed_in(row: PendingEntry) -> Facts:
    facts = pending_summary(row)
    with suppress(DamagedRowError, DamagedMetadataError):
        waiting = decode_row(row.value)
        metadata = decode_metadata(waiting.headers)
        if facts["due_at_ms"] is not None and metadata is not None and not waiting.flags & CANCELLED:
            return {**facts, "counted_ms": next_counted_ms(metadata, facts["due_at_ms"])}
    return {}


def planned(info: HandlerInfo, last: Facts) -> list[Facts]:
    """Return the attempts to come by today's policy if all fail, without jitter; none if no next one is due.

    Only the next where rules have schedules of their own: its error says which one follows. So where something holds
    that back: when it begins is not known, and the time until then may not count.
    """
    if last.get("due_at_ms") is None or last.get("attempt") is None:
        return []
    schedule, at_ms, attempt = parse_schedule(info.schedule), last["due_at_ms"], last["attempt"] + 1
    replays = last["replays"] or 0
    plan = [{"attempt": attempt, "replays": replays, "due_at_ms": at_ms}]
    if info.max_attempts is None or info.rule_schedules or last.get("held_back_by"):
        return plan
    until_ms = math.inf if info.max_elapsed_ms is None else last["counted_ms"] + info.max_elapsed_ms
    while len(plan) < MOST_PLANNED and schedule.follows(attempt) and attempt < info.max_attempts:
        at_ms += schedule.nominal_ms(attempt)
        attempt += 1
        if at_ms > until_ms:
            break
        plan.append({"attempt": attempt, "replays": replays, "due_at_ms": at_ms})
    return plan


class Journey(NamedTuple):
    """What is known of a record, the oldest first."""

    steps: list[dict[str, Any]]
    looked: int
    complete: bool
    """Whether all that may be about it was read."""
    edited: int
    """How often it was edited with a new idempotency key."""


def read_journey(
    connection: KafkaConnection,
    topology: HandlerTopology,
    origin: Origin,
    since_ms: int | None,
    go_on: Callable[[], bool],
) -> Journey:
    """Read what the topics of a handler say of one record, from an instant on; `go_on` ends it with False."""
    names = set(KafkaAdmin(connection).topic_names())
    topics = [*topology.retry_topics, *with_dead_letters(topology, names).dlqs, topology.events]
    steps, reading = list[dict[str, Any]](), Reading(connection, go_on)
    for topic in (topic for topic in topics if topic in names):
        told = _told if topic == topology.events else _failed
        for record in reading.since(topic, [origin.partition], since_ms or 0):
            steps += told(record, topology, origin)
    steps.sort(key=lambda step: step["at_ms"])
    commands = {step.pop("command", None) for step in steps}  # about this record alone: they are steps themselves
    for step in steps:
        job = step.get("job") or None
        step["job"] = None if job in commands else job
    edited = max((step.get("edited") or 0 for step in steps), default=0)
    return Journey([step for step in steps if step["kind"] != _REPLAYED], reading.looked, reading.complete, edited)


def _failed(record: Record, topology: HandlerTopology, origin: Origin) -> Iterator[dict[str, Any]]:
    """Return what a copy on a retry topic, a dead letter or its mark says."""
    mark = mark_of(record.headers, record.value)
    if mark is not None:
        if mark.failure_id == failure_id(topology.group, origin):
            facts = {"by": mark.by, "message": mark.why or None, "job": mark.command or None}
            yield {"kind": str(mark.mark), "at_ms": record.timestamp_ms, **facts}
        return
    if (RETRY_ORIGIN, origin.text.encode()) not in record.headers:
        return
    with suppress(DamagedMetadataError):
        read = decode_metadata(record.headers)
        if read is not None and read.group == topology.group:
            copied = {"kind": _REPLAYED if read.tier == REPLAY else "waits", "at_ms": record.timestamp_ms}
            yield _attempt(read) if read.delivery and read.tier != REPLAY else {**copied, "edited": read.edited}


def _attempt(read: RetryMetadata) -> dict[str, Any]:
    same = ("attempt", "delivery", "replays", "worker", "error_type", "due_at_ms", "reason", "edited")
    is_deferred = read.tier == DEFERRED
    ended = "deferred" if is_deferred else "failed"
    return {
        **{name: getattr(read, name) for name in same},
        "kind": ended if read.reason is None else "dead",
        "attempt": read.attempt + is_deferred,  # it spends none
        "first_failed_ms": failures_of(read).first_ms,
        "at_ms": read.last_failed_ms,
        "duration_ms": max(0, read.last_failed_ms - read.started_ms),
        "message": read.error_message,
        "cause_id": cause_id(read.error_type, read.fingerprint, read.error_message),
    }


def _told(record: Record, topology: HandlerTopology, origin: Origin) -> Iterator[dict[str, Any]]:
    if record.key != failure_id(topology.group, origin).encode():
        return
    with suppress(DamagedEventError):
        event = decode_event(record.value or b"")
        if isinstance(event, Commanded):
            outcome = f"{_REFUSED}{event.refused}" if event.refused else event.text
            facts: dict[str, Any] = {"by": event.by, "message": event.why, "job": event.job, "command": event.command}
            yield {"kind": event.verb, "at_ms": event.at_ms, "text": outcome, **facts}
        elif isinstance(event, RecordEvent):
            facts = event.model_dump(include={"attempt", "delivery", "replays", "error_type", "reason", "worker"})
            began_ms, at_ms = getattr(event, "started_ms", None), getattr(event, "ended_ms", record.timestamp_ms)
            duration = {} if began_ms is None else {"duration_ms": max(0, at_ms - began_ms)}
            why = {} if isinstance(event, Succeeded) else {"message": getattr(event, "error_message", None)}
            yield {"kind": event.kind, "at_ms": at_ms, **facts, **duration, **why}
