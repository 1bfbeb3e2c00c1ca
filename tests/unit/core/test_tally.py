"""What was counted comes back from beside an offset as it was put there, and only there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core import marks
from retryapp.core.marks import MAX_NOTE_CHARS, Mark, Note, Tally, parse_mark, parse_tally, split_note

LARGEST = 2**63 - 1
"""Kafka's offsets and times are signed 64-bit numbers."""
TALLY = Tally(from_offset=100, since_ms=1_700_000_000_000, received=40, first_try_ok=38, skipped=1)
TEXT = "p1:100-140@1700000000000:40,38,1"
"""As version 1 wrote it; must be read for ever."""


@st.composite
def tallies(draw: st.DrawFn) -> tuple[Tally, int]:
    """Return a tally and the offset that it reaches."""
    from_offset, to_offset = sorted(draw(st.lists(st.integers(0, LARGEST), min_size=2, max_size=2)))
    received = draw(st.integers(0, to_offset - from_offset))
    ok = draw(st.integers(0, received))
    skipped = draw(st.integers(0, received - ok))
    since_ms = draw(st.integers(0, LARGEST))
    counts = {"received": received, "first_try_ok": ok, "skipped": skipped}
    return Tally(from_offset=from_offset, since_ms=since_ms, **counts), to_offset


MARKS = st.builds(
    Mark,
    alone=st.booleans(),
    count=st.integers(0, 999_999),
    life=st.text("0123456789abcdefXYZ._-", min_size=1, max_size=64),
)


def test_version_1_is_read_and_written() -> None:
    """What stands in a broker is older than whoever reads it."""
    assert TALLY.text(140) == TEXT
    assert parse_tally(TEXT, 140) == TALLY
    assert TALLY.failed == 1


@given(tallies(), st.none() | MARKS)
def test_what_is_put_beside_an_offset_comes_back(told: tuple[Tally, int], mark: Mark | None) -> None:
    """With a mark and without; a tally that says nothing leaves no text. The broker takes every note."""
    tally, offset = told
    text = Note("" if mark is None else mark.text, tally.text(offset)).text
    note = split_note(text)
    assert parse_mark(note.mark) == mark
    says_something = tally.received > 0 or tally.from_offset < offset
    assert parse_tally(note.tally, offset) == (tally if says_something else None)
    assert len(text) <= MAX_NOTE_CHARS
    assert text.isascii()


@given(tallies(), st.integers(0, LARGEST))
def test_a_tally_counts_at_its_own_offset_only(told: tuple[Tally, int], offset: int) -> None:
    """Elsewhere it would leave a hole, or count a record twice."""
    tally, end = told
    assert offset == end or parse_tally(tally.text(end), offset) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "p2:100-140@1700000000000:40,38,1", "p1:100-140@1700000000000:40,38,1,7",
        "p1:100-140@1700000000000:41,38,1", "p1:100-140@1700000000000:40,38,3", "p1:141-140@1700000000000:0,0,0",
        "p1:0100-140@1700000000000:40,38,1", "p1:100-140@-5:40,38,1", "p1:100-140@1700000000000:40,38,1\n",
        "p1:\u0661\u0660\u0660-140@1700000000000:40,38,1",
    ],
)  # fmt: skip
def test_what_cannot_be_is_not_believed(text: str) -> None:
    """Another version, more records than offsets, more outcomes than records, a range that ends before it begins."""
    assert parse_tally(text, 140) is None


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", Note("", "")),
        ("r0:3f9c", Note("r0:3f9c", "")),
        (f"r0:3f9c {TEXT}", Note("r0:3f9c", TEXT)),
        (TEXT, Note("", TEXT)),
        ("r2:3f9c p7:whatever comes", Note("r2:3f9c", "p7:whatever comes")),
        ("set by ops on Monday", Note("set by ops on Monday", "")),
    ],
)
def test_a_note_has_two_parts(text: str, note: Note) -> None:
    """Each may be missing; a later version's count hides no mark."""
    assert split_note(text) == note
    assert note.text == text


def test_the_changelog_says_the_same() -> None:
    """For a group whose offsets the broker has forgotten; rows of earlier workers have none."""
    value = marks.progress_value({"orders": 140}, "id", TEXT)
    assert marks.read_tally(value, "id") == TEXT
    assert marks.read_progress(value, "id", "orders") == {"orders": 140}
    assert marks.read_tally(value, "made again") == ""
    assert marks.read_tally(marks.progress_value({"orders": 140}, "id"), "id") == ""
    assert marks.read_tally(b"", "id") == ""
