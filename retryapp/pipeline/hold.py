"""Who may write to a lake: one archive run of a group at a time, one analysis, and one process to ``records``.

Two runs with checkpoints of their own would each write the same records. Of two concurrent commits to one Delta table
the later may replace the earlier (on S3, and for a moment on a disk). A vacuum removes the files of a batch that is
being written. So a run takes holds, in this order: the analysis, the group, the table (``RECORDS_HOLD``).

In a folder of this machine a hold is a lock of the operating system, taken by Spark's JVM and gone with it. On other
file systems, and in folders without locks, it is a lease:

1. The newest file in the lease's folder names the holder and when the lease expires.
2. To take it, create the file with the next number, which only one can; who then finds a newer one was too late.
3. The holder renews it periodically. If it finds a newer file it has lost the lease and must stop.
4. To release it, set its expiry to the past. The newest file stays, so that no number comes twice.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from retryapp.pipeline.errors import HeldError, LakeUnusableError, OtherRunError, TurnLostError
from retryapp.pipeline.facts import fact_name
from retryapp.pipeline.lake import Files, Lake

ANALYSIS_HOLD: Final = "analyse"  # held by an analysis, from its cut to its last table
RECORDS_HOLD: Final = "records"  # held by every job that changes the table of records
TURN_S: Final = 600.0  # how long a job waits for others that write to the same table, in seconds
LEASE_MS: Final = 60_000
"""A lease expires this long after its last renewal; clocks of machines may differ by less than that."""
RENEW_S: Final = 10.0
POLL_S: Final = 0.2

OnWait = Callable[[str], None]


@dataclass(slots=True)
class Held:
    """A hold that was taken."""

    waited_for: str | None = None  # the former holder, where it was waited for
    lost: threading.Event | None = None  # set when another process has taken the expired lease
    look: Callable[[], bool] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken it; asks the store."""
        return self.lost is not None and (self.lost.is_set() or (self.look is not None and not self.look()))

    def check(self, job: str) -> None:
        """Raise an ``OtherRunError`` if it was lost."""
        if self.is_lost:
            raise OtherRunError(job, "it took the lake over, because this run did not renew its lease in time")

    def check_turn(self, job: str, lake: str) -> None:
        """Raise a ``TurnLostError`` if a turn, which any job may have taken, was lost."""
        if self.is_lost:
            raise TurnLostError(job, lake)


class Holds:
    """The holds of one lake."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        now_ms: Callable[[], int],
        *,
        lease_ms: int = LEASE_MS,
        renew_s: float = RENEW_S,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._files = Files(spark, lake.uri)
        self._now_ms = now_ms
        self._lease_ms = lease_ms
        self._renew_s = renew_s

    @contextmanager
    def take(
        self,
        job: str,
        name: str,
        *,
        wait_s: float = 0.0,
        on_wait: OnWait | None = None,
        stopped: threading.Event | None = None,
    ) -> Iterator[Held]:
        """Hold a name while the body runs; ``on_wait`` gets the present holder, once."""
        ours = {"job": job, "host": socket.gethostname(), "pid": os.getpid()}
        deadline_s, waited_for = time.monotonic() + wait_s, None
        pause = stopped or threading.Event()
        while (hold := self._try(name, ours)) is None:
            theirs = self._holder(name)
            left_s = deadline_s - time.monotonic()
            if on_wait is not None and waited_for is None and left_s > 0:
                on_wait(theirs)
            waited_for = theirs
            if left_s <= 0 or pause.wait(min(POLL_S, left_s)):
                raise HeldError(job, theirs, self._lake.uri)
        try:
            yield Held(waited_for, hold.lost, hold.look)
        finally:
            hold.release()

    def _place(self, name: str) -> str:
        return self._lake.table(f"holds/{fact_name(name)}")

    def _try(self, name: str, ours: Mapping[str, Any]) -> _Lock | _Lease | None:
        place = self._place(name)
        folder = self._files.local_folder(place)
        if folder is not None:
            with suppress(_NoLocksError):
                return _Lock.take(self._spark, folder, ours)
        return _Lease.take(self._files, place, ours, self._now_ms, lease_ms=self._lease_ms, renew_s=self._renew_s)

    def _holder(self, name: str) -> str:
        place = self._place(name)
        try:
            files = [file for file in self._files.names(place) if file.endswith(".json")]
            facts = json.loads(self._files.read(f"{place}/{max(files)}") or "") if files else {}
            return f"{facts['job']} (process {facts['pid']} on {facts['host']})"
        except (ValueError, KeyError, TypeError, LakeUnusableError):  # it is being written, or has just gone
            return "another run"


class _NoLocksError(Exception):
    """The file system has no locks."""


_TAKING: Final = threading.Lock()
_TAKEN: Final[set[Path]] = set()
"""Locks of this process. The system drops a lock when its process closes the file, however often it has it open."""


class _Lock:
    """A lock of the operating system, held by the JVM."""

    lost = None
    look = None

    def __init__(self, folder: Path, file: Any, lock: Any) -> None:
        self._folder = folder
        self._file = file  # both are kept: with the last reference Java would close the file, and the lock be gone
        self._lock = lock

    @classmethod
    def take(cls, spark: SparkSession, folder: Path, ours: Mapping[str, Any]) -> _Lock | None:
        jvm: Any = spark._jvm  # noqa: SLF001 - the documented way to Java's classes from Python
        with _TAKING:
            if folder in _TAKEN:
                return None
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = jvm.java.io.RandomAccessFile(str(folder / "lock"), "rw")
            except (OSError, Py4JJavaError) as error:
                raise LakeUnusableError(folder.as_uri(), str(error).splitlines()[0]) from error
            try:
                lock = file.getChannel().tryLock()
            except Py4JJavaError as error:
                file.close()
                raise _NoLocksError from error
            if lock is None:
                file.close()
                return None
            _TAKEN.add(folder)
            with suppress(OSError):  # a full disk: it is only for messages
                (folder / "holder.json").write_text(json.dumps(ours))
            return cls(folder, file, lock)

    def release(self) -> None:
        with _TAKING:
            (self._folder / "holder.json").unlink(missing_ok=True)
            self._lock.release()
            self._file.close()
            _TAKEN.discard(self._folder)


class _Lease:
    """A file with the time until which it holds, and a thread that renews it."""

    def __init__(self, files: Files, place: str, number: int, facts: Callable[[], str], renew_s: float) -> None:
        self.lost = threading.Event()
        self._files = files
        self._place = place
        self._number = number
        self._facts = facts
        self._renew_s = renew_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="retryapp-lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(
        cls,
        files: Files,
        place: str,
        ours: Mapping[str, Any],
        now_ms: Callable[[], int],
        *,
        lease_ms: int,
        renew_s: float,
    ) -> _Lease | None:
        def facts() -> str:
            return json.dumps({**ours, "until_ms": now_ms() + lease_ms})

        newest = max(_numbers(files, place), default=0)
        if newest and _until_ms(files, _file(place, newest), lease_ms) > now_ms():
            return None
        if not files.create(_file(place, newest + 1), facts()):
            return None
        numbers = _numbers(files, place)
        if max(numbers) > newest + 1:  # others have taken it meanwhile, and removed the number that was newest
            files.remove(_file(place, newest + 1))
            return None
        for number in numbers:
            if number <= newest:
                files.remove(_file(place, number))
        return cls(files, place, newest + 1, facts, renew_s)

    def look(self) -> bool:
        return max(_numbers(self._files, self._place), default=0) == self._number

    def _renew(self) -> None:
        while not self._over.wait(self._renew_s):
            with suppress(LakeUnusableError):  # it is tried again; the lease is good for longer
                if not self.look():
                    self.lost.set()
                    return
                self._files.replace(_file(self._place, self._number), self._facts())

    def release(self) -> None:
        self._over.set()
        self._thread.join()
        with suppress(LakeUnusableError):  # then it expires
            if not self.lost.is_set() and self.look():
                self._files.replace(_file(self._place, self._number), json.dumps({"until_ms": 0}))


def _file(place: str, number: int) -> str:
    return f"{place}/{number:09d}.json"


def _numbers(files: Files, place: str) -> list[int]:
    names = (name.removesuffix(".json") for name in files.names(place))
    return [int(name) for name in names if name.isdigit()]


def _until_ms(files: Files, file: str, lease_ms: int) -> float:
    """Return until when a lease is held; of one that is half written, or was left so by a crash, by the file's age."""
    try:
        return float(json.loads(files.read(file) or "")["until_ms"])
    except (ValueError, KeyError, TypeError, LakeUnusableError):  # the last: checksums of a file that is being written
        return float(files.modified_ms(file) or 0) + lease_ms
