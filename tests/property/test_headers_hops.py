"""Headers and hops: what is written reads back, foreign bytes pass, damage is named and never resets a counter."""

from __future__ import annotations

from dataclasses import replace

from drawn import GROUP, metadata, well_formed
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core import foreign
from retryapp.core import headers as h
from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.hops import record_size, to_dead_letter
from retryapp.core.metadata import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_HISTORY,
    MAX_METADATA_BYTES,
    HistoryEntry,
    RetryMetadata,
)
from retryapp.core.record import Headers, Origin, Record
from retryapp.core.topology import HandlerTopology, Tiers

MAIN = "orders"
TOPOLOGY = HandlerTopology(GROUP, MAIN, Tiers.PER_DELAY, (1_000, 60_000))

our_names = st.sampled_from(sorted(h.OUR_HEADERS))
foreign_names = st.one_of(
    st.text(well_formed, max_size=12),
    st.just("retry-something-else"),
    our_names,
    our_names.map(lambda name: h.SHIELD + name),
    our_names.map(lambda name: h.ESCAPED + name),
    st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
header_values = st.none() | st.binary(max_size=20)
any_headers = st.lists(st.tuples(foreign_names, header_values), max_size=8).map(tuple)
user_headers = any_headers.filter(lambda headers: not foreign.carries_metadata(headers))
payloads = st.none() | st.binary(max_size=60)


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


def read_or_refusal(headers: Headers) -> tuple[RetryMetadata | None, str | None]:
    """Return what the headers say, or the name of the header for which they are refused."""
    try:
        return h.decode_metadata(headers), None
    except DamagedMetadataError as error:
        return None, error.header


@given(metadata(), any_headers)
def test_metadata_reads_back_among_any_foreign_headers(md: RetryMetadata, strange: Headers) -> None:
    """What is written is what is read, whatever else stands in the record."""
    others = tuple(pair for pair in strange if pair[0] not in h.OUR_HEADERS)
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
        attempt=MAX_COUNT - 1,
        delivery=MAX_COUNT,
        started_ms=MAX_EPOCH_MS,
        policy=wild,
        tier=wild,
        first_failed_ms=MAX_EPOCH_MS,
        counted_from_ms=MAX_EPOCH_MS,
        last_failed_ms=MAX_EPOCH_MS,
        error_type=wild,
        error_message=wild,
        error_trace=wild,
        reason=wild,
        original_reason=wild,
        fingerprint=wild,
        history=tuple(HistoryEntry(number, MAX_EPOCH_MS, wild) for number in range(1, count + 1)),
        replay_id=wild,
        replays=MAX_COUNT,
        null_value=True,
        no_payload=True,
    )
    written = h.encode_metadata(md)
    assert sum(len(name) + len(value or b"") for name, value in written) <= MAX_METADATA_BYTES
    read = h.decode_metadata(written)
    assert read is not None
    assert [entry.attempt for entry in read.history] == list(range(1, count + 1))[-MAX_HISTORY:]


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
    assert (kept.attempt, kept.delivery) == (md.attempt, md.delivery)
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
        assert refused in {name, h.RETRY_ATTEMPT, h.RETRY_DELIVERY, h.RETRY_DUE_MS}
        return
    assert read is not None
    assert read.due_at_ms is not None
    if name != h.RETRY_DUE_MS:
        assert read.due_at_ms == md.due_at_ms
    if name != h.RETRY_ATTEMPT:
        assert read.attempt == md.attempt
    if name == h.RETRY_ATTEMPT:
        assert junk == str(read.attempt).encode()
    elif name != h.RETRY_DELIVERY:
        assert read.delivery == md.delivery
    else:
        assert junk == str(read.delivery).encode()
    if name == h.RETRY_DUE_MS:
        assert junk == str(read.due_at_ms).encode()


@given(any_headers)
def test_any_headers_are_metadata_or_none_or_named_damage(headers: Headers) -> None:
    """Reading never fails in another way, and None means that not one header is ours."""
    read, refused = read_or_refusal(headers)
    if refused is not None:
        assert refused in h.OUR_HEADERS
    else:
        assert (read is None) == (not foreign.split_headers(headers)[1])
