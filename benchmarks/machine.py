"""The machine that figures were taken on, and whether anything else was running."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import psutil

BUSY_PERCENT = 10.0
"""Above this share of all processors, taken while our own processes idle, the machine is not idle."""
_LOOK_S = 2.0
_PACKAGES = ("faust-streaming", "mode-streaming", "aiokafka", "confluent-kafka", "rocksdict")


def look() -> dict[str, float]:
    """Watch the processors for two seconds; the load average is of the last minute, so it includes what ran before."""
    psutil.cpu_percent()
    time.sleep(_LOOK_S)
    return {"busy_percent": psutil.cpu_percent(), "load_average": round(os.getloadavg()[0], 2)}


def describe() -> dict[str, str]:
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "processor": f"{_processor()}, {os.cpu_count()} logical",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE) if file.exists() else None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def code_version() -> str:
    """Return the commit of the code, with "-dirty" where files differ from it; "unknown" without a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def share_cores() -> tuple[int, int] | None:
    """Return a processor for the broker and one for the worker; None where there are no two, or no affinity."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (cores[0], cores[1]) if len(cores) > 1 else None


@contextmanager
def held_to(cores: frozenset[int] | None) -> Iterator[None]:
    """Restrict this thread, and the processes that it starts, to some processors; None: no change."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
