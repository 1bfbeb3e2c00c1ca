"""Reading hand-offs from records, apart from the library's own decoder."""

import pytest

from retryapp.core.policy import RetryPolicy
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.demo.balance import HandOff, Station
from retryapp.demo.policy import OUTAGE_S, POLICY
from retryapp.demo.watch import read_handoff, stations

HEADERS = [
    ("retry-group", b"demo"),
    ("retry-origin", b"flights@kq8G0bTz/3/1042"),
    ("retry-attempt", b"2"),
    ("retry-due-ms", b"1700000000000"),
]


def test_a_hand_off_is_read_from_headers_and_value() -> None:
    """Failure id, attempt and due time come from the headers, the flight from its untouched value."""
    assert read_handoff(Station.RETRY, b'{"id":7}', HEADERS) == HandOff(
        station=Station.RETRY,
        flight_id=7,
        failure_id="demo/flights@kq8G0bTz/3/1042",
        attempt=2,
        due_at_ms=1_700_000_000_000,
    )


def test_a_dead_letter_has_its_reason() -> None:
    """The machine reason is read as it is."""
    letter = read_handoff(Station.DLQ, b'{"id":7}', [*HEADERS[:3], ("retry-reason", b"rejected")])
    assert (letter.reason, letter.due_at_ms) == ("rejected", None)


@pytest.mark.parametrize(("value", "headers"), [(None, HEADERS), (b"{}", HEADERS), (b'{"id":1}', HEADERS[:2])])
def test_what_cannot_be_counted_is_named(value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    """A record without its flight or its attempt stops the count: passing over it would hide a loss."""
    with pytest.raises(ValueError, match="a record on a retry topic cannot be counted"):
        read_handoff(Station.RETRY, value, headers)


def test_the_demo_watches_a_topic_for_each_delay() -> None:
    """The policy's distinct delays name the retry topics."""
    policy = RetryPolicy(POLICY)
    topology = HandlerTopology("demo", "flights", Tiers.PER_DELAY, policy.schedule.nominal_delays_ms)
    assert list(stations(topology)) == [
        *[f"demo.flights.retry.{delay}" for delay in ("1s", "2s", "4s", "8s")],
        "demo.flights.redelivery",
        "demo.flights.dlq",
    ]


def test_the_policy_outlasts_the_outage_and_the_planned_failures() -> None:
    """Three planned failures and two in the outage leave at least one attempt."""
    assert RetryPolicy(POLICY).max_attempts > 3 + 2
    assert sum(RetryPolicy(POLICY).schedule.nominal_ms(n) for n in (1, 2, 3, 4)) / 1000 > OUTAGE_S
