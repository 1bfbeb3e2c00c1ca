"""The copies of a record on our topics, and the record that the handler sees.

Life of a record, each step a pure function:

1. ``arriving`` (main topic): what the handler sees of a new record.
2. ``after_failure``: the metadata of a failed attempt and its decision.
3. ``to_tier``: its copy on the retry topic, which is history; ``to_row``: the row that waits.
4. ``restore``: what the handler sees of a due row: its own headers, its original coordinates and timestamp.
5. ``to_dead_letter``: the dead letter.

A copy is measured (``waiting_size``) first: one that the broker refuses would fail its transaction and all later ones.

Invariants: key, value and foreign headers pass byte for byte; the partition number never changes; our headers occur
once. A null value always travels as empty with a mark: the client refuses a null key with a null value. A user's header
with one of our names travels shielded (``foreign.shield``), and every header name can be sent. Facts about a failure
are cut and clamped to fit a header, so no record is lost or blocks others because of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final

from retryapp.core.causes import cause_hash
from retryapp.core.classify import DeadReason, Failure
from retryapp.core.decide import Dead, Decision, RetryAt
from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import InvalidDurationError, RecordError, UnreadableRecordsError
from retryapp.core.foreign import escape_names, name_bytes, shield, split_headers, strip, unshield
from retryapp.core.headers import RETRY_NO_PAYLOAD, encode_metadata
from retryapp.core.metadata import (
    DEFERRED,
    HELD,
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_HISTORY,
    MAX_HISTORY_TYPE_BYTES,
    NAMELESS,
    RELEASED,
    STOPPED_TIER,
    HistoryEntry,
    RetryMetadata,
    clamped,
)
from retryapp.core.record import Headers, Origin, Record
from retryapp.core.row_keys import IDENTITY_BYTES, STOPPED_MS
from retryapp.core.rows import (
    FAILURE_OVERHEAD_BYTES,
    OPERATOR,
    ROW_HEADER_OVERHEAD_BYTES,
    ROW_OVERHEAD_BYTES,
    SEQUENCE,
    STOPPED,
    TOKEN,
    PendingRow,
    Reference,
    failure_bytes,
)
from retryapp.core.rules import Rule
from retryapp.core.text import cut_text
from retryapp.core.topology import HandlerTopology
from retryapp.core.traces import qualified_name
from retryapp.core.values import value_type
from retryapp.core.verdicts import Defer

REPLAY: Final = "replay"
"""Tier of a record that was replayed, until its next attempt fails."""

DEFERRAL: Final = qualified_name(Defer)
"""Error type in the history of each delivery that was deferred, whatever its handler has raised."""

BATCH_OVERHEAD_BYTES: Final = 61
"""Header of a record batch, format v2 (KIP-98): the limit holds for the batch, so a lone record carries it."""

_RECORD_OVERHEAD_BYTES: Final = 36
_HEADER_OVERHEAD_BYTES: Final = 10


@value_type
class Outgoing:
    """A record to be published."""

    topic: str
    partition: int
    """Partition number: that of the record's first delivery."""
    key: bytes | None
    value: bytes | None
    """Value bytes, as they came; empty for null."""
    headers: Headers
    """Foreign headers in their order, then ours."""


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound for the bytes of a record alone in an uncompressed batch.

    Every variable-length number is counted at its longest (5 bytes, 10 for times; format v2, KIP-98).
    """
    size = BATCH_OVERHEAD_BYTES + _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, header in headers:
        size += _HEADER_OVERHEAD_BYTES + (len(name) if name.isascii() else len(name_bytes(name))) + len(header or b"")
    return size


def waiting_size(copy: Outgoing) -> int:
    """Return an upper bound for the bytes of a record that waits, as its copy and as its row."""
    size = BATCH_OVERHEAD_BYTES + _RECORD_OVERHEAD_BYTES + len(copy.key or b"") + len(copy.value or b"")
    names = "".join([name for name, _ in copy.headers])
    size += len(names) if names.isascii() else sum(len(name_bytes(name)) for name, _ in copy.headers)
    size += sum([len(header) for _, header in copy.headers if header])
    count = len(copy.headers)
    row = IDENTITY_BYTES + ROW_OVERHEAD_BYTES + FAILURE_OVERHEAD_BYTES + count * ROW_HEADER_OVERHEAD_BYTES
    return size + max(count * _HEADER_OVERHEAD_BYTES, row)


def too_large_to_wait(metadata: RetryMetadata) -> RetryMetadata:
    """Return the metadata of a record that does not fit (``waiting_size``): dead, its history kept."""
    return replace(metadata, due_at_ms=None, tier=None, reason=DeadReason.TOO_LARGE.value)


def arriving(record: Record) -> Record:
    """Return what the handler sees of a record of the main topic; a copied dead letter is a new record."""
    headers = strip(record.headers)
    return record if headers is record.headers else replace(record, headers=headers)


def restore(record: Record, metadata: RetryMetadata) -> Record:
    """Return what the handler sees of a due row: the record as it was at its first delivery."""
    origin = metadata.origin
    return Record(
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offset,
        timestamp_ms=metadata.origin_timestamp_ms,
        key=record.key,
        value=None if metadata.null_value else record.value,
        headers=unshield(split_headers(record.headers)[0]),
    )


def _foreign(record: Record, topology: HandlerTopology) -> Headers:
    """Return the foreign headers as they travel. The topic, not a header, tells whether they are shielded already."""
    if record.topic != topology.main and record.topic in topology.owned:
        return escape_names(split_headers(record.headers)[0])  # shielded, unless another program wrote them
    return shield(record.headers)  # the user's own headers, whatever they are called


def _marked(record: Record, metadata: RetryMetadata) -> tuple[bytes, RetryMetadata]:
    null = record.value is None or (metadata.null_value and not record.value)
    return record.value or b"", metadata if null == metadata.null_value else replace(metadata, null_value=null)


def to_tier(record: Record, *, topology: HandlerTopology, metadata: RetryMetadata) -> Outgoing:
    """Return the copy for the retry topic of the nearest tier; raise `ValueError` without a due time."""
    if metadata.due_at_ms is None:
        raise ValueError(f"{metadata.failure_id} is dead ({metadata.reason}): it has no due time")
    value, marked = _marked(record, metadata)
    return Outgoing(
        topic=topology.retry_topic_for(_tier_ms(metadata, metadata.due_at_ms)),
        partition=record.partition,
        key=record.key,
        value=value,
        headers=_foreign(record, topology) + encode_metadata(marked),
    )


def without_payload(copy: Outgoing) -> Outgoing:
    """Return a copy without value and foreign headers: they are on an earlier copy, or on the main topic."""
    return replace(copy, value=b"", headers=(*split_headers(copy.headers)[1], (RETRY_NO_PAYLOAD, b"1")))


def _tier_ms(metadata: RetryMetadata, due_at_ms: int) -> int:
    if metadata.attempt == 0:
        return 0  # a replay, or a record in an outage, waits for its turn, not for a delay of the schedule
    nominal_ms = None if metadata.tier is None else _nominal_ms(metadata.tier)
    return due_at_ms - metadata.last_failed_ms if nominal_ms is None else nominal_ms


@lru_cache(maxsize=256)  # a handler has a few tiers, and each record that waits names one
def _nominal_ms(tier: str) -> int | None:
    try:
        return parse_duration_ms(tier)
    except InvalidDurationError:
        return None  # the tier is for people; the due time decides


def to_row(copy: Outgoing, metadata: RetryMetadata, flags: int = 0, reference: Reference | None = None) -> PendingRow:
    """Return the row of a record that waits, from its copy; raise `ValueError` without a due time."""
    if metadata.due_at_ms is None:
        raise ValueError(f"{metadata.failure_id} is dead ({metadata.reason}): it has no due time")
    return PendingRow(
        copy.key,
        copy.value,
        copy.headers,
        due_at_ms=metadata.due_at_ms,
        since_ms=metadata.last_failed_ms,
        attempt=metadata.attempt,
        delivery=metadata.delivery,
        flags=flags,
        hold=TOKEN if metadata.tier == DEFERRED else 0,
        reference=reference,
        failure=failure_of(metadata),
    )


def failure_of(metadata: RetryMetadata) -> bytes:
    """Return what the row of a record says of its last failure."""
    cause = cause_hash(metadata.error_type, metadata.fingerprint, metadata.error_message)
    return failure_bytes(cause, metadata.attempt, failed_last_ms(metadata))


def failed_last_ms(metadata: RetryMetadata) -> int:
    """Return when a record has failed last; the metadata of one that is replayed has the time of the replay."""
    is_replayed = metadata.tier == REPLAY and metadata.history
    return metadata.history[-1].failed_ms if is_replayed else metadata.last_failed_ms


def to_held_row(
    record: Record, *, topology: HandlerTopology, handler: str, topic_id: str, policy_digest: str, now_ms: int
) -> PendingRow:
    """Return the row of a record of the main topic that was not delivered yet: earlier ones of its sequence wait."""
    metadata = RetryMetadata(
        group=topology.group,
        handler=handler or NAMELESS,
        origin=Origin(record.topic, topic_id, record.partition, record.offset),
        origin_timestamp_ms=clamped(record.timestamp_ms, -1),
        attempt=0,
        delivery=0,
        due_at_ms=MAX_EPOCH_MS,
        started_ms=clamped(now_ms),
        policy=policy_digest,
        tier=HELD,
        first_failed_ms=clamped(now_ms),
        last_failed_ms=clamped(now_ms),
        error_type=NAMELESS,
        error_message="",
        fingerprint=NAMELESS,
    )
    value, marked = _marked(record, metadata)
    headers = shield(arriving(record).headers) + encode_metadata(marked)
    return PendingRow(record.key, value, headers, MAX_EPOCH_MS, metadata.last_failed_ms, hold=SEQUENCE)


def to_stopped_row(key: bytes | None, letter: RetryMetadata) -> PendingRow:
    """Return the row that stops the sequence of a dead record, from its key and the metadata of its letter."""
    told = replace(letter, tier=STOPPED_TIER, error_trace=None, history=(), no_payload=True)
    numbers = STOPPED_MS, letter.last_failed_ms, letter.attempt, letter.delivery
    return PendingRow(key, b"", encode_metadata(told), *numbers, hold=STOPPED)  # its failure counts with its letter


def to_dead_letter(
    record: Record,
    *,
    topology: HandlerTopology,
    metadata: RetryMetadata,
    max_bytes: int,
    dead_letters: str | None = None,
) -> tuple[Outgoing, RetryMetadata]:
    """Return the copy for a dead-letter topic, which fits into `max_bytes`, and the metadata that it carries.

    Dropped in this order: traceback, history, end of the message; then value and foreign headers, then the key, with
    reason ``too-large`` (the former one becomes the original reason). The first delivery's coordinates always stay.

    Raises:
        ValueError: the metadata has no reason.
    """
    if metadata.reason is None:
        raise ValueError(f"{metadata.failure_id} waits until {metadata.due_at_ms}: it has no reason to be dead")
    value, marked = _marked(record, metadata)
    foreign, topic = _foreign(record, topology), topology.dlq_named(dead_letters)
    dropped = replace(
        marked,
        reason=DeadReason.TOO_LARGE.value,
        original_reason=marked.original_reason if marked.reason == DeadReason.TOO_LARGE else marked.reason,
    )
    whole = (record.key, value, foreign, marked)
    without_value = (record.key, b"", (), dropped)
    without_key = (None, b"", (), dropped)
    out, carried = Outgoing(topic, record.partition, None, b"", ()), dropped
    for key, payload, headers, full in (whole, without_value, without_key):
        for shorter in _shorter(full, max_bytes, record_size(key, payload, headers)):
            ours = encode_metadata(shorter)
            out, carried = Outgoing(topic, record.partition, key, payload, headers + ours), shorter
            if record_size(key, payload, out.headers) <= max_bytes:
                return out, carried
    return out, carried  # the limit is below our shortest headers


def _shorter(metadata: RetryMetadata, max_bytes: int, payload_bytes: int) -> Iterator[RetryMetadata]:
    yield metadata
    yield (untraced := replace(metadata, error_trace=None))
    yield (bare := replace(untraced, history=()))
    silent = replace(bare, error_message="")
    room = max_bytes - payload_bytes - (record_size(None, None, encode_metadata(silent)) - record_size(None, None, ()))
    if room > 0:
        yield replace(bare, error_message=cut_text(bare.error_message, room // 3))  # an escaped byte takes three
    yield silent


def after_failure(
    previous: RetryMetadata | None,
    *,
    group: str,
    handler: str,
    origin: Origin,
    origin_timestamp_ms: int,
    attempt: int,
    hot_attempts: int = 1,
    started_ms: int,
    worker: str = "",
    failed_ms: int,
    policy_digest: str,
    failure: Failure,
    decision: Decision,
    spent: bool = True,
) -> RetryMetadata:
    """Return the metadata after a failed delivery, without its traceback, clamped so that it can always be encoded.

    `spent`: it counts as a failure under its rule.
    """
    attempt, failed_ms = min(attempt, MAX_COUNT), clamped(failed_ms)
    error_type = failure.error_type or NAMELESS
    ended_by = DEFERRAL if failure.deferred else error_type  # an app may have subclasses, which nothing else could tell
    entry = HistoryEntry(attempt, failed_ms, cut_text(ended_by, MAX_HISTORY_TYPE_BYTES))
    dead = decision.reason.value if isinstance(decision, Dead) else None
    rule = failure.rule if dead is not None else _with_schedule(failure.rule)
    name, failures = None if rule is None else rule.name, min(failures_in_a_row(previous, failure.rule), MAX_COUNT)
    if not spent:
        name, failures = (None, 0) if previous is None else (previous.rule, previous.rule_failures)
    first_ms, counted_ms = failed_ms, next_counted_ms(previous, failed_ms)
    if previous is not None and not previous.held and previous.tier != REPLAY:
        first_ms = previous.first_failed_ms
    return RetryMetadata(
        group=group,
        handler=handler or NAMELESS,
        origin=origin if previous is None else previous.origin,
        origin_timestamp_ms=clamped(origin_timestamp_ms if previous is None else previous.origin_timestamp_ms, -1),
        attempt=attempt,
        delivery=max(1, attempt) if previous is None else min(previous.delivery + 1, MAX_COUNT),
        hot_attempts=min(hot_attempts, MAX_COUNT),
        due_at_ms=clamped(decision.due_at_ms) if isinstance(decision, RetryAt) else None,
        started_ms=clamped(started_ms),
        worker=worker or None,
        policy=policy_digest,
        tier=decision.tier if isinstance(decision, RetryAt) else None,
        rule=name,
        rule_failures=-1 if failures == attempt else failures,
        first_failed_ms=first_ms,
        counted_from_ms=None if counted_ms == first_ms else counted_ms,
        last_failed_ms=failed_ms,
        error_type=error_type,
        error_message=failure.message,
        reason=dead,
        fingerprint=failure.fingerprint,
        history=(*(() if previous is None else previous.history), entry)[-MAX_HISTORY:],
        replay_id=None if previous is None else previous.replay_id,
        replays=0 if previous is None else previous.replays,
        letter=None if previous is None else previous.letter,
        edited=None if previous is None else previous.edited,
        null_value=False if previous is None else previous.null_value,
    )


def replayed(metadata: RetryMetadata, *, letter: str, replay_id: str, now_ms: int) -> RetryMetadata:
    """Return the metadata of a dead letter that is tried again: its attempts begin anew, its deliveries go on."""
    return replace(
        metadata,
        attempt=0,
        delivery=min(metadata.delivery + 1, MAX_COUNT),
        due_at_ms=clamped(now_ms),
        last_failed_ms=clamped(now_ms),
        tier=REPLAY,
        rule=None,
        rule_failures=-1,
        reason=None,
        original_reason=None,
        error_trace=None,
        replays=min(metadata.replays + 1, MAX_COUNT),
        replay_id=replay_id,
        letter=letter,
    )


def cancelled(metadata: RetryMetadata, message: str, now_ms: int) -> RetryMetadata:
    """Return the metadata of a record that waits and is not tried again."""
    if metadata.held:  # nothing has failed yet
        metadata = replace(metadata, error_type=DeadReason.CANCELLED.value, error_message=message)
    return not_run_again(metadata, DeadReason.CANCELLED, now_ms)


def lost(metadata: RetryMetadata, error: RecordError, now_ms: int) -> RetryMetadata:
    """Return the metadata of a record that has waited by reference, and that the main topic does not have."""
    reason = DeadReason.DAMAGED if isinstance(error, UnreadableRecordsError) else DeadReason.GONE
    return replace(
        not_run_again(metadata, reason, now_ms),
        error_type=qualified_name(type(error)),
        error_message=str(error),
        fingerprint=reason.value,
    )


def not_run_again(metadata: RetryMetadata, reason: DeadReason, now_ms: int) -> RetryMetadata:
    """Return the metadata of a record that waits, and is dead without another run."""
    return replace(
        metadata,
        delivery=min(metadata.delivery + 1, MAX_COUNT),
        due_at_ms=None,
        tier=None,
        reason=reason.value,
        started_ms=clamped(now_ms),  # no run has taken the time since the last one
        last_failed_ms=clamped(now_ms),
        worker=None,
    )


def due_anew(row: PendingRow, metadata: RetryMetadata, due_at_ms: int) -> PendingRow:
    """Return a row that is due at another time; one that an operator holds is so once it is released."""
    headers = split_headers(row.headers)[0] + encode_metadata(replace(metadata, due_at_ms=due_at_ms))
    until_ms = row.due_at_ms if row.hold & OPERATOR else due_at_ms
    return replace(row, headers=headers, due_at_ms=until_ms, revision=row.revision + 1)


def released(
    row: PendingRow, metadata: RetryMetadata, now_ms: int, holds: int, counted_ms: int
) -> tuple[PendingRow, RetryMetadata]:
    """Return a row and its metadata without some of its `holds`; ``max_elapsed`` counts from `counted_ms` on.

    An operator's: it waits as it did before. Its handler's: it is due now.
    """
    free, by_token = replace(row.held_next(None), hold=row.hold & ~holds), bool(row.hold & holds & TOKEN)
    free = replace(free, since_ms=now_ms) if row.hold else free  # what it has waited so far is counted here
    if free.held:  # it waits for earlier records of its sequence, as before
        return replace(free, due_at_ms=MAX_EPOCH_MS, revision=row.revision + 1), metadata
    later = counting_from(metadata, counted_ms) if row.hold else metadata
    later = replace(later, tier=RELEASED) if by_token else later
    return due_anew(free, later, now_ms if by_token else max(now_ms, metadata.due_at_ms or 0)), later


def counting_from(metadata: RetryMetadata, counted_ms: int) -> RetryMetadata:
    """Return the metadata of a record that somebody has held: ``max_elapsed`` counts from a later time."""
    return replace(metadata, counted_from_ms=clamped(counted_ms))


def counted_from_ms(metadata: RetryMetadata) -> int:
    """Return the time from which ``max_elapsed`` counts."""
    return metadata.first_failed_ms if metadata.counted_from_ms is None else metadata.counted_from_ms


def next_counted_ms(previous: RetryMetadata | None, failed_ms: int) -> int:
    """Return the same after a failure: that of the first that spent an attempt, of the last replay."""
    return failed_ms if previous is None or previous.attempt == 0 else counted_from_ms(previous)


def failures_in_a_row(previous: RetryMetadata | None, rule: Rule | None) -> int:
    """Return how many failures in a row went by the same schedule, a rule's own or the policy's; this one counts."""
    own = _with_schedule(rule)
    if previous is None or previous.attempt == 0 or previous.rule != (None if own is None else own.name):
        return 1
    return (previous.attempt if previous.rule_failures < 0 else previous.rule_failures) + 1


def _with_schedule(rule: Rule | None) -> Rule | None:
    return rule if rule is not None and rule.schedule is not None else None
