"""Draws the plan of a history: one number decides everything."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from simulation.basic import FAULTS_S, basic_plan
from simulation.basic import faults as _faults
from simulation.basic import more as _more
from simulation.basic import widened as _with
from simulation.born_again import BORN, born_again
from simulation.bounds import SLICE, bounded
from simulation.expiring import EXPIRE, STRAYED, expiring, strayed
from simulation.faults import (
    DAMAGED,
    DELETED,
    DRAINS,
    FORGOTTEN,
    GROWN,
    LONG_WAY,
    LOSSES,
    OURS,
    REFUSED,
    REMADE,
    SET_BACK,
    STEPPED,
    STOPPED,
    UNENDED,
    UNKNOWN,
    WRONG_TIME,
    Fault,
)
from simulation.mixed import MIX, mixed
from simulation.odd_letters import STRANGE, strangely
from simulation.plan import (
    COMMANDED,
    EXPIRING,
    FEED_S,
    HELD,
    LETTERS,
    LEVELS,
    MIXED,
    MODES,
    MOVED,
    SERVED,
    STOPS,
    THROUGH,
    Plan,
)  # fmt: skip
from simulation.scripts import (
    ASKING,
    CONDITIONS,
    DEADLY,
    DEFERRED,
    DYING,
    GATED,
    HANDLED,
    HUNG,
    INSTANTS,
    LISTED,
    SCRIPTS,
    SERVICES,
    TRIED,
    VERDICTS,
)

WIDER: Final = 0xAE9F
"""Draws what else happens; the seeds of planted faults keep their course."""
KEPT: Final = 0x0DE3
"""Draws whether an order is kept, and which."""
BACK: Final = 0x6B3D
"""Draws in which of the histories with an order partitions come back to the worker that had them."""
JUDGED: Final = 0x7053
"""Draws in which histories rules decide; none of the seeds of planted faults is among them."""
HOT: Final = 0x407
"""Draws who tries again in place, for the same reason."""
BATCH: Final = 0xBA7C
"""Draws whose handler takes lists."""
PACED: Final = 0x9ACE
"""Draws a rate and an outage; drawn apart, too."""
NEWEST: Final = 0x1A7E
"""Draws where newer records of a key replace older ones; drawn apart, too."""
ENDLESS: Final = 0xE7E3
"""Draws whose policy has a delay without end; drawn apart, too."""
REFERRED: Final = 0x4F39
"""Draws where records wait by reference; drawn apart, too."""
CAPPED: Final = 0xCA95
"""Draws caps of what waits; drawn apart, too."""
BROKEN: Final = 0xB618
"""Draws transactions without an end and damaged rows; none of the seeds of planted faults is among them."""
SHORT: Final = 0x5407
"""Draws whose second policy is shorter; drawn apart, too."""
PLACES: Final = 0x91AC
"""Draws of which services few retries may run at once; drawn apart, too."""
CROWD: Final = 16
"""So many records of a crowd are in flight."""
IDLE_S: Final = 700.0
"""Longer than the broker remembers a transactional id."""


def draw_plan(seed: int) -> Plan:
    """Draw a plan; the seed decides everything."""
    plan = basic_plan(seed)
    if LETTERS <= seed < MIXED:
        return strangely(_lettered(plan, Random(seed ^ LETTERS)), Random(seed ^ STRANGE))
    if seed >= EXPIRING and seed % 4 == 1:
        plan = strangely(_lettered(plan, Random(seed ^ LETTERS)), Random(seed ^ STRANGE))
        return strayed(expiring(plan, Random(seed ^ EXPIRE)), Random(seed ^ STRAYED))
    plan = _crowded(plan, crowd) if (crowd := Random(seed ^ 0xC40D)).random() < 0.05 else plan
    plan = _widened(plan, Random(seed ^ WIDER))
    plan = _judged(plan, Random(seed ^ JUDGED))
    plan = _called(plan)
    plan = _paced(plan, Random(seed ^ PACED))
    plan = _in_order(plan, kept) if (kept := Random(seed ^ KEPT)).random() < 0.2 or STOPS <= seed < MOVED else plan
    plan = (
        _newest(plan, newest) if (newest := Random(seed ^ NEWEST)).random() < (0.2 if seed >= MOVED else 0.08) else plan
    )
    back = Random(seed ^ BACK)
    plan = _come_back(plan, back) if plan.order != "none" and back.random() < 0.2 else plan
    endless = 0.7 if seed >= MOVED else 0.25 if seed < STOPS else 0.0
    plan = _without_end(plan) if Random(seed ^ ENDLESS).random() < endless else plan
    plan = _referred(plan, Random(seed ^ REFERRED))
    apart = seed >= EXPIRING and seed % 2 == 1  # else all that have a topic for each delay have commands
    plan = plan if apart else _commanded(plan, Random(seed ^ COMMANDED))
    through = seed >= THROUGH and (seed < 2 * THROUGH or seed % 4 == 0)
    plan = _through(plan, Random(seed ^ THROUGH)) if through else plan
    plan = _broken(plan, Random(seed ^ BROKEN))
    plan = plan if seed < MOVED else _moved(plan, Random(seed ^ MOVED))
    plan = born_again(plan, Random(seed ^ BORN)) if MOVED <= seed < MODES else plan
    plan = _moded(plan, Random(seed ^ MODES)) if seed >= MODES else plan
    plan = _shorter(plan, Random(seed ^ SHORT)) if seed >= MODES else plan
    plan = _few_of_a_service(plan, Random(seed ^ PLACES)) if seed >= MODES else plan
    plan = mixed(plan, Random(seed ^ MIX)) if MIXED <= seed < EXPIRING else plan
    plan = _without_end(plan) if plan.endless and seed >= MOVED else plan
    if seed < EXPIRING:
        return plan
    return strayed(expiring(plan, Random(seed ^ EXPIRE)), Random(seed ^ STRAYED))


def _crowded(plan: Plan, random: Random) -> Plan:
    """Return the plan with a crowd instead: one among many ends its worker, as a first delivery or as a due row.

    The others go well at once, or wait with it; more records come in each of the lives that follow.
    """
    rows, number, count = random.random() < 0.5, random.randrange(plan.partitions), random.randint(6, 2 * CROWD)
    at, poison = random.randrange(count), ("F" if rows else "") + random.choice("XKK")
    healthy = ("FS", "FS", "FDS", "S") if rows else ("S", "D", "D", "FS")
    crowd = [(random.uniform(0.0, 0.4), number, poison if n == at else random.choice(healthy)) for n in range(count)]
    traffic = [(random.uniform(1.0, 60.0), random.randrange(plan.partitions), "S") for _ in range(20)]
    faults = plan.faults if random.random() < 0.3 else ()
    return replace(plan, records=tuple(sorted(crowd + traffic)), faults=faults, repeats=(), in_flight=CROWD)


def _widened(plan: Plan, random: Random) -> Plan:
    """Return the plan with one more kind of story, or none; and maybe another handler, or another policy."""
    plan = replace(plan, changes=random.random() < 0.1)
    if random.random() < 0.1:
        plan = replace(plan, others=_more(plan, random, SCRIPTS, random.randint(1, 5)))
    kind = random.choice(("", "", "", "", "", "asking", "hung", "ours", "time", "calm", "rare"))
    if kind == "asking":
        return _with(plan, _more(plan, random, ASKING, 3))
    if kind == "hung":
        kinds = (OURS, OURS, "lossy", "broker down", "start", "terminate", REFUSED)
        return _with(plan, _more(plan, random, HUNG, 3), _faults(random, kinds))
    if kind == "ours":
        return _with(plan, (), _faults(random, (OURS,)))
    if kind == "time" and random.random() < 0.5:
        return _with(plan, (), _faults(random, (WRONG_TIME,)))
    if kind == "time":  # clocks that are off, a long way from the broker, and another owner while records wait
        off_ms = tuple(random.uniform(-7_200_000, 7_200_000) for _ in range(3))
        long = Fault(0.02, LONG_WAY, 0, random.random())
        end = Fault(random.uniform(4.0, 9.0), "terminate", 0, 1.0)
        plan = replace(plan, partitions=2, workers=max(2, plan.workers), offsets_ms=off_ms, faults=())
        return _with(plan, _more(plan, random, ("BS", "FBS", "BBS"), 4), (long, end))
    if kind == "rare" and random.random() < 0.5:
        gone = Fault(random.uniform(1.0, FEED_S), DELETED, 0, random.random())
        return _with(replace(plan, faults=(gone,), repeats=()), _more(plan, random, ("T", "TS", "DS"), 2))
    if kind == "rare":
        return replace(plan, replayed=random.choice(("FS", "FFS", "F", "R")))
    if kind == "calm":
        plan = replace(plan, faults=())
        match random.randrange(3):
            case 0:  # the lane has used its transactional id long ago
                return _with(plan, ((FEED_S + IDLE_S, random.randrange(plan.partitions), "FS"),))
            case 1:  # rows that time out, beside traffic
                slow = tuple((random.uniform(0.0, 0.5), random.randrange(plan.partitions), "FTS") for _ in range(3))
                return _with(plan, slow + _more(plan, random, ("S",), 10))
            case _:
                return _with(plan, (), _faults(random, sorted(DRAINS)))
    return plan


def _judged(plan: Plan, random: Random) -> Plan:
    """Return the plan with records about which rules decide, or as it was."""
    if random.random() >= 0.15:
        return plan
    return replace(_with(plan, _more(plan, random, VERDICTS, random.randint(3, 6))), ruled=True)


def _called(plan: Plan) -> Plan:
    """Return the plan with deliveries that call the handler more than once, or as it was."""
    if (hot := Random(plan.seed ^ HOT)).random() < 0.1:
        return _with(replace(plan, hot=True), _more(plan, hot, TRIED, 4))
    if (batch := Random(plan.seed ^ BATCH)).random() >= 0.1:
        return plan
    at_s, number = batch.uniform(0.0, FEED_S - 0.1), batch.randrange(plan.partitions)
    near = tuple((at_s + batch.uniform(0.0, 0.1), number, batch.choice(LISTED)) for _ in range(6))
    return _with(replace(plan, batch=True), near)


def _paced(plan: Plan, random: Random) -> Plan:
    """Return the plan with a rate, or an outage, or neither, as most have."""
    kind = random.random()
    if kind < 0.04 and not plan.quiet:
        return replace(plan, rate=random.choice(("2/s", "5/s", "300/m")))
    if kind > 0.1 or plan.replayed or plan.others or plan.in_flight == CROWD:
        return plan
    at_s = random.uniform(0.3, 3.0)
    calm = random.random() < 0.4
    scripts = ("S",) if calm else ("S", "S", "S", "FS", "F", "D", "TS", "LS")
    traffic = tuple(
        (at_s + random.uniform(-0.3, 6.0), random.randrange(plan.partitions), random.choice(scripts))
        for _ in range(random.randint(10, 25))
    )
    if calm and random.random() < 0.7:
        traffic = (*traffic, (at_s - 0.2, random.randrange(plan.partitions), "TS"))
    plan = replace(plan, records=(), repeats=(), faults=()) if calm else plan
    out = at_s, at_s + random.uniform(0.5, 6.0)
    return _with(replace(plan, outage=out, probes=random.choice((1, 2, 3))), traffic)


def _in_order(plan: Plan, random: Random) -> Plan:
    """Return the plan with an order to keep; in some a topic refuses hand-offs, and the worker dies soon after."""
    by_key = plan.batch or plan.outage is not None
    plan = replace(plan, order=random.choice(("key", "key", "key" if by_key else "partition")))
    if plan.changes or random.random() > 0.2:
        return plan
    at_s = random.uniform(0.3, 3.0)
    sent = sorted((random.uniform(0.0, 3.0), 0, random.choice(("S", "S", "FS", "R", "DS", "TS"))) for _ in range(16))
    size = random.uniform(0.5, 1.0)
    faults = (Fault(at_s, REFUSED, random.randrange(3), size), Fault(at_s + 2 * size, "kill", 0, random.random()))
    few = replace(plan, partitions=1, workers=1, repeats=(), others=(), replayed="", in_flight=8, order="key")
    return replace(few, records=tuple(sent), faults=faults)


def _newest(plan: Plan, random: Random) -> Plan:
    """Return the plan with keys of which the newest record counts, and some more of them."""
    if plan.order != "none" or plan.replayed:
        return plan
    plan = replace(plan, order="latest")
    return plan if plan.in_flight == CROWD else _with(plan, _more(plan, random, ("S", "FS", "FFS", "FDS", "F"), 8))


def _come_back(plan: Plan, random: Random) -> Plan:
    """Return the plan with rebalances during runs of an ordered handler, and without cut connections."""
    kept = tuple(fault for fault in plan.faults if fault.kind in ("kill", "kill at step", "disk full", REFUSED))
    faults = tuple(Fault(random.uniform(3.0, 12.0), FORGOTTEN, 0, 0.0) for _ in range(random.randint(1, 3)))
    scripts = ("FFFH", "FFFH", "HHHH", "HFS", "S", "FS")
    return _with(replace(plan, faults=kept), _more(plan, random, scripts, 6), faults)


def _without_end(plan: Plan) -> Plan:
    """Return the plan with an endless delay, if the handler keeps an order, and with scripts that end."""
    if plan.order not in {"key", "partition"} or plan.changes or plan.replayed:
        return plan

    def ending(sent: tuple[tuple[float, int, str], ...]) -> tuple[tuple[float, int, str], ...]:
        more = {**dict.fromkeys("TH", "S"), **dict.fromkeys("FLYNBGZAIO", "FFFFS")}
        return tuple((at_s, number, script + more.get(script[-1], "")) for at_s, number, script in sent)

    return replace(plan, endless=True, records=ending(plan.records), others=ending(plan.others))


def _referred(plan: Plan, random: Random) -> Plan:
    """Return the plan with records that wait by reference, and most of these with losses; or as it was."""
    odd = {fault.kind for fault in plan.faults} & {STOPPED, DELETED}
    if random.random() >= 0.12 or odd or plan.replayed or plan.endless or plan.order == "latest":
        return plan
    losses = tuple(
        Fault(random.uniform(0.5, 9.0), random.choice(LOSSES), random.randrange(plan.partitions), random.random())
        for _ in range(random.choice((0, 1, 2, 4)))
    )
    plan = replace(plan, referred=True, losses=losses)
    return plan if plan.in_flight == CROWD else _with(plan, _more(plan, random, ("FS", "FFS", "FFDS", "F", "BS"), 5))


def _commanded(plan: Plan, random: Random) -> Plan:
    """Return the plan with commands, or as it was."""
    odd = {fault.kind for fault in plan.faults} & {STOPPED, DELETED} or (plan.seed >= MOVED and plan.seed % 3)
    unsteered = (plan.order == "latest" or plan.endless) and plan.seed < MOVED
    if plan.seed < COMMANDED or odd or plan.replayed or unsteered:
        return plan
    plan = replace(plan, commands=tuple(random.uniform(0.5, 16.0) for _ in range(random.randint(5, 40))))
    if plan.seed >= SERVED:
        return _served(plan, random)
    if plan.seed >= STOPS and plan.order != "none":
        capped = plan.order == "key" and plan.seed % 3 == 0
        cap = Random(plan.seed ^ CAPPED)
        caps = cap.choice((1, 2, 99)), cap.choice((1, 2, 3)), cap.choice(("block", "release", "release"))
        plan = replace(plan, caps=caps if capped else None, stops=not capped or caps[2] == "block")
        return plan if plan.in_flight == CROWD else _with(plan, _more(plan, random, ("R", "F", "FR", "S", "S"), 5))
    if plan.seed >= LEVELS:
        return _levelled(plan, random)
    if plan.seed < HELD or plan.outage is not None or random.random() < 0.3:
        return plan
    return _with(plan, _more(plan, random, DEFERRED, random.randint(1, 4)))


def _levelled(plan: Plan, random: Random) -> Plan:
    """Return the plan with a circuit, if it may have one, and records that pause their partition."""
    if plan.outage is None and plan.order != "partition" and not plan.others and plan.in_flight != CROWD:
        at_s = random.uniform(0.3, 3.0)
        plan = replace(plan, outage=(at_s, at_s + random.uniform(0.0, 2.0)))
    if random.random() < 0.3:
        return plan
    return replace(_with(plan, _more(plan, random, GATED, random.randint(1, 4))), ruled=True)


def _served(plan: Plan, random: Random) -> Plan:
    """Return the plan with services that are down for a while, one after the other or together, if it may be."""
    if plan.order == "partition" or plan.others or plan.in_flight == CROWD:
        return _levelled(plan, random)
    services = tuple(
        (name, at_s := random.uniform(0.3, 3.0), at_s + random.uniform(0.5, 5.0))
        for name in random.choice((SERVICES[1:], SERVICES[1:2]))
    )
    plan = replace(plan, services=services, probes=random.choice((1, 2, 3)))
    if calm := random.random() < 0.5:
        plan = replace(plan, records=(), repeats=(), faults=(), commands=(), losses=(), outage=None, rate="")
        plan = replace(plan, order="none", endless=False, batch=False, hot=False, calm=True, offsets_ms=(0.0,) * 3)
    scripts = ("S",) if calm else ("S", "S", "S", "FS", "F", "TS", "LS")
    return _with(plan, _more(plan, random, scripts, 20) + _more(plan, random, ("FS", "FFS"), 5 * calm))


def _through(plan: Plan, random: Random) -> Plan:
    """Return the plan without what cannot be through the main topic, and with strays."""
    plan = replace(plan, through=True, order="none", endless=False, caps=None, stops=False, referred=False, losses=())
    if random.random() < 0.5:
        plan = replace(plan, commands=(), services=(), calm=False)
    if not plan.calm and plan.in_flight != CROWD:
        plan = _with(plan, _more(plan, random, ("FS", "FFS", "FFDS", "F", "FTS"), 5))
    strays = tuple(
        (random.uniform(0.5, FEED_S + 5), random.randrange(plan.partitions), random.randrange(100))
        for _ in range(random.choice((0, 2, 6)))
    )
    return replace(plan, strays=strays)


def _broken(plan: Plan, random: Random) -> Plan:
    """Return the plan with a transaction without an end, or with damaged rows; or, as most are, as it was."""
    kind = random.random()
    if kind > 0.06 or plan.calm or {fault.kind for fault in plan.faults} & {STOPPED, DELETED}:
        return plan
    broken = UNENDED if kind < 0.03 else DAMAGED
    return _with(plan, (), (Fault(random.uniform(0.5, FEED_S + 4), broken, 0, random.random()),))


def _moved(plan: Plan, random: Random) -> Plan:
    """Return the plan with offsets that somebody sets back, or changelogs that are made again; and with bounds."""
    kind = random.random()
    if plan.calm:
        return plan
    if kind < 0.6:
        plan = bounded(plan, random)
    odd = {fault.kind for fault in plan.faults} & {STOPPED, DELETED, UNENDED, DAMAGED}
    if kind < 0.4 or odd or plan.commands or plan.replayed or plan.losses or plan.in_flight == CROWD:
        return plan
    if random.random() < 0.3 and not plan.through and not plan.referred:
        again = Fault(random.uniform(2.0, FAULTS_S - 4), REMADE, 0, random.random())
        kept = tuple(fault for fault in plan.faults if fault.kind != "offsets expire")  # which changelog it was
        return _with(replace(plan, faults=kept), _more(plan, random, ("FFS", "FFFS", "F", "S"), 4), (again,))
    back = tuple(
        Fault(random.uniform(1.0, FAULTS_S), SET_BACK, 0, random.random()) for _ in range(random.choice((1, 1, 2)))
    )
    kept = tuple(fault for fault in plan.faults if fault.kind != "offsets expire")  # somebody's wish with them
    plan = replace(plan, faults=kept)
    return _with(plan, _more(plan, random, ("S", "FS", "FFS", "R", "F", "DS", "TS"), 4), back)


def _lettered(plan: Plan, random: Random) -> Plan:
    """Return the plan with records that die, and with a handler of their letters, or without letters."""
    plan = _crowded(plan, random) if random.random() < 0.08 else plan
    plan = _called(replace(plan, drop=plan.seed % 5 == 4, changes=random.random() < 0.1))
    plan = _in_order(plan, random) if random.random() < 0.25 else plan
    plan = _with(plan, _more(plan, random, DYING, random.randint(2, 8)))
    if not plan.drop:
        letters = [random.choice(HANDLED) for _ in range(random.randint(1, 7))]
        letters += [random.choice(DEADLY)] * (random.random() < 0.2)
        plan = replace(plan, letters=tuple(letters))
    match random.randrange(4):
        case 0:
            plan = replace(plan, faults=())
        case 1:
            kinds = (
                REFUSED,
                OURS,
                OURS,
                UNKNOWN,
                UNKNOWN,
                FORGOTTEN,
                WRONG_TIME,
                UNENDED,
                "kill at step",
                "pause at step",
            )
            plan = _with(plan, (), _faults(random, kinds))
        case 2:
            plan = bounded(plan, random)
    if random.random() < 0.7:
        commands = tuple(random.uniform(0.5, 16.0) for _ in range(random.randint(5, 40)))
        plan = replace(plan, commands=commands, stops=plan.order != "none" and not plan.drop)
    return plan


def _moded(plan: Plan, random: Random) -> Plan:
    """Return the plan with services that have rates, with few retries at once, with conditions, or with instants."""
    fit = plan.order != "partition" and not (plan.others or plan.through or plan.in_flight == CROWD)
    if fit and random.random() < 0.3:
        plan = plan if plan.services else _served(plan, random)
        plan = replace(plan, service_rate=random.choice(("2/s", "5/s", "300/m")))
    if plan.calm or plan.in_flight == CROWD:
        return plan
    if random.random() < 0.4:
        plan = _with(plan, _more(plan, random, INSTANTS, 4))
    if random.random() < 0.35:
        plan = replace(_with(plan, _more(plan, random, CONDITIONS, random.randint(3, 6))), ruled=True, conditions=True)
    if random.random() < 0.25 and not {fault.kind for fault in plan.faults} & {STOPPED, UNENDED, DAMAGED}:
        plan = _forgetful(plan, random)
    if random.random() < 0.2 and not (plan.commands or plan.referred):
        kept = tuple(fault for fault in plan.faults if fault.kind not in {WRONG_TIME, "clock jump"})
        times = tuple(Fault(random.uniform(0.3, FAULTS_S), STEPPED, 0, random.random()) for _ in range(2))
        plan = _with(replace(plan, faults=kept), _more(plan, random, ("FFFS", "FFS", "FBS", "BS"), 4), times)
    if random.random() < 0.2 and not plan.commands and REMADE not in {fault.kind for fault in plan.faults}:
        at_s, new = random.uniform(0.5, FEED_S), ("S", "S", "FS", "FFS", "R", "DS", "TS")
        late = tuple((at_s + random.uniform(0.1, 20.0), plan.partitions, random.choice(new)) for _ in range(6))
        plan = _with(plan, late, (Fault(at_s, GROWN, 0, random.random()),))
    if plan.batch or random.random() > 0.35:
        return plan
    at_s, number = random.uniform(0.0, FEED_S - 0.3), random.randrange(plan.partitions)
    burst = tuple(
        (at_s + random.uniform(0.0, 0.3), number, random.choice(("FDS", "FDS", "FFDS", "FTS", "FS"))) for _ in range(8)
    )
    return _with(replace(plan, max_concurrent=random.choice((1, 1, 3)), in_flight=8), burst)


def _few_of_a_service(plan: Plan, random: Random) -> Plan:
    """Return the plan with few retries of a service at once: fewer than retries, where it has services.

    Or with nothing but rows that stand in line for slow runs of it.
    """
    if not plan.services or plan.through or random.random() < 0.3:
        return plan
    if random.random() < 0.3:
        at_s, size = random.uniform(0.3, 3.0), random.randint(8, 16)
        services, workers = tuple((name, at_s, at_s + 0.7) for name, *_ in plan.services), plan.workers
        plan = Plan(plan.seed, plan.partitions, workers, (0.0,) * 3, (), (), in_flight=8, services=services, lined=True)
        sent = (at_s + random.uniform(0.0, 0.5) for _ in range(size))
        plan = _with(plan, tuple((when_s, random.randrange(plan.partitions), "SD") for when_s in sent))
    return replace(plan, service_runs=1, max_concurrent=plan.max_concurrent and 3)


def _shorter(plan: Plan, random: Random) -> Plan:
    """Return the plan with a second policy that has an attempt less, and scripts that end by then; or as it was."""
    fit = plan.order == "none" and not (plan.calm or plan.replayed or plan.commands or plan.batch)
    if random.random() > 0.2 or not fit:
        return plan

    def ending(sent: tuple[tuple[float, int, str], ...]) -> tuple[tuple[float, int, str], ...]:
        return tuple((at_s, number, script[:2] + script[2:][-1:]) for at_s, number, script in sent)

    plan = replace(plan, changes=True, shorter=True, records=ending(plan.records), others=ending(plan.others))
    ends = tuple(Fault(random.uniform(1.0, 8.0), random.choice(("kill", "terminate")), at, 0.3) for at in (0, 1))
    return _with(plan, _more(plan, random, ("F",), 5), ends)


def _forgetful(plan: Plan, random: Random) -> Plan:
    """Return the plan with tombstones that expire, and workers that come back after a while with old stores."""
    plan = replace(plan, forgets_s=random.choice((4.0, 8.0)), workers=max(2, plan.workers), offsets_ms=(0.0,) * 3)
    if SLICE in dict(plan.bounds):  # else a rebuild takes openings with 5 s between them, and has half of that time
        plan = replace(plan, bounds=tuple(each for each in plan.bounds if each[0] != "open_s"))
    kept = tuple(fault for fault in plan.faults if fault.kind not in {"clock jump", WRONG_TIME, LONG_WAY})
    kinds = ("terminate", "kill", "kill", "kill at step", "kill at step", "slow handover", "pause at step", "start")
    often = tuple(Fault(at_s + random.uniform(0.0, 3.0), "compact", 0, 0.0) for at_s in range(2, 42, 3))
    moves = tuple(
        Fault(random.uniform(2.0, 40.0), random.choice(kinds), random.randrange(2), random.random()) for _ in range(6)
    )
    late = tuple(
        (random.uniform(5.0, 40.0), random.randrange(plan.partitions), random.choice(("FS", "FFFS", "S", "R")))
        for _ in range(6)
    )
    return _with(replace(plan, faults=kept), _more(plan, random, ("FFFS", "BS", "FBS", "FFS"), 4) + late, often + moves)
