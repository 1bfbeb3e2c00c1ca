"""Bringing a pending table up to the end of its changelog, by position; whatever ends it, the next one goes on.

What the table wrote last is looked for first. A commit that was acknowledged is final, but brokers have faults: Kafka
4.3.1, stopped in good order while it is the only one, can leave a committed transaction without its markers, and the
next fence rolls it back (docs/reliability.md, F4). Rows that the transaction took away are in the changelog again then,
and not in the table: they would wait for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from retryapp.core import marks
from retryapp.core.errors import ChangelogReplacedError, OffsetsMissingError, StoreAheadError
from retryapp.core.rows import ROW_KEY_BYTES
from retryapp.engine.site import LaneSite
from retryapp.ports import Committed, PendingTable, TopicPartition, TopicReader

logger = logging.getLogger(__name__)


async def catch_up(table: PendingTable, reader: TopicReader, changelog: TopicPartition, lane: str) -> bool:
    """Read on from where the table is.

    Returns False when the changelog has no such record as the table wrote last: it is a copy of something else.
    """
    looked_for = table.last_written
    start = table.next_offset if looked_for is None else looked_for
    differs = False

    def take(records: list[Any], position: int) -> bool:
        nonlocal looked_for, differs
        if looked_for is not None:
            differs = not records or records[0].offset != looked_for
            if differs:
                return True
            looked_for, records = None, records[1:]
        table.recover(((record.key or b"", record.value) for record in records), position)
        return False

    reached = await reader.read(changelog, start, take)
    if differs:
        logger.warning("Local store of lane %s rebuilt: %s has not kept what it wrote last", lane, changelog.topic)
        return False
    if table.next_offset > reached:
        raise StoreAheadError(lane, table.next_offset, reached)
    if table.next_offset < reached:
        table.recover((), reached)  # nothing is left of what was there
    table.recovered()
    return True


def check_changelog(site: LaneSite, offsets: Mapping[TopicPartition, Committed]) -> list[TopicPartition]:
    """Refuse a changelog that is not the one into which a lane has parked.

    Beside each offset of a retry topic stands whose changelog has the rows of what is before it. Whoever sets such an
    offset by hand leaves nothing there, and so decides that it counts for any changelog.

    Returns:
        The retry topics whose offsets do not say it yet.

    Raises:
        ChangelogReplacedError: it was deleted and made again.
    """
    mine = site.changelog_id
    parked = {tp: each.note for tp, each in offsets.items() if tp not in site.delivering}
    if strange := [tp.topic for tp, note in parked.items() if mine and note not in ("", mine)]:
        raise ChangelogReplacedError(site.name, site.changelog.topic, strange)
    return [tp for tp, note in parked.items() if note != mine]


async def written_down(
    site: LaneSite, reader: TopicReader, missing: Sequence[TopicPartition]
) -> tuple[Mapping[TopicPartition, int], str]:
    """Return where a lane was by its changelog, for sources without a committed offset, and what was counted."""
    rows, last = 0, b""

    def look(records: list[Any], _position: int) -> None:
        nonlocal rows, last
        for record in records:
            if record.key == marks.PROGRESS:
                last = record.value or b""
            else:
                rows += len(record.key or b"") == ROW_KEY_BYTES

    await reader.read(site.changelog, 0, look)
    noted = marks.read_progress(last, site.topic_id, site.main.topic)
    if rows and not noted and len(missing) == len(site.sources):
        raise OffsetsMissingError(site.name, rows, [tp.topic for tp in missing])
    return {tp: noted[tp.topic] for tp in missing if tp.topic in noted}, marks.read_tally(last, site.topic_id)
