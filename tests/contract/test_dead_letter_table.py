"""What every dead-letter table does; `ports.DeadLetterTable` says it in words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from retryapp.core.causes import MAX_CAUSES, OTHER_CAUSE, CauseCount, cause_bytes, cause_id, cause_name
from retryapp.core.control import LetterMark, MarkKind, mark_of
from retryapp.core.dead_index import IndexedLetter, hash_of
from retryapp.core.errors import StoreBrokenError
from retryapp.core.record import Origin, failure_id
from retryapp.engine.lane.dead_keeper import DeadLetterKeeper
from retryapp.engine.lane.shared_letters import LettersUnknownError
from retryapp.ports import DeadRow, TopicPartition, TopicReader
from retryapp.runtime.stores.deadletters import RocksDeadLetterTable
from retryapp.runtime.stores.store import StoreIdentity
from retryapp.testing import MemoryDeadLetterTable
from retryapp.testing.clock import VirtualClock

MakeDead = Callable[..., DeadRow]
Rocks = RocksDeadLetterTable
Table = MemoryDeadLetterTable | Rocks
IDENTITY = StoreIdentity(topic="app.orders.dlq", topic_id="i", partition=0)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[RocksDeadLetterTable]:
    """The index of a worker, which pages ask for more than a lane does."""
    rocks = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    yield rocks
    rocks.close()


@pytest.fixture(params=["memory", "rocks"])
def any_table(request: pytest.FixtureRequest, table: RocksDeadLetterTable) -> Table:
    return MemoryDeadLetterTable() if request.param == "memory" else table


def at(letter: IndexedLetter | None) -> int | None:
    return None if letter is None else letter.offset


def name(origin_offset: int) -> str:
    return failure_id("app", Origin("orders", "kq8G0bTz", 0, origin_offset))


def test_pages_go_from_the_newest_to_the_oldest(table: Rocks, make_dead: MakeDead) -> None:
    """The cursor is the lowest offset of the page before; offsets have gaps."""
    rows = [make_dead(offset, offset) for offset in (3, 300, 7, 70_000, 65_536)]
    table.write(rows, 70_001)
    assert [row.offset for row in table.page(None, 2)] == [70_000, 65_536]
    assert [row.offset for row in table.page(65_536, 2)] == [300, 7]
    assert [row.offset for row in table.page(7, 2)] == [3]
    assert table.page(3, 2) == []
    assert table.page(None, 0) == []


def test_letters_are_listed_by_time_also_where_a_clock_was_set_back(table: Rocks, make_dead: MakeDead) -> None:
    """The cursor is the time and offset of the last one of the page before."""
    times = {3: 100, 4: 200, 5: 50, 6: 60, 7: 200, 8: -1}
    table.write([replace(make_dead(offset, offset), append_ms=at_ms) for offset, at_ms in times.items()], 9)
    assert [row.offset for row in table.latest(None, 9)] == [7, 4, 3, 6, 5, 8]
    assert [row.offset for row in table.latest((200, 7), 2)] == [4, 3]
    assert [row.offset for row in table.latest((101, 0), 2)] == [3, 6]
    assert [row.offset for row in table.latest((100, 3), 9)] == [6, 5, 8]
    assert table.latest((0, 8), 9) == table.latest(None, 0) == []
    while table.forget_before(6):
        pass
    assert [row.offset for row in table.latest(None, 9)] == [7, 6, 8]


def test_lists_end_with_the_letters_that_are_left(tmp_path: Path, make_dead: MakeDead) -> None:
    """Whatever the order of their times, also of those that come later with an older one, and after a restart."""
    path, times = tmp_path / "0", {offset: offset * 7 % 40 * 100 for offset in range(30)}

    def listed(table: Rocks) -> list[int]:
        found, before = list[int](), None
        while page := table.latest(before, 4):
            found += [row.offset for row in page]
            before = page[-1].append_ms, page[-1].offset
        assert [row.offset for row in table.latest(None, 99)] == found
        assert sorted(row.offset for row in table.latest(None, 99, key=b"k")) == sorted(found)
        return found

    def expected(first: int, stop: int) -> list[int]:
        return sorted(range(first, stop), key=lambda offset: (times[offset], offset), reverse=True)

    table = Rocks(path, IDENTITY, now_ms=0)
    for stop, first in ((10, 3), (20, 4), (25, 25), (30, 29), (30, 30)):
        written = range(table.next_offset, stop)
        table.write([replace(make_dead(each), append_ms=times[each]) for each in written], stop)
        while table.forget_before(first, 2):
            left = sorted(row.offset for row in table.page(None, 99))
            assert listed(table) == expected(left[0] if left else stop, stop)
        assert listed(table) == expected(first, stop)
        table.close()
        table = Rocks(path, IDENTITY, now_ms=0)
        assert listed(table) == expected(first, stop)
    table.close()


def test_a_failure_id_leads_to_its_newest_dead_letter(any_table: Table, make_dead: MakeDead) -> None:
    """A record that was replayed and died again has two; the topic is read while new letters are written."""
    any_table.write([make_dead(9, 10), make_dead(5, 12)], None)
    any_table.write([make_dead(1, 10), make_dead(3, 10), make_dead(2, 11)], 4)
    any_table.write([make_dead(10, 12)], None)
    assert [at(any_table.find(name(n))) for n in (10, 11, 12)] == [9, 2, 10]
    assert any_table.newest(name(11)) == (2, None)
    any_table.mark({9: ("replayed", "j")}, None)
    assert any_table.newest(name(10)) == (9, "replayed")
    assert [any_table.mark_of(offset) for offset in (9, 3, 99)] == ["replayed", None, None]
    assert (any_table.find(name(13)), any_table.newest(name(13))) == (None, None)
    assert any_table.next_offset == 4
    while any_table.forget_before(9):
        pass
    assert [at(any_table.find(name(n))) for n in (10, 11, 12)] == [9, None, 10]
    assert (any_table.newest(name(10)), any_table.newest(name(11))) == ((9, "replayed"), None)


def test_rows_without_readable_metadata_are_listed_and_counted(table: Rocks, make_dead: MakeDead) -> None:
    """Damage hides nothing."""
    damaged = DeadRow(
        4, (("retry-version", b"1"), ("retry-attempt", b"x"), ("retry-reason", b"rejected")), append_ms=1_004
    )
    table.write([make_dead(3, None), damaged], 5)
    broken, foreign = table.page(None, 5)
    assert (broken.offset, broken.key, broken.reason, broken.attempt) == (4, None, "rejected", None)
    assert (foreign.offset, foreign.key, foreign.damaged) == (3, b"k", "the record carries no retry metadata")
    assert "retry-group" in (broken.damaged or "")
    assert [(count.cause_id, count.records) for count in table.causes()] == [(OTHER_CAUSE, 2)]
    assert [letter.offset for letter in table.latest(None, 5, cause=OTHER_CAUSE)] == [4, 3]
    assert table.count() == 2


def test_a_damaged_letter_is_found_by_what_can_be_read(any_table: Table, make_dead: MakeDead) -> None:
    """Group and origin say which failure it is; two of either say nothing."""
    whole = make_dead(4, 7).headers
    damaged = DeadRow(4, tuple((name, b"x" if name == "retry-attempt" else value) for name, value in whole))
    doubled = DeadRow(5, (*make_dead(5, 8).headers, ("retry-group", b"other")))
    nowhere = DeadRow(6, tuple((n, b"nowhere" if n == "retry-origin" else v) for n, v in make_dead(6, 9).headers))
    any_table.write([damaged, doubled, nowhere], 7)
    assert at(any_table.find(name(7))) == 4
    assert (any_table.find(name(8)), any_table.find(name(9))) == (None, None)


def test_no_letter_makes_a_table_fail(any_table: Table, make_dead: MakeDead) -> None:
    """Whatever its headers say: read anew, the topic would have it again, and no letter would ever be known."""
    whole = dict(make_dead(0, 7).headers)
    more = ("retry-replays", "retry-replay-id", "retry-letter", "retry-delivery", "retry-due-ms", "retry-null-value")
    digits = b"0", b"-1", b"9" * 18, b"9" * 19, b"9" * 30, b"4294967295", b"253402300799999"
    texts = b"", b"\xff", None, b"x" * 5_000, b"x" * 70_000, b"%C3%A9" * 40_000, b"app/" * 20_000
    found = [{**whole, name: value} for name in (*whole, *more) for value in (*digits, *texts)]
    found += [{**each, "retry-attempt": b"x"} for each in found]
    rows = [DeadRow(offset, tuple(headers.items()), b"k" * 70_000, offset) for offset, headers in enumerate(found)]
    any_table.write(rows, len(rows))
    marks = range(0, len(rows), 3)
    any_table.mark(dict.fromkeys(marks, ("discarded", "j" * 70000)), None)
    any_table.mark(dict.fromkeys(marks, ("restored", None)), None)
    assert any_table.find(name(7)) is not None
    if isinstance(any_table, Rocks):
        letters = any_table.page(None, len(rows))
        assert [letter.offset for letter in letters] == [*reversed(range(len(rows)))]
        assert {letter.offset for letter in any_table.latest(None, len(rows), key=b"k" * 70_000)} == {*range(len(rows))}
        assert any_table.count() == sum(count.records for count in any_table.causes()) == len(rows)
    while any_table.forget_before(len(rows)):
        pass
    assert any_table.find(name(7)) is None


def test_no_mark_makes_a_table_fail(any_table: Table, make_dead: MakeDead) -> None:
    """One of a letter at an offset that Kafka does not have is none."""
    any_table.write([make_dead(5, 7)], 9)
    for letter in (5, 2**63 - 1, 2**63, 2**64, 10**40, -1):
        facts: Any = {"failure_id": name(7), "delivery": 1, "replays": 1, "command": "j" * 70_000}
        sent = LetterMark(mark=MarkKind.REPLAYED, letter=letter, **facts).to_record("app.orders.dlq", 0)
        if (mark := mark_of(sent.headers, sent.value)) is not None:
            any_table.mark({mark.letter: (mark.mark, mark.command)}, None)
    assert [any_table.mark_of(offset) for offset in (5, 6, 2**63 - 1)] == ["replayed", None, "replayed"]


def test_rows_are_counted_once_however_often_they_are_written(table: Rocks, make_dead: MakeDead) -> None:
    """After an unknown commit the topic is read again over rows that are there."""
    table.write([make_dead(1, 1), make_dead(2, 2)], 3)
    table.write([make_dead(2, 2), make_dead(3, 3)], 4)
    assert table.count() == 3


def test_forgotten_letters_are_not_found(any_table: Table, make_dead: MakeDead) -> None:
    """Their marks are gone, too; those from the offset on stay."""
    any_table.write([make_dead(1, 10), make_dead(2, 11), make_dead(5, 10)], 6)
    any_table.mark({2: ("replayed", None)}, None)
    assert any_table.forget_before(5) == 2
    any_table.write([make_dead(2, 11)], None)
    assert [at(any_table.find(name(n))) for n in (10, 11)] == [5, 2]
    letter = any_table.find(name(11))
    assert letter is not None
    assert letter.mark is None


def test_forgetting_is_bounded_and_goes_from_the_oldest_on(table: Rocks, make_dead: MakeDead) -> None:
    """A topic that lost a million letters must not hold the event loop; the caller asks again."""
    table.write([make_dead(offset, offset) for offset in range(10)], 10)
    assert table.forget_before(8, limit=3) == 3
    assert ([row.offset for row in table.page(None, 10)], table.count()) == ([9, 8, 7, 6, 5, 4, 3], 7)
    assert [table.find(name(offset)) is None for offset in (2, 3)] == [True, False]
    assert [table.forget_before(8, limit=3) for _ in range(3)] == [3, 2, 0]
    assert ([row.offset for row in table.page(None, 10)], table.count()) == ([9, 8], 2)


def test_a_letter_below_what_was_forgotten_is_kept_and_forgotten_again(table: Rocks, make_dead: MakeDead) -> None:
    """Nothing takes a row along that came in behind the place where forgetting stands."""
    table.write([make_dead(offset, offset) for offset in range(5, 8)], 8)
    assert table.forget_before(7) == 2
    table.write([make_dead(2, 2)], None)
    assert [row.offset for row in table.page(None, 10)] == [7, 2]
    assert (table.forget_before(7), table.count()) == (1, 1)


def test_reopening_keeps_rows_look_up_count_and_next_offset(tmp_path: Path, make_dead: MakeDead) -> None:
    """A restart reads only what is new on the topic."""
    table = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    table.write([make_dead(1, 10), make_dead(2, None)], 3)
    table.close()
    again = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=10**13)
    assert (again._store.dropped, again.count(), again.next_offset) == (None, 2, 3)
    assert (at(again.find(name(10))), len(again.page(None, 9))) == (1, 2)
    again.close()


def test_a_letter_is_listed_with_what_a_list_shows(table: Rocks, make_dead: MakeDead) -> None:
    """Beginnings of key and message; the cause by its name, which the whole message gives."""
    message = "the shard 7 " + "refused " * 20 + "Ann Lee"
    table.write([make_dead(3, 9, key=b"k" * 99, error_message=message, attempt=4, delivery=9, replays=2)], 4)
    (letter,) = table.page(None, 1)
    assert (letter.failure_id, letter.append_ms, letter.attempt, letter.replays) == (name(9), 1_003, 4, 2)
    assert (letter.reason, letter.error_type, letter.message) == ("exhausted", "ValueError", message[:80])
    assert (letter.key, letter.key_hash, letter.first_failed_ms, letter.last_failed_ms) == (
        b"k" * 32, hash_of(b"k" * 99), 1, 1
    )  # fmt: skip
    assert letter.cause_id == cause_id("ValueError", "f", message)
    assert letter.cause == cause_name("ValueError", None, message)
    assert (letter.mark, letter.job, letter.damaged) == (None, None, None)


def test_letters_are_found_by_key_and_by_cause(table: Rocks, make_dead: MakeDead) -> None:
    """Each with its cursor; an unknown one has none, and a letter without a key is not one with an empty key."""
    table.write([make_dead(n, n, key=b"even" if n % 2 == 0 else b"", error_type=f"E{n % 3}") for n in range(1, 300)], 1)
    table.write([make_dead(300, 300, key=None)], 301)
    ids = [cause_id(f"E{n}", "f", "no") for n in range(3)]
    assert [letter.offset for letter in table.latest(None, 3, key=b"even")] == [298, 296, 294]
    assert [letter.offset for letter in table.latest((1_004, 4), 3, key=b"even")] == [2]
    assert [letter.offset for letter in table.latest(None, 2, key=b"")] == [299, 297]
    assert [letter.offset for letter in table.latest((1_258, 258), 2, cause=ids[0])] == [255, 252]
    assert [letter.offset for letter in table.latest((1_010, 10), 9, cause=ids[1], key=b"even")] == [4]
    assert table.latest(None, 9, key=b"odd") == table.latest(None, 9, cause="c1-0000000000") == []
    assert table.latest(None, 9, cause="nonsense") == []


def test_letters_are_counted_by_cause_as_they_come_and_go(table: Rocks, make_dead: MakeDead) -> None:
    """Once each, however often they are written; the cause goes with its last letter."""
    table.write(
        [make_dead(n, n, error_type=f"E{n % 2}", last_failed_ms=n, attempt=3, delivery=3) for n in (1, 2, 3)], 4
    )
    table.write([make_dead(3, 3, error_type="E1", last_failed_ms=3, attempt=3, delivery=3)], 4)
    one, two = cause_id("E1", "f", "no"), cause_id("E0", "f", "no")
    assert table.causes() == [
        CauseCount(cause_id=one, name="E1: no", records=2, attempts=6, first_ms=1, last_ms=3, sample=name(3)),
        CauseCount(cause_id=two, name="E0: no", records=1, attempts=3, first_ms=2, last_ms=2, sample=name(2)),
    ]
    assert table.forget_before(3) == 2
    assert [(count.cause_id, count.records, count.attempts) for count in table.causes()] == [(one, 1, 3)]
    assert table.latest(None, 9, cause=two) == table.latest((1_003, 3), 9, key=b"k") == []


def test_a_mark_is_kept_whenever_its_letter_is_written(any_table: Table, make_dead: MakeDead) -> None:
    """Marks come from elsewhere: before the letter is read, or between two readings of it."""

    def marked() -> list[tuple[str | None, str | None]]:
        return [(letter.mark, letter.job) for n in (1, 2) if (letter := any_table.find(name(n)))]

    any_table.mark({2: ("replayed", "job-1")}, None)
    any_table.write([make_dead(1, 1), make_dead(2, 2)], 3)
    any_table.mark({1: ("discarded", None)}, None)
    any_table.write([make_dead(1, 1)], 3)
    assert marked() == [("discarded", None), ("replayed", "job-1")]
    any_table.mark({1: ("restored", "job-2"), 2: ("discarded", None)}, 5)
    assert marked() == [("restored", "job-2"), ("discarded", None)]
    assert any_table.next_offset == 5


def test_what_lies_there_is_counted(table: Rocks, make_dead: MakeDead) -> None:
    """Not what was replayed or set aside; again what was restored; and what retention deletes is not counted twice."""
    table.write([make_dead(offset) for offset in range(5)], 5)

    def counted() -> tuple[int, int]:
        return table.count(), sum(cause.records for cause in table.causes())

    assert counted() == (5, 5)
    for offset, mark, left in (
        (0, "replayed", 4),
        (0, "recovered", 4),
        (1, "discarded", 3),
        (3, "discarded", 2),
        (3, "restored", 3),
    ):
        table.mark({offset: (mark, None)}, None)
        assert counted() == (left, left), (offset, mark)
    table.write([make_dead(1)], None)
    assert counted() == (3, 3)
    while table.forget_before(3):
        pass
    assert counted() == (2, 2)


def test_causes_beyond_the_bound_count_together(tmp_path: Path, make_dead: MakeDead) -> None:
    """Exactly, also after a restart and after the earlier ones have gone."""
    letters = [make_dead(n, n, error_type=f"E{n % (MAX_CAUSES + 3)}") for n in range(2 * (MAX_CAUSES + 3))]
    table = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    table.write(letters, len(letters))
    assert [(count.cause_id, count.records) for count in table.causes()][:2] == [
        (OTHER_CAUSE, 6), (table.causes()[1].cause_id, 2)
    ]  # fmt: skip
    assert len(table.causes()) == MAX_CAUSES + 1
    assert len(table.latest(None, 99, cause=OTHER_CAUSE)) == 6
    before = table.causes()
    table.close()
    table = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    assert table.causes() == before
    assert table.forget_before(MAX_CAUSES + 3) == MAX_CAUSES + 3
    assert {count.cause_id: count.records for count in table.causes()}[OTHER_CAUSE] == 3
    assert sum(count.records for count in table.causes()) == table.count() == MAX_CAUSES + 3
    table.close()


def test_a_store_whose_counts_cannot_be_read_is_made_anew(tmp_path: Path, make_dead: MakeDead) -> None:
    """Else each try would open the same one again, and the dead letters of the partition would stay unknown."""
    letters = [make_dead(n, n, error_type=f"Error{n}") for n in range(MAX_CAUSES)]
    table = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    table.write(letters, len(letters))
    cause = sorted(cause_bytes(count.cause_id) or b"" for count in table.causes())[-5]  # far from the description
    table.close()
    (file,) = (tmp_path / "0").glob("*.sst")
    data = bytearray(file.read_bytes())
    at = data.rindex(cause[1:])
    data[at : at + 4] = b"\x00" * 4
    file.write_bytes(data)
    with pytest.raises(StoreBrokenError, match="checksum"):
        RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    table = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    assert (table.next_offset, table.count(), table.causes()) == (0, 0, [])
    table.close()


@pytest.mark.parametrize(("fault", "read_from"), [("Too many open files", 3), ("Corruption: bad block", 0)])
async def test_a_table_that_fails_is_opened_again_and_read_on(
    tmp_path: Path, make_dead: MakeDead, fault: str, read_from: int
) -> None:
    """For want of open files nothing of it is lost: a rebuilt one would need as many, and read its whole topic."""
    reader, clock, dlq = create_autospec(TopicReader, instance=True), VirtualClock(), TopicPartition(IDENTITY.topic, 0)
    reader.bounds.return_value = {dlq: (0, 3)}
    reader.read.return_value = 3
    table = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    table.write([make_dead(n, n) for n in range(3)], 3)
    table.close()
    keeper = DeadLetterKeeper(
        "lane",
        lambda: RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0),
        dlq=dlq,
        reader=reader,
        clock=clock,
    )
    await keeper.known.wait()
    assert isinstance(keeper.table, RocksDeadLetterTable)
    keeper.table._store._db = Mock(wraps=keeper.table._store.db, **{"get.side_effect": Exception(fault)})
    with pytest.raises(LettersUnknownError, match=fault):
        keeper.find(name(1))
    await asyncio.sleep(0)
    clock.advance(5_000)
    await keeper.known.wait()
    assert [call.args[1] for call in reader.read.await_args_list] == [3, read_from]
    assert at(keeper.find(name(1))) == (1 if read_from else None)
    keeper.task.cancel()
    keeper.table.close()
