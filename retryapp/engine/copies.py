"""Copies: with `delivery="at_least_once"` what a crash has left twice is dropped before the handler.

Without transactions a crash between a hand-off and the offset (or the row) behind it leaves a record where its copy is
already on its way: a first delivery that is read again although it waits for its second, a row that fires once more, a
tier record that was published twice. Each would run the handler again. How far a record has come is a number::

    attempt n has failed, that is on a topic            2n
    and a row waits for the next, or it was fired       2n + 1
    attempt n + 1 has been taken up, or has failed      2n + 2
    it is dead, or succeeded after a failure            `ENDED`

by record and replay. It only rises, so two comparisons say everything: a delivery of attempt `a` is a copy at `2a` or
more, a tier record of attempt `n` at `2n + 1` or more. What is passed over is never lost, because each fact stands for
one of three things:

* it was read on a topic when the lane opened, before records flowed: the outcome is durable;
* a row of the pending table says it, which is a copy of the changelog: the outcome is durable;
* this session has taken it up from the same partition before. The window (`engine.progress`) holds the turn that
  passes a copy over back until the first one's outcome is on its way in front of it, and offsets move behind that: if
  the session ends before, both are read again, and what a session has taken up is forgotten with it.

What is further on the way is never passed over for something that is behind it, so the one that has come furthest goes
on. Whatever is not known (forgotten, not read, damaged, of another format) is no copy: it is handled once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedEventError, DamagedRowError, NewerRowError
from retryapp.core.lifecycle import Succeeded, decode_event
from retryapp.core.metadata import FORMAT_VERSION
from retryapp.core.names import (
    RETRY_ATTEMPT,
    RETRY_GROUP,
    RETRY_ORIGIN,
    RETRY_REASON,
    RETRY_REPLAY_ID,
    RETRY_REPLAYS,
    RETRY_VERSION,
)
from retryapp.core.record import Origin, Record
from retryapp.core.rows import decode_row
from retryapp.engine.run import Station
from retryapp.engine.site import LaneSite
from retryapp.engine.turn import Turn
from retryapp.ports import Event, Observation, PendingTable, TopicPartition, TopicReader

logger = logging.getLogger(__name__)

KNOWN: Final = 10_000
"""Records of which a session remembers how far they have come, some 300 bytes each; more where there are so many topics
that their ends alone have more."""
TAIL_RECORDS: Final = 2_000
"""Records at the end of each topic that an opening lane looks at: as many as one batch of a lane holds."""
TAIL_BYTES: Final = 8 << 20
"""About as many bytes of each, where records are large."""
_PROBED: Final = 20
"""Records that tell how large the others are."""
_TAIL_S: Final = 8.0
"""Longest wait for it; an opening has 30 s for everything."""
ENDED: Final = 1 << 62

Place = tuple[bytes, bytes, bytes]
"""Which record: its origin, how often it was replayed and by which replay, as the headers say it."""

_READ: Final = frozenset(
    {RETRY_VERSION, RETRY_GROUP, RETRY_ORIGIN, RETRY_ATTEMPT, RETRY_REASON, RETRY_REPLAYS, RETRY_REPLAY_ID}
)
_VERSION: Final = b"%d" % FORMAT_VERSION
_MAX_DIGITS: Final = 7


def place_of(group: bytes, headers: Sequence[tuple[str, bytes | None]]) -> tuple[Place, int, bytes] | None:
    """Return which record a hand-off is of, the attempt that failed last and the reason of its end (empty: it waits).

    Returns:
        None where that cannot be told for sure: such a record goes the usual way.
    """
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _READ:
            if name in found or value is None:
                return None
            found[name] = value
    origin, attempt = found.get(RETRY_ORIGIN), found.get(RETRY_ATTEMPT, b"")
    if origin is None or found.get(RETRY_VERSION) != _VERSION or found.get(RETRY_GROUP) != group:
        return None
    if not attempt.isdigit() or len(attempt) > _MAX_DIGITS:
        return None
    replays, replay_id = found.get(RETRY_REPLAYS, b""), found.get(RETRY_REPLAY_ID, b"")
    if bool(replays) != bool(replay_id):
        return None  # two replays could not be told apart
    return (origin, replays, replay_id), int(attempt), found.get(RETRY_REASON, b"")


class Outcomes:
    """How far records have come. Bound: `most` records; those are forgotten of which nothing was heard for longest."""

    def __init__(self) -> None:
        """Begin with none."""
        self.most = KNOWN
        """Of how many records it is remembered."""
        self.complete = True
        """Whether everything that was to be read at the opening was read."""
        self.set_by_hand = False
        """Somebody has set the main topic's offset: what is read again there is to be handled again."""
        self.main_end = 0
        """End of the main topic at the opening: what is behind it was never delivered before."""
        self._known: dict[Place, int] = {}

    def __len__(self) -> int:
        """Return how many records are known."""
        return len(self._known)

    def note(self, place: Place, rank: int) -> None:
        """Take note of a record that has come so far."""
        known = self._known
        known[place] = max(rank, known.pop(place, -1))
        if len(known) > self.most:
            del known[next(iter(known))]

    def rank(self, place: Place) -> int:
        """Return how far a record has come; -1 where that is not known."""
        return self._known.get(place, -1)


async def read_outcomes(site: LaneSite, reader: TopicReader, *, set_by_hand: bool) -> Outcomes:
    """Read at the ends of a lane's topics how far records have come. What cannot be read is not known.

    Args:
        site: says which topics.
        reader: reads them.
        set_by_hand: see `Outcomes`.
    """
    outcomes, group = Outcomes(), site.group.encode()
    outcomes.set_by_hand = set_by_hand

    def handed_off(beyond: int) -> Callable[[Any], None]:
        def tell(record: Any) -> None:
            found = place_of(group, record.headers)
            if found is not None and not found[2]:
                outcomes.note(found[0], 2 * found[1] + beyond)

        return tell

    def buried(record: Any) -> None:
        found = place_of(group, record.headers)
        if found is not None and found[2] != DeadReason.DAMAGED.value.encode():  # whose it is may be what is damaged
            outcomes.note(found[0], ENDED)

    def told(record: Any) -> None:
        try:
            event = decode_event(record.value or b"")
        except DamagedEventError:
            return
        if isinstance(event, Succeeded) and not event.replays:  # it does not say which replay
            outcomes.note((event.origin.encode(), b"", b""), ENDED)

    redelivery = [tp for tp in site.delivering if tp != site.main]
    retry = [tp for tp in site.sources if tp != site.main and tp not in redelivery]
    tails: list[tuple[TopicPartition, Callable[[Any], None]]] = [
        *((tp, handed_off(0)) for tp in retry),
        *((tp, handed_off(1)) for tp in redelivery),
        (site.dlq, buried),
    ]
    if site.events is not None:
        tails.append((site.events, told))
    outcomes.most = max(KNOWN, TAIL_RECORDS * len(tails))  # the newest of the first topic must not go for the last's
    try:
        async with asyncio.timeout(_TAIL_S):
            bounds = await reader.bounds([site.main, *(tp for tp, _ in tails)])
            outcomes.main_end = bounds[site.main][1]
            for tp, tell in tails:
                await _read_tail(reader, tp, *bounds[tp], tell)
    except Exception as exc:  # noqa: BLE001 - without it some handlers run once more; a lane that stays shut is worse
        outcomes.complete = False
        logger.warning("Lane %s opens without knowing all that was handed off: %r", site.name, exc)
    return outcomes


async def _read_tail(
    reader: TopicReader, tp: TopicPartition, first: int, end: int, tell: Callable[[Any], None]
) -> None:
    """Tell of the last records of a partition: the very last ones first, which say how many may be read."""
    near = max(first, end - _PROBED)
    size = 0

    def probe(records: list[Any], _position: int) -> None:
        nonlocal size
        for record in records:
            size += len(record.key or b"") + len(record.value or b"") + sum(len(v or b"") for _, v in record.headers)
            tell(record)

    if near < end:
        await reader.read(tp, near, probe)
    far = max(first, end - min(TAIL_RECORDS, TAIL_BYTES * (end - near) // max(1, size)))

    def go_back(records: list[Any], position: int) -> bool:
        for record in records:
            tell(record)
        return position >= near

    if far < near:
        await reader.read(tp, far, go_back)


class Copies:
    """Tells copies, for one session of a partition. See the module's text."""

    def __init__(self, station: Station, outcomes: Outcomes, pending: PendingTable) -> None:
        """Begin with what the lane has read.

        Args:
            station: what deliveries share.
            outcomes: how far records have come; the session adds to it.
            pending: what waits.
        """
        self._station = station
        self._outcomes = outcomes
        self._pending = pending
        self._group = station.handler.group.encode()
        self._main_end = 0 if outcomes.set_by_hand else outcomes.main_end

    def first(self, record: Record) -> Turn | None:
        """Return the turn that passes a record of the main topic over; None where it is to be handled."""
        if record.offset >= self._main_end:
            return None
        origin = Origin(record.topic, self._station.topic_id, record.partition, record.offset)
        place = origin.text.encode(), b"", b""
        return self._passed(record, place, 1) if self._rank(place, record.offset) >= 2 else None

    def again(self, record: Record) -> Turn | None:
        """Return the turn that passes a record of the redelivery topic over; None where it is to be handled."""
        found = place_of(self._group, record.headers)
        if found is None:
            return None
        place, attempt = found[0], found[1] + 1
        if self._rank(place, _offset(place)) >= 2 * attempt:
            return self._passed(record, place, attempt)
        self._outcomes.note(place, 2 * attempt)
        return None

    def parking(self, record: Record) -> Turn | None:
        """Return the turn that passes a record of a retry topic over; None where it is to be parked."""
        found = place_of(self._group, record.headers)
        if found is None:
            return None
        place, attempt, _ = found
        if self._rank(place, _offset(place)) > 2 * attempt:
            return self._passed(record, place, attempt)
        self._outcomes.note(place, 2 * attempt + 1)
        return None

    def _rank(self, place: Place, origin_offset: int | None) -> int:
        """Return how far a record has come, by what was read or taken up and by the row that it has."""
        known = self._outcomes.rank(place)
        key = None if origin_offset is None else self._pending.find(origin_offset)
        value = None if key is None else self._pending.get(key)
        if value is None:
            return known
        try:
            found = place_of(self._group, decode_row(value).headers)
        except (DamagedRowError, NewerRowError):
            return known
        return known if found is None or found[0] != place else max(known, 2 * found[1] + 1)

    def _passed(self, record: Record, place: Place, attempt: int) -> Turn:
        return Turn(
            source=TopicPartition(record.topic, record.partition),
            next_offset=record.next_offset,
            observations=(
                Observation(
                    event=Event.COPY_DROPPED,
                    handler=self._station.handler.main,
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    failure_id=f"{self._station.handler.group}/{place[0].decode('ascii', 'replace')}",
                    attempt=attempt,
                ),
            ),
        )


def _offset(place: Place) -> int | None:
    """Return the offset of a record's first delivery, None where its origin does not end with one."""
    _, _, offset = place[0].rpartition(b"/")
    return int(offset) if offset.isdigit() and len(offset) < 19 else None
