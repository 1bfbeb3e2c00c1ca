"""Hops: where copies go, what is left out when they are too large, what damage leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retryapp.core import hops
from retryapp.core.causes import cause_hash
from retryapp.core.classify import DeadReason, Failure, classify
from retryapp.core.decide import Dead, Decision, RetryAt
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.failed import row_failed_of
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.hops import (
    Outgoing,
    after_failure,
    counted_from_ms,
    counting_from,
    due_anew,
    failures_in_a_row,
    next_counted_ms,
    record_size,
    released,
    replayed,
    to_held_row,
    to_row,
    to_stopped_row,
    to_tier,
)
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin, Record
from retryapp.core.rows import OPERATOR, encode_row, failure_in
from retryapp.core.rules import retryable
from retryapp.core.salvage import salvage
from retryapp.core.topology import HandlerTopology, Tiers

TOPOLOGY = HandlerTopology("billing", "orders")
ORDER = Record("orders", 3, 1042, 1_000, b"key", b"value", (("trace", b"t"), ("trace", None)))
ORIGIN = Origin("orders", "kq8G0bTz", 3, 1042)


def failure(message: str = "no") -> Failure:
    with pytest.raises(ValueError, match=message[:5]) as caught:
        raise ValueError(message)
    return classify(caught.value)


def after(
    decision: Decision,
    *,
    attempt: int = 1,
    failed_ms: int = 2_000,
    previous: RetryMetadata | None = None,
    message: str = "no",
) -> RetryMetadata:
    return after_failure(
        previous,
        group="billing",
        handler="billing.charge",
        origin=ORIGIN,
        origin_timestamp_ms=ORDER.timestamp_ms,
        attempt=attempt,
        started_ms=failed_ms - 10,
        failed_ms=failed_ms,
        policy_digest="d",
        failure=failure(message),
        decision=decision,
    )


def came(outgoing: Outgoing) -> Record:
    return Record(outgoing.topic, outgoing.partition, 5, 9_999, outgoing.key, outgoing.value, outgoing.headers)


def said(outgoing: Outgoing) -> RetryMetadata:
    """Return what an outgoing copy's headers say."""
    metadata = decode_metadata(outgoing.headers)
    assert metadata is not None
    return metadata


def to_dead_letter(record: Record, *, topology: HandlerTopology, metadata: RetryMetadata, max_bytes: int) -> Outgoing:
    """Return the copy, having checked that its headers say what is returned beside it."""
    outgoing, carried = hops.to_dead_letter(record, topology=topology, metadata=metadata, max_bytes=max_bytes)
    assert said(outgoing) == carried
    return outgoing


AGAIN = RetryAt(62_000, 60_000, "1m")
EXHAUSTED = Dead(DeadReason.EXHAUSTED)


def test_metadata_grows_with_each_failure() -> None:
    """Attempt, times and history follow; origin and first failure stay."""
    first = after(AGAIN)
    second = after(EXHAUSTED, attempt=2, failed_ms=70_000, previous=first)
    assert (first.attempt, first.due_at_ms, first.tier) == (1, 62_000, "1m")
    assert (first.reason, first.error_trace) == (None, None)
    assert (second.attempt, second.due_at_ms, second.tier, second.reason) == (2, None, None, "exhausted")
    assert (second.first_failed_ms, second.last_failed_ms, second.started_ms) == (2_000, 70_000, 69_990)
    assert [(entry.attempt, entry.failed_ms) for entry in second.history] == [(1, 2_000), (2, 70_000)]
    assert second.failure_id == first.failure_id == "billing/orders@kq8G0bTz/3/1042"


def test_a_copy_waits_in_the_topic_of_its_tier() -> None:
    """Per delay the tier's topic, single the one topic; the partition is the record's."""
    per_delay = HandlerTopology("billing", "orders", Tiers.PER_DELAY, (5_000, 60_000))
    assert to_tier(ORDER, topology=TOPOLOGY, metadata=after(AGAIN)).topic == "billing.orders.retry"
    assert to_tier(ORDER, topology=per_delay, metadata=after(AGAIN)).topic == "billing.orders.retry.1m"
    nameless = replace(after(AGAIN), tier=None, due_at_ms=8_000)
    assert to_tier(ORDER, topology=per_delay, metadata=nameless).topic == "billing.orders.retry.5s"
    odd = replace(after(AGAIN), tier="later")
    assert to_tier(ORDER, topology=per_delay, metadata=odd).topic == "billing.orders.retry.1m"
    assert to_tier(ORDER, topology=TOPOLOGY, metadata=after(AGAIN)).partition == 3


def test_a_row_says_what_its_record_has_failed_of_last() -> None:
    """Also once it was moved, held or released, or replayed; one that never ran, or is dead, says nothing."""
    metadata = after(RetryAt(9_000, 5_000, "5s"), message="shard 7")
    told = cause_hash(metadata.error_type, metadata.fingerprint, "shard 8"), 1, 2_000
    row = to_row(to_tier(ORDER, topology=TOPOLOGY, metadata=metadata), metadata)
    held = due_anew(row.held_until(8_000, 3_000), metadata, 9_500)
    for each in (row, held, released(held, metadata, 4_000, OPERATOR, 3_000)[0]):
        assert failure_in(encode_row(each)) == told
    stopped = encode_row(to_stopped_row(b"key", metadata))
    assert failure_in(stopped) is row_failed_of(stopped) is None, "it counts by its letter"
    anew = replayed(metadata, letter="0", replay_id="r", now_ms=5_000)
    again = to_row(to_tier(ORDER, topology=TOPOLOGY, metadata=anew), anew)
    failed = row_failed_of(encode_row(again))
    assert failed is not None
    assert failure_in(encode_row(again)) == (told[0], 0, failed.last_ms) == (told[0], 0, 2_000), (
        "a replay is no failure"
    )
    facts: Any = {"topology": TOPOLOGY, "handler": "h", "topic_id": "kq8G0bTz", "policy_digest": "d", "now_ms": 1}
    assert not to_held_row(ORDER, **facts).failure


def test_a_copy_without_due_time_cannot_wait_and_one_without_reason_is_not_dead() -> None:
    """The two mix-ups that would lose a record's fate are refused."""
    with pytest.raises(ValueError, match="due time"):
        to_tier(ORDER, topology=TOPOLOGY, metadata=after(EXHAUSTED))
    with pytest.raises(ValueError, match="due time"):
        hops.to_row(to_tier(ORDER, topology=TOPOLOGY, metadata=after(AGAIN)), after(EXHAUSTED))
    with pytest.raises(ValueError, match="reason"):
        to_dead_letter(ORDER, topology=TOPOLOGY, metadata=after(AGAIN), max_bytes=10_000)


def test_what_only_explains_is_left_out_first() -> None:
    """Traceback, then history, then the end of the message, then the value."""
    metadata = replace(after(EXHAUSTED, message="m" * 800), error_trace="t" * 400)
    whole = to_dead_letter(ORDER, topology=TOPOLOGY, metadata=metadata, max_bytes=1_000_000)
    size = record_size(whole.key, whole.value, whole.headers)
    assert said(whole) == metadata

    no_trace = said(to_dead_letter(ORDER, topology=TOPOLOGY, metadata=metadata, max_bytes=size - 1))
    assert no_trace == replace(metadata, error_trace=None)
    trace = len("retry-error-trace") + len(dict(whole.headers)["retry-error-trace"] or b"") + 10
    no_history = said(to_dead_letter(ORDER, topology=TOPOLOGY, metadata=metadata, max_bytes=size - trace - 1))
    assert no_history == replace(metadata, error_trace=None, history=())
    cut = said(to_dead_letter(ORDER, topology=TOPOLOGY, metadata=metadata, max_bytes=size - trace - 500))
    assert cut.reason == "exhausted"
    assert 0 < len(cut.error_message) < 800


def test_a_record_that_does_not_fit_keeps_its_coordinates_and_first_reason() -> None:
    """The value goes, the reason becomes too-large, the key stays while it fits."""
    big, dead = replace(ORDER, value=b"v" * 50_000), replace(after(EXHAUSTED), error_trace="t" * 400)
    letter = to_dead_letter(big, topology=TOPOLOGY, metadata=dead, max_bytes=20_000)
    metadata = said(letter)
    assert (metadata.reason, metadata.original_reason, metadata.origin) == ("too-large", "exhausted", ORIGIN)
    assert (letter.key, letter.value) == (b"key", b"")
    assert metadata.error_trace is not None, "there is room again for what explains"
    assert record_size(letter.key, letter.value, letter.headers) <= 20_000

    huge_key = to_dead_letter(
        replace(big, key=b"k" * 50_000), topology=TOPOLOGY, metadata=after(EXHAUSTED), max_bytes=20_000
    )
    assert (huge_key.key, huge_key.value, said(huge_key).origin) == (None, b"", ORIGIN)
    hopeless = to_dead_letter(big, topology=TOPOLOGY, metadata=after(EXHAUSTED), max_bytes=1)
    assert said(hopeless).origin == ORIGIN


def test_a_replay_starts_attempts_and_the_deadline_again() -> None:
    """The next failure is attempt 1, its time the first failure; the failure id and the history stay."""
    dead = after(EXHAUSTED, attempt=3)
    again = replace(dead, attempt=0, delivery=4, replays=1, replay_id="r1", reason=None, due_at_ms=90_000)
    again = replace(again, tier=hops.REPLAY)
    assert next_counted_ms(again, 95_000) == 95_000
    failed = after(AGAIN, attempt=1, failed_ms=95_000, previous=again)
    assert (failed.first_failed_ms, failed.replays, failed.replay_id) == (95_000, 1, "r1")
    assert (dead.delivery, failed.attempt, failed.delivery) == (3, 1, 5), "deliveries never start again"
    row = hops.to_row(to_tier(ORDER, topology=TOPOLOGY, metadata=failed), failed)
    assert (row.attempt, row.delivery, decode_metadata(row.headers)) == (1, 5, failed)
    assert len(failed.history) == 2
    assert next_counted_ms(failed, 99_000) == 95_000
    assert next_counted_ms(None, 99_000) == 99_000


def test_holds_and_failures_for_free_do_not_move_the_first_failure() -> None:
    """An erasure meanwhile is about this record, too; `max_elapsed` counts neither."""
    free = after(AGAIN, attempt=0, failed_ms=10_000)
    spent = after(AGAIN, attempt=1, failed_ms=20_000, previous=counting_from(free, 15_000))
    assert (spent.first_failed_ms, counted_from_ms(spent)) == (10_000, 20_000)
    held = after(AGAIN, attempt=2, failed_ms=90_000, previous=counting_from(spent, 52_000))
    assert (held.first_failed_ms, held.counted_from_ms) == (10_000, 52_000)
    again = replace(held, attempt=0, delivery=4, replays=1, tier=hops.REPLAY)
    assert after(AGAIN, attempt=1, failed_ms=95_000, previous=again).first_failed_ms == 95_000


def test_failures_in_a_row_are_counted_by_schedule() -> None:
    """By the rule's own, or the policy's; of an older worker's record as many as attempts. A replay begins again."""
    busy, plain = retryable(TimeoutError, schedule="1s*3"), retryable(OSError)
    row = replace(after(AGAIN, attempt=3), rule_failures=-1)
    assert [failures_in_a_row(None, rule) for rule in (busy, plain, None)] == [1, 1, 1]
    assert [failures_in_a_row(row, rule) for rule in (busy, plain, None)] == [1, 4, 4]
    under = replace(row, rule=busy.name, rule_failures=2)
    assert [failures_in_a_row(under, rule) for rule in (busy, plain, None)] == [3, 1, 1]
    assert failures_in_a_row(replace(under, attempt=0, replays=1), busy) == 1
    assert decode_metadata(encode_metadata(under)) == under


def test_damage_of_counter_and_origin_has_stated_neutral_values() -> None:
    """An unreadable counter falls back to the history, an unreadable origin to where the damage was found."""
    out = to_tier(ORDER, topology=TOPOLOGY, metadata=after(AGAIN, attempt=4))
    junk = {"retry-attempt": b"x", "retry-origin": b"x"}
    record = came(replace(out, headers=tuple((n, junk.get(n, v)) for n, v in out.headers)))
    error = DamagedMetadataError("retry-attempt", "a number")
    options = {"group": "billing", "handler": "h", "topic_id": "tierTOPC", "policy_digest": "d"}
    metadata = salvage(record, error, now_ms=77, **options)
    assert (metadata.attempt, metadata.delivery) == (4, 4)
    known = salvage(replace(record, headers=(*record.headers, ("retry-delivery", b"9"))), error, now_ms=77, **options)
    assert (known.attempt, known.delivery) == (4, 9)
    assert metadata.origin == Origin("billing.orders.retry", "tierTOPC", 3, 5)
    bare = salvage(replace(record, headers=(("retry-attempt", b"x"),)), error, now_ms=77, **options)
    assert (bare.attempt, bare.started_ms) == (1, 77)
