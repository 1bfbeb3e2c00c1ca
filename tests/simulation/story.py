"""What a history shows of one input record, for those who judge it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from simulation.lives import LIVES, SPAN
from simulation.plan import Plan

FIRST: Final = -1
"""In place of an attempt: the first delivery, whether it spent one or not."""
Origin = tuple[int, int]
"""Partition and offset of the first delivery."""


FINE: Final = "SDG"
"""Steps of a script that go well, G at the second try of a delivery."""


class Topics(NamedTuple):
    """Names of the handler's topics."""

    main: str
    retry: str
    """With a topic for each delay: what their names begin with."""
    dlq: str
    events: str
    changelog: str
    seen: str = ""
    results: str = ""
    """The handler publishes to it at each attempt."""

    @classmethod
    def of(cls, topology: HandlerTopology, *, results: str) -> Topics:
        ours = f"{topology.prefix}.retry", topology.dlq, topology.events, topology.pending_changelog
        return cls(topology.main, *ours, topology.seen_changelog, results)


class Violation(Exception):  # noqa: N818 - what a history shows, not a fault of the oracle
    """An invariant does not hold."""


class Call(NamedTuple):
    """A handler call that has ended."""

    worker: str
    started_ms: float
    ended_ms: float
    fine: bool
    in_place: bool = False
    """It is another try of the delivery of the call before it."""


@dataclass(slots=True, eq=False)
class Going:
    """A handler call that goes on."""

    worker: str
    again: bool = False
    """It is a retry."""
    service: str = ""
    """Its row waited for this one; empty: for none."""
    cancelled_ms: float = inf
    """When it was told to stop."""


@dataclass(slots=True)
class Result:
    """What became of a history."""

    plan: Plan
    violation: str | None
    digest: str
    """Of everything that handlers and committed readers saw, with times: the same plan gives the same."""
    reached: Counter[str] = field(default_factory=Counter)
    """Which faults and states it came to."""
    steps: int = 0
    repeated: int = 0


class Opening(NamedTuple):
    """The opening of a lane in whose session a handler is called."""

    worker: str
    fenced_ms: float
    """Whatever was visible by then, it has read."""
    commands: int = 0
    """Where the control topic ended when its session began."""


@dataclass(slots=True)
class Story:
    """What is known of one input record."""

    record: Record
    script: str
    sent_ms: float = 0.0
    calls: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """By attempt."""
    going: list[Going] = field(default_factory=list)
    begun: Counter[int] = field(default_factory=Counter)
    ahead: int = 0
    """Records between the committed offset and it when its first delivery began, at most."""
    copies: Counter[int] = field(default_factory=Counter)
    """Visible copies on the retry topic, by the delivery that ended."""
    stopped: bool = False
    """A call that would have ended in time was told to stop, or its service was down: its script does not say how it
    ends."""
    overdue: set[int] = field(default_factory=set)
    """Attempts whose publications were taken too late, after a call that ended in time."""
    fates: list[str] = field(default_factory=list)
    """Visible ends: `dead`, `skipped` or `done` (after a failure)."""
    results: int = 0
    """Visible records that its handler has published."""
    rows: set[int] = field(default_factory=set)
    """Due times of its rows in the changelog, former ones too."""
    dues: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Due times of visible copies, by the delivery that ended."""
    settled_ms: dict[int, float] = field(default_factory=dict)
    """When an outcome of an attempt was visible first; of all that follow, at 0, when its end was."""
    began_ms: dict[tuple[Opening, bool], float] = field(default_factory=dict)
    """When it began last, by opening, and whether as a row."""
    outcome_ms: float = -inf
    """When an outcome was visible last."""
    taken_in: tuple[float, Opening] | None = None
    """When its first delivery began, and in whose session."""
    runs: set[tuple[int, int | None, str, float]] = field(default_factory=set)
    """Attempts that have begun, with their due times, by worker and opening."""
    held: bool = False
    """It had to wait, undelivered, for earlier records of its sequence."""
    seen: set[tuple[int, int | None]] = field(default_factory=set)
    """The same, whoever began them."""
    spent: set[int] = field(default_factory=set)
    """Attempts of which a call ended when failures were not free, or did not fail by itself."""
    free: int = 0
    """Deliveries that spent no attempt."""
    gated: int = 0
    """Calls that have paused its partition."""
    replays: int = 0
    renewed: int = 0
    """How often an edit has asked for a new idempotency key."""
    hurried: bool = False
    """Somebody has asked for another due time."""
    cancelling: bool = False
    """Somebody has asked that it is not tried again."""
    cancelled_ms: float = inf
    """When it was visible that this is obeyed."""
    held_ms: float = inf
    """When it was visible that it is held."""
    holding: bool = False
    """It was claimed when it was held. A release counts for the claim at once: it is durable, though not obeyed yet."""
    holds: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of its holds, as far as readers see."""
    freed_ms: float = -inf
    """When it was visible last that a hold has ended."""
    deferred: dict[int, int] = field(default_factory=dict)
    """Deadlines of copies that wait for a release, by the delivery that ended."""
    freed: set[int] = field(default_factory=set)
    """Deliveries whose release was obeyed."""
    gone: bool = False
    """Its topic was deleted before it had an outcome, or it has the name of another: nothing need come of it."""
    again: int = 0
    """How often somebody has set the offset back so that it comes again."""
    again_ms: float = -inf
    """When that was done last."""
    had_stopped: bool = False
    """Its sequence had stopped behind it by then: it stays dead, whatever somebody decides, or runs again."""
    anew_ms: float = -inf
    """The same, of the last time after which its first delivery has begun."""
    was_results: int = 0
    """Its results by then."""
    ended_ms: float = -inf
    """When an end was visible last."""
    first_ms: float = -inf
    """When an outcome of its first delivery was."""
    first: Origin | None = None
    """The record that this one repeats; None: it is the first of its event."""
    sent: Record = field(init=False)
    """As it is on the main topic: a command may have edited it, and the letter of a damaged row hides its key."""

    def __post_init__(self) -> None:
        self.sent = self.record

    @property
    def sent_key(self) -> bytes | None:
        return self.sent.key

    def sequence(self, order: str) -> bytes | None:
        """Return the sequence of the record where an order is kept; None: it has none."""
        return {"none": None, "key": self.record.key, "latest": self.record.key}.get(order, b"")

    def copied(self, origin: Origin, delivery: int, ours: Mapping[str, bytes]) -> None:
        """Take a visible copy on the retry topic."""
        self.copies[delivery] += 1
        self.dues[delivery].add(int(ours["retry-due-ms"]))
        self.once(origin, self.copies[delivery], f"copy of delivery {delivery}")

    def once(self, origin: Origin, count: int, what: str, invariant: str = "I1") -> None:
        """Judge how often something is there."""
        must(count <= 1 + self.again, invariant, origin, f"{count} visible copies of a {what}")


def named_wrongly(stories: dict[Origin, Story], origin: Origin) -> Story | None:
    """Take a name of a former main topic that a worker may have given a record of the next one; None: there is none.

    The record comes once more, under its own name.
    """
    for life in range(1, LIVES):
        if (own := stories.get((origin[0], origin[1] + SPAN * life))) is not None:
            return stories.setdefault(origin, Story(own.record, own.script, own.sent_ms, gone=True))
    return None


def step(script: str, attempt: int) -> str:
    """Return what a script says for an attempt; its last letter goes on."""
    return script[min(attempt, len(script)) - 1]


def must(holds: bool, invariant: str, origin: Origin, what: str) -> None:
    """Judge a record, or a partition at offset -1.

    Raises:
        Violation: it does not hold.
    """
    if not holds:
        raise Violation(f"{invariant} {origin[0]}/{origin[1]}: {what}")
