"""Read local tables up to the end of their changelogs, by position; an interrupted recovery is continued by the next.

The table's last written record is looked for first. An acknowledged commit is final, but brokers have faults: Kafka
4.3.1, shut down while it is the only broker, can leave a committed transaction without its markers, and the next fence
rolls it back (docs/reliability.md, F4). Rows that the transaction removed are in the changelog again then, and not in
the table: they would never be due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from retryapp.core import marks
from retryapp.core.deduplicate import live_rows
from retryapp.core.errors import DamagedRowError, NewerRowError, UnreadableTopicError
from retryapp.core.headers import RETRY_ORIGIN_TIMESTAMP_MS
from retryapp.core.lane_errors import (
    ChangelogReplacedError,
    CommitUndecidedError,
    OffsetsGoneError,
    OffsetsMissingError,
    StoreAheadError,
)
from retryapp.core.metadata import clamped
from retryapp.core.record import Origin, Record
from retryapp.core.row_keys import identity_of, is_identity
from retryapp.core.rows import row_header
from retryapp.engine.lane.site import LaneSite
from retryapp.ports import LaneBatch, LaneReceipt, PendingTable, SeenTable, TopicPartition, TopicReader

logger = logging.getLogger(__name__)

_KEY_VALUE = attrgetter("key", "value")
_TIME = RETRY_ORIGIN_TIMESTAMP_MS.encode()
_FLUSH_LOOK_S = 0.005
_FLUSH_LOOKS = 400
_END_LOOK_S = 0.02
_END_LOOKS = 10
TAIL_OFFSETS = 2_000
"""Where the last progress record of a changelog is looked for first: so far before its end, a few transactions."""
_TOGETHER = 20
"""Records of the main topic that are looked at together: each may be large."""
LOOK_S = 5.0
"""How long an opening looks for what the main topic has lost."""


async def catch_up(table: PendingTable, reader: TopicReader, site: LaneSite, *, is_long: bool = False) -> bool:
    """Read on from where the table is; return False if the changelog does not have the table's last written record.

    A new table of a changelog that `is_long` begins at the floor that is named there; else all is read as soon.
    """
    changelog, lane = site.changelog, site.name
    looked_for = table.last_written
    is_new = looked_for is None and not table.next_offset
    if is_new and is_long and (floor := await floor_of(site, reader)):
        logger.info("Lane %s rebuilds its store from offset %d of %s: no row is older", lane, floor, changelog.topic)
        table.recover((), floor)
    start = table.next_offset if looked_for is None else looked_for
    differs = False

    def take(records: list[Any], position: int) -> bool:
        nonlocal looked_for, differs
        if looked_for is not None:
            differs = not records or records[0].offset != looked_for
            if differs:
                return True
            looked_for, records = None, records[1:]
        table.recover(map(_KEY_VALUE, records), position)
        return False

    reached = await reader.read(changelog, start, take)
    if differs:
        logger.warning("Local store of lane %s rebuilt: %s has not kept what it wrote last", lane, changelog.topic)
        return False
    if table.next_offset > reached:
        raise StoreAheadError(lane, table.next_offset, reached)
    if table.next_offset < reached:
        table.recover((), reached)  # compaction or retention has deleted the rest
    table.recovered()
    for _ in range(_FLUSH_LOOKS):  # other lanes go on meanwhile; a disk that takes longer is named by the next write
        if not table.flushing:
            break
        await asyncio.sleep(_FLUSH_LOOK_S)
    return True


def check_end(open_table: Callable[[], PendingTable], end: int, site: LaneSite) -> None:
    """Refuse a changelog that has lost its end, before an opening writes there: that would hide the loss.

    Raises:
        StoreAheadError: the local table has more.
    """
    table = open_table()
    try:
        if table.next_offset > end:
            raise StoreAheadError(site.name, table.next_offset, end)
    finally:
        table.close()


async def end_undecided(
    site: LaneSite, reader: TopicReader, stable: int, commit: Callable[[LaneBatch], Awaitable[LaneReceipt]]
) -> bool:
    """Have a committed transaction end that the broker has left without an end; return False if there is none.

    Its coordinator takes it for complete, so no new producer ends it, and committed readers miss all after its first
    record. But the next marker of the same transactional id decides over it. The fence has ended everything else of
    this lane. Whether the local store has read it or not: without its rows the lane would lose or repeat records.

    Args:
        site: whose changelog it is.
        reader: of topics.
        stable: the end of the changelog for committed readers, since the fence.
        commit: commits a transaction of the lane.

    Returns:
        Whether one has no end yet: its rows cannot be read.

    Raises:
        CommitUndecidedError: it has ended; the lane must open again, for it has read other things before.
    """
    changelog = site.changelog
    if await reader.written_end(changelog) <= stable:
        return False
    await commit(LaneBatch(publishes=[marks.clock_probe(*changelog)]))
    for _ in range(_END_LOOKS):  # a commit is acknowledged before its markers are written
        if (await reader.bounds([changelog]))[changelog][1] > stable:
            raise CommitUndecidedError(site.name, *changelog)
        await asyncio.sleep(_END_LOOK_S)
    return True


def check_changelog(site: LaneSite, named: str) -> None:
    """Refuse a changelog other than the one with the lane's rows.

    `named` is the id of that one, from the metadata of the main topic's offset or from a progress record. An offset set
    by hand has none, and so counts for any changelog.

    Raises:
        ChangelogReplacedError: the changelog was deleted and created again.
    """
    if named not in ("", site.changelog_id):
        raise ChangelogReplacedError(site.name, site.group, site.changelog.topic, site.main.topic)


async def position_in(
    site: LaneSite, reader: TopicReader, tp: TopicPartition, committed: int, bounds: tuple[int, int]
) -> int:
    """Return a committed offset if its topic has it; `bounds`: what committed readers see of that.

    Raises:
        CommitUndecidedError: it has, behind a transaction without an end. Set to the beginning, all would run again.
        OffsetsGoneError: it has not.
    """
    first, end = bounds
    if end < committed <= await reader.written_end(tp):
        raise CommitUndecidedError(site.name, *tp)
    if not first <= committed <= end:
        raise OffsetsGoneError(site.group, *tp, committed, first, end)
    return committed


async def written_down(
    site: LaneSite, reader: TopicReader, missing: Sequence[TopicPartition]
) -> tuple[Mapping[TopicPartition, int], tuple[str, str, str, str], bool]:
    """Return what the changelog says: offsets of sources without a committed one; texts of the notes; whether it does.

    The texts are the tally, settled records, the position of commands, and what is remembered of them.

    Raises:
        ChangelogReplacedError: the record was written to another changelog, and copied.
        OffsetsMissingError: there are rows and no progress.
    """
    rows, said = await _tail(site, reader)
    noted = marks.read_progress(said[-1] if said else b"", site.topic_id, site.main.topic)
    check_changelog(site, noted.changelog)
    if rows and not said and len(missing) == len(site.sources):
        raise OffsetsMissingError(site.name, site.group, rows, [tp.topic for tp in missing])
    texts = noted.tally, noted.settled, noted.control, noted.steering
    return {tp: noted.positions[tp.topic] for tp in missing if tp.topic in noted.positions}, texts, bool(said)


async def floor_of(site: LaneSite, reader: TopicReader) -> int:
    """Return where a new table begins to read the changelog: what was written before is removed or written anew since.

    That stays so whatever follows: a floor counts also where later progress records name none, as those of older builds
    and the first of an opening do. 0, the beginning, where none is found.
    """
    _, said = await _tail(site, reader)
    told = map(marks.read_progress, said)
    return max((each.floor for each in told if each.changelog == site.changelog_id), default=0)


async def _tail(site: LaneSite, reader: TopicReader) -> tuple[int, Sequence[bytes]]:
    """Return the number of records of rows near the end of the changelog, and the progress records there.

    The changelog of a large table is never read for them. A transaction ends with a progress record, so the last one
    follows all rows: the reading begins near the end, and earlier only if there is neither (aborted transactions).
    """
    rows, said = 0, list[bytes]()

    def look(records: list[Any], _position: int) -> None:
        nonlocal rows
        for record in records:
            if record.key != marks.PROGRESS:
                rows += is_identity(record.key)
            elif record.value:
                said.append(record.value)

    first, end = (await reader.bounds([site.changelog]))[site.changelog]
    start, reach = end, TAIL_OFFSETS
    while start > first and not (rows or said):
        start, reach = max(first, end - reach), reach * 8
        await reader.read(site.changelog, start, look)
    return rows, said


async def find_lost(reader: TopicReader, main: TopicPartition, rows: Sequence[tuple[int, bytes | None]]) -> set[int]:
    """Find rows whose records the main topic has lost with its end, where it has others at their offsets since.

    Each is looked at, as the worker that has written them may have lived through the loss: its later ones are sound.
    Where nothing is at the offset of one, compaction has removed its record, or it is an end of others: then the next
    lower one tells that has a record there. What is not read in `LOOK_S`, or cannot be, is taken for sound: it is
    looked at once more as it comes in.

    Args:
        reader: of topics.
        main: the main topic.
        rows: offsets and times of their records, the last one first.

    Returns:
        Their offsets.
    """
    lost, unsure, left = set[int](), list[int](), list(rows)
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            while left:
                some, left = left[:_TOGETHER], left[_TOGETHER:]
                try:
                    there = await reader.records(main, [offset for offset, _ in reversed(some)])
                except UnreadableTopicError as error:
                    unsure.clear()  # the partition stops there, once all before is done
                    left = [each for each in some[1:] if each[0] < error.offset] + left
                    continue
                for offset, time in some:
                    unsure.append(offset)
                    if offset in there:
                        lost.update([] if _may_be(there[offset], time) else unsure)
                        unsure.clear()
    return lost


def _may_be(record: Record, time: bytes | None) -> bool:
    """Tell whether a row with this time may be of a record: a range that cannot be read may have that."""
    return record.damage is not None or time == b"%d" % clamped(record.timestamp_ms, -1)


async def noted_and_lost(site: LaneSite, reader: TopicReader, table: PendingTable, noted: Iterable[int]) -> set[int]:
    """Return the offsets that are noted as settled and have rows, of records that the main topic has lost."""
    rows: list[tuple[int, bytes | None]] = []
    for offset in sorted(noted, reverse=True):
        key = table.find(identity_of(Origin(site.main.topic, site.topic_id, site.partition, offset)))
        with suppress(DamagedRowError, NewerRowError):  # it does not say whose it is
            rows += [] if key is None else [(offset, row_header(table.get(key) or b"", _TIME))]
    return await find_lost(reader, site.main, rows)


async def recover_seen(
    open_seen: Callable[[], SeenTable], reader: TopicReader, changelog: TopicPartition, *, now_ms: int
) -> SeenTable:
    """Open a table and read it up to the end of its changelog, which keeps little more than the window."""
    seen = open_seen()

    def take(records: list[Any], position: int) -> None:
        seen.recover(((r.key or b"", r.value) for r in records), position, now_ms)

    try:
        reached = await reader.read(changelog, seen.next_offset, take)
        if reached < seen.next_offset:  # the topic has lost its end
            logger.warning("The local copy of %s is ahead of it: dropped and rebuilt", changelog.topic)
            seen.drop()
            seen = open_seen()
            await reader.read(changelog, 0, take)
    except BaseException:
        seen.close()  # or its folder would stay locked
        raise
    return seen


def apply_seen(seen: SeenTable, changelog: TopicPartition, batch: LaneBatch, receipt: LaneReceipt, now_ms: int) -> None:
    """Write the rows of a committed batch; after an error the table cannot be trusted."""
    found = [
        (outgoing, offset)
        for outgoing, offset in zip(batch.publishes, receipt.published_offsets, strict=True)
        if outgoing.topic == changelog.topic
    ]
    if found:
        rows = live_rows(((outgoing.key or b"", outgoing.value) for outgoing, _ in found), now_ms)
        seen.write(rows, max(offset for _, offset in found) + 1, now_ms)
