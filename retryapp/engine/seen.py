"""What a lane does with its table of seen events: brings it up to date, and writes what was committed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from retryapp.core.deduplicate import live_rows
from retryapp.ports import LaneBatch, LaneReceipt, SeenTable, TopicPartition, TopicReader

logger = logging.getLogger(__name__)


async def recover_seen(
    open_seen: Callable[[], SeenTable],
    reader: TopicReader,
    changelog: TopicPartition,
    *,
    now_ms: int,
    rolled_back: bool = False,
) -> SeenTable:
    """Open a table and bring it up to its changelog, which keeps hardly more than the window."""
    seen = open_seen()
    if rolled_back:
        seen.drop()
        seen = open_seen()

    def take(records: list[Any], position: int) -> None:
        seen.recover(((r.key or b"", r.value) for r in records), position, now_ms)

    try:
        reached = await reader.read(changelog, seen.next_offset, take)
        if reached < seen.next_offset:  # the topic has lost its end; what it has is all that can be known
            logger.warning("The local copy of %s is ahead of it: dropped and rebuilt", changelog.topic)
            seen.drop()
            seen = open_seen()
            await reader.read(changelog, 0, take)
    except BaseException:
        seen.close()  # or its folder would stay locked for the next try
        raise
    if seen.dropped:
        logger.warning("The local copy of %s was dropped and rebuilt: %s", changelog.topic, seen.dropped)
    return seen


def apply_seen(seen: SeenTable, changelog: TopicPartition, batch: LaneBatch, receipt: LaneReceipt, now_ms: int) -> None:
    """Write the rows of a committed batch; on any error the table must not be trusted any more."""
    found = [
        (outgoing, offset)
        for outgoing, offset in zip(batch.publishes, receipt.published_offsets, strict=True)
        if outgoing.topic == changelog.topic
    ]
    if found:
        rows = live_rows(((outgoing.key or b"", outgoing.value) for outgoing, _ in found), now_ms)
        seen.write(rows, max(offset for _, offset in found) + 1, now_ms)
