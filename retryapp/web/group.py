"""What all workers have of a handler, put together from their answers: in a thread, there may be many causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from retryapp.core.causes import CauseCount, summed
from retryapp.core.jobs import Part
from retryapp.lookup.records import Facts
from retryapp.ports import ELSEWHERE, Activity, CauseTrends, PartitionInfo
from retryapp.web.figures import Rates, other_owners, owner_of, rates_of, totals, trend_of
from retryapp.web.peers import Answer, HandlerPart, SpreadCause

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
        rates = None if self.rates is None else asdict(self.rates)
        return {**totals(self.partitions), "silent": self.silent, "rates": rates}

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
    causes: tuple[Causes, Causes] | None,
    job_parts: Mapping[int, Sequence[Part]],
    activity: Activity | None,
    trends: CauseTrends | None,
) -> Group:
    """Put together what other workers have answered, and what this one has.

    `causes`: of letters, and of what waits; None: there are none in what is returned.
    """
    theirs = {url: answer.part.handlers.get(main, HandlerPart()) for url, answer in answers.items()}
    recent = {url: part for url, part in theirs.items() if not answers[url].is_old(now_ms)}
    others = other_owners(infos)
    owners = {info.partition: owner_of(info) for info in infos}  # an old answer may have what is another's now
    jobs = ((url, *each) for url, part in theirs.items() for each in part.jobs.items())
    parts = {number: some for url, number, some in jobs if owners.get(number) == url} | dict(job_parts)
    return Group(
        partitions=_merged(infos, answers, theirs, now_ms),
        silent=sorted(others - recent.keys()),
        causes=causes_of(infos, causes[0], {url: part.causes for url, part in theirs.items()}) if causes else [],
        waiting=causes_of(infos, causes[1], {url: part.waiting for url, part in theirs.items()}) if causes else [],
        parts=[(number, part) for number, some in sorted(parts.items()) for part in some],
        rates=rates_of(
            [activity, *(recent[url].activity if url in recent else None for url in others)],
            unowned=None in owners.values(),
        ),
        trends=[trends, *(part.trends for part in recent.values())],
    )


def _merged(
    infos: Sequence[PartitionInfo], answers: Mapping[str, Answer], theirs: Mapping[str, HandlerPart], now_ms: int
) -> list[PartitionInfo]:
    """Return the partitions with the numbers of their owners.

    Those of a worker that has not answered lately have `as_of_ms`; one that its owner does not have stays elsewhere.
    """
    found = {(url, item.partition): item for url, part in theirs.items() for item in part.partitions}
    everywhere = []
    for info in infos:
        owner = owner_of(info) or ""
        if (item := found.get((owner, info.partition))) is None:
            everywhere.append(info)
            continue
        answer, as_of_ms = answers[owner], item.as_of_ms
        if answer.is_old(now_ms):
            as_of_ms = min(as_of_ms or answer.at_ms, answer.at_ms)
        everywhere.append(replace(item, owner_url=info.owner_url, as_of_ms=as_of_ms))
    return everywhere


def causes_of(
    infos: Sequence[PartitionInfo], ours: Causes, theirs: Mapping[str, Sequence[SpreadCause]]
) -> list[CauseCount]:
    """Return the causes of all partitions, each by the worker that has it: this one, or one of the others."""

    def found() -> Iterator[CauseCount]:
        for info in infos:
            if info.state != ELSEWHERE:
                yield from ours.get(info.partition, ())
        for url, causes in theirs.items():
            its = {info.partition for info in infos if owner_of(info) == url}
            yield from (each.within(its) for each in causes)

    return [each for each in summed(found()) if each.records]
