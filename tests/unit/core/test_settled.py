"""What is settled beyond a committed offset: read back as written, bounded, and never about other records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core import settled as codec
from retryapp.core.marks import Note, progress_value, read_progress, split_note
from retryapp.core.record import Origin
from retryapp.core.settled import MAX_PAYLOAD_BYTES, decode_settled, encode_settled, that_fit
from retryapp.doctor.brokers import METADATA_BYTES

BASE = Origin("orders", "kq8G0bTz", 3, 100)
TEXT = "b1:100:AgPIAQ==:9fP9b6hr"
"""As version 1 wrote it: brokers hold such texts."""
SOME = {101: True, 103: False, 204: True}


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, dict[int, bool]]:
    """Draw a committed offset, and records beyond it that are settled, some far apart."""
    at = base = draw(st.integers(0, 2**62))
    found = {}
    for gap, fine in draw(st.lists(st.tuples(st.one_of(st.integers(1, 3), st.integers(1, 2**40)), st.booleans()))):
        at += gap
        found[at] = fine
    return base, found


def place(offset: int) -> Origin:
    return Origin("orders", "kq8G0bTz", 3, offset)


def test_version_1_is_read_and_written() -> None:
    assert encode_settled(SOME, BASE) == TEXT
    assert decode_settled(TEXT, BASE) == SOME
    assert encode_settled({}, BASE) == ""


@given(windows())
def test_what_was_written_is_read(window: tuple[int, dict[int, bool]]) -> None:
    """Also far apart, and in metadata beside all else."""
    base, found = window
    text = encode_settled(found, place(base))
    assert decode_settled(text, place(base)) == found
    note = Note("r2:3f9c", "p1:1-2@3:1,1,0", "wr1:3f9c@5d41", "kq2", text)
    assert split_note(note.text) == note
    assert read_progress(progress_value({"orders": base}, "id", settled=text)).settled == text


@pytest.mark.parametrize(
    ("text", "committed"),
    [
        ("", BASE), (TEXT[:-1], BASE), (TEXT.replace("AgP", "AgM"), BASE), (TEXT.replace("b1", "b2"), BASE),
        (TEXT.replace("100", "101"), place(101)), (TEXT, place(101)), (TEXT, Origin("orders", "other", 3, 100)),
        (TEXT, Origin("orders", "kq8G0bTz", 4, 100)), (TEXT, Origin("bills", "kq8G0bTz", 3, 100)),
        ("set by ops on Monday", BASE),
    ],
)  # fmt: skip
def test_a_damaged_or_copied_text_names_no_record(text: str, committed: Origin) -> None:
    """It would be skipped: rather all of them run again."""
    assert decode_settled(text, committed) == {}


@given(windows(), st.data())
def test_what_fits_fits_whatever_is_left_out(window: tuple[int, dict[int, bool]], data: st.DataObject) -> None:
    """Turns are held back or refused, and the offset moves meanwhile."""
    base, found = window
    whole = len(encode_settled(found, place(base))) - len(str(base))
    part = {offset: fine for offset, fine in found.items() if data.draw(st.booleans())}
    passed = data.draw(st.sampled_from([base, *(offset + 1 for offset in found)]))
    left = {offset: fine for offset, fine in part.items() if offset >= passed}
    assert len(encode_settled(left, place(passed))) - len(str(passed)) <= whole


@given(windows(), st.data())
def test_what_is_let_in_fits(window: tuple[int, dict[int, bool]], data: st.DataObject) -> None:
    """However it lies between the others."""
    base, found = window
    noted = {offset: fine for offset, fine in found.items() if data.draw(st.booleans())}
    room = data.draw(st.integers(0, 40))
    bound = len(codec._pack(noted, base)) + room
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(codec, "MAX_PAYLOAD_BYTES", bound)
        more = that_fit(noted, base, [offset for offset in found if offset not in noted])
    both = noted | {offset: found[offset] for offset in more}
    assert len(codec._pack(both, base)) <= bound


def test_a_default_window_fits_and_leaves_room_for_the_rest() -> None:
    """A thousand records that are close together; the longest text is well below what a broker takes."""
    base = 2**62
    window = range(base + 1, base + 1_000)
    noted: dict[int, bool] = {}
    while more := that_fit(noted, base, [offset for offset in window if offset not in noted]):
        noted |= dict.fromkeys(more, False)
    assert list(noted) == list(window)
    far = range(base + 70, base + 70 * MAX_PAYLOAD_BYTES, 70)
    full: dict[int, bool] = {}
    while more := that_fit(full, base, [offset for offset in far if offset not in full]):
        full |= dict.fromkeys(more, True)
    text = encode_settled(full, place(base))
    longest = "9" * 19
    tally = f"p1:{longest}-{longest}@{longest}:{longest},{longest},{longest}"
    note = Note(f"r999999:{'l' * 64}", tally, f"wr999999:{'l' * 64}@{'f' * 16}", "c" * 22, text)
    assert 1_400 < len(text) < len(note.text) < METADATA_BYTES
