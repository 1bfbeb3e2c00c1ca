"""Who may write to a lake: one archive run of a group at a time, one analysis, and one process to ``records``.

Two runs from the same offsets would do the same work, and a vacuum removes the files of a batch that is being written.
So a run takes holds, in this order: the analysis, the group, the table (``RECORDS_HOLD``).

A hold is a lock of the operating system on a file below ``holds/``, taken by Spark's JVM, which writes, and gone with
it. Only folders of this machine have locks: on other file systems nothing is held, and one run at a time is the
operator's business. A lease there could not keep a run that was suspended from writing once it goes on.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from retryapp.pipeline.errors import LakeUnusableError, OtherRunError, problem_of
from retryapp.pipeline.facts import fact_name
from retryapp.pipeline.lake import Lake

ANALYSIS_HOLD: Final = "analyse"  # held by an analysis, from its cut to its last table
RECORDS_HOLD: Final = "records"  # held by every job that changes the table of records
TURN_S: Final = 600.0  # how long a job waits for others that write to the same table, in seconds
POLL_S: Final = 0.2

OnWait = Callable[[str], None]


class Holds:
    """The holds of one lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._folder = lake.files.local_folder(lake.table("holds"))

    @contextmanager
    def take(
        self,
        job: str,
        name: str,
        *,
        wait_s: float = 0.0,
        on_wait: OnWait | None = None,
        stopped: threading.Event | None = None,
    ) -> Iterator[None]:
        """Hold a name while the body runs; ``on_wait`` gets the present holder, once."""
        if self._folder is None:
            yield
            return
        folder = self._folder / fact_name(name)
        deadline_s, pause = time.monotonic() + wait_s, stopped or threading.Event()
        while (file := self._lock(folder, job)) is None:
            holder = _holder(folder)
            left_s = deadline_s - time.monotonic()
            if on_wait is not None and left_s > 0:
                on_wait(holder)
                on_wait = None
            if left_s <= 0 or pause.wait(min(POLL_S, left_s)):
                raise OtherRunError(job, holder, is_held=True)
        try:
            yield
        finally:
            with _TAKING:
                (folder / _HOLDER).unlink(missing_ok=True)
                file.close()  # and the lock is gone
                _TAKEN.discard(folder)

    def _lock(self, folder: Path, job: str) -> Any:
        """Return a file that the JVM has locked; None where another run holds it."""
        jvm: Any = self._lake.spark._jvm  # noqa: SLF001 - the documented way to Java's classes from Python
        with _TAKING:
            if folder in _TAKEN:
                return None
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = jvm.java.io.RandomAccessFile(str(folder / "lock"), "rw")
                if file.getChannel().tryLock() is None:
                    file.close()
                    return None
            except (OSError, Py4JJavaError) as error:  # a network's file system may have no locks
                why = problem_of(error) if isinstance(error, Py4JJavaError) else str(error)
                raise LakeUnusableError(folder.as_uri(), f"it cannot be locked ({why})") from error
            _TAKEN.add(folder)
            with suppress(OSError):  # a full disk: it is only for messages
                facts = {"job": job, "host": socket.gethostname(), "pid": os.getpid()}
                (folder / _HOLDER).write_text(json.dumps(facts))
            return file


_HOLDER: Final = "holder.json"


def _holder(folder: Path) -> str:
    try:
        facts = json.loads((folder / _HOLDER).read_text())
        return f"{facts['job']} (process {facts['pid']} on {facts['host']})"
    except (OSError, ValueError):  # it is being written, or has just gone
        return "another run"


_TAKING: Final = threading.Lock()
_TAKEN: Final[set[Path]] = set()
"""Locks of this process. The system drops a lock when its process closes the file, however often it has it open."""
