"""Tables and instants of the look-up commands."""

from __future__ import annotations

import click
import pytest

from retryapp.cli._options import When
from retryapp.cli._output import table


def test_a_table_shows_text_as_it_is():
    """No markup, no control characters, nothing cut."""
    shown = table(("id", "what"), [("x" * 150, "[red]a\x1b[0m[/red]")])
    assert "x" * 150 in shown
    assert "[red]a\\x1b[0m[/red]" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", 1_000 + 600_000),
        (" 1h30m ", 1_000 + 5_400_000),
        ("1970-01-01T00:01", 60_000),
        ("1970-01-01T02:01:00+02:00", 60_000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_an_instant_is_a_length_from_now_or_utc(text, expected, monkeypatch):
    """Bare times are UTC."""
    monkeypatch.setattr("retryapp.cli._options.SystemClock.wall_ms", lambda _: 1_000)
    assert When().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["10", "soon", "", "10 parsecs", "1m1h", "2030-13-01"])
def test_what_is_no_instant_is_refused(text):
    """A bare number has no unit."""
    with pytest.raises(click.BadParameter):
        When().convert(text, None, None)
