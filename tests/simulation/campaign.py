"""Many histories: on all processors, with their sum, and with a failing one made as small as it gets."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import TypeVar

from simulation.drawing import draw_plan
from simulation.faults import (
    DAMAGED,
    DELETED,
    GROWN,
    KINDS,
    LONG_WAY,
    LOSSES,
    OURS,
    REBORN,
    REFUSED,
    REMADE,
    RETAINED,
    SET_BACK,
    STEPPED,
    STOPPED,
    UNENDED,
    UNKNOWN,
    WRONG_TIME,
)
from simulation.history import History, simulate
from simulation.mutants import MUTANTS, hunt
from simulation.odd_letters import KINDS as ODD_LETTERS
from simulation.plan import RANGE_SEEDS, RANGES, Plan

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")

CHUNK = 50
"""Histories that one process runs in a row."""

_HAND_OFFS = ("fence", "produce", "offsets", "commit")
_RARE = (REFUSED, STOPPED, OURS, WRONG_TIME, LONG_WAY, DELETED, UNENDED, DAMAGED)
STATES = (
    *(f"fault: {kind}" for kind in sorted({*KINDS, *_RARE})),
    *(f"{way} lost: {name}" for way in ("request", "answer") for name in _HAND_OFFS),
    *(f"loss: {kind}" for kind in LOSSES), "a record was lost", "a copy without payload",
    "a handler ended its worker", "a handler did not heed its cancellation",
    "a transaction has no end", "a damaged row has its letter", "a rebuild began at a floor",
    "suspects ran together", "a suspect ran alone", "a commit was taken back",
    "lane_opened", "lane_failed", "lane_closed", "failed", "scheduled", "succeeded", "dead",
    "skipped", "settled beyond the offset", "a delivery has tried again in place", "a list of 3",
    "a fence has risen", "a fence has risen in a worker", "who has lost its partition has a smaller fence",
)  # fmt: skip
"""What a campaign must have come to (I13): each fault, each way in which a hand-off can fail, each fate."""
MOVED_STATES = (
    f"fault: {REMADE}", "a changelog was made again, and its lane is closed",
    f"fault: {SET_BACK}", "a record comes again", "a record comes again that waits",
    "a backlog was full", "no more rows could be claimed", "so many bytes were in flight", "an opening ran out of time",
    "commands where the newest counts", "commands beside a delay without end",
    f"fault: {REBORN}", "a record waits whose topic was made again", "a record is gone with its topic",
    "a record was named like one of the former topic",
)  # fmt: skip
"""The same of histories from `plan.MOVED` on."""
LETTER_STATES = (
    *(f"a letter ends {end}" for end in ("handled", "skipped", "failed")), "a letter was passed",
    f"fault: {UNKNOWN}", "a letter was tried again", "a letter is restored", "discarded",
    *(f"a letter is replayed, and it was {end}" for end in ("none", "skipped", "failed", "handled")),
    "a letter is discarded, and it was none", "refused as handled", "refused as running",
    *(f"a letter begins, {kind}" for kind in ODD_LETTERS), "a letter of a rule has its end",
    f"fault: {RETAINED}", "a letter ends that is gone", f"fault: {DELETED}",
    f"fault: {SET_BACK}", "a record has died again since its offset was set back",
)  # fmt: skip
"""The same of histories from `plan.LETTERS` on."""
SERVED_STATES = "a circuit began half-open after a restart", "a circuit was let close by another owner"
"""The same of histories from `plan.SERVED` on."""
MODES_STATES = (
    "1 retries at once, of 1 that may", "3 retries at once, of 3 that may", "a row of a service with a rate began",
    "a row began of a service of which few may run", "a row had its turn while its circuit was closed",
    "one begins beside a row of a service that has no more places",
    "came back at an instant", "waited for an instant", "a condition did not hold",
    "a tombstone has expired", "a store was too old", "began after faults have healed",
    f"fault: {GROWN}", "a record of a new partition began",
    "dead after 3 attempts, by one of two policies", "dead after 4 attempts, by one of two policies",
    f"fault: {STEPPED}", "a row began after the broker's clock was set",
)  # fmt: skip
"""The same of histories from `plan.MODES` on."""
EXPIRING_STATES = (
    "a record has expired", "there is no dead-letter topic",
    *(f"handlers of letters: {kind}" for kind in ("changes", "hot", "ruled")),
)  # fmt: skip
"""The same of histories from `plan.EXPIRING` on."""


@dataclass(slots=True)
class Summary:
    """The sum of many histories."""

    passed: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Seed and violation."""
    reached: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    """Handler calls of attempts that had begun before."""
    steps: int = 0
    passed_over: int = 0
    """Histories that were not wanted."""

    def add(self, other: Summary) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.reached += other.reached
        self.repeated += other.repeated
        self.steps += other.steps
        self.passed_over += other.passed_over

    @property
    def missed(self) -> list[str]:
        states = *STATES, *SERVED_STATES, *MOVED_STATES, *MODES_STATES, *LETTER_STATES, *EXPIRING_STATES
        return [state for state in states if not self.reached[state]]


def run_seeds(seeds: Sequence[int], where: str = "True") -> Summary:
    """Run the histories of those of the seeds whose `plan` fulfils an expression of Python."""
    summary, is_wanted = Summary(), compile(where, "--where", "eval")
    for seed in seeds:
        if not eval(is_wanted, {"plan": draw_plan(seed)}):  # noqa: S307  # what a developer types
            summary.passed_over += 1
            continue
        result = simulate(seed)
        summary.steps += result.steps
        summary.repeated += result.repeated
        summary.reached.update(result.reached)
        if result.violation is None:
            summary.passed += 1
        else:
            summary.failed.append((seed, result.violation))
    return summary


def _be_quiet() -> None:
    """Have a process of a campaign say nothing of what dies in its histories, and log nothing of what fails there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a traceback
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)


def in_a_row(first: int, count: int) -> list[range]:
    """Return seeds from `first` on, in chunks."""
    return [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]


def of_all_ranges(start: int, count: int) -> list[range]:
    """Return seeds of all ranges in turn, in chunks; `start`: place of the first one in each range."""
    size, chunks = min(CHUNK, ceil(count / len(RANGES))), list[range]()
    while count > 0:
        turn, which = divmod(len(chunks), len(RANGES))
        at = RANGES[which] + (start + turn * size) % (RANGE_SEEDS - size)
        chunks.append(range(at, at + min(size, count)))
        count -= size
    return chunks


def run_everywhere(chunks: Sequence[range], jobs: int, where: str) -> Iterator[Summary]:
    """Run histories on several processors, as `run_seeds`; yield the sum of each chunk as it is there.

    Raises:
        BrokenProcessPool: a process of the campaign died.
    """
    return _everywhere(partial(run_seeds, where=where), chunks, jobs)


def hunt_everywhere(seeds: int, jobs: int) -> Iterator[tuple[str, tuple[int, str] | None]]:
    """Hunt every mutant; yield its name and what found it.

    Raises:
        BrokenProcessPool: a process of the hunt died.
    """
    return _everywhere(_hunt, [(number, seeds) for number in range(len(MUTANTS))], jobs)


def _everywhere(run: Callable[[_Task], _Found], tasks: Iterable[_Task], jobs: int) -> Iterator[_Found]:
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_be_quiet)
    try:
        yield from (each.result() for each in as_completed([pool.submit(run, task) for task in tasks]))
    finally:
        pool.shutdown(cancel_futures=True)


def _hunt(task: tuple[int, int]) -> tuple[str, tuple[int, str] | None]:
    number, seeds = task
    return MUTANTS[number].name, hunt(MUTANTS[number], range(1, seeds + 1), simulate)


def minimise(plan: Plan, run: Callable[[Plan], str | None] | None = None) -> Plan:
    """Return the smallest plan that breaks the same invariant; `run` returns the violation of a plan, or None."""
    judge = run or (lambda each: History(each).run().violation)
    found = judge(plan)
    if found is None:
        return plan
    invariant = found.split()[0]
    smaller = True
    while smaller:
        smaller = False
        for shorter in _shorter(plan):
            violation = judge(shorter)
            if violation is not None and violation.split()[0] == invariant:
                plan, smaller = shorter, True
                break
    return plan


def _shorter(plan: Plan) -> Iterator[Plan]:
    for at in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:at] + plan.faults[at + 1 :])
    for at in range(len(plan.repeats)):
        yield replace(plan, repeats=plan.repeats[:at] + plan.repeats[at + 1 :])
    for at in range(len(plan.records)):
        if len(plan.records) > 1:
            yield plan.without(at)
    for at in range(len(plan.odd_letters)):
        yield replace(plan, odd_letters=plan.odd_letters[:at] + plan.odd_letters[at + 1 :])
    for less in (replace(plan, others=()), replace(plan, changes=False), replace(plan, replayed="")):
        if less != plan:
            yield less
    if plan.workers > 1:
        yield replace(plan, workers=plan.workers - 1)
    if plan.partitions > 1 and all(number == 0 for _, number, _ in plan.records):
        yield replace(plan, partitions=1)
