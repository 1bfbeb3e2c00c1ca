"""Marks and tallies beside committed offsets: read back as written, and what a mark makes suspect."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core import marks
from retryapp.core.marks import (
    ENDED,
    Kind,
    Mark,
    Note,
    Place,
    Suspected,
    Tally,
    parse_mark,
    parse_rows_mark,
    parse_tally,
    place_of,
    rows_suspicion,
    rows_text,
    split_note,
)
from retryapp.core.marks import suspicion as judged
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of, row_key

LARGEST = 2**63 - 1
"""Kafka's offsets and times are signed 64-bit numbers."""
TALLY = Tally(from_offset=100, since_ms=1_700_000_000_000, received=40, first_try_ok=38, skipped=1)
TEXT = "p1:100-140@1700000000000:40,38,1"
"""As version 1 wrote it: brokers hold such texts."""


def runs(count: int, life: str = "old", upto: Place = ()) -> Mark:
    """Return the mark of a life at work, after so many unclean ends."""
    return Mark(Kind.LIFE, count, life, upto=upto)


def alone(count: int, life: str = "old", upto: Place = ()) -> Mark:
    """Return the mark of a record that started alone so many times, at offset 7."""
    return Mark(Kind.ALONE, count, life, (7,), upto=upto)


def group(size: int, life: str = "old", upto: Place = ()) -> Mark:
    """Return the mark of a group of so many records from offset 7 on."""
    return Mark(Kind.GROUP, size, life, (7,), (7 + size,), upto)


OUTLIVED = Mark(Kind.LIFE, 2, "old", (3,), upto=(18,))
"""A life that has run all suspects."""


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("r2:old@3<18", OUTLIVED),
        ("r0:3f9c", runs(0, "3f9c")),
        ("r2:3f9c<140", runs(2, "3f9c", (140,))),
        ("s1:3f9c@7", alone(1, "3f9c")),
        ("s1:3f9c@7<140", alone(1, "3f9c", (140,))),
        ("g20:3f9c@7-27<140", group(20, "3f9c", (140,))),
        ("r1:3f9c<1700000000000.0", runs(1, "3f9c", (1_700_000_000_000, 0))),
        (
            "g2:a@1700000000000.9-1700000000001.4",
            Mark(Kind.GROUP, 2, "a", (1_700_000_000_000, 9), (1_700_000_000_001, 4)),
        ),
    ],
)
def test_a_mark_names_its_records(text: str, mark: Mark) -> None:
    """By offset, or by due time and offset; brokers hold such texts."""
    assert parse_mark(text) == mark
    assert mark.text == text


@pytest.mark.parametrize(
    "text",
    [
        None, "", "r", "r1", "x1:a", "r-1:a", "r1:", "r1:a b", "noted by somebody", "r1:" + "a" * 65, "g1:a@",
        "g1:a@1-", "s1:a<", "s1:a@1.2.3", "s1:a@-1", "s1:a@\u0661",
    ],
)  # fmt: skip
def test_what_somebody_else_wrote_is_no_mark(text: str | None) -> None:
    """Tools and other clients may use the metadata for themselves."""
    assert parse_mark(text) is None


@pytest.mark.parametrize(
    ("found", "life", "written", "suspected"),
    [
        (None, "new", runs(0, "new"), None),
        (runs(0), "new", runs(1, "new", (20,)), None),
        (runs(1), "new", runs(2, "new", (20,)), Suspected((7,), (20,))),
        (runs(1, upto=(8,)), "new", runs(2, "new", (20,)), Suspected((7,), (20,))),
        (runs(1, upto=(7,)), "new", runs(1, "new", (20,)), None),
        (runs(7), "new", runs(8, "new", (20,)), Suspected((7,), (20,), more=6)),
        (OUTLIVED, "new", runs(3, "new", (20,)), Suspected((7,), (20,), more=1)),
        (OUTLIVED, "old", OUTLIVED, None),
        (runs(1), "old", runs(1), None),
        (runs(2), "old", runs(2), Suspected((7,), (20,))),
        (group(8), "new", group(8), Suspected((7,), (15,), 8)),
        (group(8, upto=(18,)), "new", group(8, upto=(18,)), Suspected((7,), (15,), 8)),
        (group(8, upto=(18,)), "old", group(8, upto=(18,)), Suspected((7,), (18,))),
        (group(8), "old", group(8), Suspected((7,), (15,), 8)),
        (alone(2), "old", alone(2), Suspected((7,), (8,), 1, crashes=1)),
        (alone(2, upto=(18,)), "old", alone(2, upto=(18,)), Suspected((7,), (18,), crashes=1)),
        (alone(1), "new", alone(1), Suspected((7,), (8,), 1, crashes=1)),
        (alone(3, upto=(18,)), "new", alone(3, upto=(18,)), Suspected((7,), (8,), 1, crashes=3)),
        (Mark(Kind.ALONE, 3, "old"), "new", Mark(Kind.ALONE, 3, "old"), Suspected((7,), (8,), 1, crashes=3)),
        (Mark(Kind.ALONE, 3, ENDED), "new", Mark(Kind.ALONE, 3, ENDED), Suspected((7,), (8,), 1, crashes=2)),
        (runs(1, ENDED, (18,)), "new", runs(1, "new", (18,)), None),
        (runs(1, ENDED, (7,)), "new", runs(0, "new"), None),
        (runs(2, ENDED, (18,)), "new", runs(2, "new", (18,)), Suspected((7,), (20,))),
        (OUTLIVED.ended(), "new", replace(OUTLIVED, life="new"), None),
        (group(8, ENDED, (18,)), "new", group(8, ENDED, (18,)), Suspected((7,), (18,))),
        (alone(3, ENDED, (18,)), "new", alone(3, ENDED, (18,)), Suspected((7,), (18,), crashes=2)),
    ],
)
def test_unclean_ends_make_records_suspect(
    found: Mark | None, life: str, written: Mark, suspected: Suspected | None
) -> None:
    """Not an orderly end, not a single one, and not one that this life outlived; of a group, what was started."""
    assert judged(found, life, start=7, end=20) == (written, suspected)


@pytest.mark.parametrize("found", [group(2), alone(2)])
def test_a_group_whose_records_are_settled_ended_no_worker(found: Mark) -> None:
    """The end after it counts as the first one, and not as one at this place."""
    assert judged(found, "new", start=9, end=20) == (runs(1, "new", (20,)), None)
    assert judged(found, "old", start=9, end=20) == (runs(0), None)


@pytest.mark.parametrize(
    ("found", "written"),
    [
        (runs(5), runs(0, "new")),
        (alone(2), runs(0, "new")),
        (group(2), runs(0, "new")),
        (None, None),
        (runs(0), None),
    ],
)
def test_an_idle_partition_has_no_suspects_and_no_new_mark(found: Mark | None, written: Mark | None) -> None:
    """A mark would be a transaction for each idle lane of a worker, at each rebalance."""
    assert judged(found, "new", start=20, end=20) == (written, None)


LEAST = row_key(15, identity_of(Origin("orders", "id", 0, 4)))
"""Key of the row that is due first."""
NOW: Place = (21, 0)


@pytest.mark.parametrize(
    ("text", "written", "suspected"),
    [
        ("", "wr0:new", None),
        ("wr0:old", "wr1:new<21.0", None),
        ("wr1:old<15.4", "wr1:new<21.0", None),
        ("wr1:old<15.5", "wr2:new<21.0", Suspected((15, 4), NOW)),
        ("wr2:new<15.5", "wr2:new<15.5", Suspected((15, 4), NOW)),
        ("wg3:old@15.3-15.5", "wg3:old@15.3-15.5", Suspected((15, 3), (15, 5), 3)),
        ("wg3:old@13.3-14.5", "wr1:new<21.0", None),
        ("ws2:old@15.4", "ws2:old@15.4", Suspected((15, 4), (15, 5), 1, 2)),
        ("wr1:old@0123456789abcdef", "wr0:new", None),
        ("wr1:-<15.5", "wr1:new<15.5", None),
        ("wr1:-<15.4", "wr0:new", None),
        ("ws2:-@15.4", "ws2:-@15.4", Suspected((15, 4), (15, 5), 1, 1)),
    ],
)
def test_unclean_ends_make_due_rows_suspect(text: str, written: str, suspected: Suspected | None) -> None:
    """As long as a row waits that may have been running in all of them."""
    assert rows_suspicion(text, "new", least=LEAST, now_ms=20) == (written, suspected)


def test_rows_that_are_not_due_have_ended_no_worker() -> None:
    """Whatever the mark says: what it is about is settled."""
    assert rows_suspicion("ws2:old@9.4", "new", least=LEAST, now_ms=14) == ("wr0:new", None)


@st.composite
def tallies(draw: st.DrawFn) -> tuple[Tally, int]:
    from_offset, to_offset = sorted(draw(st.lists(st.integers(0, LARGEST), min_size=2, max_size=2)))
    received = draw(st.integers(0, to_offset - from_offset))
    ok = draw(st.integers(0, received))
    skipped = draw(st.integers(0, received - ok))
    since_ms = draw(st.integers(0, LARGEST))
    counts = {"received": received, "first_try_ok": ok, "skipped": skipped}
    return Tally(from_offset=from_offset, since_ms=since_ms, **counts), to_offset


@st.composite
def marks_of(draw: st.DrawFn, numbers: int) -> Mark:
    """Return a mark whose places have so many numbers."""
    places = st.tuples(*[st.integers(0, LARGEST)] * numbers) | st.just(())
    life = draw(st.text("0123456789abcdefXYZ._-", min_size=1, max_size=64))
    first = draw(places)
    end = draw(places) if first else ()
    return Mark(draw(st.sampled_from(Kind)), draw(st.integers(0, 999_999)), life, first, end, draw(places))


def test_version_1_is_read_and_written() -> None:
    """A broker holds texts of older workers."""
    assert TALLY.text(140) == TEXT
    assert parse_tally(TEXT, 140) == TALLY
    assert TALLY.failed == 1


@given(
    tallies(), st.none() | marks_of(1), st.none() | marks_of(2), st.from_regex(r"[0-9A-Za-z_-]{22}|", fullmatch=True)
)
def test_what_is_put_beside_an_offset_comes_back(
    counted: tuple[Tally, int], mark: Mark | None, rows: Mark | None, changelog_id: str
) -> None:
    """With marks and without; an empty tally leaves no text. The broker accepts every note."""
    tally, offset = counted
    rows_mark = "" if rows is None else rows_text(rows)
    text = Note("" if mark is None else mark.text, tally.text(offset), rows_mark, changelog_id).text
    note = split_note(text)
    assert (note.rows, note.changelog) == (rows_mark, changelog_id)
    assert parse_mark(note.mark) == mark
    assert parse_rows_mark(note.rows) == rows
    says_something = tally.received > 0 or tally.from_offset < offset
    assert parse_tally(note.tally, offset) == (tally if says_something else None)
    assert len(text) <= 600  # brokers accept 4096 bytes by default (`offset.metadata.max.bytes`)
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
        ("m:kq8G0bTz", Note("", "", main="kq8G0bTz")),
        (f"m:kq8G0bTz r0:3f9c {TEXT} c:kq2", Note("r0:3f9c", TEXT, "", "kq2", main="kq8G0bTz")),
        ("m:kq8G0bTz c:kq2", Note("", "", "", "kq2", main="kq8G0bTz")),
        ("m: r0:3f9c", Note("m: r0:3f9c", "")),
    ],
)
def test_a_note_has_three_parts(text: str, note: Note) -> None:
    """Each may be missing; a later version's count hides no mark and no changelog."""
    assert split_note(text) == note
    assert note.text == text


def test_the_changelog_says_the_same() -> None:
    """For a group whose offsets the broker has forgotten; rows of earlier workers have none."""
    read = marks.read_progress(marks.progress_value({"orders": 140}, "id", TEXT, "kq2", floor=9), "id", "orders")
    assert (read.tally, read.positions, read.changelog, read.floor) == (TEXT, {"orders": 140}, "kq2", 9)
    again = marks.read_progress(marks.progress_value({"orders": 140}, "id", TEXT), "made again", "orders")
    assert (again.tally, again.positions, again.changelog, again.floor) == ("", {}, "", 0)
    assert marks.read_progress(b"", "id") == ({}, "", "", "", "", "", 0, 0)


def test_a_held_row_comes_before_all_that_are_due() -> None:
    """It may run at once, whatever its time says."""
    identity = identity_of(Origin("orders", "kq8G0bTz", 0, 7))
    held = row_key(MAX_EPOCH_MS, identity)
    assert (place_of(held), place_of(row_key(1, identity))) == ((0, 7), (1, 7))
    assert rows_suspicion("wr1:old", "new", least=held, now_ms=20) == ("wr2:new<21.0", Suspected((0, 7), (21, 0)))
