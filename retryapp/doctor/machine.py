"""This machine: variables of the environment, the data folder and the room in it. Leaves nothing behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from retryapp.doctor.findings import Finding, ok, problem, warning
from retryapp.settings import unknown_variables

FEW_BYTES: Final = 256 << 20
"""Below it a start is likely to fail: a store's write-ahead log alone may take 64 MiB."""
SCARCE_BYTES: Final = 1 << 30
"""Below it a backlog of some hours may not fit."""


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
    if not parent.is_dir():
        wrong = "is not a folder"
    elif not os.access(parent, os.X_OK):
        wrong = "cannot be looked into"
    else:
        wrong = "" if os.access(parent, os.W_OK) else "is not writable"
    if not wrong:
        yield ok("data folder", f"{base}{'' if parent == base.absolute() else ' (does not exist yet)'}")
    else:
        yield problem(
            "data folder",
            f"{parent} {wrong}",
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
    """Return a path, or the nearest of its parents that exists, as far as this user may see."""
    absolute = path.absolute()
    # Path.exists raises where a parent may not be looked into
    return next(candidate for candidate in (absolute, *absolute.parents) if os.path.exists(candidate))  # noqa: PTH110
