"""Draws policies with deadlines, those of handlers of dead letters, and settings that no other range has together."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from simulation.basic import FAULTS_S, more, widened
from simulation.faults import DAMAGED, DELETED, GROWN, REBORN, REMADE, SET_BACK, STEPPED, STOPPED, UNENDED, Fault
from simulation.plan import FEED_S, Plan
from simulation.scripts import DYING, GATED, TRIED, VERDICTS

EXPIRE: Final = 0xE4B1
"""Draws all of this; drawn apart."""
STRAYED: Final = 0x57A1
"""Draws copies of other groups; drawn apart, too."""
_ELAPSED_MS: Final = (700, 1_250, 2_000, 4_000, 9_500)
_FEW: Final = 8
_MOVES: Final = frozenset({STOPPED, DELETED, UNENDED, DAMAGED, SET_BACK, REMADE, REBORN, GROWN, STEPPED})


def expiring(plan: Plan, random: Random) -> Plan:
    """Return the plan with a deadline, as most have, and maybe with more of what fits it; calm ones as they were."""
    if plan.calm or plan.lined:
        return plan
    moved = {fault.kind for fault in plan.faults} & _MOVES
    if random.random() < 0.6 and not plan.shorter:
        plan = replace(plan, elapsed_ms=random.choice(_ELAPSED_MS))
    if plan.letters:
        plan = _with_policies(plan, random) if random.random() < 0.6 else plan
    elif random.random() < 0.3 and not plan.endless:
        plan = widened(replace(plan, drop=True, stops=False), more(plan, random, (*DYING, "V"), random.randint(2, 6)))
        plan = replace(plan, ruled=True)
    if random.random() < 0.5 and not moved and (plan.replayed or plan.shorter):
        commands = tuple(random.uniform(0.5, 16.0) for _ in range(random.randint(5, 30)))
        plan = replace(plan, commands=plan.commands or commands)
    if random.random() < 0.5 and plan.commands and plan.levels and not moved and plan.in_flight <= _FEW:
        plan = replace(widened(plan, more(plan, random, GATED, random.randint(1, 3))), ruled=True)
    if random.random() < 0.3 and (plan.through or plan.referred) and not (moved or plan.commands or plan.replayed):
        plan = _moved(plan, random)
    if random.random() < 0.3 and plan.max_concurrent is None:
        at_s, number = random.uniform(0.0, FEED_S - 0.3), random.randrange(plan.partitions)
        scripts = ("FDS", "FDS", "FFDS", "FTS", "FS") if not plan.shorter else ("FS", "FDS")
        burst = tuple((at_s + random.uniform(0.0, 0.3), number, random.choice(scripts)) for _ in range(8))
        few = replace(plan, max_concurrent=random.choice((1, 1, 3)), in_flight=max(plan.in_flight, _FEW))
        plan = widened(few, burst)
    return plan


def strayed(plan: Plan, random: Random) -> Plan:
    """Return the plan with copies of other groups on the main topic, as a few have: no mode takes them for records."""
    if plan.calm or plan.lined or plan.through or random.random() > 0.2:
        return plan
    strays = tuple(
        (random.uniform(0.5, FEED_S + 5), random.randrange(plan.partitions), random.randrange(100))
        for _ in range(random.choice((2, 6)))
    )
    return replace(plan, strays=strays)


def _with_policies(plan: Plan, random: Random) -> Plan:
    """Return the plan with handlers of dead letters that try again in place, have rules, or change their policy."""
    kinds = frozenset(kind for kind in ("hot", "ruled", "changes") if random.random() < 0.5)
    scripts = (*plan.letters, "S", "FS", "FFS")
    scripts += TRIED * ("hot" in kinds) + VERDICTS * ("ruled" in kinds) + GATED * ("ruled" in kinds and plan.levels)
    letters = tuple(random.choice(scripts) for _ in range(random.randint(2, 7)))
    if not plan.commands:  # only a command resumes a paused partition
        letters = tuple(script.replace("Q", "Y") for script in letters)
    return replace(plan, letters_policy=kinds, letters=letters)


def _moved(plan: Plan, random: Random) -> Plan:
    """Return the plan with changelogs that are made again, or offsets set back, where no record is lost."""
    kind = REMADE if random.random() < 0.6 else SET_BACK
    at_s = random.uniform(2.0, FAULTS_S - 4)
    kept = tuple(fault for fault in plan.faults if fault.kind != "offsets expire")  # somebody's wish with them
    plan = replace(plan, faults=kept, losses=())
    scripts = ("FS", "F", "S") if plan.shorter else ("FFS", "FFFS", "F", "S", "R", "DS", "TS")
    return widened(plan, more(plan, random, scripts, 4), (Fault(at_s, kind, 0, random.random()),))
