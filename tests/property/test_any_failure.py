"""Whatever record a handler fails on, and whatever it raises: the failure can be told, and the record comes back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retryapp.core.classify import DeadReason, classify
from retryapp.core.decide import Dead, RetryAt
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import ESCAPED, OUR_HEADERS, SHIELD, decode_metadata
from retryapp.core.hops import Outgoing, after_failure, arriving, restore, to_dead_letter, to_row, to_tier
from retryapp.core.metadata import MAX_EPOCH_MS, RetryMetadata
from retryapp.core.record import Headers, Origin, Record
from retryapp.core.rows import decode_row, encode_row
from retryapp.core.salvage import last_words, salvage
from retryapp.core.topology import HandlerTopology

TOPOLOGY = HandlerTopology("billing", "orders", delays_ms=(1_000, 60_000))
ANY = Record("orders", 1, 2, 3, None, None)
AGAIN = RetryAt(5_000, 1_000, "1s")
DEAD = Dead(DeadReason.EXHAUSTED)

wire_names = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
look_alikes = st.builds(
    "".join, st.tuples(st.sampled_from(["", SHIELD, ESCAPED, SHIELD * 2]), st.sampled_from(sorted(OUR_HEADERS)))
)
odd_look_alikes = st.builds("".join, st.tuples(st.sampled_from([SHIELD, ESCAPED, ESCAPED + SHIELD]), wire_names))
names = st.one_of(wire_names, st.text(max_size=12), look_alikes, odd_look_alikes)
payloads = st.none() | st.binary(max_size=40)
# lone surrogates that no reader makes (only \udc80 to \udcff stand for bytes) are no names of a record
wire_headers = st.lists(st.tuples(names.map(lambda name: _possible(name)), payloads), max_size=8).map(tuple)
records = st.builds(
    Record,
    st.just("orders"),
    st.integers(0, 500),
    st.integers(0, 2**62),
    st.integers(-(2**63), 2**63 - 1),
    payloads,
    payloads,
    wire_headers,
)
texts = st.one_of(st.text(max_size=40), st.text(st.characters(), min_size=1, max_size=3).map(lambda text: text * 500))
nasty_texts = texts | st.text(st.characters(categories=("Cs",)), max_size=5)


def _possible(name: str) -> str:
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "replace").decode()


@st.composite
def errors(draw: st.DrawFn) -> BaseException:
    """Draw what a handler may raise: of a class with any name and module, with any text, with or without a cause."""
    made = type("Made", (Exception,), {"__module__": draw(nasty_texts | st.just("builtins"))})
    made.__qualname__ = draw(texts)
    error: BaseException = made(draw(nasty_texts))
    if draw(st.booleans()):
        error.__cause__ = ValueError(draw(nasty_texts))
    if draw(st.booleans()):
        error = ExceptionGroup("several", [error, KeyError(draw(nasty_texts))])  # type: ignore[list-item]
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def told(
    record: Record, previous: RetryMetadata | None, error: BaseException, decision: RetryAt | Dead
) -> RetryMetadata:
    return after_failure(
        previous,
        group="billing",
        handler="billing.charge",
        origin=Origin("orders", "kq8G0bTz", record.partition, record.offset),
        origin_timestamp_ms=record.timestamp_ms,
        attempt=1 if previous is None else previous.attempt + 1,
        started_ms=1,
        failed_ms=2,
        policy_digest="d",
        failure=classify(error),
        decision=decision,
    )


def came(out: Outgoing, offset: int = 9) -> Record:
    """Return a copy as it is read, having checked that every client can send it."""
    for name, _ in out.headers:
        name.encode()
    assert out.value is not None
    return Record(out.topic, out.partition, offset, 77, out.key, out.value, out.headers)


def shown(seen: Record, timestamp_ms: int) -> Record:
    """Return what a handler sees of a record at its next delivery."""
    clamped = min(max(timestamp_ms, -1), MAX_EPOCH_MS)
    return Record(seen.topic, seen.partition, seen.offset, clamped, seen.key, seen.value, seen.headers)


Nameless = type("", (Exception,), {"__module__": "builtins"})


@given(records, st.lists(errors(), min_size=1, max_size=3), errors(), st.booleans())
@example(Record("orders", 0, 0, -5, None, None), [Nameless("\ud800")], ValueError(), True)
@example(Record("orders", 0, 0, 2**63 - 1, b"", b"", (("\udcff", None),)), [ValueError()], Nameless(), False)
def test_any_failure_of_any_record_can_be_told(
    record: Record, failures: list[BaseException], last: BaseException, raw: bool
) -> None:
    """Through waiting, its row and death; the handler sees the same bytes and headers each time.

    A dead letter is the same made from the record as read (`raw`) and from what the handler saw of it.
    """
    seen = first = arriving(record)
    metadata = None
    for attempt, error in enumerate(failures, start=1):
        waits = told(seen, metadata, error, AGAIN)
        out = to_tier(seen, topology=TOPOLOGY, metadata=waits)
        assert (out.topic, out.partition) == (TOPOLOGY.retry_topics[0], record.partition)
        row = decode_row(encode_row(to_row(out, waits)))
        assert (row.due_at_ms, row.attempt, row.delivery) == (5_000, attempt, attempt)
        metadata = decode_metadata(row.headers)
        assert metadata is not None
        assert (metadata.failure_id, metadata.attempt, metadata.due_at_ms) == (waits.failure_id, attempt, 5_000)
        back = Record(TOPOLOGY.pending_changelog, record.partition, 9, 77, row.key, row.value, row.headers)
        seen = restore(back, metadata)
        assert seen == shown(first, record.timestamp_ms)
    letter, carried = to_dead_letter(
        back if raw else seen, topology=TOPOLOGY, metadata=told(seen, metadata, last, DEAD), max_bytes=1_000_000
    )
    kept = decode_metadata(letter.headers)
    assert kept == carried
    assert kept is not None
    assert (kept.reason, kept.attempt, kept.failure_id) == ("exhausted", len(failures) + 1, waits.failure_id)
    assert restore(came(letter), kept) == seen


@given(wire_headers, payloads, payloads, errors())
def test_what_anybody_puts_on_our_topics_can_be_sent_on(
    headers: Headers, key: bytes | None, value: bytes | None, error: BaseException
) -> None:
    """Names that are not UTF-8 are escaped on the way out."""
    waits = to_tier(Record("orders", 1, 2, 3, key, value), topology=TOPOLOGY, metadata=told(ANY, None, error, AGAIN))
    ours = tuple(pair for pair in waits.headers if pair[0] in OUR_HEADERS)
    strange = Record(waits.topic, 1, 5, 6, key, value, tuple(p for p in headers if p[0] not in OUR_HEADERS) + ours)
    letter, _ = to_dead_letter(strange, topology=TOPOLOGY, metadata=told(ANY, None, error, DEAD), max_bytes=100_000)
    assert decode_metadata(came(letter).headers) is not None


@given(records, wire_headers, errors(), errors(), nasty_texts, st.integers(-(2**63), 2**63 - 1))
def test_last_words_can_always_be_written(
    record: Record, headers: Headers, error: BaseException, fault: BaseException, handler: str, now_ms: int
) -> None:
    """Whatever the record, the error, the fault and the handler are called; so can those of damaged headers."""
    facts = {"group": "billing", "handler": handler, "topic_id": "t", "policy_digest": "d", "now_ms": now_ms}
    damaged = Record(TOPOLOGY.pending_changelog, 0, 1, 2, record.key, record.value, headers)
    unreadable = DamagedMetadataError("retry-attempt", "expected a whole number")
    for metadata in (
        last_words(record, error, fault, **facts),
        salvage(damaged, unreadable, **{**facts, "handler": "f"}),
    ):
        for each in (record, damaged):
            letter, carried = to_dead_letter(each, topology=TOPOLOGY, metadata=metadata, max_bytes=100_000)
            assert decode_metadata(came(letter).headers) == carried
            assert (letter.key, letter.value) == (each.key, each.value or b"")
        assert (metadata.reason, metadata.delivery >= metadata.attempt >= 0) == ("damaged", True)
