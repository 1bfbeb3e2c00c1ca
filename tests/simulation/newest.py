"""What must hold where a newer record of a key replaces the one that waits (I20)."""

from __future__ import annotations

from collections.abc import Mapping, Set

from retryapp.engine.partition.latest import READ_S
from simulation.lives import LIVES, SPAN
from simulation.story import Opening, Origin, Story, Violation

SUPERSEDED = "superseded"


class Starts:
    """When records began, by partition and key."""

    def __init__(self) -> None:
        self.gone: set[Origin] = set()
        """Records that were deleted unread: they replace nothing any more."""
        self._started: dict[tuple[int, bytes], list[tuple[int, float]]] = {}
        self._passed: dict[Origin, list[tuple[int, float]]] = {}
        """Of a record that was replayed: starts of newer ones that had ended by then."""

    def came_back(self, origin: Origin, key: bytes, ended: Set[int]) -> None:
        """Note that a dead record is replayed: newer ones that have ended replace it only if they begin once more.

        Args:
            origin: the record.
            key: of it.
            ended: offsets of records of its partition that may have ended.
        """
        starts = self._started.get((origin[0], key), [])
        self._passed[origin] = [start for start in starts if start[0] in ended]

    def check(
        self, origin: Origin, key: bytes, cancelled: Set[int], *, is_row: bool, now_ms: float, opening: Opening
    ) -> None:
        """Judge a call: no row begins after a newer record that had begun before its lane was opened.

        Those that had ended before somebody had it replayed do not count: that takes force, as they may replace it. Nor
        do those that somebody has `cancelled`: the record may have come again since, where the offset was set back.

        Raises:
            Violation: one does, and its lane had time to read the newer one.
        """
        starts = self._started.setdefault((origin[0], key), [])
        passed = self._passed.get(origin, ())
        newer = [
            start for start in starts if start[0] > origin[1] and start not in passed and start[0] not in cancelled
        ]
        known = [at for at, began_ms in newer if began_ms < opening.fenced_ms and (origin[0], at) not in self.gone]
        starts.append((origin[1], now_ms))
        if is_row and known and now_ms - opening.fenced_ms < READ_S * 1_000:
            raise Violation(f"I20 {origin[0]}/{origin[1]}: a row begins after {known} of its key")


def check_replaced(stories: Mapping[Origin, Story], origin: Origin, by_offset: int) -> None:
    """Judge the end of a record: a newer one of its key has replaced it, and that one is no duplicate.

    A worker may have named a record like one that is gone with the former topic.

    Raises:
        Violation: there is no such record.
    """
    number, offset, life = *origin, origin[1] // SPAN
    lives = [SPAN * each for each in range(LIVES)] if stories[origin].gone else [0]
    keys = {own.sent_key for each in lives if (own := stories.get((number, offset + each))) is not None} - {None}
    places = ((number, by_offset + SPAN * each) for each in range(life, life + LIVES))  # the event names no topic
    found = (newer for place in places if place > origin and (newer := stories.get(place)) is not None)
    if not any(newer.first is None and newer.sent_key in keys for newer in found):
        raise Violation(f"I20 {origin[0]}/{origin[1]}: superseded by {by_offset}, which does not replace it")


def check_newest(stories: Mapping[Origin, Story]) -> None:
    """Judge the end of a history: of each key the newest record has ended by its own script.

    Raises:
        Violation: it was superseded.
    """
    newest: dict[tuple[int, bytes], Origin] = {}
    unsure = {(number, story.sent_key) for (number, _), story in stories.items() if story.gone}
    for origin, story in stories.items():
        if story.first is None and story.sent_key is not None:
            place = origin[0], story.sent_key
            newest[place] = max(origin, newest.get(place, origin))
    for origin in newest.values():
        if SUPERSEDED in stories[origin].fates and (origin[0], stories[origin].sent_key) not in unsure:
            raise Violation(f"I20 {origin[0]}/{origin[1]}: the newest of its key is superseded")
