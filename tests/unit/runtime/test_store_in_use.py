"""A folder that somebody else uses: the error says so, and never tells to remove it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retryapp.core.errors import StoreBrokenError
from retryapp.runtime.stores.store import Store, StoreIdentity

HOLD = """
import sys
from rocksdict import Options, Rdict
db = Rdict(sys.argv[1], options=Options(raw_mode=True))
print("open", flush=True)
sys.stdin.read()
"""
IDENTITY = StoreIdentity(topic="app.orders.pending.changelog", topic_id="kq8G0bTz", partition=0)


def open_store(path: Path) -> Store:
    """Open a store."""
    return Store(path, IDENTITY, now_ms=0, max_age_ms=None)


def test_a_store_of_another_process_is_to_be_left_alone(tmp_path: Path) -> None:
    """Stop that process, or choose another folder; with the process gone it can be used, as it was."""
    path = tmp_path / "0"
    open_store(path).close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(StoreBrokenError, match="Another process has it open") as caught:
                open_store(path)
        finally:
            other.kill()
    assert "stop that one, or give this worker a data directory of its own" in str(caught.value)
    assert "remove" not in str(caught.value)
    again = open_store(path)
    assert again.dropped is None
    again.close()


def test_a_store_that_is_broken_may_be_removed(tmp_path: Path) -> None:
    """A file in place of the folder, say: nobody uses it."""
    (tmp_path / "0").write_text("in the way")
    with pytest.raises(StoreBrokenError, match="remove the directory, and it is rebuilt"):
        open_store(tmp_path / "0")
