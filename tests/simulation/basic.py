"""Draws what every history has: machines, records and faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from simulation.faults import KINDS, MEANWHILE, STOPPED, Fault
from simulation.plan import FEED_S, Plan
from simulation.scripts import LONG, SCRIPTS

FAULTS_S: Final = 14.0


def basic_plan(seed: int) -> Plan:
    """Return a plan with records and faults, before anything else is drawn."""
    random = Random(seed)
    random.random()  # unused: the seeds of planted faults keep their course
    partitions, workers = random.randint(1, 2), random.choice((1, 2, 2, 3))
    skewed = random.random() < 0.15
    offsets = tuple(random.uniform(-7_200_000, 7_200_000) if skewed else 0.0 for _ in range(3))
    count = random.randint(3, 12)
    records = tuple(
        (random.uniform(0.0, FEED_S), random.randrange(partitions), random.choice(SCRIPTS)) for _ in range(count)
    )
    if random.random() < 0.05:  # one that ends its worker each time that it runs
        at, script = random.randrange(count), random.choice(("X", "FX"))
        records = (*records[:at], (*records[at][:2], script), *records[at + 1 :])
    faults = tuple(
        Fault(random.uniform(0.2, FAULTS_S), random.choice(KINDS), random.randrange(3), random.random())
        for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4)))
    )
    rare = Random(seed ^ 0x57E9)
    if rare.random() < 0.08:
        faults = (*faults, Fault(rare.uniform(0.2, FAULTS_S - 4), STOPPED, 0, rare.random()))
    again = Random(seed ^ 0xD0B1)
    long = Random(seed ^ 0x10C6)
    if long.random() < 0.2:
        at_s, number = long.uniform(0.2, FEED_S - 1), long.randrange(partitions)
        behind = tuple(
            (at_s + long.uniform(0.01, 0.5), number, long.choice(SCRIPTS)) for _ in range(long.randint(2, 5))
        )
        records = (*records, (at_s, number, long.choice(LONG)), *behind)
        for _ in range(long.choice((0, 1, 1, 2))):
            fault = Fault(at_s + long.uniform(0.1, 2.2), long.choice(MEANWHILE), long.randrange(3), long.random())
            faults = (*faults, fault)
    sent = sorted(records)
    repeats = tuple(
        (sent[which][0] + again.choice((0.005, 0.3, 2.0, 8.0)) * again.random(), which)
        for which in again.choices(range(count), k=again.choice((0, 0, 0, 0, 0, 0, 1, 4)))
    )
    return Plan(
        seed=seed,
        partitions=partitions,
        workers=workers,
        offsets_ms=offsets,
        records=tuple(sent),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        repeats=tuple(sorted(repeats)),
    )


def widened(plan: Plan, records: tuple[tuple[float, int, str], ...], faults: tuple[Fault, ...] = ()) -> Plan:
    """Return the plan with more records, and more faults."""
    sent = sorted(plan.records + records)
    repeats = tuple((at_s, sent.index(plan.records[which])) for at_s, which in plan.repeats)
    struck = sorted(plan.faults + faults, key=lambda fault: fault.at_s)
    return replace(plan, records=tuple(sent), faults=tuple(struck), repeats=repeats)


def more(plan: Plan, random: Random, scripts: tuple[str, ...], count: int) -> tuple[tuple[float, int, str], ...]:
    return tuple(
        (random.uniform(0.0, FEED_S), random.randrange(plan.partitions), random.choice(scripts)) for _ in range(count)
    )


def faults(random: Random, kinds: Sequence[str]) -> tuple[Fault, ...]:
    return tuple(
        Fault(random.uniform(1.0, FAULTS_S), random.choice(kinds), random.randrange(3), random.random())
        for _ in range(random.randint(1, 3))
    )
