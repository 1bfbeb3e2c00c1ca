"""The partitions of a handler with owner, lane and lag: each worker says how far its own ones are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from pydantic import BaseModel, ValidationError

from retryapp.core.errors import RetryAppError
from retryapp.lookup.records import Facts
from retryapp.ports import ELSEWHERE, PartitionInfo, PartitionLag
from retryapp.web.answers import Answers
from retryapp.web.figures import OPEN, owner_of, partition_facts, web_url
from retryapp.web.query import Question
from retryapp.web.turns import compute

DUE_ROWS: Final = 1_000
"""Due rows are counted up to this number for each partition."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A partition with its lag."""

    info: PartitionInfo
    lag: PartitionLag | None
    due: int | None
    """Records that are due now, counted up to `DUE_ROWS`; None: not known."""


class Lanes(BaseModel):
    """What one worker has."""

    lanes: list[Lane]
    lag_unknown: str | None
    """Why lags are not known."""


async def partitions(answers: Answers, question: Question) -> Facts:
    """Return each partition with owner, lane, and how far it lags, leaving out what is not yet due."""
    info, silent = answers.get_handler_or_404(question.main), list[str]()
    asked = [] if question.routed else answers.view.partitions(info.main)
    ours, bodies = await asyncio.gather(_lanes(answers, info.main), answers.peers.read(asked, info.main, "partitions"))
    theirs = dict[tuple[str | None, int], Lane]()
    for owner, body in bodies.items():
        try:
            lanes = Lanes.model_validate_json(body or b"").lanes
        except ValidationError:
            silent.append(owner)
            continue
        theirs |= {(owner, lane.info.partition): lane for lane in lanes if lane.info.state != ELSEWHERE}
    url = web_url(answers.view.url())

    def line(lane: Lane) -> Facts:
        its = owner_of(lane.info)
        facts = _facts(theirs.get((its, lane.info.partition), lane))
        return {**facts, "is_here": its == "", "owner_url": url if its == "" else its}

    return {
        "main": info.main,
        "group": info.group,
        "url": url,
        "partitions": [*map(line, ours.lanes)],
        "silent": silent,
        "lag_unknown": ours.lag_unknown,
    }


async def partitions_here(answers: Answers, question: Question) -> Facts:
    """Return the partitions of this worker with their lag, for the pages of the others."""
    ours = await _lanes(answers, answers.get_handler_or_404(question.main).main)
    return {"lanes": [asdict(lane) for lane in ours.lanes if lane.info.state != ELSEWHERE], "lag_unknown": None}


async def _lanes(answers: Answers, main: str) -> Lanes:
    view, unknown = answers.view, None
    lags: dict[int, PartitionLag] = {}
    try:
        lags = {lag.partition: lag for lag in await view.lags(main)}
    except RetryAppError as error:
        unknown = str(error)
    infos, now_ms = view.partitions(main), answers.now_ms()

    def lane(item: PartitionInfo) -> Lane:
        due = None
        if item.state == OPEN:
            with suppress(RetryAppError):  # its table was closed while it was read
                due = len(view.due_times(main, item.partition, start_ms=0, stop_ms=now_ms, limit=DUE_ROWS))
        return Lane(item, lags.get(item.partition), due)

    return Lanes(lanes=await compute(lambda: [*map(lane, infos)]), lag_unknown=unknown)


def _facts(lane: Lane) -> Facts:
    return {
        **partition_facts(lane.info),
        "committed_offset": lane.lag.committed if lane.lag else None,
        "main_lag": lane.lag.main if lane.lag else None,
        "due": lane.due,
        "due_is_least": lane.due == DUE_ROWS,
    }
