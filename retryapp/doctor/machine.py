"""This machine: programs and libraries, the data folder and the room in it. Leaves nothing behind."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from confluent_kafka import libversion

from retryapp.core.errors import JavaMissingError
from retryapp.doctor.findings import Finding, note, ok, problem, warning
from retryapp.jvm import MINIMUM_JAVA, find_java
from retryapp.settings import unknown_variables

LIBRARIES: Final = ("faust-streaming", "aiokafka", "confluent-kafka", "rocksdict")
"""Libraries whose internals a worker depends on; pip installs them in the ranges that we declare."""
FEW_BYTES: Final = 256 << 20
"""Below it a start is likely to fail: a store's write-ahead log alone may take 64 MiB."""
SCARCE_BYTES: Final = 1 << 30
"""Below it a backlog of some hours may not fit."""


def judge_programs() -> Iterator[Finding]:
    yield ok("python", f"{platform.python_version()} ({sys.platform}, {platform.machine()})", "3.11 or newer")
    for name in LIBRARIES:
        yield ok(f"library {name}", metadata.version(name))
    yield ok("library librdkafka", libversion()[0])
    expected = f"{MINIMUM_JAVA} or newer, for 'retryapp broker' and Spark"
    try:
        java = find_java()
    except JavaMissingError as error:
        yield note("java", error.found or "none", expected=expected, why="workers do not need it")
    else:
        yield ok("java", f"{java.major} ({java.path})", expected)


def judge_settings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report variables that nothing reads, as one that is spelt wrong."""
    for name, nearest_name in unknown_variables(environment).items():
        yield warning(
            f"variable {name}",
            "set, and no setting of retryapp",
            expected=nearest_name or "a variable of docs/reference.md",
            why="it is ignored",
            remedy=f"Rename it to {nearest_name}" if nearest_name else "Correct its name, or remove it",
        )


def judge_folder(base: Path) -> Iterator[Finding]:
    """Check that a worker can make and fill its folder below `base`; creates nothing."""
    parent = nearest(base)
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        yield ok("data folder", f"{base}{'' if parent == base.absolute() else ' (does not exist yet)'}")
    else:
        yield problem(
            "data folder",
            f"{parent} {'is not writable' if parent.is_dir() else 'is not a folder'}",
            expected="a folder that workers can write",
            why="no worker starts",
            remedy="Grant this user the right, or set RETRYAPP_DATADIR",
        )
    yield judge_disk(parent)


def judge_disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    seen, expected = f"{_size(free)} free", f"{_size(SCARCE_BYTES)} or more"
    if free >= SCARCE_BYTES:
        return ok("disk", seen, expected)
    return (problem if free < FEW_BYTES else warning)(
        "disk",
        seen,
        expected=expected,
        why="a store that cannot be written closes its lane: its partition stops until there is room",
        remedy=f"Free space on the disk of {folder}, or set RETRYAPP_DATADIR",
    )


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def nearest(path: Path) -> Path:
    """Return a path, or the nearest of its parents that exists."""
    absolute = path.absolute()
    return next(candidate for candidate in (absolute, *absolute.parents) if candidate.exists())
