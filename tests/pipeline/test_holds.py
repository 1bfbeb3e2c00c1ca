"""Who may write to a lake: locks, and archive runs and analyses at once."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from delta import places_of
from history import Group

from retryapp.pipeline.errors import HeldError, LakeUnusableError
from retryapp.pipeline.hold import RECORDS_HOLD, Holds
from retryapp.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300)]
PATIENCE_S = 200.0


def test_a_lock_outlives_a_second_try_of_its_own_process(lake: Lake) -> None:
    """The system drops all locks of a process on a file when the process closes it once: another program looks."""
    holds = Holds(lake)
    with holds.take("archive", RECORDS_HOLD):
        with pytest.raises(HeldError), holds.take("vacuum", RECORDS_HOLD):
            pass
        place = Path(lake.uri.removeprefix("file://"), "holds", RECORDS_HOLD, "lock")
        program = f"import fcntl; fcntl.lockf(open({str(place)!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in other.stderr
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_folder_without_locks_is_refused(spark: SparkSession, lake: Lake) -> None:
    """No run could keep another from writing. A file that Java may only read stands in for such a disk."""

    def unlockable(place: str, _: str) -> Any:
        Path(place).touch()
        return spark._jvm.java.io.RandomAccessFile(place, "r")  # type: ignore[union-attr]

    session = Mock()
    session._jvm.java.io.RandomAccessFile = unlockable
    holds = Holds(replace(lake, spark=session))
    with pytest.raises(LakeUnusableError, match="it cannot be locked"), holds.take("archive", "one"):
        pytest.fail("nothing is held")
    with Holds(lake).take("archive", "one"):
        pass


def test_two_first_runs_write_each_record_once(group: Group, lake: Lake, tmp_path: Path) -> None:
    """Both would begin at the same offsets: the later one is refused, or waits."""
    group.send_dead(10)
    second, name = group.archive(lake), f"archive {group.admin.cluster_id()} {group.topology.group}"
    with ExitStack() as first:
        first.enter_context(Holds(lake).take("archive", name))
        with pytest.raises(HeldError, match=rf"archive \(process {os.getpid()} on ") as refused:
            second.run_once()
        assert refused.value.exit_code == 3
        assert second.run_once(wait_s=PATIENCE_S, on_wait=lambda _: first.close()).rows == 10
    assert places_of(tmp_path / "lake") == group.places()
