"""What happens in a history: records, faults and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from simulation.faults import STEPPED, Fault, step_ms
from simulation.scripts import SERVICES

FEED_S: Final = 5.0
COMMANDED: Final = 1_000_000
"""From this seed on histories have commands, but where that is no use."""
HELD: Final = 2_000_000
"""From this seed on they hold and release records, too."""
LEVELS: Final = 3_000_000
"""From this seed on somebody also forces circuits open, and rules pause partitions."""
STOPS: Final = 4_000_000
"""From this seed on handlers keep an order, and a sequence stops behind a dead record."""
SERVED: Final = 5_000_000
"""From this seed on records need services, which are down for a while and have circuits with names."""
THROUGH: Final = 6_000_000
"""From this seed on what is due again goes through the main topic; from twice this on in every fourth history."""
MOVED: Final = 14_000_000
"""From this seed on somebody sets offsets back or makes changelogs again, capacities bind, and there are commands where
the newest counts or a delay has no end."""
MODES: Final = 16_000_000
"""From this seed on few retries may run at once, circuits with names have rates, rules have conditions, and handlers
ask for instants."""
LETTERS: Final = 18_000_000
"""From this seed on dead letters have a handler, or there are none: what is dead leaves an event."""
MIXED: Final = 20_000_000
"""From this seed on settings and faults meet that no other range has together; else as from `MODES` on."""
EXPIRING: Final = 22_000_000
"""From this seed on records expire, handlers of dead letters have policies of their own, and all modes have no
dead-letter topic; every fourth history is as from `LETTERS` on, and others as from `MODES` on."""
_LATER: Final = MOVED, MODES, LETTERS, MIXED, EXPIRING
RANGES: Final = (0, COMMANDED, HELD, LEVELS, STOPS, SERVED, THROUGH, 2 * THROUGH, *_LATER)
"""First seeds of the ranges, of a million at least, in which histories have different things."""
RANGE_SEEDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in a history."""

    seed: int = 1
    partitions: int = 1
    workers: int = 1
    offsets_ms: tuple[float, ...] = (0.0, 0.0, 0.0)
    """What the clocks of the machines are wrong by."""
    records: tuple[tuple[float, int, str], ...] = ()
    """When, on which partition, with which script."""
    faults: tuple[Fault, ...] = ()
    repeats: tuple[tuple[float, int], ...] = ()
    """When, and which of the records, its producer sends again; if any, the handler deduplicates."""
    in_flight: int = 4
    """The handler's `max_in_flight`."""
    others: tuple[tuple[float, int, str], ...] = ()
    """As `records`, of a second handler."""
    changes: bool = False
    """Every other life has another policy."""
    shorter: bool = False
    """That one has an attempt less."""
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
    service_rate: str = ""
    """The `rate_limit` of these circuits; empty: none."""
    service_runs: int | None = None
    """Their `max_concurrent`."""
    lined: bool = False
    """Nothing but that keeps rows waiting."""
    max_concurrent: int | None = None
    """Runs of retries at once in a worker; None: as many as of first deliveries."""
    conditions: bool = False
    """The rules of the policies have conditions."""
    forgets_s: float | None = None
    """How long changelogs keep tombstones; None: longer than the history."""
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
    bounds: tuple[tuple[str, float], ...] = ()
    """Capacities that are small, by name; see `simulation.bounds`."""
    letters: tuple[str, ...] = ()
    """Scripts of the handler of dead letters, one after the other by their offsets; empty: they have none."""
    named: tuple[str, ...] = ()
    """The same of a handler of what a rule sends to a dead-letter topic of its own; empty: it has none."""
    elapsed_ms: int | None = None
    """How long after a first failure a wait may end; None: there is no deadline."""
    letters_policy: frozenset[str] = frozenset()
    """What the policies of the handlers of dead letters have: they try again in place, have rules, or change."""
    odd_letters: tuple[tuple[float, int, str], ...] = ()
    """When, and on which partition of the dead-letter topic, somebody writes one that is not as others; and how."""
    drop: bool = False
    """There is no dead-letter topic."""
    replayed: str = ""
    """Script of a record that waits when the history begins: an older build had replayed it. Empty: none does."""

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

    @property
    def steps_of_scripts(self) -> frozenset[str]:
        """All that handlers do."""
        return frozenset().union(*self.letters, *self.named, *(script for *_, script in self.records + self.others))

    def only(self, kinds: frozenset[str]) -> bool:
        """Tell whether nothing goes wrong but handlers that fail, and faults of these kinds."""
        paced = bool(self.rate) or self.outage is not None or bool(self.commands) or bool(self.losses or self.services)
        paced = paced or self.max_concurrent is not None or not self.steps_of_scripts.isdisjoint("XKH")
        return kinds.issuperset(fault.kind for fault in self.faults) and not paced

    def max_kills(self, ahead: int) -> int:
        """Workers that one record may end; `ahead`: those between the committed offset and it, at most.

        One that had no mark yet, two until it is suspect, those that halve the records in flight, and three of which it
        is the only one. What goes wrong besides may take a mark back: a clean end does. And where each life has another
        order, a group of so many records may be others. What is on its way into a transaction is not in flight: where
        more are before it than are suspect at first, it ends one more before each time that these are doubled.
        """
        again = len(self.faults) + (self.changes and self.order != "none")
        halved = max(self.in_flight - 1, 1).bit_length()  # what is on its way into a transaction counts, too
        doubled = (ahead // self.in_flight + 1).bit_length() - 1
        return (3 + halved + 3 + doubled) * (1 + again)

    @property
    def steps(self) -> list[tuple[float, float]]:
        """When the broker's clock is set, and by how many milliseconds."""
        return [(fault.at_s, step_ms(fault)) for fault in self.faults if fault.kind == STEPPED]

    @property
    def levels(self) -> bool:
        """Whether somebody forces circuits open, and has partitions go on that rules have paused."""
        return LEVELS <= self.seed < STOPS or self.seed >= SERVED

    @property
    def slow_letters(self) -> bool:
        """Whether it takes long until a lane knows all dead letters: some commands wait for that, and others pass."""
        return self.seed >= COMMANDED and self.seed % (4 if self.letters else 16) == 2 + 8 * (not self.letters)

    @property
    def of_letters(self) -> Plan:
        """What concerns the handler of dead letters: settings of the other one are not its own."""
        plain = replace(self, repeats=(), order="none", caps=None, stops=False, endless=False, ruled=False, hot=False)
        plain = replace(plain, batch=False, rate="", outage=None, services=(), calm=False, referred=False, losses=())
        plain = replace(plain, through=False, strays=(), replayed="", changes="changes" in self.letters_policy)
        plain = replace(plain, conditions=False)
        return replace(plain, hot="hot" in self.letters_policy, ruled="ruled" in self.letters_policy)

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
        sent += [f"{self.max_concurrent} retries at once"] * bool(self.max_concurrent)
        sent += [f"rate {self.service_rate} of each service"] * bool(self.service_rate)
        sent += [f"{self.service_runs} retries of each service at once"] * bool(self.service_runs)
        sent += [f"{self.outage[0]:6.2f} s  outage until {self.outage[1]:.2f} s"] if self.outage else []
        sent += [f"{down_s:6.2f} s  {name} is down until {up_s:.2f} s" for name, down_s, up_s in self.services]
        sent += [f"replayed before: {self.replayed}"] * bool(self.replayed) + ["policies change"] * self.changes
        sent += (
            ["a delay without end"] * self.endless
            + ["one is shorter"] * self.shorter
            + ["deliveries try again in place"] * self.hot
            + ["handlers take lists"] * self.batch
            + ["rules have conditions"] * self.conditions
            + [f"tombstones expire after {self.forgets_s} s"] * bool(self.forgets_s)
            + ["sequences stop behind dead records"] * self.stops
            + [f"caps {self.caps}"] * bool(self.caps)
            + ["records wait by reference"] * self.referred
            + [f"letters are handled: {' '.join(self.letters)}"] * bool(self.letters)
            + [f"letters of a rule, too: {' '.join(self.named)}"] * bool(self.named)
            + ["there is no dead-letter topic"] * self.drop
            + ["what is due again goes through the main topic"] * self.through
            + [f"{len(self.strays)} strays on the main topic"] * bool(self.strays)
        )
        sent += [f"records expire after {self.elapsed_ms} ms"] * bool(self.elapsed_ms)
        sent += [f"policies of letters: {' '.join(sorted(self.letters_policy))}"] * bool(self.letters_policy)
        sent += [f"{at_s:6.2f} s  a letter on {number}: {kind}" for at_s, number, kind in self.odd_letters]
        sent += [f"{name} is {size:g} at most" for name, size in self.bounds]
        sent += [f"loss {loss}" for loss in self.losses]
        sent += [f"{len(self.commands)} commands"] * bool(self.commands)
        again = [f"{at_s:6.2f} s  once more, record {which}" for at_s, which in self.repeats]
        return "\n".join([head, *sent, *again, *map(str, self.faults)])
