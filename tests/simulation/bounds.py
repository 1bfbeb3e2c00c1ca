"""Capacities that bind: of lanes, of claims, of records in flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final
from unittest.mock import patch

from retryapp.engine.lane import recovery
from retryapp.engine.lane.limits import LaneLimits
from retryapp.engine.partition import scheduler
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.worker import placement
from simulation.faults import LONG_WAY
from simulation.plan import Plan

IN_FLIGHT: Final = "bytes in flight"
SLICE: Final = "records of a reading"
_CLAIMS: Final = "CLAIM_LIMIT", "LEAST_AHEAD"
_DEADLINES: Final = "open_s", "commit_s"
_TAIL_OFFSETS: Final = 4
"""Histories are short."""
_SMALL: Final[tuple[tuple[str, tuple[float, ...]], ...]] = (
    ("turns", (1, 1, 2)),
    ("changes", (1, 2, 4)),
    ("size", (1, 300, 1_000)),
    ("backlog", (1, 1, 2, 3)),
    ("backlog_size", (1, 300, 2_000)),
    (SLICE, (1, 2)),
    ("open_s", (0.6, 1.0, 3.0)),
    ("commit_s", (0.5, 1.0, 3.0)),
    ("CLAIM_LIMIT", (1, 2, 3)),
    ("LEAST_AHEAD", (1, 2, 3)),
    (IN_FLIGHT, (1, 500, 2_000)),
)
"""What is bounded, and by what."""


def bounded(plan: Plan, random: Random) -> Plan:
    """Return the plan with some small capacities; deadlines where something goes wrong, and answers come in the end."""
    kinds = {fault.kind for fault in plan.faults}
    bounds = tuple((name, random.choice(sizes)) for name, sizes in _SMALL if random.random() < 0.3)
    if not kinds or LONG_WAY in kinds:
        bounds = tuple(each for each in bounds if each[0] not in _DEADLINES)
    few = plan.in_flight if plan.in_flight > 4 or plan.batch else random.choice((1, 2, 4))
    return replace(plan, bounds=bounds, in_flight=few)


@contextmanager
def bind(plan: Plan) -> Iterator[None]:
    """Have the capacities of a plan bind; an idle lane is used again after five minutes, not after hours."""
    sizes = {name: size for name, size in plan.bounds if name not in (IN_FLIGHT, SLICE)}
    claims = {name: int(sizes.pop(name)) for name in _CLAIMS if name in sizes}
    lanes = partial(LaneLimits, renew_s=300.0, **sizes)  # type: ignore[arg-type]
    tail = patch.object(recovery, "TAIL_OFFSETS", _TAIL_OFFSETS)
    with patch.dict(vars(placement), LaneLimits=lanes), patch.dict(vars(scheduler), claims), tail:
        yield


def binding(partition: PartitionEngine) -> Iterator[str]:
    """Name the capacities of a partition that are used up while a record of it begins."""
    session, handler = partition.session, partition.context.handler
    if partition.lane.room <= 0:
        yield "a backlog was full"
    if session is not None and len(session.scheduler.claimed) >= handler.max_in_flight:
        yield "no more rows could be claimed"
    if session is not None and session.window.bytes >= handler.max_in_flight_bytes:
        yield "so many bytes were in flight"
