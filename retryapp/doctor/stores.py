"""The local stores that workers left behind, without getting in a worker's way.

* A folder whose worker runs is not opened: what it has is the worker's affair, and its pages tell it.
* A store of no running worker is opened read-only through a folder of links beside nothing of it: opening it where it
  is would rewrite a file of the client library.
* No lock is taken, not even for a moment: a worker that starts would pass the folder by.

Every store is a copy of a topic, so hardly anything here is a problem: a store that cannot be trusted is dropped by the
next worker, and rebuilt.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from rocksdict import AccessType, Options, Rdict

from retryapp.core.durations import format_duration_ms
from retryapp.core.topology import CHANGELOG_DELETE_RETENTION_MS, HandlerTopology
from retryapp.doctor.findings import Finding, Severity, counted, mebibytes, note, ok
from retryapp.kafka import TopicState
from retryapp.kafka.discovery import CHANGELOG_SUFFIX

META_KEY: Final = b"\x02meta"
"""Where a store describes itself; a test holds it to the runtime's."""
COPIED: Final = "rocksdict-config.json"
"""The one file that opening rewrites, so it is copied instead of linked."""
SECOND_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """One store on disk."""

    path: Path
    prefix: str
    """``{group}.{main}``."""
    table: str
    """``pending``, ``dead`` or ``seen``."""
    size: int
    meta: Mapping[str, Any] | None = None
    """What it says of itself; None: it was not opened, or says nothing."""
    error: str | None = None
    """Why it could not be opened."""
    empty: bool = False
    """It was opened, and has nothing at all: as a worker leaves it that had nothing to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """One ``worker-N`` folder."""

    path: Path
    pid: int | None
    """The worker that runs in it."""
    writable: bool
    stores: tuple[StoreFacts, ...]

    @property
    def size(self) -> int:
        """Bytes of all its stores."""
        return sum(store.size for store in self.stores)


def inspect_folders(base: Path) -> tuple[FolderFacts, ...]:
    """Look at every ``worker-N`` below a folder; those of running workers from outside only."""
    if not base.is_dir():
        return ()
    found = []
    for path in sorted(base.glob("worker-*")):
        pid = running_worker(path)
        stores = tuple(
            _inspect(store, opened=pid is None) for store in sorted(path.glob("retryapp/*/*/*")) if store.is_dir()
        )
        found.append(FolderFacts(path=path, pid=pid, writable=os.access(path, os.W_OK | os.X_OK), stores=stores))
    return tuple(found)


def judge_neighbours(base: Path, group: str, topics: Sequence[str]) -> Iterator[Finding]:
    """Say which folders beside a group's own belong to groups that have no topics any more.

    Args:
        base: the folder of the group; nothing is said unless it is named after it, as workers name it.
        group: its name.
        topics: all topics of the cluster.
    """
    if base.name != group or not base.parent.is_dir():
        return
    for folder in sorted(path for path in base.parent.iterdir() if path != base and path.is_dir()):
        workers = sorted(folder.glob("worker-*"))
        stores = [store for store in folder.glob("worker-*/retryapp/*/*/*") if store.is_dir()]
        if not stores or any(running_worker(worker) is not None for worker in workers):
            continue
        if any(name.startswith(f"{folder.name}.") and name.endswith(CHANGELOG_SUFFIX) for name in topics):
            continue
        size = sum(file.stat().st_size for store in stores for file in store.iterdir() if file.is_file())
        yield note(
            f"store folder {folder.name}",
            f"{counted(len(stores), 'store')}, {mebibytes(size)}, of a group that has no topics on this cluster",
            why="they are copies of topics that are gone, unless the group lives on another cluster",
            remedy=f"Remove it if it does not: {folder}",
        )


def running_worker(folder: Path) -> int | None:
    """Return the process id of the worker that holds a folder; None when none runs.

    The lock file names it; a process id that another program has by now does not have that file open.
    """
    lock = folder / "lock"
    try:
        pid = int(lock.read_text().strip())
        process = psutil.Process(pid)
        held = {Path(file.path) for file in process.open_files()}
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    except psutil.AccessDenied:
        return pid  # somebody else's process: taken for a worker, so that its folder is left alone
    return pid if lock.resolve() in held else None


def _inspect(path: Path, *, opened: bool) -> StoreFacts:
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    meta: Mapping[str, Any] | None = None
    error = None
    empty = False
    if opened:
        try:
            meta, empty = _read_meta(path)
        except Exception as exc:  # noqa: BLE001 - the library has no type for what a disk may do
            error = str(exc)
    return StoreFacts(
        path=path,
        prefix=path.parent.parent.name,
        table=path.parent.name,
        size=size,
        meta=meta,
        error=error,
        empty=empty,
    )


def _read_meta(path: Path) -> tuple[Mapping[str, Any] | None, bool]:
    """Return what a store says of itself, and whether it is empty."""
    with tempfile.TemporaryDirectory(prefix="retryapp-doctor-") as name:
        view = Path(name)
        for file in path.iterdir():
            if file.name == COPIED:
                shutil.copyfile(file, view / file.name)
            elif file.name not in {"LOCK", "LOG"}:
                (view / file.name).symlink_to(file.absolute())
        store = Rdict(str(view), options=Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            raw: Any = store.get(META_KEY)
            empty = raw is None and next(iter(store.keys()), None) is None
        finally:
            store.close()
    if raw is None:
        return None, empty
    try:
        meta = json.loads(raw)
    except ValueError:
        return None, False
    return (meta if isinstance(meta, dict) else None), False


def judge_folders(
    folders: Sequence[FolderFacts],
    topologies: Sequence[HandlerTopology],
    states: Mapping[str, TopicState],
    *,
    store_format: int,
    now_ms: int,
) -> Iterator[Finding]:
    """Say what is in the folders, one line for each, and which stores will be dropped.

    Args:
        folders: what is there.
        topologies: the handlers.
        states: the topics that exist, with their ids; empty: not known.
        store_format: the format that workers of this version write.
        now_ms: epoch milliseconds.
    """
    if not folders:
        yield ok("stores", "none: they are rebuilt from the topics")
    for folder in folders:
        name = f"store folder {folder.path.name}"
        seen = f"{counted(len(folder.stores), 'store')}, {mebibytes(folder.size)}"
        if not folder.writable:
            yield Finding(
                name=name,
                severity=Severity.PROBLEM,
                seen=f"{folder.path} cannot be written by this user",
                expected="a folder of this user's",
                why="the worker that takes it does not start",
                remedy=f"Give the user the right, or remove it (a copy): {folder.path}",
            )
        elif folder.pid is not None:
            yield ok(name, f"{seen}, in use by process {folder.pid}")
        else:
            yield from _idle(name, seen, folder, topologies, states, store_format=store_format, now_ms=now_ms)


def _idle(
    name: str,
    seen: str,
    folder: FolderFacts,
    topologies: Sequence[HandlerTopology],
    states: Mapping[str, TopicState],
    *,
    store_format: int,
    now_ms: int,
) -> Iterator[Finding]:
    known = {topology.prefix: topology for topology in topologies}
    dropped = []
    for store in folder.stores:
        topology = known.get(store.prefix)
        if topology is None and not known:
            continue  # nobody could be asked for the handlers
        if topology is None:
            yield note(
                name,
                f"{store.path} ({mebibytes(store.size)}) belongs to no handler of this app",
                remedy=f"Remove it if no other app uses the folder: {store.path}",
            )
            continue
        topics = {"pending": topology.pending_changelog, "seen": topology.seen_changelog}
        topic = topics.get(store.table, topology.dlq)
        reason = distrust(store, states.get(topic), store_format=store_format, now_ms=now_ms)
        if reason is not None:
            dropped.append(f"{store.prefix}/{store.table}/{store.path.name}: {reason}")
    if dropped:
        yield note(
            name,
            f"{seen}; rebuilt at the next start: {'; '.join(dropped)}",
            why="the first start takes a little longer",
        )
    else:
        yield ok(name, f"{seen}, no worker runs in it")


def distrust(store: StoreFacts, state: TopicState | None, *, store_format: int, now_ms: int) -> str | None:
    """Return why the next worker would drop a store; None when it would use it.

    Args:
        store: what is there.
        state: the topic that it should be a copy of; None: not known.
        store_format: the format that workers of this version write.
        now_ms: epoch milliseconds.
    """
    if store.error is not None:
        return f"it cannot be opened ({store.error})"
    if store.empty:
        return None
    meta = store.meta
    if meta is None:
        return "it says nothing of itself"
    if meta.get("format") != store_format:
        return f"its format is {meta.get('format')}, known here is {store_format}"
    if state is not None and (meta.get("topic"), meta.get("topic_id")) != (state.name, state.topic_id):
        return f"it is a copy of another topic, {meta.get('topic')} {meta.get('topic_id')}"
    age_ms = max(1, now_ms - int(meta.get("used_ms", 0))) // SECOND_MS * SECOND_MS
    if store.table == "pending" and age_ms > CHANGELOG_DELETE_RETENTION_MS // 2:
        return f"not used for {format_duration_ms(age_ms)}"
    return None
