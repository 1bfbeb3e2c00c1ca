"""Values: a changed copy is the one that the standard library would make."""

from __future__ import annotations

import dataclasses

import pytest

from retryapp.core.control import LetterMark, MarkKind
from retryapp.core.record import Origin
from retryapp.core.rows import PendingRow
from retryapp.core.values import replace

MARK = LetterMark(mark=MarkKind.REPLAYED, failure_id="f", letter=7, delivery=1, replays=1, command="c")


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (Origin("orders", "kq8G0bTz", 3, 42), {"offset": 43, "topic": "clicks"}),
        (MARK, {"by": "ann"}),
        (MARK.to_record("dlq", 0), {"told": None, "key": b"k"}),  # fields of its own, and of the class that it extends
        (PendingRow(b"k", b"v", ()), {}),
    ],
)
def test_a_changed_copy_is_the_standard_librarys(value: Origin, changes: dict[str, object]) -> None:
    """Of all fields, of the same type; the original stays."""
    before = dataclasses.astuple(value)
    changed = replace(value, **changes)  # type: ignore[arg-type]
    assert (type(changed), changed) == (type(value), dataclasses.replace(value, **changes))  # type: ignore[arg-type]
    assert (changed is not value, dataclasses.astuple(value)) == (True, before)
