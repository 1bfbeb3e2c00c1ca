"""Which letter of a record is the newest, where a handler has several dead-letter topics."""

from __future__ import annotations

import pytest

from retryapp.core.dead_index import CLOCKS_MS, LetterAge, newest_letter

EARLIER = CLOCKS_MS * 10
LATER = EARLIER + CLOCKS_MS + 1


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (LetterAge(EARLIER, "exhausted", 3), LetterAge(LATER, "exhausted", 0)),  # its offset was set back
        (LetterAge(EARLIER, "damaged", 0), LetterAge(LATER, "exhausted", 0)),
        (LetterAge(EARLIER, "exhausted", 3), LetterAge(LATER, "damaged", 0)),
        (
            LetterAge(EARLIER + 5, "exhausted", 0),
            LetterAge(EARLIER, "exhausted", 1),
        ),  # replayed; clocks differ
        (LetterAge(EARLIER + 5, "exhausted", 1), LetterAge(EARLIER, "damaged", 0)),
    ],
)
def test_times_tell_and_where_they_are_near_numbers(older: LetterAge, newer: LetterAge) -> None:
    """In whatever order they are looked at."""
    assert newest_letter([older, newer], lambda age: age) == newer
    assert newest_letter([newer, older], lambda age: age) == newer
