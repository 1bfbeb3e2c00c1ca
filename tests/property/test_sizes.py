"""Sizes: what is counted before a record is handed on is never less than what the client library sends."""

from __future__ import annotations

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.hops import Outgoing, record_size, waiting_size
from retryapp.core.record import Headers
from retryapp.core.row_keys import IDENTITY_BYTES
from retryapp.core.rows import PendingRow, encode_row
from retryapp.engine.partition.stops import BESIDE_ROW_BYTES

payloads = st.none() | st.builds(lambda size: b"x" * size, st.integers(0, 40_000))
names = st.text(st.characters(codec="utf-8"), max_size=80)
any_headers = st.lists(st.tuples(names, payloads), max_size=40).map(tuple)


def sent_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of a batch with this record alone, uncompressed, as the producer builds it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=2**60,
        producer_epoch=32_000,
        base_sequence=2**30,
        batch_size=1,
    )
    assert builder.append(0, 2**42, key, value, list(headers)) is not None
    return len(builder.build())


@given(payloads, payloads, any_headers)
def test_a_waiting_copy_is_never_larger_than_was_counted(
    key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    """On the retry topic and in the changelog; and the count is not far off."""
    copy = Outgoing("billing.orders.retry", 7, key, value or b"", headers)
    counted = waiting_size(copy)
    tier = sent_size(copy.key, copy.value, copy.headers)
    assert tier <= record_size(copy.key, copy.value, copy.headers) <= counted

    row = PendingRow(copy.key, copy.value, copy.headers, 2**47, 2**47, 2**31, 2**31, failure=bytes(17))
    assert sent_size(bytes(IDENTITY_BYTES), encode_row(row), ()) <= counted
    circuit = "c" * 32
    assert sent_size(bytes(IDENTITY_BYTES), encode_row(row.in_circuit(circuit)), ()) <= counted + len(circuit)
    assert counted <= len(encode_row(row)) + BESIDE_ROW_BYTES + 2 * len(headers)
    assert counted <= tier + 120 + 10 * len(headers)
