"""How many records become due when: counted in the table, in a thread, up to `MOST` rows."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pydantic import BaseModel, ValidationError

from retryapp.core.errors import RetryAppError
from retryapp.lookup.records import Facts, known_sum
from retryapp.ports import PartitionInfo
from retryapp.runtime.view import RuntimeView
from retryapp.web.figures import OPEN, owner_of
from retryapp.web.peers import Peers
from retryapp.web.turns import compute

MOST: Final = 10_000
"""Rows that are counted before now, and from now on, over all partitions; more is shown as "10,000+"."""
KEPT_MS: Final = 5_000
"""A count is shown again for this long, so that more readers cost no more."""
WINDOWS: Final = (("minute", 60_000), ("hour", 3_600_000), ("day", 86_400_000))
_CHUNK: Final = 1_000
"""Rows per iterator: an iterator holds the store's folder, so each one is short."""


class Amount(BaseModel):
    """How many records are due; None: not known. `more`: at least so many."""

    count: int | None = None
    more: bool = False


class DueHere(BaseModel):
    """What becomes due in the partitions that one worker has open."""

    partitions: list[int]
    due: dict[str, Amount]
    """`overdue`, and what becomes due within each of `WINDOWS`, which begin now; of no partition: not known."""


class DueCounts:
    """Counts of the rows that are due and become due soon."""

    def __init__(self, view: RuntimeView) -> None:
        self._view = view
        self._counts: dict[str, tuple[int, DueHere]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._everywhere: dict[str, tuple[int, list[str | None], asyncio.Task[Facts]]] = {}
        """By main topic: when the owners of its partitions were asked last, who they were, and their answers."""

    async def everywhere(self, main: str, infos: Sequence[PartitionInfo], now_ms: int, peers: Peers) -> Facts:
        """Return the counts of all workers' partitions, at most `KEPT_MS` old, and which partitions these leave out."""
        owners = [*map(owner_of, infos)]
        known = self._everywhere.get(main)
        if known is None or known[1] != owners or not 0 <= now_ms - known[0] < KEPT_MS:
            asking = asyncio.create_task(self._ask(main, infos, now_ms, peers), name=f"due-{main}")
            known = self._everywhere[main] = now_ms, owners, asking
        return await asyncio.shield(known[2])

    async def _ask(self, main: str, infos: Sequence[PartitionInfo], now_ms: int, peers: Peers) -> Facts:
        ours, bodies = await asyncio.gather(self.here(main, infos, now_ms), peers.read(infos, main, "due"))
        known = [ours]
        for url, body in bodies.items():
            with suppress(ValidationError):
                theirs = DueHere.model_validate_json(body or b"")
                if {*theirs.partitions} <= {each.partition for each in infos if owner_of(each) == url}:
                    known.append(theirs)  # else the group moves some of them now
        counted = {number for here in known for number in here.partitions}
        due: Facts = {}
        for name in ours.due:
            amounts = [here.due[name] for here in known if name in here.due]
            more = any(each.more for each in amounts)
            due[name] = {"count": known_sum(each.count for each in amounts), "more": more}
        return {"due": due, "due_left_out": [each.partition for each in infos if each.partition not in counted]}

    async def here(self, main: str, infos: Sequence[PartitionInfo], now_ms: int) -> DueHere:
        """Return the counts of the partitions that are open here, at most `KEPT_MS` old."""
        async with self._one_at_a_time:
            here = [info for info in infos if info.state == OPEN]
            numbers, known = [info.partition for info in here], self._counts.get(main)
            if known is None or known[1].partitions != numbers or not 0 <= now_ms - known[0] < KEPT_MS:
                due = dict.fromkeys(("overdue", *dict(WINDOWS)), Amount())
                if here:
                    some = [info.partition for info in here if info.pending != 0]
                    try:
                        due = await compute(self._count, main, some, now_ms)
                    except RetryAppError:  # a table was closed while it was read: the rest of the page is known
                        return DueHere(partitions=[], due=due)
                known = self._counts[main] = now_ms, DueHere(partitions=numbers, due=due)
            return known[1]

    def _count(self, main: str, partitions: Sequence[int], now_ms: int) -> dict[str, Amount]:
        overdue = self._between(main, partitions, 0, now_ms, MOST)
        due, ahead, start_ms = {"overdue": _amount(overdue)}, 0, now_ms
        for name, length_ms in WINDOWS:
            ahead += self._between(main, partitions, start_ms, now_ms + length_ms, MOST - ahead)
            due[name] = _amount(ahead)
            start_ms = now_ms + length_ms
        return due

    def _between(self, main: str, partitions: Sequence[int], start_ms: int, stop_ms: int, most: int) -> int:
        """Return how many rows are due in a span; a number above `most` is not the whole."""
        total = 0
        for partition in partitions:
            at_ms, chunk = start_ms, _CHUNK
            while total <= most:
                dues = self._view.due_times(main, partition, start_ms=at_ms, stop_ms=stop_ms, limit=chunk)
                if len(dues) < chunk:
                    total += len(dues)
                    break
                at_ms, chunk = dues[-1], chunk if dues[-1] > dues[0] else 2 * chunk  # all at one instant: look further
                total += bisect_left(dues, at_ms)
        return total


def _amount(count: int) -> Amount:
    return Amount(count=min(count, MOST), more=count > MOST)
