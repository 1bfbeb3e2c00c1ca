"""One delivery: its state, and who owns and watches it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from retryapp.core.errors import RecordError
from retryapp.core.jobs import Level
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin, Record
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import Reference
from retryapp.engine.delivery.alone import AloneLock
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.handler.handler import Delivery, Handler
from retryapp.engine.handler.publish import Outbox
from retryapp.engine.lane.rounds import Rounds
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.engine.lane.turn import Turn, settling
from retryapp.ports import Clock, Random, Row

Outcome = Turn | int
"""What settles a record: a turn, or the offset after a record that succeeded at once and has nothing to publish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """What deliveries of one handler and partition share."""

    handler: Handler
    clock: Clock
    random: Random
    topic_id: str
    max_bytes: int
    kept_ms: int | None = None
    """How long the main topic keeps a record at least; None: no limit."""
    life: str = "?"
    """Unique id of this process; see `core.marks`."""
    worker: str = ""
    """Its name for people, as ``host/worker-1``."""
    lapsed: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Whether the group may have given the partition to another worker unnoticed."""
    pace: Pace = field(default_factory=Pace, compare=False)
    letters: SharedLetters | None = field(default=None, compare=False)
    """What a handler of dead letters shares with the lane that writes them; None: it is no such handler, or alone."""
    alone: AloneLock = field(default_factory=AloneLock, compare=False)
    """Held while records run that may have killed a worker; one for all partitions and handlers of this one."""
    rounds: Rounds = field(default_factory=Rounds, compare=False)
    """What can wait takes turns in these; the same for all."""


@dataclass(slots=True, kw_only=True, eq=False)
class Claim:
    """A due row that is being delivered. Its record is `Run.record`, on the changelog, at the origin's offset."""

    key: bytes
    """Key of the row in the pending table."""
    identity: bytes
    due_at_ms: int
    """0 of a held row: it may run at once."""
    size: int
    counted: tuple[int, int] = (0, 0)
    """Attempt and delivery that ended last, as the row says; 0 where that cannot be read."""
    begun: bool = False
    """A runner has it, or none will; before that the row waits, as one that is not claimed."""
    alone: bool = False
    """No other record is in its call, where the handler takes several."""
    cancelled: bool = False
    """It is not run: its retries were cancelled during its last run, or before this one has begun."""
    surplus: bool = False
    """The same: too many records wait for it."""
    on_hold: Row | None = None
    """The row as it waits on: somebody has held it before its run has begun."""
    changing: bool = False
    """A turn on its way changes the row: what came of the run, a copy, or a command."""
    expired: bool = False
    """Nobody has released it: its deadline is what is due."""
    arrived: bool = False
    """It is with the session: nothing has to be read or published before it may run."""
    sent: bool = False
    """The main topic has a copy for this delivery (`engine.partition.redelivery`)."""
    damage: RecordError | None = None
    """Why the row cannot be read; its bytes are the record's value."""
    reference: Reference | None = None
    """What the main topic must have: the row is without payload (`engine.partition.recall`)."""
    circuit: str = ""
    """Name of the circuit that has counted its last failure; empty: none."""
    metadata: RetryMetadata | None = None
    """What its headers say, where that is known: its record may have only the others. None: not decoded yet."""
    lost: RecordError | None = None
    """Why the main topic does not have it."""

    @property
    def runs(self) -> bool:
        """Whether its handler is called: else no outage is a reason to wait."""
        facts = self.damage, self.lost, self.cancelled, self.surplus, self.on_hold, self.expired
        return not any(facts)


class RunAbortedError(Exception):
    """The run ended without an outcome: its lane has ended, or it was not due. Its record will be delivered again."""


class GivenUpError(Exception):
    """The run ended as an orphan; its runner must end too."""


class RunOwner(Protocol):
    """Owns the records: a partition."""

    def alive(self, run: Run) -> bool:
        """Tell whether its outcome would still count."""

    def waits(self, run: Run) -> bool:
        """Tell whether an earlier run of its record goes on; this one is submitted again once that has ended."""

    def begun(self, run: Run) -> None:
        """Note that a runner has it: from here on `ended` will be called."""

    def ended(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        """Take the outcome, or None with the fault, if it is one of ours."""

    def broke(self, run: Run, fault: Exception) -> None:
        """Note that one of these has raised: the run is over without an outcome, and so is its session."""


@dataclass(slots=True, eq=False)
class Run:
    """One delivery: queued, begun, ended or given up."""

    owner: RunOwner
    context: DeliveryContext
    record: Record
    claim: Claim | None = None
    """The due row; None for a first delivery."""
    session: int = 0
    fence: int = 0
    """Of its session: see `Delivery.fence`."""
    sequence: bytes | None = None
    """Whose head it is, in an ordered handler (`engine.partition.sequences`)."""
    begun: bool = False
    """The handler was called."""
    aborted: bool = False
    overdue: bool = False
    given_up: bool = False
    """It ignored its cancellation; its outcome does not count."""
    on_end: Callable[[bool], None] | None = None
    """Called after its owner's `ended`: whether it has an outcome."""
    cancel: Callable[[Run], None] | None = None
    """Of its pool: ends the handler, and waits for that for a bounded time."""
    task: asyncio.Task[Any] | None = None
    deadline_s: float = 0.0
    hot_attempt: int = 1
    """Number of this try: a delivery may try again in place (`RetryPolicy.hot`)."""
    pauses: Level | None = None
    """Why a rule pauses its partition, at its end."""
    last_try: bool = False
    """Its partition drains: no other try follows."""
    pause: asyncio.Future[None] | None = None
    """Done once the wait for the next try is over."""
    shown: Record = field(init=False)
    """What the handler sees; known once it has begun."""
    metadata: RetryMetadata | None = None
    delivery: Delivery | None = None
    free: Callable[[str], str] | None = None
    """Frees a text of what is masked in all records of its call, which an error may quote; None: it is the only one."""
    outbox: Outbox | None = None
    """Where its handler publishes; None where the function does not take a delivery."""
    started_ms: int | None = None
    started_s: float = 0.0

    def __post_init__(self) -> None:
        self.shown = self.record

    @property
    def origin(self) -> Origin:
        """Where its record was delivered first."""
        if self.metadata is not None:
            return self.metadata.origin
        record = self.record
        return Origin(record.topic, self.context.topic_id, record.partition, record.offset)

    @property
    def place(self) -> bytes:
        """What tells its record from the others of the partition, as a first delivery and as a row: its identity."""
        return identity_of(self.origin) if self.claim is None else self.claim.identity

    @property
    def circuit(self) -> str:
        """Name of the circuit that has counted its last failure; empty: none."""
        return "" if self.claim is None else self.claim.circuit

    @property
    def alone(self) -> bool:
        """Whether no other record may be in its call: it took too long, or may have killed a worker."""
        return self.on_end is not None or (self.claim is not None and self.claim.alone)

    def leave(self) -> list[Run]:
        """Return the runs of records that have no outcome yet: itself, unless it is one of several."""
        return [self]

    def end(self, outcome: Outcome | None, fault: Exception | None = None) -> None:
        """Tell its owner what it has come to: None with the fault, if it is one of ours."""
        try:
            self.owner.ended(self, outcome, fault)
        except Exception as exc:  # noqa: BLE001 - else its runner would end, and its record never
            self.owner.broke(self, exc)

    def settle(self, *, rows: tuple[Row, ...] = (), **changes: Any) -> Turn:
        """Return a turn that settles the record: it moves the offset, or takes the row away unless it has a new one."""
        if self.claim is None:
            return settling(self.record, rows=rows, **changes)
        return Turn(rows=rows or (Row(self.claim.identity, None, "?"),), claim=self.claim.key, **changes)

    def try_again(self) -> None:
        """Begin another try: what the last one has published is dropped, and what it still publishes is too late."""
        self.hot_attempt += 1
        self.delivery = self.outbox = None

    def end_tries(self) -> None:
        """Have the present try be the last one; end a wait for another."""
        self.last_try = True
        self.end_pause()

    def end_pause(self) -> None:
        """Go on with the next try, if it is waited for."""
        if self.pause is not None and not self.pause.done():
            self.pause.set_result(None)

    def abort(self) -> None:
        """Cancel the handler; its outcome will be ignored."""
        if not self.aborted:
            self.aborted = True
            if self.task is not None and self.cancel is not None:
                self.cancel(self)
