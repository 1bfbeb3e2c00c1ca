"""What needs somebody to act, on the overview: the worst first, each with the page where it can be put right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from retryapp.core.causes import CauseCount
from retryapp.core.jobs import Part, PartState
from retryapp.core.row_keys import BEFORE_STOPPED
from retryapp.lookup.jobs import by_job, summed
from retryapp.lookup.records import Facts, known_sum
from retryapp.ports import ELSEWHERE, LATE_MS, PAGES_PREFIX, PartitionInfo
from retryapp.web.cells import due_text, spaced
from retryapp.web.figures import OPEN, Rates, open_circuits

MANY_PER_MIN: Final = 20
"""Fewer failures than this are no sign that all deliveries fail."""
_STALLED, _PAUSED, _CIRCUIT, _FAILING, _JOB, _LATE, _DEAD, _NEWS = range(8, 0, -1)


def needs_action(
    main: str,
    infos: Sequence[PartitionInfo],
    causes: Sequence[CauseCount],
    parts: Sequence[tuple[int, Part]],
    rates: Rates | None,
    now_ms: int,
) -> list[Facts]:
    """Return what is wrong with a handler: `weight`, `main`, a sentence, and the page where it can be seen."""
    base = f"{PAGES_PREFIX}/{quote(main, safe='')}"
    found = [*_of_partitions(infos, now_ms), *_of_jobs(parts)]
    if rates is not None and rates.failures_per_min >= max(rates.deliveries_per_min, MANY_PER_MIN):
        every, least = ("every known delivery", "at least ") if rates.is_least else ("every delivery", "")
        found.append((_FAILING, f"{every} fails: {least}{rates.failures_per_min:,.0f} a minute", "pending"))
    if dead := known_sum(item.dead for item in infos):
        most, name = (causes[0].records, f": {causes[0].name}") if causes else (dead, "")
        part = f", {most:,} of them" if most < dead else ""
        found.append((_DEAD, f"{dead:,} dead{part}{name}", "dead"))
    return [{"weight": weight, "main": main, "text": text, "path": f"{base}/{page}"} for weight, text, page in found]


def _of_partitions(infos: Sequence[PartitionInfo], now_ms: int) -> Iterator[tuple[int, str, str]]:
    closed = [item for item in infos if item.state not in (OPEN, ELSEWHERE) or item.stalled]
    if closed:
        why = next((item.stalled or item.last_error for item in closed if item.stalled or item.last_error), "")
        yield _STALLED, f"nothing goes on at {_named(closed)}" + (f": {why}" if why else ""), ""
    if unowned := [item for item in infos if item.state == ELSEWHERE and item.owner_url is None]:
        yield _STALLED, f"no worker is known for {_named(unowned)}", ""
    if paused := paused_text(infos):
        yield _PAUSED, paused, ""
    for name in sorted({name for item in infos for name in open_circuits(item)}):
        away = [(item, each) for item in infos if (each := open_circuits(item).get(name)) is not None]
        words = f"circuit {name} {away[0][1].state}" if name else f"circuit {away[0][1].state}"
        yield _CIRCUIT, f"{words} at {_named([item for item, _ in away])}: {away[0][1].cause}", ""
    if stopped := [item for item in infos if item.stopped]:
        count = known_sum(item.stopped for item in stopped) or 0
        what = f"{count:,} sequences have" if count > 1 else "a sequence has"
        text = f"{what} stopped behind dead records ({_named(stopped)}): replay, discard or release them"
        yield _CIRCUIT, text, f"pending?after={BEFORE_STOPPED.hex()}"
    if blocked := [item for item in infos if item.is_blocked_long(now_ms)]:
        others = f"; blocked as well: {_named(blocked[1:])}" if blocked[1:] else ""
        yield _LATE, f"{_named(blocked[:1])}: {blocked[0].blocked}{others}", "pending"
    dues = [item.next_due_ms for item in infos if item.next_due_ms is not None and item.as_of_ms is None]
    if dues and now_ms - min(dues) > LATE_MS:
        yield _LATE, f"the oldest waiting record is {spaced(due_text(min(dues), now_ms))}", "pending"


def paused_text(infos: Sequence[PartitionInfo]) -> str | None:
    """Return which partitions are paused, by whom and why; None if none is."""
    paused = [item for item in infos if item.paused and not item.stalled]
    return f"{paused[0].paused} ({_named(paused)})" if paused else None


def _of_jobs(parts: Sequence[tuple[int, Part]]) -> Iterator[tuple[int, str, str]]:
    for job, mine in by_job(parts).items():
        whole = summed(mine)
        if any(part.state is PartState.PAUSED for part in mine.values()):
            yield _JOB, f"{whole.verb} job is paused: {whole.paused}", f"jobs/{quote(job, safe='')}"
        elif whole.state is PartState.RUNNING:
            yield _NEWS, f"{whole.verb} job goes on: {whole.done:,} done", f"jobs/{quote(job, safe='')}"


def _named(infos: Sequence[PartitionInfo]) -> str:
    """Name partitions, some of many."""
    some = ", ".join(str(item.partition) for item in infos[:8])
    more = f" and {len(infos) - 8} more" if len(infos) > 8 else ""
    return f"partition{'s' if len(infos) > 1 else ''} {some}{more}"
