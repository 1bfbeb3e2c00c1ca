"""What only a table on disk has to do: be dropped when it cannot be trusted, and do little work."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retryapp.core.errors import StoreBrokenError
from retryapp.core.headers import RETRY_TIER
from retryapp.core.rows import PendingRow, encode_row, parse_row_key
from retryapp.ports import Removal, Row
from retryapp.runtime.stores.pending import RocksPendingTable, tier_of
from retryapp.runtime.stores.store import Store, StoreIdentity

MakeRow = Callable[..., Row]
Open = Callable[..., RocksPendingTable]
IDENTITY = StoreIdentity(topic="app.orders.pending.changelog", topic_id="i", partition=3)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open the table of this test's folder; each is closed at the end."""
    tables: list[RocksPendingTable] = []

    def open_(identity: StoreIdentity = IDENTITY, now_ms: int = 0, max_age_ms: int | None = None) -> RocksPendingTable:
        table = RocksPendingTable(tmp_path / "data" / "3", identity, now_ms=now_ms, max_age_ms=max_age_ms)
        tables.append(table)
        return table

    yield open_
    for table in tables:
        table.close()


@pytest.mark.parametrize(
    "other",
    [
        StoreIdentity(topic="other", topic_id="i", partition=3),
        StoreIdentity(topic=IDENTITY.topic, topic_id="j", partition=3),
        StoreIdentity(topic=IDENTITY.topic, topic_id="i", partition=4),
    ],
    ids=["topic", "topic-id", "partition"],
)
def test_a_store_of_another_topic_is_dropped(opened: Open, make_row: MakeRow, other: StoreIdentity) -> None:
    """A changelog that was made again under its name has another id; its offsets mean other rows."""
    table = opened()
    table.write([make_row(1, 1)], [], 5)
    table.close()
    again = opened(other)
    assert "it is a copy of" in str(again.dropped)
    assert (again.next_offset, again.page(None, 10), dict(again.counts())) == (0, [], {})
    again.close()
    assert opened(other).dropped is None


def test_a_store_unused_for_too_long_is_dropped(opened: Open, make_row: MakeRow) -> None:
    """The changelog may have forgotten its tombstones: a removed row would come back. Writes keep it young."""
    table = opened(now_ms=0)
    table.touch(1_000)
    table.write([make_row(1, 1)], [], 5)
    table.close()
    kept = opened(now_ms=61_000, max_age_ms=60_000)
    assert (kept.dropped, kept.next_offset) == (None, 6)
    kept.close()
    late = opened(now_ms=61_001, max_age_ms=60_000)
    assert "not used for 60 s" in str(late.dropped)
    assert (late.next_offset, late.page(None, 10)) == (0, [])


def test_a_store_is_as_young_as_the_last_reading_to_the_end(opened: Open, make_row: MakeRow) -> None:
    """Recoveries that are cut off, one after the other, must not keep it: what it lacks may be forgotten meanwhile."""
    row = make_row(1, 1)
    table = opened(now_ms=0)
    table.recover([(row.key, row.value)], 5)
    table.recovered()
    table.close()
    for now_ms in (40_000, 60_000):
        table = opened(now_ms=now_ms, max_age_ms=60_000)
        table.recover([(row.key, row.value)], 6)
        table.close()
    assert opened(now_ms=61_000, max_age_ms=60_000).dropped is not None


def test_a_store_that_is_open_already_is_refused_and_left_alone(opened: Open, make_row: MakeRow) -> None:
    """Two owners of one folder: the second gets a named error, the first loses nothing."""
    table = opened()
    row = make_row(1, 1)
    table.write([row], [], 5)
    with pytest.raises(StoreBrokenError, match="This process has it open already") as caught:
        opened()
    assert caught.value.path.endswith("data/3")
    table.write([make_row(2, 2)], [], 6)
    table.close()
    assert dict(opened().counts()) == {"1m": 2}


HOLD = """
import sys
from rocksdict import Options, Rdict
db = Rdict(sys.argv[1], options=Options(raw_mode=True))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_store_of_another_process_is_to_be_left_alone(opened: Open, tmp_path: Path) -> None:
    """Stop that process, or choose another folder; with the process gone it can be used, as it was."""
    opened().close()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "data" / "3")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(StoreBrokenError, match="Another process has it open") as caught:
                opened()
        finally:
            other.kill()
    assert "stop that one, or give this worker a data directory of its own" in str(caught.value)
    assert "remove" not in str(caught.value)
    assert opened().dropped is None


def test_a_store_that_is_broken_may_be_removed(opened: Open, tmp_path: Path) -> None:
    """A file in place of the folder, say: nobody uses it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "3").write_text("in the way")
    with pytest.raises(StoreBrokenError, match="remove the directory, and it is rebuilt"):
        opened()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_an_unreadable_store_is_dropped(opened: Open, make_row: MakeRow, tmp_path: Path, pattern: str) -> None:
    """It is only a copy; what follows is a recovery from the changelog."""
    table = opened()
    table.write([make_row(n, n) for n in range(100)], [], 5)
    table.close()  # flushes into an sst file
    opened().close()
    spoilt = list((tmp_path / "data" / "3").glob(pattern))
    assert spoilt
    for file in spoilt:
        file.write_bytes(b"x" * file.stat().st_size)
    again = opened()
    assert "could not be opened" in str(again.dropped)
    assert (again.next_offset, again.page(None, 10), dict(again.counts())) == (0, [], {})


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (b"{", "no readable description"),
        (b'{"format": 1}', "no readable description"),
        (
            b'{"format": 99, "topic": "t", "topic_id": "i", "partition": 3, "used_ms": 0, "next_offset": 5, '
            b'"counts": {}, "newest": -1}',
            "format is 99",
        ),
    ],
    ids=["no json", "other fields", "newer format"],
)
def test_a_store_that_does_not_say_what_it_is_is_dropped(
    opened: Open, make_row: MakeRow, meta: bytes, why: str
) -> None:
    """Without its description nobody knows up to where it is complete."""
    table = opened()
    table.write([make_row(1, 1)], [], 5)
    table._store.db.put(b"\x02meta", meta)
    table.close()
    again = opened()
    assert why in str(again.dropped)
    assert (again.next_offset, again.page(None, 10)) == (0, [])


def damage(folder: Path, part: slice) -> None:
    """Spoil a part of the data, given in tenths, and leave the rest readable."""
    (file,) = folder.glob("*.sst")
    data = bytearray(file.read_bytes())
    for at in range(len(data) * part.start // 10, len(data) * part.stop // 10, 1_000):
        data[at : at + 100] = b"\x00" * 100
    file.write_bytes(data)


def test_rows_behind_a_damaged_part_never_look_removed(opened: Open, make_row: MakeRow, tmp_path: Path) -> None:
    """Reading it is a named error, and the store that failed is deleted when it is closed."""
    table = opened()
    rows = [make_row(100 + n, n, value=bytes(random.Random(n).randbytes(1_000))) for n in range(300)]
    table.write(rows, [], 0)
    table.close()
    damage(tmp_path / "data" / "3", slice(4, 5))
    table = opened()
    assert table.dropped is None
    assert len(table.due(1_000, 10)[0]) == 10
    with pytest.raises(StoreBrokenError, match="checksum"):
        table.due(1_000, 1_000)
    with pytest.raises(StoreBrokenError, match="checksum"):
        table.page(None, 1_000)
    table.close()
    assert not (tmp_path / "data" / "3").exists()
    assert opened().page(None, 1) == []


def test_counting_a_recovery_reads_no_row_but_those_it_applies(
    opened: Open, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of a restart is that of the tail, however many rows wait."""
    table = opened()
    rows = [make_row(100 + n, n) for n in range(50)]
    table.write(rows, [], 0)
    decoded: list[bytes | None] = []
    monkeypatch.setattr(
        "retryapp.runtime.stores.pending.tier_of", lambda value: decoded.append(value) or tier_of(value)
    )
    table.recover([(rows[0].key, None), (make_row(7, 99).key, make_row(7, 99).value)], 3)
    assert decoded == [make_row(7, 99).value]
    assert dict(table.counts()) == {"1m": 50}


def test_a_record_that_is_later_than_all_is_not_looked_up(
    opened: Open, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of an earlier one is: it may replace another. That is known after a restart too, and with all rows gone."""
    table = opened()
    looked: list[bytes] = []
    get = Store.get
    monkeypatch.setattr(Store, "get", lambda self, key: looked.append(key) or get(self, key))
    rows = [make_row(100 + n, n) for n in range(10)]
    table.write(rows[:4], [], 3)
    table.recover([(row.key, row.value) for row in rows[4:8]], 8)
    assert looked == []
    table.write([], [Removal(row.key, "1m") for row in rows[:8]], 16)
    table.close()
    again = opened()
    looked.clear()
    again.write([rows[8], rows[9]], [], 18)
    assert looked == []
    again.recover([(rows[7].key, rows[7].value), (rows[8].key, rows[8].value)], 20)
    assert looked
    assert dict(again.counts()) == {"1m": 3}


def test_the_tier_of_a_row_that_does_not_say_is_a_question_mark(make_row: MakeRow) -> None:
    """Damaged rows are counted all the same."""
    assert tier_of(make_row(1, 1, "30m").value) == "30m"
    assert [tier_of(value) for value in (None, b"", b"damaged")] == ["?", "?", "?"]
    others = [(), ((RETRY_TIER, None),), ((RETRY_TIER, b""),), ((RETRY_TIER, b"\xff"),)]
    assert [tier_of(encode_row(PendingRow(None, b"v", headers, 1))) for headers in others] == ["?"] * 4


def test_a_scan_does_not_walk_over_what_was_removed_before(opened: Open, make_row: MakeRow) -> None:
    """RocksDB would look at every deleted key in front of the first live one."""
    table = opened()
    rows = [make_row(100 + n, n) for n in range(50)]
    table.write(rows, [], 0)
    table.write([], [Removal(row.key, "1m") for row in rows[:40]], 1)
    table.due(1_000, 1)
    assert table._low == rows[40].key
    table.write([make_row(1, 99)], [], 2)
    assert table._low == make_row(1, 99).key


@pytest.mark.parametrize("purge_rows", [1, 2, 5_000])
def test_removals_never_take_a_row_that_came_in_late(
    opened: Open, make_row: MakeRow, purge_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cheap removal of everything below the low mark spares rows of its own batch and of later ones."""
    monkeypatch.setattr("retryapp.runtime.stores.pending._PURGE_ROWS", purge_rows)
    table = opened()
    table.write([make_row(1_000 + n, n) for n in range(10)], [], 0)
    for batch in range(5):  # scan, remove the head, and put a row far below, in turns
        (head, _), *_ = table.due(5_000, 100)[0][-1:]
        late = make_row(10 + batch, 100 + batch)
        table.write([late], [Removal(head, "1m")], batch + 1)
        assert table.get(late.key) == late.value
    found = [parse_row_key(key).origin_offset for key, _ in table.page(None, 100)]
    assert found == [100, 101, 102, 103, 104, 0, 1, 2, 3, 4]
    assert sum(table.counts().values()) == 10
