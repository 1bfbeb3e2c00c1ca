"""What the figures were taken on, and whether anything else was running."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

BUSY_PERCENT = 10.0
"""Above this share of all processors, taken while our own processes idle, the machine is not idle."""
_LOOK_S = 2.0
_PACKAGES = ("faust-streaming", "mode-streaming", "aiokafka", "confluent-kafka", "rocksdict")


@dataclass(frozen=True, slots=True)
class Load:
    """What the machine did at one moment, without our load."""

    busy_percent: float
    """Share of all processors in use."""
    load_average: float
    """Of the last minute; of the moment before a workload it still has the one before it."""

    @property
    def idle(self) -> bool:
        """Tell whether figures taken now can be trusted."""
        return self.busy_percent <= BUSY_PERCENT


def look() -> Load:
    """Watch the processors for two seconds."""
    psutil.cpu_percent()
    time.sleep(_LOOK_S)
    return Load(psutil.cpu_percent(), round(os.getloadavg()[0], 2))


def describe() -> dict[str, str]:
    """Return what this machine and its software are."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "processor": f"{_processor()}, {os.cpu_count()} logical",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class Cores:
    """Which processors broker and workers are held to; none: they are not."""

    broker: frozenset[int] | None
    worker: frozenset[int] | None

    @property
    def text(self) -> str:
        """Say it."""
        if self.broker is None or self.worker is None:
            return "not pinned"
        return f"broker and load generator on processor {_listed(self.broker)}, worker on {_listed(self.worker)}"


def share_cores(*, pin: bool) -> Cores:
    """Give the worker one processor and the broker another, where the system can do that and has two."""
    if not pin or not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return Cores(None, None)
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return Cores(frozenset({first}), frozenset({second}))


def _listed(cores: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
