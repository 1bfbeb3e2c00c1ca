"""Rows and names: bytes read back and sort as they must; names are legal, owned once and within their prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.errors import DamagedRowError, InvalidTopicNameError
from retryapp.core.foreign import name_bytes
from retryapp.core.rows import PendingRow, RowKey, decode_row, due_bound, encode_row, parse_row_key, row_header, row_key
from retryapp.core.topology import HandlerTopology, Tiers, check_name, topic_specs

u64 = st.integers(0, 2**64 - 1)
keys = st.builds(RowKey, u64, st.integers(0, 2**32 - 1), u64)
header_names = st.text(st.characters(codec="utf-8"), max_size=12) | st.just("\udcff\udcfe")
rows = st.builds(
    PendingRow,
    st.none() | st.binary(max_size=50),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(header_names, st.none() | st.binary(max_size=20)), max_size=8).map(tuple),
    st.integers(-1, 2**62),
)
names = st.from_regex(r"\A[A-Za-z0-9._-]{1,40}\Z").filter(lambda name: name not in {".", ".."})


def pack(key: RowKey) -> bytes:
    """Return a key's bytes."""
    return row_key(key.due_at_ms, key.partition, key.origin_offset)


@given(keys, keys)
def test_row_keys_sort_by_due_time_partition_offset(one: RowKey, other: RowKey) -> None:
    """The order of the bytes is the order of firing, and they read back."""
    assert parse_row_key(pack(one)) == one
    assert (pack(one) < pack(other)) == (one < other)
    assert (pack(one) == pack(other)) == (one == other)


@given(keys, u64)
def test_a_due_bound_parts_what_is_earlier(key: RowKey, due_at_ms: int) -> None:
    """Rows below the bound are exactly those due before it."""
    assert (pack(key) < due_bound(due_at_ms)) == (key.due_at_ms < due_at_ms)


@given(rows)
def test_a_row_reads_back(row: PendingRow) -> None:
    """Encoding, then decoding, is the identity; null differs from empty; no row is empty."""
    raw = encode_row(row)
    assert decode_row(raw) == row
    assert raw


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
    """The same bytes are refused as where the whole row is read."""
    raw = bytearray(encode_row(row))
    row_header(bytes(raw), b"n")
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[at] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        decode_row(damaged)
    except DamagedRowError as error:
        with pytest.raises(type(error)):
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
    specs = topic_specs(
        topology, partitions=3, main_max_message_bytes=1_000_000, replication=1, longest_wait_ms=max(delays, default=1)
    )
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
