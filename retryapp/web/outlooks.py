"""Asks the tables of a worker what becomes due when, a few questions at a time, and keeps the answer for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from retryapp.ports import PartitionInfo, WorkerView
from retryapp.web.figures import OPEN, outlook_facts
from retryapp.web.forecast import Probe, Survey, outlook
from retryapp.web.records import Facts

PROBES: Final = 160
"""Questions to the tables for one outlook, about; each looks at ``forecast.SAMPLE`` rows at most."""

KEPT_MS: Final = 2_000
"""An outlook is shown again for so long: several readers of a page cost no more than one."""

_LEAST_PROBES: Final = 12
_PROBES_AT_ONCE: Final = 2
"""After so many of them others may run; each takes up to 1 ms in a table of a million rows."""


class Outlooks:
    """Outlooks over partitions of a handler."""

    def __init__(self, view: WorkerView) -> None:
        """Args: view: the worker."""
        self._view = view
        self._kept: dict[tuple[str, tuple[int, ...]], Facts] = {}

    async def of(self, main: str, infos: Sequence[PartitionInfo], now_ms: int) -> Facts:
        """Return what becomes due when, as facts; at most ``KEPT_MS`` old."""
        asked_for = (main, tuple(info.partition for info in infos))
        self._kept = {key: old for key, old in self._kept.items() if 0 <= now_ms - old["now_ms"] < KEPT_MS}
        if asked_for not in self._kept:
            self._kept[asked_for] = facts = await self._survey(main, infos, now_ms)
            return facts
        return self._kept[asked_for]

    async def _survey(self, main: str, infos: Sequence[PartitionInfo], now_ms: int) -> Facts:
        filled = [info for info in infos if info.state == OPEN and info.pending]
        total = sum(info.pending for info in filled)
        surveys = []
        asked = 0
        for info in filled:
            probes = max(_LEAST_PROBES, PROBES * info.pending // total)
            survey = Survey(self._probe(main, info.partition), now_ms, probes)
            surveys.append((survey, info.pending))
            for _ in survey.steps():
                asked += 1
                if asked % _PROBES_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return outlook_facts(await asyncio.to_thread(outlook, surveys, now_ms))

    def _probe(self, main: str, partition: int) -> Probe:
        return lambda start_ms, stop_ms, limit: self._view.due_times(
            main, partition, start_ms=start_ms, stop_ms=stop_ms, limit=limit
        )
