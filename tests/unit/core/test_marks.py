"""Marks and tallies beside committed offsets: read back as written, and what a mark makes suspect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core import marks
from retryapp.core.marks import (
    Mark,
    Note,
    Suspected,
    Tally,
    parse_mark,
    parse_tally,
    rows_suspicion,
    rows_text,
    split_note,
)
from retryapp.core.marks import suspicion as judged

LARGEST = 2**63 - 1
"""Kafka's offsets and times are signed 64-bit numbers."""
TALLY = Tally(from_offset=100, since_ms=1_700_000_000_000, received=40, first_try_ok=38, skipped=1)
TEXT = "p1:100-140@1700000000000:40,38,1"
"""As version 1 wrote it: brokers hold such texts."""


def runs(count: int, life: str = "old") -> Mark:
    """Return the mark of a life at work, after so many unclean ends."""
    return Mark(alone=False, count=count, life=life)


def alone(count: int, life: str = "old") -> Mark:
    """Return the mark of a record that started alone so many times."""
    return Mark(alone=True, count=count, life=life)


@pytest.mark.parametrize(
    "text", [None, "", "r", "r1", "x1:a", "r-1:a", "r1:", "r1:a b", "noted by somebody", "r1:" + "a" * 65]
)
def test_what_somebody_else_wrote_is_no_mark(text: str | None) -> None:
    """Tools and other clients may use the metadata for themselves."""
    assert parse_mark(text) is None


@pytest.mark.parametrize(
    ("found", "life", "written", "suspected"),
    [
        (None, "new", runs(0, "new"), None),
        (runs(0), "new", runs(1, "new"), None),
        (runs(1), "new", runs(2, "new"), Suspected(0, 20)),
        (runs(7), "new", runs(8, "new"), Suspected(0, 20)),
        (runs(1), "old", runs(1), None),
        (runs(2), "old", runs(2), Suspected(0, 20)),
        (alone(2), "old", alone(2), Suspected(1, 20)),
        (alone(1), "new", alone(1), Suspected(1, 20)),
        (alone(3), "new", alone(3), Suspected(3, 20)),
    ],
)
def test_unclean_ends_make_records_suspect(
    found: Mark | None, life: str, written: Mark, suspected: Suspected | None
) -> None:
    """Not an orderly end, not a single one, and not one that this life outlived."""
    assert judged(found, life, start=7, end=20) == (written, suspected)


@pytest.mark.parametrize(
    ("found", "written"), [(runs(5), runs(0, "new")), (alone(2), runs(0, "new")), (None, None), (runs(0), None)]
)
def test_an_idle_partition_has_no_suspects_and_no_new_mark(found: Mark | None, written: Mark | None) -> None:
    """A mark would be a transaction for each idle lane of a worker, at each rebalance."""
    assert judged(found, "new", start=20, end=20) == (written, None)


LEAST = b"key of the row that is due first"


@pytest.mark.parametrize(
    ("text", "written", "suspected"),
    [
        ("", runs(0, "new"), None),
        (rows_text(runs(1), b"another"), runs(0, "new"), None),
        ("wr1:old", runs(0, "new"), None),
        (rows_text(runs(1), LEAST), runs(2, "new"), Suspected(0, 20)),
        (rows_text(alone(2), LEAST), alone(2), Suspected(2, 20)),
    ],
)
def test_unclean_ends_make_due_rows_suspect(text: str, written: Mark, suspected: Suspected | None) -> None:
    """As long as the same row is due first; with another one first there was progress."""
    assert rows_suspicion(text, "new", least=LEAST, now_ms=20) == (rows_text(written, LEAST), suspected)


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
    """A broker holds texts of older workers."""
    assert TALLY.text(140) == TEXT
    assert parse_tally(TEXT, 140) == TALLY
    assert TALLY.failed == 1


@given(tallies(), st.none() | MARKS, st.none() | MARKS, st.from_regex(r"[0-9A-Za-z_-]{22}|", fullmatch=True))
def test_what_is_put_beside_an_offset_comes_back(
    counted: tuple[Tally, int], mark: Mark | None, rows: Mark | None, changelog_id: str
) -> None:
    """With marks and without; an empty tally leaves no text. The broker accepts every note."""
    tally, offset = counted
    rows_mark = "" if rows is None else rows_text(rows, LEAST)
    text = Note("" if mark is None else mark.text, tally.text(offset), rows_mark, changelog_id).text
    note = split_note(text)
    assert (note.rows, note.changelog) == (rows_mark, changelog_id)
    assert parse_mark(note.mark) == mark
    says_something = tally.received > 0 or tally.from_offset < offset
    assert parse_tally(note.tally, offset) == (tally if says_something else None)
    assert len(text) <= 400  # brokers accept 4096 bytes by default (`offset.metadata.max.bytes`)
    assert text.isascii()


@given(tallies(), st.integers(0, LARGEST))
def test_a_tally_counts_at_its_own_offset_only(counted: tuple[Tally, int], offset: int) -> None:
    """Elsewhere it would leave a hole, or count a record twice."""
    tally, end = counted
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
        ("wr1:3f9c@5d41", Note("", "", "wr1:3f9c@5d41")),
        (f"r0:3f9c {TEXT} wr1:3f9c@5d41", Note("r0:3f9c", TEXT, "wr1:3f9c@5d41")),
        ("r2:3f9c p7:whatever comes wr1:3f9c@5d41", Note("r2:3f9c", "p7:whatever comes", "wr1:3f9c@5d41")),
        ("r2:3f9c p7:whatever comes", Note("r2:3f9c", "p7:whatever comes")),
        ("set by ops on Monday", Note("set by ops on Monday", "")),
        (f"r0:3f9c {TEXT} wr1:3f9c@5d41 c:kq2_T-0", Note("r0:3f9c", TEXT, "wr1:3f9c@5d41", "kq2_T-0")),
        ("r0:3f9c c:kq2", Note("r0:3f9c", "", "", "kq2")),
        ("p7:whatever comes c:kq2", Note("", "p7:whatever comes", "", "kq2")),
        ("c:kq2", Note("", "", "", "kq2")),
        ("cc:kq2", Note("cc:kq2", "")),
    ],
)
def test_a_note_has_three_parts(text: str, note: Note) -> None:
    """Each may be missing; a later version's count hides no mark and no changelog."""
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
    assert (marks.read_changelog(value), marks.read_changelog(b"")) == ("", "")
    assert marks.read_changelog(marks.progress_value({"orders": 140}, "id", TEXT, "kq2")) == "kq2"
