"""Rows and names: bytes read back and sort as they must; names are legal, owned once and within their prefix."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.errors import DamagedRowError, InvalidTopicNameError, NewerRowError
from retryapp.core.foreign import name_bytes
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.record import Origin
from retryapp.core.row_keys import due_bound, identity_of, is_identity, parse_row_key, row_key
from retryapp.core.rows import (
    COUNTED_BYTES,
    UNCOUNTED,
    PendingRow,
    Reference,
    counted_in,
    decode_row,
    encode_row,
    failure_bytes,
    failure_in,
    is_of_key,
    row_due_ms,
    row_header,
)
from retryapp.core.topology import HandlerTopology, Tiers, check_name, topic_specs

u64 = st.integers(0, 2**64 - 1)
due_times = st.integers(0, MAX_EPOCH_MS)
u32 = st.integers(0, 2**32 - 1)
origins = st.builds(Origin, st.sampled_from(["orders", "orders2"]), st.sampled_from(["a", "b"]), u32, u64)
header_names = st.text(st.characters(codec="utf-8"), max_size=12) | st.just("\udcff\udcfe")
rows = st.builds(
    PendingRow,
    st.none() | st.binary(max_size=50),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(header_names, st.none() | st.binary(max_size=20)), max_size=8).map(tuple),
    due_times,
    u64,
    u32,
    u32,
    st.integers(0, 255).map(lambda flags: flags & ~16),
    u32,
    st.binary(max_size=9),
    st.just(0),
    st.none() | st.builds(Reference, st.integers(-1, MAX_EPOCH_MS), u32, u32, due_times),
    st.just(b"") | st.builds(failure_bytes, st.binary(min_size=5, max_size=5), u32, due_times),
)
names = st.from_regex(r"\A[A-Za-z0-9._-]{1,40}\Z").filter(lambda name: name not in {".", ".."})


@given(due_times, origins, due_times, origins)
def test_row_keys_sort_by_due_time_then_origin(due: int, origin: Origin, other_due: int, other: Origin) -> None:
    """The order of the bytes is the order of delivery; records differ also by partition and by the main topic's id."""
    one, two = identity_of(origin), identity_of(other)
    assert is_identity(one)
    assert (one == two) == (origin == other)
    key, other_key = row_key(due, one), row_key(other_due, two)
    place, other_place = parse_row_key(key), parse_row_key(other_key)
    assert (place.due_at_ms, place.partition, place.origin_offset) == (due, origin.partition, origin.offset)
    assert (key < other_key) == (place < other_place)
    if (origin.topic, origin.topic_id) == (other.topic, other.topic_id):
        places = [(due, origin.partition, origin.offset), (other_due, other.partition, other.offset)]
        assert (key < other_key) == (places[0] < places[1])
    assert (key < due_bound(other_due)) == (due < other_due)


@given(rows)
def test_a_row_reads_back(row: PendingRow) -> None:
    """Encoding, then decoding, is the identity; null differs from empty; no row is empty."""
    raw = encode_row(row)
    assert decode_row(raw) == row
    assert row_due_ms(raw) == row.due_at_ms
    assert failure_bytes(*failure_in(raw) or (b"", 0, 0)) == (row.failure or failure_bytes(b"", 0, 0))
    assert counted_in([raw]) == [row.failure[:COUNTED_BYTES] or UNCOUNTED]
    key = row.key or b""
    assert (is_of_key(raw, key), is_of_key(raw, key + b"x")) == (row.key is not None, False)


@given(rows, st.sampled_from([(0, 3), (1, 1), (2, 255)]))
def test_a_row_that_this_version_cannot_judge_is_a_newer_ones(row: PendingRow, changed: tuple[int, int]) -> None:
    """Another version, a state or a hold: nothing delivers, buries or counts it as if it were understood."""
    raw = bytearray(encode_row(row))
    raw[changed[0]] = changed[1]
    with pytest.raises(NewerRowError):
        decode_row(bytes(raw))
    with pytest.raises(NewerRowError):
        row_header(bytes(raw), b"n")


@given(st.binary(max_size=60) | rows.map(encode_row).map(lambda raw: raw[:40]))
def test_what_is_no_row_is_due_at_once_and_has_a_key(raw: bytes) -> None:
    """It is looked at then: it must not wait for ever, or for a time that no key can hold."""
    assert 0 <= row_due_ms(raw) <= MAX_EPOCH_MS
    assert len(counted_in([raw])[0]) == COUNTED_BYTES
    assert raw[:1] == b"\x02" or row_due_ms(raw) == 0
    assert parse_row_key(row_key(row_due_ms(raw), bytes(21))).due_at_ms == row_due_ms(raw)


@given(rows, st.data())
def test_a_cut_or_longer_row_is_refused(row: PendingRow, data: st.DataObject) -> None:
    """A row that lost or gained bytes is never read as another row."""
    raw = encode_row(row)
    with pytest.raises(DamagedRowError):
        decode_row(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(DamagedRowError):
        decode_row(raw + data.draw(st.binary(min_size=1, max_size=5)))


@given(st.lists(rows, min_size=1, max_size=4), st.binary(max_size=12))
def test_one_header_is_read_as_among_all(found: list[PendingRow], other: bytes) -> None:
    """The first of its name, whatever was read before: lengths that were seen once are remembered."""
    for row in [*found, *found]:
        raw, values = encode_row(row), {name_bytes(name): value for name, value in reversed(row.headers)}
        for name in {other, *values}:
            assert row_header(raw, name) == values.get(name)


@given(rows, st.data())
def test_one_header_of_a_damaged_row_is_named_damage(row: PendingRow, data: st.DataObject) -> None:
    """The same bytes are refused as where the whole row is read, which alone reads where a payload is."""
    raw = bytearray(encode_row(row))
    row_header(bytes(raw), b"n")
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[at] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        decode_row(damaged)
    except DamagedRowError as error:
        is_whole = "no payload" in str(error)  # but for that, which is read last
        with nullcontext() if is_whole else pytest.raises(type(error)):
            row_header(damaged, b"n")
    else:
        row_header(damaged, b"n")


@given(names, names, st.sampled_from(Tiers), st.lists(st.integers(1, 10**9), max_size=5))
def test_every_name_is_legal_and_within_the_groups_prefix(
    group: str, main: str, tiers: Tiers, delays: list[int]
) -> None:
    """All topics of a handler start with the group, are legal for Kafka, and differ."""
    topology = HandlerTopology(group, main, tiers, tuple(delays))
    for name in topology.owned:
        check_name(name)
        assert name.startswith(f"{group}.")
    assert len(set(topology.owned)) == len(topology.owned)
    specs = topic_specs(topology, partitions=3, main_max_message_bytes=1_000_000, replication=1)
    assert tuple(spec.name for spec in specs) == topology.owned


@given(st.text(max_size=300))
def test_any_name_is_legal_or_refused_by_name(name: str) -> None:
    """A name passes exactly when Kafka takes it."""
    legal = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    good = 1 <= len(name) <= 249 and set(name) <= legal and name not in {".", ".."}
    if good:
        check_name(name)
    else:
        with pytest.raises(InvalidTopicNameError):
            check_name(name)
