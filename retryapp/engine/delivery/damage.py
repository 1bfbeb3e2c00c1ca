"""Dead-letter records that cannot be processed any further, or discard them where there is no dead-letter topic.

* Unreadable by the client library: `damaged`, one dead letter without payload for the range of offsets.
* A row that is damaged, or has damaged `retry-*` headers: `damaged`, with key, value, foreign headers and the metadata
  that `core.salvage` can read.
* A failure that cannot be written down: `damaged`, with the little that is known.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

from retryapp.core.classify import DeadReason
from retryapp.core.control import MAX_WORDS, LetterMark, MarkKind
from retryapp.core.errors import DamagedMetadataError, RecordError, UnreadableRecordsError
from retryapp.core.headers import RETRY_REPLAYS, HeaderReader, decode_metadata, failure_id_of
from retryapp.core.hops import Outgoing, arriving, cancelled, lost, not_run_again, to_dead_letter
from retryapp.core.jobs import Level
from retryapp.core.lifecycle import Discarded, Handled
from retryapp.core.metadata import MAX_MESSAGE_BYTES, MAX_NAME_BYTES, RetryMetadata
from retryapp.core.record import Headers, Origin, Record, failure_id, parse_failure_id
from retryapp.core.rows import decode_row
from retryapp.core.salvage import last_words, readable, salvage, single
from retryapp.core.text import cut_text
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.lane.turn import Turn, observed, to_event
from retryapp.ports import Event, Observation

UNKNOWN_SEQUENCE: Final = "a damaged record has lost its key: which records are to wait behind it is not known"
"""Why a partition is paused: `on_dead="hold"`, and a damaged row or batch does not say which sequence to stop."""


def bury_damaged(run: Run, error: RecordError, now_ms: int) -> Turn:
    """Return the turn that dead-letters a record or row that cannot be read.

    A damaged row or batch does not say which sequence to stop behind it, so its partition is paused.
    """
    counted = (0, 0) if run.claim is None else run.claim.counted
    metadata = salvage(_first_delivered(run), error, **_facts(run.context, now_ms), counted=counted)
    damage = run.record.damage if run.claim is None else run.claim.damage
    if damage is not None and run.sequence is None and run.context.handler.holding.stops:
        run.pauses = Level(since_ms=now_ms, record=metadata.failure_id, why=UNKNOWN_SEQUENCE)
    return _with_damage(_bury(run, run.record, metadata))


def bury_cancelled(run: Run, metadata: RetryMetadata) -> Turn:
    """Return the turn of a row that is not run again: its retries were cancelled."""
    now_ms = run.context.clock.wall_ms()
    ends, dead = ended(run.context, run.shown, cancelled(metadata, "", now_ms))
    return run.settle(publishes=ends, observations=(dead,))


def bury_surplus(run: Run, metadata: RetryMetadata) -> Turn:
    """Return the turn of a row that too many records wait for."""
    return _bury(run, run.shown, not_run_again(metadata, DeadReason.OVERFLOW, run.context.clock.wall_ms()))


def end_instead(run: Run, outcome: Turn, reason: DeadReason) -> Turn:
    """Return the turn of a record whose delivery has just failed, and that does not wait for its next attempt."""
    metadata = decode_metadata(decode_row(outcome.rows[0].value or b"").headers)
    if metadata is None:
        raise DamagedMetadataError("retry-version", "a row that was just made has none")
    # of the same delivery: its copy says that it would wait, and never becomes visible
    last = not_run_again(
        replace(metadata, delivery=metadata.delivery - 1, no_payload=False), reason, run.context.clock.wall_ms()
    )
    ends, dead = ended(run.context, run.shown, replace(last, started_ms=metadata.started_ms, worker=metadata.worker))
    failed = tuple(seen for seen in outcome.observations if seen.event is Event.FAILED)
    return run.settle(publishes=ends, observations=(*failed, dead))


def bury_lost(run: Run, metadata: RetryMetadata, error: RecordError) -> Turn:
    """Return the turn of a row whose record the main topic does not have any more."""
    return _bury(run, run.shown, lost(metadata, error, run.context.clock.wall_ms()))


def last_resort(run: Run, error: BaseException, fault: BaseException, now_ms: int) -> Turn:
    """Dead-letter a record whose failure (`error`) cannot be written down because of `fault`: it must not block."""
    context, record = run.context, run.record
    new = run.claim is None
    named = replace(record, headers=()) if new else _first_delivered(run)
    metadata = last_words(named, error, fault, **_facts(context, now_ms))
    try:
        turn = _bury(run, arriving(record) if new else record, metadata)
    except Exception:  # noqa: BLE001 - whatever it is, it must not block a partition
        turn = _bury(run, replace(record, key=None, value=None, headers=()), metadata)
    return _with_damage(turn)


def _first_delivered(run: Run) -> Record:
    """Return the record with the coordinates of its first delivery: a row's identity has them if nothing else does."""
    return run.record if run.claim is None else replace(run.record, topic=run.context.handler.main)


def unreadable(record: Record) -> UnreadableRecordsError | None:
    """Return the error of a record that stands for a range of unreadable offsets; None for a real record."""
    if record.damage is None:
        return None
    return UnreadableRecordsError(
        record.topic, record.partition, record.offset, record.damage.last_offset, record.damage.problem
    )


def _facts(context: DeliveryContext, now_ms: int) -> dict[str, Any]:
    handler = context.handler
    return {
        "group": handler.group,
        "handler": handler.name,
        "topic_id": context.topic_id,
        "policy_digest": handler.policy_digest,
        "now_ms": now_ms,
    }


def _with_damage(turn: Turn) -> Turn:
    (dead,) = turn.observations
    turn.observations = (replace(dead, event=Event.DAMAGED, reason=None), dead)
    return turn


def _bury(run: Run, record: Record, metadata: RetryMetadata) -> Turn:
    ends, dead = ended(run.context, record, metadata)
    return run.settle(publishes=ends, observations=(dead,))


def ended(
    context: DeliveryContext, record: Record, metadata: RetryMetadata
) -> tuple[tuple[Outgoing, ...], Observation]:
    """Return what says that a record is dead without another run, and its observation."""
    ends, metadata, event = to_end(context, record, metadata)
    dead = observed(
        event,
        context.handler.main,
        record,
        failure_id=metadata.failure_id,
        attempt=metadata.attempt,
        reason=metadata.reason,
        error_type=metadata.error_type,
        message=metadata.error_message,
        fingerprint=metadata.fingerprint,
    )
    return ends, dead


_TOLD: Final = (
    "group", "failure_id", "reason", "fingerprint", "rule", "attempt", "delivery", "replays", "policy",
    "origin_timestamp_ms", "first_failed_ms", "started_ms", "worker",
)  # fmt: skip


def to_end(
    context: DeliveryContext, record: Record, metadata: RetryMetadata, dead_letters: str | None = None
) -> tuple[tuple[Outgoing, ...], RetryMetadata, Event]:
    """Return what says that a record is dead: its dead letter, or where there is no topic for it an event.

    Of a dead letter whose handler has given up also the mark.
    """
    topology = context.handler.topology
    if not topology.drop:
        facts: dict[str, Any] = {"max_bytes": context.max_bytes, "dead_letters": dead_letters}
        letter, metadata = to_dead_letter(record, topology=topology, metadata=metadata, **facts)
        return (letter,), metadata, Event.DEAD
    is_letter = topology.letters_of is not None
    event = Discarded(
        kind="failed" if is_letter else "discarded",
        handler=cut_text(metadata.handler, MAX_NAME_BYTES),
        origin=metadata.origin.text,
        error_type=cut_text(metadata.error_type, MAX_NAME_BYTES),
        error_message=cut_text(metadata.error_message, MAX_MESSAGE_BYTES),
        ended_ms=metadata.last_failed_ms,
        **{name: getattr(metadata, name) for name in _TOLD},
    )
    told = Event.LETTER_FAILED if is_letter else Event.DISCARDED
    marks = letter_mark(context, MarkKind.FAILED, record.headers, metadata.origin, metadata.reason or "")
    return (to_event(event, topology=topology, partition=record.partition), *marks), metadata, told


def handled(run: Run) -> tuple[Outgoing, ...]:
    """Return what says that the handler of a dead letter is done with it; nothing for other records."""
    handler = run.context.handler
    if handler.topology.letters_of is None:
        return ()
    origin, now_ms = run.origin, run.context.clock.wall_ms()
    name = failure_id(handler.group, origin)
    event = Handled(group=handler.group, handler=handler.name, failure_id=name, origin=origin.text, at_ms=now_ms)
    told = to_event(event, topology=handler.topology, partition=run.record.partition)
    return told, *letter_mark(run.context, MarkKind.HANDLED, run.shown.headers, origin)


def letter_mark(
    context: DeliveryContext, kind: MarkKind, headers: Headers, letter: Origin, why: str = ""
) -> tuple[Outgoing, ...]:
    """Return the mark of a dead letter whose handler has come to an end; nothing for other records.

    A record that does not say which one it was has none, nor a letter that a command has marked meanwhile, nor one of
    a topic that was made again since.
    """
    topology, identity = context.handler.topology, failure_id_of(headers)
    if topology.own_letters_of is None or identity is None or letter.topic_id != context.topic_id:
        return ()
    group, origin = parse_failure_id(identity)
    place = topology.group, topology.own_letters_of, letter.partition
    is_ours = (group, origin.topic, origin.partition) == place
    if not is_ours or not (context.letters is None or context.letters.may_mark(letter.offset)):
        return ()
    read = HeaderReader(single(headers))
    told = LetterMark(
        mark=kind,
        failure_id=identity,
        letter=letter.offset,
        delivery=readable(read.delivery, 0),
        replays=readable(partial(read.number, RETRY_REPLAYS), 0),
        command="",
        by=cut_text(context.handler.name, MAX_WORDS),
        why=why,
    )
    return (told.to_record(topology.main, letter.partition),)


def recovered(run: Run) -> tuple[Outgoing, ...]:
    """Return the mark of the letter whose replay a handler is done with; nothing for other records.

    Nothing, too, if no rule names the letter's topic any more: somebody may have deleted it, and no mark could be sent.
    """
    metadata, topology = run.metadata, run.context.handler.topology
    if metadata is None or metadata.letter is None:
        return ()
    name, _, offset = metadata.letter.rpartition(":")
    if (topic := topology.dlq_named(name or None)) not in topology.dlqs:
        return ()
    told = LetterMark(
        mark=MarkKind.RECOVERED,
        failure_id=metadata.failure_id,
        letter=int(offset),
        delivery=metadata.delivery + 1,
        replays=metadata.replays,
        command=metadata.replay_id or "",
    )
    return (told.to_record(topic, run.shown.partition),)
