"""What happens in a history: records, faults and when, all drawn from one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

SCRIPTS: Final = ("S", "S", "S", "S", "D", "FS", "FS", "FFS", "FDS", "F", "TS", "R", "FR", "LS", "FLS", "FFFS")
"""What handlers do, attempt by attempt; the last letter goes on: success, success after a while (D), failure, time-out,
reject, later, and by rules busy (Y), invalid (V), skip (P), pause (Q). W waits for its release, and is done after it.
X ends the worker at once, K after a while. N asks to be called again now, B after more than the longest wait. H does
not heed its cancellation for some time."""
LATER_MS: Final = 700
BEYOND_MS: Final = 9_000
DEFERRED_MS: Final = 2_500
DEFERRED: Final = ("W", "W", "FW", "WS", "WWF", "WFS")
ASKING: Final = ("NS", "FNS", "FNNS", "NNS", "FFNS", "BS", "FBS", "BNR", "FLNS")
HUNG: Final = ("H", "HS", "HFS", "FHS", "HHS")
VERDICTS: Final = ("P", "FP", "V", "FV", "YS", "YYFS", "YYYS", "YFYS", "FFYS", "FYP", "YYV", "YP")
FEED_S: Final = 5.0
FAULTS_S: Final = 14.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a time."""

    at_s: float
    kind: str
    slot: int
    """Which machine, where it is one's fault."""
    size: float
    """Between 0 and 1: how long or how much."""

    def __str__(self) -> str:
        return f"{self.at_s:6.2f} s  {self.kind} (machine {self.slot}, {self.size:.2f})"


KINDS: Final = (
    "kill", "kill", "kill at step", "kill at step", "kill, store lost", "power cut", "pause", "pause", "pause at step",
    "pause at step", "terminate", "late", "late",
    "broker down", "lossy", "slow", "clock jump", "compact", "retention", "disk full", "start",
    "offsets expire", "slow handover", "slow handover",
)  # fmt: skip


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
TRIED: Final = ("G", "GS", "FG", "GFG", "F", "GTS")
"""G fails at the first try of an attempt, and is fine at the next one."""
BATCH: Final = 0xBA7C
"""Draws whose handler takes lists."""
LISTED: Final = ("S", "S", "Z", "ZS", "FS", "FZS", "TS", "R")
"""Z raises for all records of its call, F and R are about themselves alone."""
PACED: Final = 0x9ACE
"""Draws a rate and an outage; drawn apart, too."""
NEWEST: Final = 0x1A7E
"""Draws where newer records of a key replace older ones; drawn apart, too."""
ENDLESS: Final = 0xE7E3
"""Draws whose policy has a delay without end; drawn apart, too."""
REFERRED: Final = 0x4F39
"""Draws where records wait by reference; drawn apart, too."""
LOSSES: Final = ("settled records deleted", "another record in its place", "batch damaged")
"""What happens then to records of the main topic that have an outcome."""
CROWD: Final = 16
"""So many records of a crowd are in flight."""
COMMANDED: Final = 1_000_000
"""From this seed on histories have commands, but where that is no use."""
HELD: Final = 2_000_000
"""From this seed on they hold and release records, too."""
LEVELS: Final = 3_000_000
"""From this seed on somebody also forces circuits open, and rules pause partitions."""
STOPS: Final = 4_000_000
"""From this seed on handlers keep an order, and a sequence stops behind a dead record."""
CAPPED: Final = 0xCA95
"""Draws caps of what waits; drawn apart, too."""
SERVED: Final = 5_000_000
"""From this seed on records need services, which are down for a while and have circuits with names."""
THROUGH: Final = 6_000_000
"""From this seed on what is due again goes through the main topic; from twice this on in every fourth history."""
RANGES: Final = (0, COMMANDED, HELD, LEVELS, STOPS, SERVED, THROUGH, 2 * THROUGH)
"""First seeds of the ranges, of a million at least, in which histories have different things."""
RANGE_SEEDS: Final = 1_000_000
SERVICES: Final = ("", "ledger", "mail")
"""What a record needs, by its offset."""
GATED: Final = ("Q", "FQ", "FFQ")
"""Q pauses its partition, twice, and is fine after that."""
STOPPED: Final = "broker stopped"
"""Rarer than the others, and drawn apart."""
REFUSED: Final = "refused"
"""Some hand-offs, by their topics; drawn apart, too."""
OURS: Final = "fault of ours"
"""An exception in the engine's own code; drawn apart, too."""
FORGOTTEN: Final = "members forgotten"
"""All join the group again at once; with one worker, it gets back what it had."""
WRONG_TIME: Final = "wrong time"
"""One acknowledgement with a time that is off by as much as an hour."""
LONG_WAY: Final = "long way"
"""The answers to a machine take up to 0.8 s more."""
DELETED: Final = "unread records deleted"
"""All workers die, and the first record that they had not settled is deleted, until somebody decides."""
UNENDED: Final = "no end"
"""Of the next transaction, on the changelog: acknowledged, and committed readers stop before it."""
DAMAGED: Final = "rows damaged"
"""All workers die, and the tables of their machines are lost; rows of the changelogs cannot be read any more."""
BROKEN: Final = 0xB618
"""Draws both; none of the seeds of planted faults is among them."""
DRAINS: Final = frozenset({"terminate", "start"})
"""Faults in which nothing is repeated."""
IDLE_S: Final = 700.0
"""Longer than the broker remembers a transactional id."""
LONG: Final = ("TS", "TFS", "T", "DS", "DFS")
"""Scripts of a record that runs while those behind it end."""
MEANWHILE: Final = (
    "kill",
    "kill at step",
    "kill, store lost",
    "pause",
    "terminate",
    "offsets expire",
    "lossy",
    REFUSED,
)
"""What goes wrong then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in a history."""

    seed: int
    partitions: int
    workers: int
    offsets_ms: tuple[float, ...]
    """What the clocks of the machines are wrong by."""
    records: tuple[tuple[float, int, str], ...]
    """When, on which partition, with which script."""
    faults: tuple[Fault, ...]
    repeats: tuple[tuple[float, int], ...] = ()
    """When, and which of the records, its producer sends again; if any, the handler deduplicates."""
    in_flight: int = 4
    """The handler's `max_in_flight`."""
    others: tuple[tuple[float, int, str], ...] = ()
    """As `records`, of a second handler."""
    changes: bool = False
    """Every other life has another policy."""
    order: str = "none"
    """The handlers' `order`, where policies change only in every other life; a few keys, and none, are mixed then."""
    caps: tuple[int, int, str] | None = None
    """Of a handler's sequences: how many may wait, how many records of each, and what happens beyond that."""
    stops: bool = False
    """A sequence stops behind a dead record."""
    endless: bool = False
    """The policy has a delay without end."""
    ruled: bool = False
    """The policies have rules."""
    hot: bool = False
    """Deliveries that fail try again in place."""
    batch: bool = False
    """The handler takes lists."""
    rate: str = ""
    """The handler's `rate_limit`; empty: none."""
    outage: tuple[float, float] | None = None
    """From when until when its service is down; then it has a circuit."""
    probes: int = 3
    """Of the circuit."""
    services: tuple[tuple[str, float, float], ...] = ()
    """Services that are down, from when until when; then each has a circuit."""
    calm: bool = False
    """Nothing else goes wrong."""
    referred: bool = False
    """Records wait by reference."""
    losses: tuple[Fault, ...] = ()
    """When the main topic loses records that have an outcome."""
    through: bool = False
    """What is due again goes through the main topic."""
    strays: tuple[tuple[float, int, int], ...] = ()
    """When, and on which partition, the main topic gets a copy of another group, or a second one; and which."""
    commands: tuple[float, ...] = ()
    """When somebody sends a command."""
    replayed: str = ""
    """Script of a record that waits when the history begins: an older build had replayed it. Empty: none does."""

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Draw a plan; the seed decides everything."""
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
        plan = cls(
            seed=seed,
            partitions=partitions,
            workers=workers,
            offsets_ms=offsets,
            records=tuple(sent),
            faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
            repeats=tuple(sorted(repeats)),
        )
        plan = plan._crowded(crowd) if (crowd := Random(seed ^ 0xC40D)).random() < 0.05 else plan
        plan = plan._widened(Random(seed ^ WIDER))._judged(Random(seed ^ JUDGED))._called(seed)
        plan = plan._paced(Random(seed ^ PACED))
        plan = plan._in_order(kept) if (kept := Random(seed ^ KEPT)).random() < 0.2 or seed >= STOPS else plan
        plan = plan._newest(newest) if (newest := Random(seed ^ NEWEST)).random() < 0.08 else plan
        back = Random(seed ^ BACK)
        plan = plan._come_back(back) if plan.order != "none" and back.random() < 0.2 else plan
        plan = plan._without_end() if Random(seed ^ ENDLESS).random() < 0.25 and seed < STOPS else plan
        plan = plan._referred(Random(seed ^ REFERRED))._commanded(Random(seed ^ COMMANDED))
        through = seed >= THROUGH and (seed < 2 * THROUGH or seed % 4 == 0)
        plan = plan._through(Random(seed ^ THROUGH)) if through else plan
        return plan._broken(Random(seed ^ BROKEN))

    def _broken(self, random: Random) -> Plan:
        """Return the plan with a transaction without an end, or with damaged rows; or, as most are, as it was."""
        kind = random.random()
        if kind > 0.06 or self.calm or {fault.kind for fault in self.faults} & {STOPPED, DELETED}:
            return self
        broken = UNENDED if kind < 0.03 else DAMAGED
        return self._with((), (Fault(random.uniform(0.5, FEED_S + 4), broken, 0, random.random()),))

    def _through(self, random: Random) -> Plan:
        """Return the plan without what cannot be through the main topic, and with strays."""
        plan = replace(self, through=True, order="none", caps=None, stops=False, referred=False, losses=())
        if random.random() < 0.5:
            plan = replace(plan, commands=(), services=(), calm=False)
        if not plan.calm and plan.in_flight != CROWD:
            plan = plan._with(plan._more(random, ("FS", "FFS", "FFDS", "F", "FTS"), 5))
        strays = tuple(
            (random.uniform(0.5, FEED_S + 5), random.randrange(self.partitions), random.randrange(100))
            for _ in range(random.choice((0, 2, 6)))
        )
        return replace(plan, strays=strays)

    def _referred(self, random: Random) -> Plan:
        """Return the plan with records that wait by reference, and most of these with losses; or as it was."""
        odd = {fault.kind for fault in self.faults} & {STOPPED, DELETED}
        if random.random() >= 0.12 or odd or self.replayed or self.endless or self.order == "latest":
            return self
        losses = tuple(
            Fault(random.uniform(0.5, 9.0), random.choice(LOSSES), random.randrange(self.partitions), random.random())
            for _ in range(random.choice((0, 1, 2, 4)))
        )
        plan = replace(self, referred=True, losses=losses)
        return plan if self.in_flight == CROWD else plan._with(plan._more(random, ("FS", "FFS", "FFDS", "F", "BS"), 5))

    def _commanded(self, random: Random) -> Plan:
        """Return the plan with commands, or as it was."""
        odd = {fault.kind for fault in self.faults} & {STOPPED, DELETED}
        if self.seed < COMMANDED or odd or self.replayed or self.order == "latest" or self.endless:
            return self
        plan = replace(self, commands=tuple(random.uniform(0.5, 16.0) for _ in range(random.randint(5, 40))))
        if self.seed >= SERVED:
            return plan._served(random)
        if self.seed >= STOPS and self.order != "none":
            capped = self.order == "key" and self.seed % 3 == 0
            cap = Random(self.seed ^ CAPPED)
            caps = cap.choice((1, 2, 99)), cap.choice((1, 2, 3)), cap.choice(("block", "release", "release"))
            plan = replace(plan, caps=caps if capped else None, stops=not capped or caps[2] == "block")
            return plan if self.in_flight == CROWD else plan._with(self._more(random, ("R", "F", "FR", "S", "S"), 5))
        if self.seed >= LEVELS:
            return plan._levelled(random)
        if self.seed < HELD or self.outage is not None or random.random() < 0.3:
            return plan
        return plan._with(self._more(random, DEFERRED, random.randint(1, 4)))

    def _levelled(self, random: Random) -> Plan:
        """Return the plan with a circuit, if it may have one, and records that pause their partition."""
        plan = self
        if self.outage is None and self.order != "partition" and not self.others and self.in_flight != CROWD:
            at_s = random.uniform(0.3, 3.0)
            plan = replace(plan, outage=(at_s, at_s + random.uniform(0.0, 2.0)))
        if random.random() < 0.3:
            return plan
        return replace(plan._with(self._more(random, GATED, random.randint(1, 4))), ruled=True)

    def _served(self, random: Random) -> Plan:
        """Return the plan with services that are down for a while, one after the other or together, if it may be."""
        if self.order == "partition" or self.others or self.in_flight == CROWD:
            return self._levelled(random)
        services = tuple(
            (name, at_s := random.uniform(0.3, 3.0), at_s + random.uniform(0.5, 5.0))
            for name in random.choice((SERVICES[1:], SERVICES[1:2]))
        )
        plan = replace(self, services=services, probes=random.choice((1, 2, 3)))
        if calm := random.random() < 0.5:
            plan = replace(plan, records=(), repeats=(), faults=(), commands=(), losses=(), outage=None, rate="")
            plan = replace(plan, order="none", endless=False, batch=False, hot=False, calm=True, offsets_ms=(0.0,) * 3)
        scripts = ("S",) if calm else ("S", "S", "S", "FS", "F", "TS", "LS")
        return plan._with(plan._more(random, scripts, 20) + plan._more(random, ("FS", "FFS"), 5 * calm))

    def _come_back(self, random: Random) -> Plan:
        """Return the plan with rebalances while runs of an ordered handler go on; nobody is cut off meanwhile."""
        kept = tuple(fault for fault in self.faults if fault.kind in ("kill", "kill at step", "disk full", REFUSED))
        faults = tuple(Fault(random.uniform(3.0, 12.0), FORGOTTEN, 0, 0.0) for _ in range(random.randint(1, 3)))
        scripts = ("FFFH", "FFFH", "HHHH", "HFS", "S", "FS")
        return replace(self, faults=kept)._with(self._more(random, scripts, 6), faults)

    def _judged(self, random: Random) -> Plan:
        """Return the plan with records about which rules decide, or as it was."""
        if random.random() >= 0.15:
            return self
        return replace(self._with(self._more(random, VERDICTS, random.randint(3, 6))), ruled=True)

    def _called(self, seed: int) -> Plan:
        """Return the plan with deliveries that call the handler more than once, or as it was."""
        if (hot := Random(seed ^ HOT)).random() < 0.1:
            return replace(self, hot=True)._with(self._more(hot, TRIED, 4))
        if (batch := Random(seed ^ BATCH)).random() >= 0.1:
            return self
        at_s, number = batch.uniform(0.0, FEED_S - 0.1), batch.randrange(self.partitions)
        near = tuple((at_s + batch.uniform(0.0, 0.1), number, batch.choice(LISTED)) for _ in range(6))
        return replace(self, batch=True)._with(near)

    def _in_order(self, random: Random) -> Plan:
        """Return the plan with an order to keep; in some a topic refuses hand-offs, and the worker dies soon after."""
        by_key = self.batch or self.outage is not None
        plan = replace(self, order=random.choice(("key", "key", "key" if by_key else "partition")))
        if plan.changes or random.random() > 0.2:
            return plan
        at_s = random.uniform(0.3, 3.0)
        sent = sorted(
            (random.uniform(0.0, 3.0), 0, random.choice(("S", "S", "FS", "R", "DS", "TS"))) for _ in range(16)
        )
        size = random.uniform(0.5, 1.0)
        faults = (Fault(at_s, REFUSED, random.randrange(3), size), Fault(at_s + 2 * size, "kill", 0, random.random()))
        few = replace(plan, partitions=1, workers=1, repeats=(), others=(), replayed="", in_flight=8, order="key")
        return replace(few, records=tuple(sent), faults=faults)

    def _newest(self, random: Random) -> Plan:
        """Return the plan with keys of which the newest record counts, and some more of them."""
        if self.order != "none" or self.replayed:
            return self
        plan = replace(self, order="latest")
        return plan if self.in_flight == CROWD else plan._with(plan._more(random, ("S", "FS", "FFS", "FDS", "F"), 8))

    def _without_end(self) -> Plan:
        """Return the plan with a delay without end, where others wait for a record: so each comes to an end."""
        if self.order not in {"key", "partition"} or self.changes or self.replayed:
            return self

        def ending(sent: tuple[tuple[float, int, str], ...]) -> tuple[tuple[float, int, str], ...]:
            more = {**dict.fromkeys("TH", "S"), **dict.fromkeys("FLYNBGZ", "FFFFS")}
            return tuple((at_s, number, script + more.get(script[-1], "")) for at_s, number, script in sent)

        return replace(self, endless=True, records=ending(self.records), others=ending(self.others))

    def _widened(self, random: Random) -> Plan:
        """Return the plan with one more kind of story, or none; and maybe another handler, or another policy."""
        plan = replace(self, changes=random.random() < 0.1)
        if random.random() < 0.1:
            plan = replace(plan, others=plan._more(random, SCRIPTS, random.randint(1, 5)))
        kind = random.choice(("", "", "", "", "", "asking", "hung", "ours", "time", "calm", "rare"))
        if kind == "asking":
            return plan._with(plan._more(random, ASKING, 3))
        if kind == "hung":
            kinds = (OURS, OURS, "lossy", "broker down", "start", "terminate", REFUSED)
            return plan._with(plan._more(random, HUNG, 3), plan._faults(random, kinds))
        if kind == "ours":
            return plan._with((), plan._faults(random, (OURS,)))
        if kind == "time" and random.random() < 0.5:
            return plan._with((), plan._faults(random, (WRONG_TIME,)))
        if kind == "time":  # clocks that are off, a long way from the broker, and another owner while records wait
            off_ms = tuple(random.uniform(-7_200_000, 7_200_000) for _ in range(3))
            long = Fault(0.02, LONG_WAY, 0, random.random())
            end = Fault(random.uniform(4.0, 9.0), "terminate", 0, 1.0)
            plan = replace(plan, partitions=2, workers=max(2, plan.workers), offsets_ms=off_ms, faults=())
            return plan._with(plan._more(random, ("BS", "FBS", "BBS"), 4), (long, end))
        if kind == "rare" and random.random() < 0.5:
            gone = Fault(random.uniform(1.0, FEED_S), DELETED, 0, random.random())
            return replace(plan, faults=(gone,), repeats=())._with(plan._more(random, ("T", "TS", "DS"), 2))
        if kind == "rare":
            return replace(plan, replayed=random.choice(("FS", "FFS", "F", "R")))
        if kind == "calm":
            plan = replace(plan, faults=())
            match random.randrange(3):
                case 0:  # the lane has used its transactional id long ago
                    return plan._with(((FEED_S + IDLE_S, random.randrange(self.partitions), "FS"),))
                case 1:  # rows that time out, beside traffic
                    slow = tuple((random.uniform(0.0, 0.5), random.randrange(self.partitions), "FTS") for _ in range(3))
                    return plan._with(slow + plan._more(random, ("S",), 10))
                case _:
                    return plan._with((), plan._faults(random, sorted(DRAINS)))
        return plan

    def _paced(self, random: Random) -> Plan:
        """Return the plan with a rate, or an outage, or neither, as most have."""
        kind = random.random()
        if kind < 0.04 and not self.quiet:
            return replace(self, rate=random.choice(("2/s", "5/s", "300/m")))
        if kind > 0.1 or self.replayed or self.others or self.in_flight == CROWD:
            return self
        at_s = random.uniform(0.3, 3.0)
        calm = random.random() < 0.4
        scripts = ("S",) if calm else ("S", "S", "S", "FS", "F", "D", "TS", "LS")
        traffic = tuple(
            (at_s + random.uniform(-0.3, 6.0), random.randrange(self.partitions), random.choice(scripts))
            for _ in range(random.randint(10, 25))
        )
        if calm and random.random() < 0.7:
            traffic = (*traffic, (at_s - 0.2, random.randrange(self.partitions), "TS"))
        plan = replace(self, records=(), repeats=(), faults=()) if calm else self
        out = at_s, at_s + random.uniform(0.5, 6.0)
        return replace(plan, outage=out, probes=random.choice((1, 2, 3)))._with(traffic)

    def _more(self, random: Random, scripts: tuple[str, ...], count: int) -> tuple[tuple[float, int, str], ...]:
        return tuple(
            (random.uniform(0.0, FEED_S), random.randrange(self.partitions), random.choice(scripts))
            for _ in range(count)
        )

    def _faults(self, random: Random, kinds: Sequence[str]) -> tuple[Fault, ...]:
        return tuple(
            Fault(random.uniform(1.0, FAULTS_S), random.choice(kinds), random.randrange(3), random.random())
            for _ in range(random.randint(1, 3))
        )

    def _with(self, records: tuple[tuple[float, int, str], ...], faults: tuple[Fault, ...] = ()) -> Plan:
        """Return the plan with more records, and more faults."""
        sent = sorted(self.records + records)
        repeats = tuple((at_s, sent.index(self.records[which])) for at_s, which in self.repeats)
        struck = sorted(self.faults + faults, key=lambda fault: fault.at_s)
        return replace(self, records=tuple(sent), faults=tuple(struck), repeats=repeats)

    def _crowded(self, random: Random) -> Plan:
        """Return the plan with a crowd instead: one among many ends its worker, as a first delivery or as a due row.

        The others go well at once, or wait with it; more records come in each of the lives that follow.
        """
        rows, number, count = random.random() < 0.5, random.randrange(self.partitions), random.randint(6, 2 * CROWD)
        at, poison = random.randrange(count), ("F" if rows else "") + random.choice("XKK")
        healthy = ("FS", "FS", "FDS", "S") if rows else ("S", "D", "D", "FS")
        crowd = [
            (random.uniform(0.0, 0.4), number, poison if n == at else random.choice(healthy)) for n in range(count)
        ]
        traffic = [(random.uniform(1.0, 60.0), random.randrange(self.partitions), "S") for _ in range(20)]
        faults = self.faults if random.random() < 0.3 else ()
        return replace(self, records=tuple(sorted(crowd + traffic)), faults=faults, repeats=(), in_flight=CROWD)

    def key(self, event: int, offset: int) -> bytes | None:
        """Return the key of a record; `event` numbers those that are sent."""
        if self.order == "none":
            return b"k%d" % offset
        return None if event % 7 == 6 else b"k%d" % (event % 3)

    @property
    def publishes(self) -> bool:
        """Whether its handler publishes at each attempt: every other one does."""
        return self.seed % 2 == 0

    @property
    def per_delay(self) -> bool:
        """Whether each delay has a retry topic: in every third history."""
        return self.seed % 3 == 0

    @property
    def quiet(self) -> bool:
        """Whether nothing goes wrong but handlers that fail."""
        return self.only(frozenset())

    def only(self, kinds: frozenset[str]) -> bool:
        """Tell whether nothing goes wrong but handlers that fail, and faults of these kinds."""
        scripts = {letter for *_, script in self.records + self.others for letter in script}
        paced = bool(self.rate) or self.outage is not None or bool(self.commands) or bool(self.losses or self.services)
        return kinds.issuperset(fault.kind for fault in self.faults) and scripts.isdisjoint("XKH") and not paced

    @property
    def max_kills(self) -> int:
        """Workers that one record may end.

        One that had no mark yet, two until it is suspect, those that halve the records in flight, and three of which it
        is the only one. What goes wrong besides may take a mark back: a clean end does. And where each life has another
        order, a group of so many records may be others.
        """
        again = len(self.faults) + (self.changes and self.order != "none")
        return (3 + (self.in_flight - 1).bit_length() + 3) * (1 + again)

    @property
    def levels(self) -> bool:
        """Whether somebody forces circuits open, and has partitions go on that rules have paused."""
        return LEVELS <= self.seed < STOPS or self.seed >= SERVED

    @property
    def slow_letters(self) -> bool:
        """Whether it takes long until a lane knows all dead letters: some commands wait for that, and others pass."""
        return self.seed >= COMMANDED and self.seed % 16 == 10

    def is_out(self, at_s: float) -> bool:
        return self.outage is not None and self.outage[0] <= at_s < self.outage[1]

    def lacks(self, offset: int, at_s: float) -> str:
        """Return the name of the service that a record needs and that is down; empty: none is."""
        needs = SERVICES[offset % len(SERVICES)]
        return next((name for name, down_s, up_s in self.services if name == needs and down_s <= at_s < up_s), "")

    def without(self, at: int) -> Plan:
        """Return the plan without one of its records, and without what repeats it."""
        repeats = tuple((at_s, which - (which > at)) for at_s, which in self.repeats if which != at)
        return replace(self, records=self.records[:at] + self.records[at + 1 :], repeats=repeats)

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.partitions} partitions, {self.workers} workers, clocks {self.offsets_ms}"
        sent = [f"{at_s:6.2f} s  record on {number}: {script}" for at_s, number, script in self.records]
        sent += [f"{at_s:6.2f} s  the other handler's on {number}: {script}" for at_s, number, script in self.others]
        sent += [f"rate {self.rate}"] * bool(self.rate)
        sent += [f"{self.outage[0]:6.2f} s  outage until {self.outage[1]:.2f} s"] if self.outage else []
        sent += [f"{down_s:6.2f} s  {name} is down until {up_s:.2f} s" for name, down_s, up_s in self.services]
        sent += [f"replayed before: {self.replayed}"] * bool(self.replayed) + ["policies change"] * self.changes
        sent += (
            ["a delay without end"] * self.endless
            + ["deliveries try again in place"] * self.hot
            + ["handlers take lists"] * self.batch
            + ["sequences stop behind dead records"] * self.stops
            + [f"caps {self.caps}"] * bool(self.caps)
            + ["records wait by reference"] * self.referred
            + [f"what is due again goes through the main topic, with {len(self.strays)} strays"] * self.through
        )
        sent += [f"loss {loss}" for loss in self.losses]
        sent += [f"{len(self.commands)} commands"] * bool(self.commands)
        again = [f"{at_s:6.2f} s  once more, record {which}" for at_s, which in self.repeats]
        return "\n".join([head, *sent, *again, *map(str, self.faults)])
