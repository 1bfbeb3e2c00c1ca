"""Waiting records, read from a changelog: what is found, and what is kept in memory for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from samples import WAITING, removal, waiting_row

from retryapp.cli import causes
from retryapp.cli._output import list_text
from retryapp.core.causes import CauseCount
from retryapp.core.classify import DeadReason
from retryapp.core.hops import to_stopped_row
from retryapp.core.jobs import LetterFilter
from retryapp.core.record import Record
from retryapp.core.rows import encode_row
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import fold_changelog, reader
from retryapp.lookup import records

TOPOLOGY = HandlerTopology("app", "orders", delays_ms=(1_000,))
CONNECTION: Any = None


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was kept of the rows of a changelog. Records 0 and 2 fail of "no"; 1 did, and is down since; 3 is done."""
    down = {"error_message": "it is down"}
    rows = [
        waiting_row(0),
        waiting_row(1),
        waiting_row(2),
        waiting_row(3),
        waiting_row(1, attempt=2, delivery=2, **down),
    ]
    rows.append(removal(rows[3]))
    values: list[Any] = []

    def read_topic(*_args: Any, **_more: Any) -> Iterator[Record]:
        for offset, row in enumerate(rows):
            yield Record(TOPOLOGY.pending_changelog, 0, offset, 1, row.identity, row.value, ())

    def fold(*args: Any, **more: Any) -> Any:
        found = fold_changelog(*args, **more)
        values.extend(value for value in found.values() if value is not None)
        return found

    monkeypatch.setattr(reader, "read_topic", read_topic)
    monkeypatch.setattr(records, "fold_changelog", fold)
    monkeypatch.setattr(causes, "fold_changelog", fold)
    return values


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(None, [0, 1, 2]), (LetterFilter(message="NO"), [0, 2]), (LetterFilter(message="down"), [1])],
)
def test_rows_that_do_not_fit_are_not_kept(kept: list[Any], wanted: LetterFilter | None, found: list[int]) -> None:
    """Of a million with a cause each, those of one cause; a former row of a record counts for nothing."""
    listed = records.list_waiting(CONNECTION, [TOPOLOGY], partition=None, wanted=wanted, limit=None)
    assert [each["origin_offset"] for each in listed.records] == found
    assert len(kept) == len(found)


def test_a_dead_record_whose_sequence_has_stopped_is_listed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one of those that wait, in the list and among the causes, though it was one of the dead as well."""
    row = waiting_row(1)
    stopped = encode_row(to_stopped_row(b"k", replace(WAITING, due_at_ms=None, reason=DeadReason.EXHAUSTED)))
    rows = [waiting_row(0), row._replace(value=stopped)]
    read = [Record(TOPOLOGY.pending_changelog, 0, at, 1, each.identity, each.value, ()) for at, each in enumerate(rows)]
    monkeypatch.setattr(reader, "read_topic", lambda *_args, **_more: iter(read))
    monkeypatch.setattr(causes, "read_letters", lambda *_: [])
    listed = records.list_waiting(CONNECTION, [TOPOLOGY], partition=None, limit=1)
    assert (len(listed.records), listed.matching, listed.marked) == (1, 2, {"stopped": 1})
    text = list_text(listed, {"held by": "held_by"}, 0, of="records", none="", still="waiting")
    assert text.endswith("1 of 2 records: 1 still waiting, 1 stopped")
    assert [each["waiting"] for each in causes.list_causes(CONNECTION, [TOPOLOGY])] == [1]


def test_a_value_is_decoded_for_the_row_that_a_record_has_in_the_end(kept: list[Any]) -> None:
    """A decoder is the user's code, and slow; what it fails for is counted once for a record."""

    class Failing:
        def __init__(self, _decoding: Any, _main: str) -> None:
            self.undecoded = 0

        def __call__(self, _record: Any) -> bytes:
            self.undecoded += 1
            return b""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "Searching", Failing)
        listed = records.list_waiting(
            CONNECTION, [TOPOLOGY], partition=None, wanted=LetterFilter(field="/a=1", message="down"),
            limit=None, decoding=object(),  # type: ignore[arg-type]
        )  # fmt: skip
    assert (listed.records, listed.undecoded, len(kept)) == ([], 1, 1)


def test_one_record_is_found_without_keeping_the_others(kept: list[Any]) -> None:
    found = records.find_waiting(CONNECTION, TOPOLOGY, replace(WAITING.origin, offset=2))
    assert found is not None
    assert found.value == waiting_row(2).value
    assert len(kept) == 1
    assert records.find_waiting(CONNECTION, TOPOLOGY, replace(WAITING.origin, offset=3)) is None


def test_causes_keep_no_rows(kept: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and headers of a million took gigabytes."""
    monkeypatch.setattr(causes, "read_letters", lambda *_: [])
    found = causes.list_causes(CONNECTION, [TOPOLOGY])
    assert [(each["cause"], each["waiting"]) for each in found] == [
        ("ValueError: no", 2),
        ("ValueError: it is down", 1),
    ]
    assert {type(each) for each in kept} == {CauseCount}
