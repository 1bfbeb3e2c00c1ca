"""What all workers have of a handler, put together from their answers: in a thread, there may be many causes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from retryapp.core.causes import CauseCount
from retryapp.core.jobs import Part
from retryapp.lookup.records import Facts
from retryapp.ports import Activity, CauseTrends, PartitionInfo
from retryapp.web.figures import ELSEWHERE, Rates, rates_of, totals, trend_of
from retryapp.web.peers import Answer, causes_of, jobs_of, merged, recent_of, silent_of

Causes = Mapping[int, Sequence[CauseCount]]
"""By partition."""


class Group(NamedTuple):
    """What all workers have of a handler, as far as they answer."""

    partitions: list[PartitionInfo]
    silent: list[str]
    """Addresses of workers that do not answer."""
    causes: list[CauseCount]
    waiting: list[CauseCount]
    """Causes of what waits."""
    parts: list[tuple[int, Part]]
    """Parts of jobs with their partitions."""
    rates: Rates | None
    trends: list[CauseTrends | None]

    @property
    def totals(self) -> Facts:
        """What is said of all of them."""
        rates = None if self.rates is None else asdict(self.rates)
        return {**totals(self.partitions, whole=True), "silent": self.silent, "rates": rates}

    def with_trends(self, counts: Iterable[CauseCount]) -> list[Facts]:
        """Return causes with how often each fails lately."""
        everywhere = not any(item.state == ELSEWHERE for item in self.partitions) and not self.silent
        trends = [(each, trend_of(self.trends if everywhere else [None], each.cause_id)) for each in counts]
        return [
            {**asdict(each), "failures_per_min": lately, "failures_per_min_before": before}
            for each, (lately, before) in trends
        ]


def group_of(
    main: str,
    infos: Sequence[PartitionInfo],
    answers: Mapping[str, Answer],
    now_ms: int,
    causes: tuple[Causes, Causes],
    job_parts: Mapping[int, Sequence[Part]],
    activity: Activity | None,
    trends: CauseTrends | None,
) -> Group:
    """Put together what other workers have answered, and what this one has: `causes` of letters and of what waits."""
    dead, waiting = causes
    parts, recent = {**jobs_of(main, answers), **job_parts}, recent_of(main, answers, now_ms)
    return Group(
        merged(main, infos, answers, now_ms),
        silent_of(infos, answers, now_ms),
        causes_of(main, infos, answers, dead, "causes"),
        causes_of(main, infos, answers, waiting, "waiting"),
        [(number, part) for number, some in sorted(parts.items()) for part in some],
        rates_of([activity, *(each.activity for each in recent)]),
        [trends, *(each.trends for each in recent)],
    )
