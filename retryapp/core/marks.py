"""Records of a pending changelog that are no rows: one tells the broker's time, another how far the lane is.

Their keys have other lengths than those of rows. Compaction leaves one of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from retryapp.core.hops import Outgoing

CLOCK: Final = b"clock"
"""Key of a record whose acknowledgement tells the broker's time."""
PROGRESS: Final = b"progress"
"""Key of the record that says how far the lane has come on each of its sources."""


def clock_probe(changelog: str, partition: int) -> Outgoing:
    """Return a record whose acknowledgement tells the broker's time."""
    return Outgoing(changelog, partition, CLOCK, b"", ())


def progress_value(positions: Mapping[str, int], topic_id: str, tally: str = "") -> bytes:
    """Return what a progress mark says."""
    counted = {"tally": tally} if tally else {}
    return json.dumps({"v": 1, "main": topic_id, "next": positions, **counted}).encode()


def read_progress(value: bytes, topic_id: str, main: str) -> dict[str, int]:
    """Return the next offset by topic; nothing where there is no mark, and no main topic's that was made again."""
    if not value:
        return {}
    told = json.loads(value)
    return {topic: offset for topic, offset in told["next"].items() if topic != main or told["main"] == topic_id}


def read_tally(value: bytes, topic_id: str) -> str:
    """Return what was counted up to the main topic's offset; empty where nothing says it."""
    told = json.loads(value) if value else {}
    return str(told.get("tally", "")) if told.get("main") == topic_id else ""
