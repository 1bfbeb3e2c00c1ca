"""When a worker's lanes opened, by its log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

_OPENED = re.compile(
    r"^.*?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}).*retryapp\.lane_opened.*?duration_ms=(\d+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one worker's start."""

    count: int
    opening_s: float = 0.001
    """From the first that began to open to the last that was open."""
    last_open_s: float = 0.0
    """When the last was open, epoch seconds."""


def opened(log: str) -> Lanes:
    ends = [
        (datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp(), int(took) / 1000)
        for at, took in _OPENED.findall(log)
    ]
    if not ends:
        return Lanes(0)
    last = max(at for at, _ in ends)
    return Lanes(len(ends), max(last - min(at - took for at, took in ends), 0.001), last)
