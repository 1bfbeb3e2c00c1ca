"""Draws main topics that are deleted and made again, with plain policies; `simulation.lives` says what must hold."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from simulation.basic import FAULTS_S, more, widened
from simulation.faults import DAMAGED, DELETED, REBORN, REMADE, SET_BACK, STOPPED, UNENDED, Fault
from simulation.plan import Plan
from simulation.scripts import SCRIPTS

BORN: Final = 0xB04A
"""Draws all of this; drawn apart."""
_FEW: Final = 8


def born_again(plan: Plan, random: Random) -> Plan:
    """Return the plan with main topics that are deleted and made again, once or twice; or as it was."""
    odd = bool({fault.kind for fault in plan.faults} & {STOPPED, DELETED, UNENDED, DAMAGED, REMADE, SET_BACK})
    odd = odd or bool(plan.commands or plan.replayed or plan.losses or plan.services or plan.outage or plan.rate)
    odd = odd or plan.order != "none" or plan.through or plan.referred or plan.calm or plan.in_flight > _FEW
    if random.random() > 0.9 or odd:
        return plan
    at_s = [random.uniform(0.5, FAULTS_S - 4) for _ in range(random.choice((1, 1, 2)))]
    faults = tuple(Fault(each, REBORN, 0, random.random()) for each in at_s)
    late = tuple(
        (each + random.uniform(0.0, 12.0), random.randrange(plan.partitions), random.choice(SCRIPTS))
        for each in at_s
        for _ in range(random.randint(4, 14))
    )
    return widened(replace(plan, repeats=()), late + more(plan, random, ("FFS", "FFFS", "F", "LS"), 3), faults)
