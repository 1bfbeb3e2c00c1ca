"""Faults of disks (F7) and of local stores (F8)."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from harness import wait_for
from rocksdict import Options, Rdict

from chaos.act import Act
from chaos.network import fault_of_all, load

STORE_MB = 24
BROKER_MB = 420
AHEAD = "ahead of its changelog, removed when the worker had named it"
LONG = {"waits_ms": (1500, 3000), "policy": "1500ms 3s"}
"""Waits in which a worker can be killed, its store damaged, and another one started."""


def no_mounts() -> str:
    """Return why no file system can be mounted here; empty where it can."""
    if shutil.which("mount") is None:
        return "there is no mount command"
    with tempfile.TemporaryDirectory() as name:
        done = _mount(Path(name), "size=1m")
        if done.returncode != 0:
            return f"no right to mount a file system: {done.stderr.strip()}"
        _unmount(Path(name))
    return ""


def _mount(folder: Path, options: str) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system in memory, of so many megabytes."""
    folder.mkdir(parents=True, exist_ok=True)
    done = _mount(folder, f"size={megabytes}m")
    if done.returncode != 0:
        raise RuntimeError(f"cannot mount: {done.stderr}")
    try:
        yield folder
    finally:
        _unmount(folder)


def leave(folder: Path) -> None:
    """Unmount what a run that was killed has left mounted below a folder."""
    with contextlib.suppress(FileNotFoundError):  # no such list on this system, and so no such mounts
        for line in Path("/proc/mounts").read_text().splitlines():
            mounted = Path(line.split()[1])
            if folder in mounted.parents:
                _unmount(mounted)


def _fill(folder: Path, spare: int) -> Path:
    """Fill a disk up but for so many bytes; return the file that does it."""
    filler = folder / "filler"
    left = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize - spare
    with contextlib.suppress(OSError), filler.open("wb") as file:  # closing writes too
        while left > 0:
            left -= file.write(bytes(min(left, 1 << 20)))
    return filler


def fill_store(act: Act, times: int) -> None:
    """F7: the disk of the local store fills up, may not be written, or takes no larger files, and recovers."""
    with small_disk(act.folder / "disk", STORE_MB) as disk:
        act.app_options = {"datadir": str(disk)}
        act.program()
        act.raise_curtain(1)
        for _ in act.turns(times, 1, 8, 2, revive=True):
            kind = act.rng.choice(("full", "read-only", "file size"))
            with act.fault(f"store's disk: {kind}"):
                _limit_store(act, disk, kind)
            act.revive(1)
        act.settle()
        for worker in act.cast:  # they go with the disk
            worker.stop(30)
        act.cast = []


def _limit_store(act: Act, disk: Path, kind: str) -> None:
    """Do it to the disk of the only worker, under load, for some seconds."""
    if kind == "file size":
        process = psutil.Process(act.cast[0].pid)
        soft, hard = process.rlimit(resource.RLIMIT_FSIZE)
        size = max((file.stat().st_size for file in disk.rglob("*") if file.is_file()), default=0)
        process.rlimit(resource.RLIMIT_FSIZE, (min(size, 50_000), hard))
        _load(act)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(resource.RLIMIT_FSIZE, (soft, hard))
    elif kind == "read-only" and _remount(disk, "ro"):  # refused while files are open for writing
        _load(act)
        _remount(disk, "rw")
    else:
        filler = _fill(disk, act.rng.choice((0, 4096, 200_000)))
        _load(act)
        filler.unlink(missing_ok=True)


def _remount(disk: Path, way: str) -> bool:
    command = ["mount", "-o", f"remount,{way}", str(disk)]
    return subprocess.run(command, capture_output=True, text=True, check=way == "rw").returncode == 0


def _load(act: Act) -> None:
    act.publish(24, padding=os.urandom(10_000).hex())
    act.pause(1.0, 4.0)


def fill_broker(acts: Sequence[Act], times: int) -> None:
    """F7: the broker's disk fills up under load; it ends, or fails writes; there is room again, it is started again."""
    broker, ended = acts[0].ground.broker, 0
    for act in acts:
        act.raise_curtain(1)
    for _ in range(acts[0].some(times)):
        load(acts, 16)
        with fault_of_all(acts, "broker's disk full"):
            filler = _fill(broker.data, acts[0].rng.choice((0, 4_096)))
            for act in acts:
                act.publish(200, flush=False, padding=os.urandom(2_000).hex())
            acts[0].pause(3.0, 8.0)
            ended += broker.pid is None
            filler.unlink(missing_ok=True)
            broker.stop()
            broker.start()
    acts[0].notes["broker ended by itself"] = ended


# F8


def damage_stores(act: Act, times: int) -> None:
    """F8: workers end, and before the next one starts their stores are damaged in a way that is drawn."""
    act.raise_curtain(1)
    old: Path | None = None
    for number in act.turns(times, 1, 24, 12, revive=True):  # one that RocksDB does not open ends its worker
        act.pause(0.0, 1.0)
        act.end(act.cast[0], 0.7)
        stores = sorted(folder for folder in (act.folder / "data").glob("worker-1/**/pending/*") if folder.is_dir())
        if not stores:
            raise AssertionError(f"no stores in {act.folder / 'data'}")
        kind = act.rng.choice([name for name in DAMAGES if name != "older" or old is not None])
        with act.fault(f"store {kind}"):
            _damage(act, kind, stores, old)
        if number % 3 == 0 and kind != AHEAD and stores[0].parent.exists():
            old = act.folder / f"old{number}"
            shutil.copytree(stores[0].parent, old, dirs_exist_ok=True)
        act.revive(1)
        if kind == AHEAD:  # refused by name: what is missing from the changelog is for a person to judge
            ahead = act.cast[0]
            wait_for(lambda w=ahead: "StoreAheadError" in w.log, "a store ahead is refused", timeout_s=60)  # type: ignore[misc]
            ahead.kill()
            shutil.rmtree(stores[0].parent)
            act.revive(1)


def _damage(act: Act, kind: str, stores: list[Path], old: Path | None) -> None:
    parent = stores[0].parent
    if kind == "lost":
        shutil.rmtree(parent)
    elif kind == "lost, one partition's":
        shutil.rmtree(act.rng.choice(stores))
    elif kind == "older" and old is not None:
        shutil.rmtree(parent)
        shutil.copytree(old, parent)
    elif kind == "of another partition":
        if len(stores) > 1:
            shutil.rmtree(stores[0])
            shutil.copytree(stores[1], stores[0])
    elif kind == AHEAD:
        for store in stores:
            _put_ahead(store)
    else:
        pattern = act.rng.choice(("*.log", "MANIFEST-*", "CURRENT", "*.sst"))
        for file in (file for store in stores for file in store.glob(pattern)):
            if kind == "with files missing":
                file.unlink()
            elif kind == "truncated":
                os.truncate(file, act.rng.randrange(file.stat().st_size + 1))
            elif raw := bytearray(file.read_bytes()):
                for _ in range(3):
                    raw[act.rng.randrange(len(raw))] ^= 1 << act.rng.randrange(8)
                file.write_bytes(raw)


def _put_ahead(store: Path) -> None:
    with contextlib.suppress(Exception):  # a store that does not open is damage enough
        db: Any = Rdict(str(store), options=Options(raw_mode=True))
        for key in list(db.keys()):
            if key.startswith(b"\x02"):
                meta = json.loads(db[key])
                meta["next_offset"] = int(meta["next_offset"]) + 100_000
                db[key] = json.dumps(meta).encode()
        db.close()


DAMAGES = (
    "lost", "lost, one partition's", "with flipped bits", "truncated", "with files missing", "older", AHEAD,
    "of another partition",
)  # fmt: skip
