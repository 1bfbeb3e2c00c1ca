"""What only a table on disk has to do: be dropped when it cannot be trusted, and do little work."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from samples import WAITING, key_of, removal, waiting_row

from retryapp.core.causes import cause_id
from retryapp.core.errors import StoreBrokenError
from retryapp.core.headers import RETRY_TIER
from retryapp.core.row_keys import IDENTITY_AT, STOPPED_MS, parse_row_key, queue_of
from retryapp.core.rows import STOPPED, PendingRow, decode_row, encode_row, tier_of
from retryapp.ports import Row
from retryapp.runtime.stores import store
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import Store, StoreIdentity

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
def test_a_store_of_another_topic_is_dropped(opened: Open, other: StoreIdentity) -> None:
    """A changelog that was made again under its name has another id; its offsets mean other rows."""
    table = opened()
    table.write([waiting_row(1)], 5)
    table.close()
    again = opened(other)
    assert "it is a copy of" in str(again._store.dropped)
    assert (again.next_offset, again.page(None, 10), dict(again.counts())) == (0, [], {})
    again.close()
    assert opened(other)._store.dropped is None


def test_a_store_unused_for_too_long_is_dropped(opened: Open) -> None:
    """The changelog may have forgotten its tombstones: a removed row would come back. Writes keep it young."""
    table = opened(now_ms=0)
    table.touch(1_000)
    table.write([waiting_row(1)], 5)
    table.close()
    kept = opened(now_ms=61_000, max_age_ms=60_000)
    assert (kept._store.dropped, kept.next_offset) == (None, 6)
    kept.close()
    late = opened(now_ms=61_001, max_age_ms=60_000)
    assert "not used for 60 s" in str(late._store.dropped)
    assert (late.next_offset, late.page(None, 10)) == (0, [])


def test_a_store_is_as_young_as_the_last_reading_to_the_end(opened: Open) -> None:
    """Recoveries that are cut off, one after the other, must not keep it: what it lacks may be forgotten meanwhile."""
    row = waiting_row(1)
    table = opened(now_ms=0)
    table.recover([(row.identity, row.value)], 5)
    table.recovered()
    table.close()
    for now_ms in (40_000, 60_000):
        table = opened(now_ms=now_ms, max_age_ms=60_000)
        table.recover([(row.identity, row.value)], 6)
        table.close()
    assert opened(now_ms=61_000, max_age_ms=60_000)._store.dropped is not None


def test_a_store_that_is_open_already_is_refused_and_left_alone(opened: Open) -> None:
    """Two owners of one folder: the second gets a named error, the first loses nothing."""
    table = opened()
    row = waiting_row(1)
    table.write([row], 5)
    with pytest.raises(StoreBrokenError, match="This process has it open already") as caught:
        opened()
    assert caught.value.path.endswith("data/3")
    table.write([waiting_row(2, due_at_ms=2)], 6)
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
    assert opened()._store.dropped is None


def test_a_store_that_is_broken_may_be_removed(opened: Open, tmp_path: Path) -> None:
    """A file in place of the folder, say: nobody uses it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "3").write_text("in the way")
    with pytest.raises(StoreBrokenError, match="remove the directory, and it is rebuilt"):
        opened()


NO_FILES = Exception("IO error: While open a file for random read: 000012.sst: Too many open files")


def test_a_store_that_finds_no_free_file_is_kept(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with it; a rebuilt one would need as many, and the others would be rebuilt in turn."""
    table = opened()
    table.write([waiting_row(1)], 5)
    table.close()
    with monkeypatch.context() as patch:
        patch.setattr(store, "Rdict", Mock(side_effect=NO_FILES))
        with pytest.raises(StoreBrokenError, match=r"Too many open files\. Nothing is wrong .*LimitNOFILE=.*ulimit"):
            opened()
    assert opened().next_offset == 6


@pytest.mark.parametrize("call", ["get", "write", "flush", "close"])
def test_an_open_store_that_finds_no_free_file_is_kept(opened: Open, call: str) -> None:
    """It is as after a crash: what it says of itself is what it has."""
    table = opened()
    table.write([waiting_row(1)], 5)
    rocks = table._store.db

    def use() -> None:
        table._store.get(b"k")
        table._store.write(table._store.batch(), 0, logged=False)
        table._store.write(table._store.batch(), 0)

    table._store._db = Mock(wraps=rocks, **{f"{call}.side_effect": NO_FILES})
    if call != "close":
        with pytest.raises(StoreBrokenError, match="ulimit"):
            use()
    table.close()
    if call == "close":
        rocks.close()
    again = opened()
    assert (again._store.dropped, again.next_offset, dict(again.counts())) == (None, 6, {"1m": 1})


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_an_unreadable_store_is_dropped(opened: Open, tmp_path: Path, pattern: str) -> None:
    """It is only a copy; what follows is a recovery from the changelog."""
    table = opened()
    table.write([waiting_row(n, due_at_ms=n) for n in range(100)], 5)
    table.close()  # flushes into an sst file
    opened().close()
    spoilt = list((tmp_path / "data" / "3").glob(pattern))
    assert spoilt
    for file in spoilt:
        file.write_bytes(b"x" * file.stat().st_size)
    again = opened()
    assert "could not be opened" in str(again._store.dropped)
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
def test_a_store_that_does_not_say_what_it_is_is_dropped(opened: Open, meta: bytes, why: str) -> None:
    """Without its description nobody knows up to where it is complete."""
    table = opened()
    table.write([waiting_row(1)], 5)
    table._store.db.put(b"\x02meta", meta)
    table.close()
    again = opened()
    assert why in str(again._store.dropped)
    assert (again.next_offset, again.page(None, 10)) == (0, [])


def damage(folder: Path, part: slice) -> None:
    """Spoil a part of the data, given in tenths, and leave the rest readable."""
    (file,) = folder.glob("*.sst")
    data = bytearray(file.read_bytes())
    for at in range(len(data) * part.start // 10, len(data) * part.stop // 10, 1_000):
        data[at : at + 100] = b"\x00" * 100
    file.write_bytes(data)


def test_rows_behind_a_damaged_part_never_look_removed(opened: Open, tmp_path: Path) -> None:
    """Reading it is a named error, and the store that failed is deleted when it is closed."""
    table = opened()
    rows = [waiting_row(n, due_at_ms=100 + n, value=bytes(random.Random(n).randbytes(1_000))) for n in range(300)]
    table.write(rows, 0)
    table.close()
    damage(tmp_path / "data" / "3", slice(4, 5))
    table = opened()
    assert table._store.dropped is None
    assert len(table.due(1_000, 10)[0]) == 10
    with pytest.raises(StoreBrokenError, match="checksum"):
        table.due(1_000, 1_000)
    with pytest.raises(StoreBrokenError, match="checksum"):
        table.page(None, 1_000)
    table.close()
    assert not (tmp_path / "data" / "3").exists()
    assert opened().page(None, 1) == []


def found(table: RocksPendingTable) -> list[tuple[str, int, int, int, int]]:
    """Return the causes by name, with records, attempts, first and last failure."""
    return [
        (each.name.removeprefix("ValueError: "), each.records, each.attempts, each.first_ms, each.last_ms)
        for each in table.causes()
    ]


def test_causes_are_counted_as_rows_come_change_and_go(opened: Open) -> None:
    """Over recoveries and restarts; a cause goes with its last row, and has the id, the name and one of the rows."""
    rows = [waiting_row(n, error_message=f"shard {n}", attempt=n, delivery=4, last_failed_ms=10 + n) for n in range(4)]
    held, damaged = waiting_row(7, failed=False), Row(waiting_row(8).identity, b"no row", "?")
    table = opened()
    table.recover([(row.identity, row.value) for row in (*rows, held, damaged)], 9)
    assert found(table) == [("shard <number>", 4, 6, 10, 13)]
    assert table.causes()[0].cause_id == cause_id("ValueError", "f", "shard 5")
    assert table.causes()[0].sample == WAITING.failure_id
    table.write([waiting_row(1, error_message="down", attempt=2, delivery=4, last_failed_ms=20), removal(rows[3])], 9)
    assert found(table) == [("shard <number>", 2, 2, 10, 13), ("down", 1, 2, 20, 20)]
    table.close()
    table = opened()
    table.write([waiting_row(0, error_message="down", attempt=1, last_failed_ms=30), removal(rows[2])], 10)
    assert found(table) == [("down", 2, 3, 20, 30)]
    table.recover([(row.identity, None) for row in (*rows, held, damaged)], 20)
    assert found(table) == []
    table.close()
    assert found(opened()) == []


def test_a_stop_of_the_build_before_counts_as_no_cause(opened: Open) -> None:
    """Its row has the failure of the dead record, which its letter counts: the cause had one more, without a name."""
    row = decode_row(waiting_row(1).value or b"")
    stopped = encode_row(replace(row, due_at_ms=STOPPED_MS, hold=STOPPED))
    table = opened()
    table.recover([(waiting_row(1).identity, stopped)], 1)
    assert (sum(table.counts().values()), found(table)) == (1, [])
    table.write([waiting_row(2, last_failed_ms=10)], 1)
    assert found(table) == [("no", 1, 1, 10, 10)]


def test_a_row_that_is_only_moved_hides_no_later_failure(opened: Open) -> None:
    """Rows of one batch need not have failed in its order."""
    table = opened()
    table.write([waiting_row(1, last_failed_ms=10)], 0)
    table.write([waiting_row(2, last_failed_ms=50), waiting_row(1, due_at_ms=900, last_failed_ms=10)], 1)
    assert found(table) == [("no", 2, 2, 10, 50)]


def test_causes_beyond_the_bound_count_together(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come when there is no room; each row is taken out where it was counted."""
    monkeypatch.setattr("retryapp.runtime.stores.causes.MAX_CAUSES", 3)
    rows = [waiting_row(n, error_type=f"E{n % 5}") for n in range(15)]
    table = opened()
    for row in rows:
        table.write([row], 0)
    assert [(each.name, each.records) for each in table.causes()] == [
        ("other", 6), *((f"E{n}: no", 3) for n in sorted(range(3), key=lambda n: cause_id(f"E{n}", "f", "no")))
    ]  # fmt: skip
    table.close()
    table = opened()
    table.recover([(row.identity, None) for row in rows[:6]], 1)
    assert sorted((each.name, each.records) for each in table.causes()) == [
        ("E0: no", 1), ("E1: no", 2), ("E2: no", 2), ("other", 4)
    ]  # fmt: skip


def test_a_row_whose_headers_are_damaged_is_counted_as_it_says(opened: Open) -> None:
    """Its cause has no name before a row comes that has one."""
    row = waiting_row(1)
    table = opened()
    table.write([row._replace(value=(row.value or b"").replace(b"retry-attempt", b"retry-attimpt"))], 0)
    assert [(each.cause_id, each.name, each.records) for each in table.causes()] == [
        (cause_id("ValueError", "f", "no"), "", 1)
    ]
    table.write([waiting_row(2)], 1)
    assert found(table) == [("no", 2, 2, 1, 1)]


def test_a_row_that_failed_at_an_impossible_time_is_kept_and_counted(opened: Open) -> None:
    """Its last bytes are damaged: the table takes all that the changelog has, or its lane never opens."""
    row = waiting_row(1)
    table = opened()
    table.recover([(row.identity, (row.value or b"")[:-8] + b"\xff" * 8)], 1)
    assert [each.records for each in table.causes()] == [1]
    table.write([removal(row)], 2)
    assert table.causes() == []


def test_counting_a_recovery_reads_no_row_but_those_it_applies(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a restart is that of the tail, however many rows wait."""
    table = opened()
    rows = [waiting_row(n, due_at_ms=100 + n) for n in range(50)]
    table.write(rows, 0)
    decoded: list[bytes] = []
    monkeypatch.setattr(
        "retryapp.runtime.stores.pending.tier_of", lambda value: decoded.append(value) or tier_of(value)
    )
    late = waiting_row(99, due_at_ms=7)
    table.recover([(rows[0].identity, None), late[:2]], 3)
    assert decoded == [late.value]
    assert dict(table.counts()) == {"1m": 50}


def test_a_record_that_is_later_than_all_is_not_looked_up(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of an earlier one is: it may replace another. That is known after a restart too, and with all rows gone."""
    table = opened()
    looked: list[bytes] = []
    get = Store.get
    monkeypatch.setattr(Store, "get", lambda self, key: looked.append(key) or get(self, key))
    rows = [waiting_row(n, due_at_ms=100 + n) for n in range(10)]
    table.write(rows[:4], 3)
    table.recover([(row.identity, row.value) for row in rows[4:8]], 8)
    assert looked == []
    table.write([removal(row) for row in rows[:8]], 16)
    table.close()
    again = opened()
    looked.clear()
    again.write([rows[8], rows[9]], 18)
    assert looked == []
    again.recover([(rows[7].identity, rows[7].value), (rows[8].identity, rows[8].value)], 20)
    assert looked
    assert dict(again.counts()) == {"1m": 3}


def test_the_tier_of_a_row_that_does_not_say_is_a_question_mark() -> None:
    """Damaged rows are counted all the same."""
    assert tier_of(waiting_row(1, tier="30m").value) == "30m"
    assert [tier_of(value) for value in (b"", b"damaged")] == ["?", "?"]
    others = [(), ((RETRY_TIER, None),), ((RETRY_TIER, b""),), ((RETRY_TIER, b"\xff"),)]
    assert [tier_of(encode_row(PendingRow(None, b"v", headers, 1))) for headers in others] == ["?"] * 4


def test_a_scan_does_not_walk_over_what_was_removed_before(opened: Open) -> None:
    """RocksDB would look at every deleted key in front of the first live one."""
    table = opened()
    rows = [waiting_row(n, due_at_ms=100 + n) for n in range(50)]
    table.write(rows, 0)
    table.write([removal(row) for row in rows[:40]], 1)
    table.due(1_000, 1)
    assert table._cursors[0] == key_of(rows[40])
    table.write([waiting_row(99)], 2)
    assert table._cursors[0] == key_of(waiting_row(99))


@pytest.mark.parametrize("released", [False, True], ids=["still claimed", "claimed again and again"])
def test_a_look_costs_the_same_however_many_rows_have_settled_after_a_slow_one(
    opened: Open, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    """Counted in removed keys that RocksDB steps over: no look meets one that an earlier look has passed."""
    options = store._options()
    options.enable_statistics()
    monkeypatch.setattr(store, "_options", lambda: options)

    def skipped() -> int:
        found = re.search(r"rocksdb\.number\.iter\.skip COUNT : (\d+)", str(options.get_statistics()))
        assert found is not None
        return int(found[1])

    table = opened()
    rows = [waiting_row(n, due_at_ms=100 + n) for n in range(4_001)]
    table.write(rows, 0)
    slow, *others = (key_of(row) for row in rows)
    looks: list[int] = []
    for at in range(0, len(others), 100):
        before = skipped()
        due, _ = table.due(10_000, 100, {slow})
        looks.append(skipped() - before)
        assert [key for key, _ in due] == others[at : at + 100]
        table.write([Row(key[IDENTITY_AT:], None, "?") for key, _ in due], at)
        if released:
            assert [key for key, _ in table.due(10_000, 1)[0]] == [slow]
    before = skipped()
    assert (table.page(None, 10), table.due_times(0, 10_000, 10)) == ([(slow, rows[0].value)], [100])
    assert skipped() - before <= 2 * (2 * 100) + 10, "nor does a page: two looks at what was removed last"
    assert max(looks) <= 2 * 100 + 10, looks  # each removed row is a deleted key, and so is the row after it once
    before = skipped()
    assert (table.due(10_000, 100, {slow})[1], table.due(10_000, 100, {slow})) == (None, ([], None))
    assert skipped() - before <= 2 * 100 + 10


@pytest.mark.parametrize("before", [[], [waiting_row(1, due_at_ms=2_000)]], ids=["an empty table", "a later row"])
def test_a_page_that_is_read_meanwhile_hides_no_row(
    opened: Open, monkeypatch: pytest.MonkeyPatch, before: list[Row]
) -> None:
    """Pages are read in a thread: a row may come between their look at the store and their next step."""
    table = opened()
    table.write(before, 0)
    table.due(0, 1)
    looks, new = table._store.items, [waiting_row(2, due_at_ms=1_000)]

    def items(start: bytes, **how: bool) -> Iterator[tuple[bytes, bytes]]:
        found = [*looks(start, **how)]
        if new:
            table.write([new.pop()], 1)
        yield from found

    monkeypatch.setattr(table._store, "items", items)
    table.page(None, 10)
    due, _ = table.due(5_000, 10)
    assert [parse_row_key(key).due_at_ms for key, _ in due] == [1_000, *([2_000] if before else [])]


def test_due_times_are_those_of_the_rows_of_all_queues(opened: Open) -> None:
    """Between two instants, also of rows that an earlier look found claimed."""
    table = opened()
    rows = [waiting_row(n, due_at_ms=100 + n // 2, circuit=("", "mail")[n % 2]) for n in range(20)]
    table.write(rows, 0)
    assert len(table.due(105, 20, {key_of(rows[0]), key_of(rows[4])})[0]) == 10
    dues = [100 + n // 2 for n in range(20)]
    for start, stop, limit in ((0, 1_000, 100), (102, 105, 100), (100, 1_000, 5), (105, 105, 100)):
        assert table.due_times(start, stop, limit) == [at for at in dues if start <= at < stop][:limit]


def test_a_thread_never_finds_the_cursors_of_a_table(opened: Open) -> None:
    """A row that comes while it does, of a circuit that had none, would lower a cursor that is thrown away."""
    table = opened()
    table.recover([], 5)
    assert "_cursors" not in vars(table)
    table.recovered()
    assert vars(table)["_cursors"] == {0: b"\x00\x00"}


def test_a_recovery_looks_for_the_last_written_record_no_more(opened: Open) -> None:
    """It begins once that was found; cut off, it is to be continued from where it came to."""
    table = opened()
    table.write([waiting_row(1)], 4)
    assert table.last_written == 4
    table.recover([], 5)
    assert (table.last_written, table.next_offset) == (None, 5)
    table.write([waiting_row(2)], 7)
    table.recovered()
    assert table.last_written is None


def test_rows_of_an_open_circuit_are_not_walked_over(
    opened: Open, reads_of: Callable[[RocksPendingTable], list[bytes]]
) -> None:
    """Whoever looks for other rows reads none of them, also after a restart."""
    table = opened()
    table.write([waiting_row(n, due_at_ms=100, circuit="ledger") for n in range(2_000)], 0)
    table.write([waiting_row(2_000 + n, due_at_ms=200, circuit=name) for n, name in enumerate(("", "mail"))], 1)
    table.close()
    table = opened()
    read = reads_of(table)
    rows, next_due_ms = table.due(300, 10, most={queue_of("ledger"): 0})
    assert [parse_row_key(key).origin_offset for key, _ in rows] == [2_000, 2_001]
    assert (next_due_ms, len(read) < 10) == (None, True)
    rows, _ = table.due(300, 10, most={queue_of("ledger"): 3})
    assert [parse_row_key(key).origin_offset for key, _ in rows] == [0, 1, 2, 2_000, 2_001]
