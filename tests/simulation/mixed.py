"""Draws what no other range has together: settings and faults that users may well have at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from simulation.basic import FAULTS_S, more, widened
from simulation.faults import (
    DAMAGED,
    DELETED,
    GROWN,
    REBORN,
    REMADE,
    SET_BACK,
    STEPPED,
    STOPPED,
    UNENDED,
    WRONG_TIME,
    Fault,
)
from simulation.plan import FEED_S, Plan
from simulation.scripts import DEFERRED, DYING, HANDLED, SCRIPTS

MIX: Final = 0x3171
"""Draws all of this; drawn apart."""
_FEW: Final = 8
_NEW: Final = ("S", "S", "FS", "FFS", "R", "DS", "TS")


def mixed(plan: Plan, random: Random) -> Plan:
    """Return the plan with something that it would not have in another range; or, where that does not fit, as it was.

    A changelog that is made again does not know which commands were obeyed, so there are none then.
    """
    odd = plan.calm or plan.lined or plan.shorter or bool(plan.replayed) or plan.in_flight > _FEW
    return plan if odd or REMADE in _kinds(plan) else random.choice(WAYS)(plan, random)


def _kinds(plan: Plan) -> set[str]:
    return {fault.kind for fault in plan.faults}


def _steered(plan: Plan, random: Random) -> Plan:
    commands = tuple(random.uniform(0.5, 16.0) for _ in range(random.randint(5, 30)))
    return replace(plan, commands=plan.commands or commands)


def _deferred(plan: Plan, random: Random) -> Plan:
    """Return the plan with records that wait for a release."""
    return widened(_steered(plan, random), more(plan, random, DEFERRED, random.randint(2, 5)))


def _capped(plan: Plan, random: Random) -> Plan:
    """Return the plan with an order, and with caps, or sequences that stop."""
    if plan.through or plan.conditions:
        return plan
    plan = replace(_steered(plan, random), order=plan.order if plan.order in {"key", "partition"} else "key")
    caps, stops = None, True
    if plan.order == "key" and random.random() < 0.5:
        caps = random.choice((1, 2, 99)), random.choice((1, 2, 3)), random.choice(("block", "release", "release"))
        stops = caps[2] == "block" and random.random() < 0.5
    return widened(replace(plan, caps=caps, stops=stops), more(plan, random, ("R", "F", "FR", "S", "S", "W"), 6))


def _moved(plan: Plan, random: Random) -> Plan:
    """Return the plan with commands, and offsets that are set back, a topic that grows, or a clock that is set."""
    if _kinds(plan) & {STOPPED, DELETED, UNENDED, DAMAGED, SET_BACK, GROWN, STEPPED} or plan.losses:
        return plan
    plan, kind = _steered(plan, random), random.random()
    if kind < 0.5:
        kept = tuple(fault for fault in plan.faults if fault.kind != "offsets expire")
        back = (Fault(random.uniform(1.0, FAULTS_S), SET_BACK, 0, random.random()),)
        return widened(replace(plan, faults=kept), more(plan, random, (*_NEW, "F"), 4), back)
    if kind < 0.75:
        at_s = random.uniform(0.5, FEED_S)
        late = tuple((at_s + random.uniform(0.1, 20.0), plan.partitions, random.choice(_NEW)) for _ in range(6))
        return widened(plan, late, (Fault(at_s, GROWN, 0, random.random()),))
    if plan.referred:
        return plan
    kept = tuple(fault for fault in plan.faults if fault.kind not in {WRONG_TIME, "clock jump"})
    times = tuple(Fault(random.uniform(0.3, FAULTS_S), STEPPED, 0, random.random()) for _ in range(2))
    return widened(replace(plan, faults=kept), more(plan, random, ("FFFS", "FFS", "FBS", "BS"), 4), times)


def _lettered(plan: Plan, random: Random) -> Plan:
    """Return the plan with a handler of dead letters, whatever the other one has."""
    if plan.others or plan.through or GROWN in _kinds(plan):
        return plan
    letters = tuple(random.choice(HANDLED) for _ in range(random.randint(1, 7)))
    plan = widened(replace(plan, letters=letters), more(plan, random, DYING, random.randint(2, 6)))
    return plan if _kinds(plan) & {SET_BACK, STEPPED} or random.random() < 0.5 else _steered(plan, random)


def _born(plan: Plan, random: Random) -> Plan:
    """Return the plan with an order, maybe with commands, and main topics that are deleted and made again."""
    odd = {STOPPED, DELETED, UNENDED, DAMAGED, SET_BACK, GROWN, STEPPED}
    if _kinds(plan) & odd or plan.losses or plan.through or plan.referred or plan.others or plan.forgets_s:
        return plan
    by_key = plan.batch or plan.services or plan.outage is not None
    order = random.choice(("key", "key", "key" if by_key else "partition", "latest"))
    plan = replace(plan, order=order, repeats=(), endless=plan.endless and order != "latest")
    if random.random() < 0.6:
        plan = _steered(plan, random)
        plan = replace(plan, stops=plan.order != "latest" and random.random() < 0.3)
    at_s = [random.uniform(0.5, FAULTS_S - 4) for _ in range(random.choice((1, 1, 2)))]
    faults = tuple(Fault(each, REBORN, 0, random.random()) for each in at_s)
    late = tuple(
        (each + random.uniform(0.0, 12.0), random.randrange(plan.partitions), random.choice(SCRIPTS))
        for each in at_s
        for _ in range(random.randint(4, 14))
    )
    return widened(plan, late + more(plan, random, ("FFS", "FFFS", "F", "LS"), 3), faults)


WAYS: Final[tuple[Callable[[Plan, Random], Plan], ...]] = (_deferred, _capped, _moved, _lettered, _born)
