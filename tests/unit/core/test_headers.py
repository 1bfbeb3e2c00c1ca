"""The header codec: exact bytes of version 1, and how damage is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retryapp.core import headers
from retryapp.core.errors import DamagedMetadataError, NewerFormatError
from retryapp.core.foreign import strip
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.record import Headers, Origin

WAITING = RetryMetadata(
    group="billing",
    handler="billing.charge",
    origin=Origin("orders", "kq8G0bTz", 3, 1042),
    origin_timestamp_ms=1_700_000_000_000,
    attempt=2,
    delivery=2,
    due_at_ms=1_700_000_600_000,
    started_ms=1_700_000_299_000,
    policy="c0ffee123456",
    tier="5m",
    first_failed_ms=1_700_000_001_000,
    last_failed_ms=1_700_000_300_000,
    error_type="httpx.ConnectError",
    error_message="100% déjà vu: a+b\n",
    fingerprint="0123456789ab",
    history=(HistoryEntry(1, 1_700_000_001_000, "TimeoutError"), HistoryEntry(2, 1_700_000_300_000, "a,b:c")),
    replay_id="r-7",
    replays=1,
    null_value=True,
)

WAITING_BYTES: Headers = (
    ("retry-version", b"1"),
    ("retry-null-value", b"1"),
    ("retry-group", b"billing"),
    ("retry-handler", b"billing.charge"),
    ("retry-origin", b"orders@kq8G0bTz/3/1042"),
    ("retry-origin-timestamp-ms", b"1700000000000"),
    ("retry-attempt", b"2"),
    ("retry-due-ms", b"1700000600000"),
    ("retry-started-ms", b"1700000299000"),
    ("retry-policy", b"c0ffee123456"),
    ("retry-tier", b"5m"),
    ("retry-first-failed-ms", b"1700000001000"),
    ("retry-last-failed-ms", b"1700000300000"),
    ("retry-error-type", b"httpx.ConnectError"),
    ("retry-error-message", b"100%25 d%C3%A9j%C3%A0 vu: a%2Bb%0A"),
    ("retry-fingerprint", b"0123456789ab"),
    ("retry-history", b"1:1700000001000:TimeoutError,2:1700000300000:a%2Cb%3Ac"),
    ("retry-replay-id", b"r-7"),
    ("retry-replays", b"1"),
)
"""What version 1 writes. These bytes lie in topics: they are never changed, only joined by a later version's."""

DEAD = replace(WAITING, due_at_ms=None, tier=None, reason="exhausted", error_trace='  File "billing.py", line 3')


def with_header(name: str, value: bytes | None) -> Headers:
    return tuple((each, value if each == name else kept) for each, kept in WAITING_BYTES)


def test_version_1_is_written_and_read_as_ever() -> None:
    """The bytes of a waiting record are pinned."""
    assert encode_metadata(WAITING) == WAITING_BYTES
    assert decode_metadata(WAITING_BYTES) == WAITING
    assert WAITING.failure_id == "billing/orders@kq8G0bTz/3/1042"


def test_a_dead_record_has_a_reason_and_no_due_time() -> None:
    """The dead letter's own headers."""
    written = dict(encode_metadata(DEAD))
    assert written["retry-reason"] == b"exhausted"
    assert written["retry-error-trace"] == b'  File "billing.py", line 3'
    assert "retry-due-ms" not in written
    assert decode_metadata(encode_metadata(DEAD)) == DEAD


@pytest.mark.parametrize(
    ("field", "header", "number", "too_small"),
    [("hot_attempts", "retry-hot-attempts", 3, b"0"), ("delivery", "retry-delivery", 7, b"1")],
)
def test_tries_and_deliveries_have_a_header_where_they_are_more_than_usual(
    field: str, header: str, number: int, too_small: bytes
) -> None:
    """More than one try, or than attempts, each of which a delivery spends; a value out of range is damage."""
    more = replace(WAITING, **{field: number})  # type: ignore[arg-type]
    place = WAITING_BYTES.index(("retry-attempt", b"2")) + 1
    written = (*WAITING_BYTES[:place], (header, b"%d" % number), *WAITING_BYTES[place:])
    assert encode_metadata(more) == written
    assert decode_metadata(written) == more
    for value in (too_small, b"x", b"2000000001", None):
        with pytest.raises(DamagedMetadataError, match=header):
            decode_metadata((*WAITING_BYTES, (header, value)))


def test_a_newer_format_says_to_upgrade() -> None:
    """It is refused by a name of its own, which is damage too for whoever does not tell them apart."""
    with pytest.raises(NewerFormatError, match="upgrade retryapp") as caught:
        decode_metadata(with_header("retry-version", b"2"))
    assert isinstance(caught.value, DamagedMetadataError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retry-version", b"0"), ("retry-version", b""), ("retry-attempt", b""), ("retry-attempt", b"-1"),
        ("retry-attempt", b"1.0"), ("retry-attempt", b" 2"), ("retry-attempt", b"02"), ("retry-attempt", b"+2"),
        ("retry-attempt", b"two"), ("retry-attempt", "\u0662".encode()), ("retry-attempt", b"9" * 40),
        ("retry-attempt", b"2000000001"), ("retry-attempt", None), ("retry-due-ms", b""), ("retry-due-ms", b"-5"),
        ("retry-due-ms", b"soon"), ("retry-due-ms", b"253402300800000"), ("retry-due-ms", None),
        ("retry-origin-timestamp-ms", b"-2"), ("retry-origin", b"orders/3/1042"),
        ("retry-origin", b"orders@kq8G0bTz/3"), ("retry-origin", b"orders@kq8G0bTz/2147483648/1"),
        ("retry-origin", b"or ders@kq8G0bTz/3/1"), ("retry-origin", b"orders@kq8G0bTz/03/1"), ("retry-group", b""),
        ("retry-error-message", b"%"), ("retry-error-message", b"%zz"), ("retry-error-message", b"%FF"),
        ("retry-error-message", "é".encode()), ("retry-error-message", b"a+b"), ("retry-history", b""),
        ("retry-history", b"1:2"), ("retry-history", b"x:2:E"), ("retry-history", b"1:2:E,"),
        ("retry-null-value", b"0"), ("retry-replays", b"x"),
    ],
)  # fmt: skip
def test_a_damaged_header_is_named(name: str, value: bytes | None) -> None:
    """Nothing unreadable is taken for a default."""
    with pytest.raises(DamagedMetadataError) as caught:
        decode_metadata(with_header(name, value))
    assert caught.value.header == name
    assert name in str(caught.value)


def test_the_value_of_a_damaged_header_is_not_told() -> None:
    """It may be an error's message; whoever may only look sees this text, in lists and as the reason of a refusal."""
    broken = with_header("retry-error-message", "card 4711 ä".encode())
    for damaged in (broken, (broken[14], *broken)):
        with pytest.raises(DamagedMetadataError, match="retry-error-message") as caught:
            decode_metadata(damaged)
        assert "4711" not in str(caught.value)


def test_a_record_that_neither_waits_nor_is_dead_is_damaged() -> None:
    """A lost due time never means "now"."""
    with pytest.raises(DamagedMetadataError, match="retry-due-ms"):
        decode_metadata(tuple(pair for pair in WAITING_BYTES if pair[0] != "retry-due-ms"))
    with pytest.raises(DamagedMetadataError, match="retry-due-ms"):
        decode_metadata((*WAITING_BYTES, ("retry-reason", b"exhausted")))
    with pytest.raises(DamagedMetadataError, match="retry-due-ms"):
        encode_metadata(replace(WAITING, reason="exhausted"))


def test_attempt_0_is_only_for_replays() -> None:
    """Without a replay no record was delivered less than once."""
    assert decode_metadata(with_header("retry-attempt", b"0")) == replace(WAITING, attempt=0, delivery=0)
    lonely = tuple(pair for pair in with_header("retry-attempt", b"0") if pair[0] not in {"retry-replays"})
    with pytest.raises(DamagedMetadataError, match="retry-attempt"):
        decode_metadata(lonely)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempt": 0, "replays": 0, "delivery": 0},
        {"delivery": 1},
        {"due_at_ms": -1},
        {"handler": ""},
        {"started_ms": 10**15},
    ],
)
def test_what_would_be_damage_is_never_written(wrong: dict[str, object]) -> None:
    """The writer refuses what the reader refuses."""
    with pytest.raises(DamagedMetadataError):
        encode_metadata(replace(WAITING, **wrong))  # type: ignore[arg-type]


def test_strip_takes_a_copied_dead_letter_for_a_new_record() -> None:
    """On the main topic our headers are taken off, shielded names come back, and the user's look-alikes stay."""
    foreign: Headers = (("trace", b"x"), ("trace", None), ("retry-foreign-retry-attempt", b"7"))
    assert strip(foreign + encode_metadata(DEAD)) == (("trace", b"x"), ("trace", None), ("retry-attempt", b"7"))
    own: Headers = (("retry-attempt", b"7"), ("retry-policy", b"mine"))
    assert strip(own) == own


def test_every_header_name_is_listed_once() -> None:
    """A constant that is not in the set of ours would be taken for a foreign header."""
    constants = {value for name, value in vars(headers).items() if name.startswith("RETRY_")}
    assert constants == headers.OUR_HEADERS
    assert all(name.startswith("retry-") and name.isascii() for name in constants)


def test_a_record_of_an_outage_has_spent_no_attempt() -> None:
    """Its first delivery has ended, and it begins with attempt 1."""
    free = replace(WAITING, attempt=0, delivery=1, replays=0)
    assert decode_metadata(encode_metadata(free)) == free
