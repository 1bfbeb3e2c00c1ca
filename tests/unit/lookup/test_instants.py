"""Times for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.lookup.instants import iso_text, length_text, relative_text, utc_text


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (1, "1ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (9_990, "9.9s"),
        (10_000, "10s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (3_601_000, "1h"),
        (3_660_000, "1h 1m"),
        (86_400_000 * 400 + 7_200_000, "400d 2h"),
    ],
)
def test_lengths_have_two_units_at_most(length_ms: int, text: str) -> None:
    """Cut, not rounded: a wait never reads longer than it is."""
    assert length_text(length_ms) == text


def test_instants_are_utc_to_the_millisecond() -> None:
    """The same in the text and in the attribute for machines."""
    assert utc_text(1_760_000_000_123) == "2025-10-09 08:53:20.123 UTC"
    assert iso_text(1_760_000_000_123) == "2025-10-09T08:53:20.123Z"
    assert utc_text(None) == relative_text(None, 0) == "-"
    assert utc_text(-1) == "1969-12-31 23:59:59.999 UTC"


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**43))
def test_every_number_a_row_key_can_hold_has_a_text(epoch_ms: int, now_ms: int) -> None:
    """A damaged due time does not take the page with it."""
    assert utc_text(epoch_ms)
    assert isinstance(iso_text(epoch_ms), str)
    text = relative_text(epoch_ms, now_ms)
    assert text == "now" or text.startswith("in ") == (epoch_ms > now_ms)
