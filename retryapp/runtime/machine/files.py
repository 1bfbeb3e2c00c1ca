"""The files that a worker may have open: each store takes 10 to 80, and each partition has two or more."""

from __future__ import annotations

import resource
from contextlib import suppress


def allow_open_files() -> None:
    """Raise this process's limit of open files to the most that it may have; 1,024 is a usual one to begin with."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the system may have a lower one than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
