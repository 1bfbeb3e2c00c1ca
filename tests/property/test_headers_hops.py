"""Headers and hops: what is written reads back, foreign bytes pass, damage is named and never resets a counter."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from retryapp.core import foreign
from retryapp.core import headers as h
from retryapp.core import headers as n
from retryapp.core.classify import DeadReason, classify
from retryapp.core.decide import Dead, RetryAt
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.hops import (
    after_failure,
    arriving,
    record_size,
    restore,
    to_dead_letter,
    to_redelivery,
    to_tier,
)
from retryapp.core.metadata import (
    MAX_EPOCH_MS,
    MAX_HISTORY,
    MAX_HISTORY_TYPE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_METADATA_BYTES,
    MAX_NAME_BYTES,
    MAX_TRACE_BYTES,
    HistoryEntry,
    RetryMetadata,
)
from retryapp.core.record import Headers, Origin, Record, failure_id
from retryapp.core.rows import decode_row, encode_row, row_of
from retryapp.core.salvage import salvage
from retryapp.core.topology import HandlerTopology, Tiers

GROUP = "billing"
MAIN = "orders"
TOPOLOGY = HandlerTopology(GROUP, MAIN, Tiers.PER_DELAY, (1_000, 60_000))

well_formed = st.characters(codec="utf-8")


def text(max_bytes: int, min_size: int = 0) -> st.SearchStrategy[str]:
    """Return a strategy for well-formed text within a number of bytes."""
    return st.text(well_formed, min_size=min_size, max_size=max_bytes // 4)


instants = st.integers(0, MAX_EPOCH_MS)
names = text(MAX_NAME_BYTES, min_size=1)
entries = st.builds(HistoryEntry, st.integers(1, 1000), instants, text(MAX_HISTORY_TYPE_BYTES, min_size=1))
origins = st.builds(
    Origin,
    st.from_regex(r"\A[A-Za-z0-9._-]{1,40}\Z"),
    st.from_regex(r"\A[A-Za-z0-9_-]{8}\Z"),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
)
our_names = st.sampled_from(sorted(n.OUR_HEADERS))
foreign_names = st.one_of(
    st.text(well_formed, max_size=12),
    st.just("retry-something-else"),
    our_names,
    our_names.map(lambda name: n.SHIELD + name),
    our_names.map(lambda name: n.ESCAPED + name),
    st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
header_values = st.none() | st.binary(max_size=20)
any_headers = st.lists(st.tuples(foreign_names, header_values), max_size=8).map(tuple)
user_headers = any_headers.filter(lambda headers: not foreign.carries_metadata(headers))
payloads = st.none() | st.binary(max_size=60)


@st.composite
def metadata(draw: st.DrawFn, dead: bool | None = None) -> RetryMetadata:
    """Draw valid metadata of a waiting or a dead record."""
    is_dead = draw(st.booleans()) if dead is None else dead
    replays = draw(st.integers(0, 3))
    reason = draw(st.sampled_from([each.value for each in DeadReason])) if is_dead else None
    return RetryMetadata(
        group=GROUP,
        handler=draw(names),
        origin=draw(origins),
        origin_timestamp_ms=draw(st.integers(-1, MAX_EPOCH_MS)),
        attempt=draw(st.integers(0 if replays else 1, 10_000)),
        due_at_ms=None if is_dead else draw(instants),
        started_ms=draw(instants),
        policy=draw(names),
        tier=None if is_dead else draw(st.sampled_from(["1s", "1m"])),
        first_failed_ms=draw(instants),
        last_failed_ms=draw(instants),
        error_type=draw(names),
        error_message=draw(text(MAX_MESSAGE_BYTES)),
        error_trace=draw(st.none() | text(MAX_TRACE_BYTES)) if is_dead else None,
        reason=reason,
        original_reason=draw(st.sampled_from([None, "exhausted"])) if reason == DeadReason.TOO_LARGE else None,
        fingerprint=draw(names),
        history=tuple(draw(st.lists(entries, max_size=MAX_HISTORY))),
        replay_id=draw(names) if replays else None,
        replays=replays,
        null_value=draw(st.booleans()),
    )


@st.composite
def first_deliveries(draw: st.DrawFn) -> Record:
    """Draw a record of the main topic, with any headers of the user's own."""
    return Record(
        MAIN,
        draw(st.integers(0, 500)),
        draw(st.integers(0, 2**40)),
        draw(st.integers(-1, MAX_EPOCH_MS)),
        draw(payloads),
        draw(payloads),
        draw(user_headers),
    )


def origin_of(record: Record) -> Origin:
    """Return where the record is delivered first."""
    return Origin(record.topic, "kq8G0bTz", record.partition, record.offset)


def failed(record: Record, previous: RetryMetadata | None, decision: RetryAt | Dead) -> RetryMetadata:
    """Return the metadata after one more failure of the record."""
    return after_failure(
        previous,
        group=GROUP,
        handler="billing.charge",
        origin=origin_of(record),
        origin_timestamp_ms=record.timestamp_ms,
        attempt=1 if previous is None else previous.attempt + 1,
        started_ms=1_000,
        failed_ms=1_001,
        policy_digest="d" * 12,
        failure=classify(ValueError("no")),
        decision=decision,
    )


def read_or_refusal(headers: Headers) -> tuple[RetryMetadata | None, str | None]:
    """Return what the headers say, or the name of the header for which they are refused."""
    try:
        return h.decode_metadata(headers), None
    except DamagedMetadataError as error:
        return None, error.header


@given(metadata(), any_headers)
def test_metadata_reads_back_among_any_foreign_headers(md: RetryMetadata, strange: Headers) -> None:
    """What is written is what is read, whatever else stands in the record."""
    others = tuple(pair for pair in strange if pair[0] not in n.OUR_HEADERS)
    written = h.encode_metadata(md)
    assert h.decode_metadata(others + written) == md
    assert h.decode_metadata(written + others) == md
    assert foreign.split_headers(others + written) == (others, written)


@given(st.text(max_size=3_000), st.integers(0, 60))
def test_the_bound_holds_for_any_text_and_any_history(anything: str, count: int) -> None:
    """Text of any length and kind, surrogates too, is cut, not refused; the newest history stays."""
    wild = anything * 20 or "x"
    md = RetryMetadata(
        group=GROUP,
        handler=wild,
        origin=Origin("a" * 249, "b" * 22, 2**31 - 1, 2**63 - 1),
        origin_timestamp_ms=MAX_EPOCH_MS,
        attempt=1_000_000,
        started_ms=MAX_EPOCH_MS,
        policy=wild,
        tier=wild,
        first_failed_ms=MAX_EPOCH_MS,
        last_failed_ms=MAX_EPOCH_MS,
        error_type=wild,
        error_message=wild,
        error_trace=wild,
        reason=wild,
        original_reason=wild,
        fingerprint=wild,
        history=tuple(HistoryEntry(number, MAX_EPOCH_MS, wild) for number in range(1, count + 1)),
        replay_id=wild,
        replays=1_000_000,
        null_value=True,
    )
    written = h.encode_metadata(md)
    assert sum(len(name) + len(value or b"") for name, value in written) <= MAX_METADATA_BYTES
    read = h.decode_metadata(written)
    assert read is not None
    assert [entry.attempt for entry in read.history] == list(range(1, count + 1))[-MAX_HISTORY:]


@given(first_deliveries(), st.integers(0, 5))
def test_a_record_passes_every_hop_unchanged(record: Record, rounds: int) -> None:
    """After any number of failures the handler sees the first delivery: bytes, headers, coordinates, timestamp."""
    seen, previous = arriving(record), None
    for _ in range(rounds):
        md = failed(record, previous, RetryAt(5_000, 1_000, "1s"))
        waiting = to_tier(seen, topology=TOPOLOGY, metadata=md)
        assert waiting.topic == "billing.orders.retry.1s"
        parked = Record(waiting.topic, waiting.partition, 9, 7, waiting.key, waiting.value, waiting.headers)
        row = decode_row(encode_row(row_of(parked)))
        back = to_redelivery(row, topology=TOPOLOGY, partition=record.partition)
        assert (back.partition, back.value is None) == (record.partition, False)
        came = Record(back.topic, back.partition, 3, 8, back.key, back.value, back.headers)
        previous = h.decode_metadata(came.headers)
        assert previous is not None
        seen = restore(came, previous)
        assert seen == record
    assert previous is None or previous.attempt == rounds


@given(first_deliveries(), st.booleans())
def test_a_redelivered_record_may_be_handed_on_as_read_or_as_seen(record: Record, raw: bool) -> None:
    """Hops build the same copy from the record as read and from what the handler saw of it."""
    first = failed(record, None, RetryAt(5_000, 1_000, "1s"))
    out = to_tier(record, topology=TOPOLOGY, metadata=first)
    came = Record(TOPOLOGY.redelivery, record.partition, 3, 8, out.key, out.value, out.headers)
    md = h.decode_metadata(came.headers)
    assert md is not None
    second = failed(record, md, Dead(DeadReason.EXHAUSTED))
    letter, carried = to_dead_letter(
        came if raw else restore(came, md), topology=TOPOLOGY, metadata=second, max_bytes=1_000_000
    )
    kept = h.decode_metadata(letter.headers)
    assert kept is not None
    assert kept == carried
    dead = Record(letter.topic, letter.partition, 1, 2, letter.key, letter.value, letter.headers)
    assert restore(dead, kept) == record
    assert kept.failure_id == failure_id(GROUP, origin_of(record))


@given(first_deliveries(), metadata(dead=True), st.integers(0, 12_000), st.integers(0, 4_000))
def test_a_dead_letter_always_fits_and_keeps_its_coordinates(
    record: Record, md: RetryMetadata, max_bytes: int, blow: int
) -> None:
    """Whatever the limit, there is a dead letter; above the shortest headers it fits; it never loses its origin."""
    big = replace(record, value=None if record.value is None else record.value + b"x" * blow)
    letter, carried = to_dead_letter(big, topology=TOPOLOGY, metadata=md, max_bytes=max_bytes)
    kept = h.decode_metadata(letter.headers)
    assert kept is not None
    assert kept == carried
    assert kept.origin == md.origin
    assert kept.attempt == md.attempt
    size = record_size(letter.key, letter.value, letter.headers)
    bare = replace(md, error_message="", error_trace=None, history=(), reason="too-large", original_reason=md.reason)
    smallest = record_size(None, b"", h.encode_metadata(replace(bare, null_value=True)))
    assert size <= max(max_bytes, smallest)
    if kept.reason != DeadReason.TOO_LARGE:
        assert letter.value == (big.value or b"")
        assert kept.reason == md.reason
    elif md.reason != DeadReason.TOO_LARGE and letter.value == b"":
        assert kept.original_reason == md.reason


@given(metadata(dead=False), st.data(), st.binary(max_size=12))
def test_damage_never_resets_a_counter_and_never_means_no_delay(
    md: RetryMetadata, data: st.DataObject, junk: bytes
) -> None:
    """Any one value replaced by any bytes is refused by name or says something else plainly: it is never a default."""
    written = h.encode_metadata(md)
    name = data.draw(st.sampled_from([each for each, _ in written]))
    damaged = tuple((each, junk if each == name else value) for each, value in written)
    read, refused = read_or_refusal(damaged)
    if refused is not None:
        assert refused in {name, n.RETRY_ATTEMPT, n.RETRY_DUE_MS}
        return
    assert read is not None
    assert read.due_at_ms is not None
    if name != n.RETRY_DUE_MS:
        assert read.due_at_ms == md.due_at_ms
    if name != n.RETRY_ATTEMPT:
        assert read.attempt == md.attempt
    if name == n.RETRY_ATTEMPT:
        assert junk == str(read.attempt).encode()
    if name == n.RETRY_DUE_MS:
        assert junk == str(read.due_at_ms).encode()


@given(any_headers)
def test_any_headers_are_metadata_or_none_or_named_damage(headers: Headers) -> None:
    """Reading never fails in another way, and None means that not one header is ours."""
    read, refused = read_or_refusal(headers)
    if refused is not None:
        assert refused in n.OUR_HEADERS
    else:
        assert (read is None) == (not foreign.split_headers(headers)[1])


@given(any_headers, payloads, payloads)
def test_any_damaged_record_becomes_a_readable_dead_letter(
    headers: Headers, key: bytes | None, value: bytes | None
) -> None:
    """Whatever the damage, there is a dead letter with coordinates, a reason, and the bytes."""
    record = Record("billing.orders.retry", 1, 2, 3, key, value, headers)
    error = DamagedMetadataError("retry-attempt", b"x", "expected a whole number")
    md = salvage(
        record, error, group=GROUP, handler="f", topic_id="kq8G0bTz", policy_digest="d", now_ms=1_700_000_000_000
    )
    letter, carried = to_dead_letter(record, topology=TOPOLOGY, metadata=md, max_bytes=1_000_000)
    kept = h.decode_metadata(letter.headers)
    assert kept is not None
    assert kept == carried
    assert kept.reason == "damaged"
    assert kept.attempt >= 0
    assert (letter.key, letter.value) == (key, value or b"")
