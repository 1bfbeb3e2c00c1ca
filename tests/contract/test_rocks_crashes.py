"""A process that dies while it fills a store leaves a store that says how far it is: no more, and no hole in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retryapp.core.errors import DiskFullError
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of, parse_row_key, row_key
from retryapp.core.rows import PendingRow, encode_row
from retryapp.ports import Row
from retryapp.runtime.stores import store
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import Store, StoreIdentity

IDENTITY = StoreIdentity(topic="app.orders.pending.changelog", topic_id="i", partition=3)
VALUE = bytes(range(256)) * 16
SLICE = 200
SLICES = 60
"""Twelve thousand rows of 4 KiB: several memtables of 8 MiB are on the disk by then, and one is not."""


def record(offset: int) -> tuple[bytes, bytes]:
    """Return the changelog record of an offset: a row of its own."""
    row = PendingRow(b"k", VALUE, (("retry-tier", b"1m"),), 10**12 + offset, offset)
    return identity_of(Origin("orders", "i", 3, offset)), encode_row(row)


def filled(path: Path, slices: int) -> RocksPendingTable:
    """Open a table and let it take in so many slices of the changelog."""
    table = RocksPendingTable(path, IDENTITY, now_ms=0, max_age_ms=None)
    for number in range(slices):
        first = number * SLICE
        table.recover([record(offset) for offset in range(first, first + SLICE)], first + SLICE)
    return table


def cut_off(path: Path) -> None:
    table = filled(path, SLICES)
    die()
    table.close()  # never: but the last reference to a table closes it, so it has to live until here


def cut_off_at_the_end(path: Path) -> None:
    """Die when the changelog was read to its end, and the disk does not have it yet."""
    table = filled(path, SLICES)
    table.recovered()
    die()
    table.close()  # as above


def serve_and_die(path: Path) -> None:
    """Finish a recovery, change a little, and die."""
    table = filled(path, SLICES)
    table.recovered()
    end = SLICES * SLICE
    key, value = record(end)
    table.write([Row(key, value, "1m"), Row(record(0)[0], None, "?")], end + 1)
    die()


def never_open(path: Path) -> None:
    """Open a store that RocksDB does not come back from."""
    store.OPEN_S = 1.0  # type: ignore[misc]
    filled(path, 0)


def die() -> None:
    """End this process as `kill -9` does: nothing is closed, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def run(what: str, path: Path, exit_code: int = -signal.SIGKILL) -> str:
    """Run one of the above in a process of its own, which must die; return what it says."""
    code = f"import runpy; m = runpy.run_path({__file__!r}); from pathlib import Path; m[{what!r}](Path({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == exit_code, done.stderr
    return done.stderr


def offsets(table: RocksPendingTable) -> Iterator[int]:
    """Walk over the origin offsets of all rows."""
    last: bytes | None = None
    while page := table.page(last, 1_000):
        for key, value in page:
            offset = parse_row_key(key).origin_offset
            assert value == record(offset)[1]
            yield offset
        last = page[-1][0]


@pytest.mark.parametrize("where", [cut_off, cut_off_at_the_end])
def test_a_recovery_that_died_left_exactly_what_it_says(tmp_path: Path, where: Callable[[Path], None]) -> None:
    """All rows up to the offset that the store claims, their look-ups and their count; the next one goes on there."""
    run(where.__name__, tmp_path / "3")
    table = RocksPendingTable(tmp_path / "3", IDENTITY, now_ms=0, max_age_ms=None)
    assert table._store.dropped is None
    kept = table.next_offset
    assert 0 < kept <= SLICES * SLICE
    assert where is cut_off_at_the_end or kept < SLICES * SLICE, "the rows in memory went with the process"
    assert list(offsets(table)) == list(range(kept))
    assert dict(table.counts()) == {"1m": kept}
    last, none = record(kept - 1)[0], record(kept)[0]
    assert (table.find(last), table.find(none)) == (row_key(10**12 + kept - 1, last), None)
    table.recover([record(offset) for offset in range(kept, kept + 10)], kept + 10)
    assert dict(table.counts()) == {"1m": kept + 10}
    table.close()


def test_what_is_written_behind_a_recovery_stands_on_all_of_it(tmp_path: Path) -> None:
    """The write-ahead log is replayed onto a store that has what went round it."""
    run("serve_and_die", tmp_path / "3")
    table = RocksPendingTable(tmp_path / "3", IDENTITY, now_ms=0, max_age_ms=None)
    assert table._store.dropped is None
    end = SLICES * SLICE
    assert table.next_offset == end + 2
    assert list(offsets(table)) == list(range(1, end + 1))
    assert dict(table.counts()) == {"1m": end}
    table.close()


def test_a_short_tail_is_kept_without_a_file_of_its_own(tmp_path: Path) -> None:
    """Most restarts missed little: that goes through the write-ahead log, as all else does."""
    table = filled(tmp_path / "3", 5)
    table.recovered()
    assert list((tmp_path / "3").glob("*.sst")) == []
    table.close()


def test_a_recovery_begins_to_flush_at_its_end(tmp_path: Path) -> None:
    """The next write finds it done and waits for nothing; a reading that missed nothing has nothing to flush."""
    table = filled(tmp_path / "3", SLICES)
    before = set((tmp_path / "3").glob("*.sst"))
    table.recovered()
    deadline_s = time.monotonic() + 60
    while table.flushing:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    files = set((tmp_path / "3").glob("*.sst"))
    assert files - before
    key, value = record(SLICES * SLICE)
    table.write([Row(key, value, "1m")], SLICES * SLICE)
    assert set((tmp_path / "3").glob("*.sst")) == files
    table.recovered()
    assert not table.flushing
    table.close()


def test_the_log_is_spared_only_until_the_next_logged_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flush for all that went round it, and none where nothing did."""
    store = Store(tmp_path / "s", IDENTITY, now_ms=0, max_age_ms=None)
    flushed: list[bool] = []

    class Watched:
        def __init__(self, db: object) -> None:
            self._db = db

        def __getattr__(self, name: str) -> object:
            if name == "flush":
                flushed.append(True)
            return getattr(self._db, name)

    monkeypatch.setattr(store, "_db", Watched(store.db))
    for logged, flushes in [(True, 0), (False, 0), (False, 0), (True, 1), (True, 1), (False, 1), (True, 2)]:
        store.write(store.batch(), 0, logged=logged)
        assert len(flushed) == flushes
    store.close()


@pytest.mark.parametrize("problem", ["No space left on device", "Disk quota exceeded"])
def test_a_store_without_room_to_open_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    """Nothing is wrong with it: it was dropped, and the advice was to remove it."""
    filled(tmp_path / "3", 1).close()

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(f"IO error: {problem}: While appending to file: MANIFEST-000005")

    with monkeypatch.context() as full:
        full.setattr(store, "Rdict", refuse)
        with pytest.raises(DiskFullError, match=problem):
            filled(tmp_path / "3", 0)
    again = filled(tmp_path / "3", 0)
    assert again.next_offset == SLICE
    again.close()


def test_a_store_that_never_opens_ends_its_process_and_the_next_one_drops_it(tmp_path: Path) -> None:
    """One bit of its manifest is enough. All threads stood still, and so they did after each restart."""
    path = tmp_path / "3"
    filled(path, 1).close()
    (manifest,) = path.glob("MANIFEST-*")
    raw = bytearray(manifest.read_bytes())
    second = 7 + int.from_bytes(raw[4:6], "little")  # checksum, length, type
    raw[second + 6] ^= 4
    manifest.write_bytes(raw)
    assert "in _open" in run("never_open", path, 1)
    table = filled(path, 1)
    assert (len(list(offsets(table))), table.next_offset) == (SLICE, SLICE)
    table.close()
    again = filled(path, 0)
    assert again.next_offset == SLICE
    again.close()
