"""Handlers that misbehave, one delivery, a lane with doubles all round, and what tests ask of records and turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from retryapp.core.control import Command, Verb
from retryapp.core.headers import decode_metadata
from retryapp.core.hops import Outgoing
from retryapp.core.jobs import HandlerCommand, HandlerVerb, JobCommand
from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.lifecycle import decode_event
from retryapp.core.metadata import RetryMetadata
from retryapp.core.policy import RetryPolicy
from retryapp.core.publication import Publication
from retryapp.core.record import Headers, Record
from retryapp.core.row_keys import IDENTITY_AT, parse_row_key, row_key
from retryapp.core.rows import PendingRow, decode_row, row_due_ms
from retryapp.core.topology import HandlerTopology
from retryapp.engine.delivery.pool import CANCEL_WAIT_S, DeliveryPool
from retryapp.engine.delivery.run import Claim, DeliveryContext, Outcome, Run, RunAbortedError
from retryapp.engine.handler.handler import Handler, HandlerFunction
from retryapp.engine.handler.orphans import Orphans
from retryapp.engine.lane.lane import Lane, LaneLimits
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.ports import Event, Observation, Row, TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition, RecordingObserver, ScriptedRandom, Step, VirtualClock

MAIN = TopicPartition("orders", 0)
RETRY = TopicPartition("app.orders.retry", 0)
DLQ, EVENTS = "app.orders.dlq", "app.orders.events"
SITE = LaneSite(
    name="app.orders.0", group="app", partition=0, sources=(MAIN,), main=MAIN,
    changelog=TopicPartition("app.orders.pending.changelog", 0), dlqs=[TopicPartition(DLQ, 0)],
)  # fmt: skip
CONTROL, CHANGELOG = TopicPartition("app.orders.control", 0), SITE.changelog
OPENING = [Step.HOLD, Step.PROVE, Step.FENCE, Step.PROVE, Step.COMMITTED, Step.RECOVER, Step.RELEASE]
GIVEN_UP = [Step.HOLD, Step.CLOSE]
BACKOFF_MS = 100
TOLD = count(1)
USER_HEADERS = (("trace", b"1"), ("trace", None))


class BankDownError(Exception):
    """A failure that goes away."""


async def down(_value: bytes) -> None:
    raise BankDownError


async def fine(_value: Any) -> None:
    """Do nothing."""


def failing(error: BaseException) -> Callable[[Any], Any]:

    async def handler(_value: Any) -> None:
        raise error

    return handler


_clocks: WeakKeyDictionary[asyncio.AbstractEventLoop, VirtualClock] = WeakKeyDictionary()


def events_of(partition: MemoryPartition, *kinds: type) -> list[Any]:
    """Return the events of a handler that are of these kinds, in order."""
    found = (decode_event(record.value or b"") for record in partition.records(partition.handler.topology.events))
    return [event for event in found if isinstance(event, kinds)]


Function = TypeVar("Function", bound=HandlerFunction)


@contextlib.asynccontextmanager
async def serving(
    function: Function, policy: RetryPolicy | str, *values: bytes | None, key: bytes | None = None,
    headers: Headers = (), **options: Any,
) -> AsyncIterator[tuple[MemoryPartition, Function]]:  # fmt: skip
    """Run a partition that was sent these records, or none yet; options are those of the partition."""
    async with MemoryPartition(function, policy, **options) as orders:
        await orders.send(*values, key=key, headers=headers)
        yield orders, function


def running_clock() -> VirtualClock:
    """Return the clock of the test, which also drives the timers of its loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return VirtualClock()
    if loop not in _clocks:
        _clocks[loop] = VirtualClock()
        _clocks[loop].drive(loop)
    return _clocks[loop]


def make_context(
    function: HandlerFunction,
    policy: RetryPolicy | str = "1s 10s",
    *,
    rng: float = 0.5,
    max_bytes: int = 1_048_576,
    **options: Any,
) -> DeliveryContext:
    """Make a context: function, schedule or policy, numbers for the jitter, fields of the handler."""
    chosen = RetryPolicy(policy) if isinstance(policy, str) else policy
    topology = HandlerTopology("app", "orders", delays_ms=chosen.delays_ms, dead_letters=chosen.dead_letters)
    return DeliveryContext(
        handler=Handler(function=function, topology=topology, policy=chosen, **options),
        clock=running_clock(),
        random=ScriptedRandom(rng),
        topic_id="kq8G0bTz",
        max_bytes=max_bytes,
    )


def make_record(
    value: bytes | None = b"v", offset: int = 42, headers: Headers = (), key: bytes | None = b"k"
) -> Record:
    return Record("orders", 0, offset, 1_600_000_000_000, key, value, headers)


class Owner:
    """Keeps the outcome of a run, and counts its ends."""

    def __init__(self) -> None:
        self.ends = 0
        self.outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

    def alive(self, _run: Run) -> bool:
        return True

    def waits(self, _run: Run) -> bool:
        return False

    def begun(self, _run: Run) -> None:
        """Do nothing."""

    def ended(self, _run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        self.ends += 1
        if self.outcome.done():
            return
        if fault is not None:
            self.outcome.set_exception(fault)
        else:
            self.outcome.set_result(outcome)

    def broke(self, run: Run, fault: Exception) -> None:
        self.ended(run, None, fault)


Due = tuple[Claim, Record]
"""A due row, as it is delivered."""


def claimed(context: DeliveryContext, identity: bytes, row: bytes) -> Due:
    return Scheduler(context, 0, None, lambda _rows: None)._claim(row_key(row_due_ms(row), identity), row)


def again(context: DeliveryContext, turn: Turn) -> Due:
    """Return the row that a turn leaves, as it is claimed once it is due."""
    (row,) = turn.rows
    assert row.value is not None
    return claimed(context, row.identity, row.value)


async def deliver_once(
    context: DeliveryContext,
    record: Record | Due,
    *,
    on_run: Callable[[Run], None] | None = None,
    stop_wait_s: float = CANCEL_WAIT_S,
) -> Turn:
    """Return the turn that settles a record or row; `on_run` gets the run before it begins, to abort it."""
    owner, pool = Owner(), DeliveryPool(1, "deliver-once")
    claim, record = record if isinstance(record, tuple) else (None, record)
    run = Run(owner, context, record, claim=claim)
    if on_run is not None:
        on_run(run)
    pool.start()
    pool.submit(run)
    try:
        outcome = await owner.outcome
    finally:
        await pool.stop(stop_wait_s)
    if outcome is None:
        raise RunAbortedError
    if isinstance(outcome, int):
        return Turn(source=TopicPartition(record.topic, record.partition), next_offset=outcome)
    return outcome


class Settling(Protocol):
    """A partition, or what has some."""

    async def settle(self) -> None: ...

    async def advance(self, ms: int) -> None: ...


def lose_the_end(transport: MemoryLaneTransport, end: int) -> None:
    """Have the main topic end earlier, as after an election of a leader that lacks the last records."""
    log = transport.broker.logs[MAIN]
    del log.entries[end:]
    log.end = end


async def pass_time(partition: Settling, ms: int, step_ms: int = 200) -> None:
    """Let time pass in small steps, as it does."""
    for _ in range(ms // step_ms):
        await partition.advance(step_ms)


class Gate:
    """A handler whose runs wait until the test lets them go."""

    def __init__(self) -> None:
        self.running: dict[bytes, asyncio.Future[None]] = {}
        self.started: list[bytes] = []
        self.done: list[bytes] = []
        self.most = 0
        """So many ran at once."""
        self.open = False

    async def __call__(self, value: bytes) -> None:
        self.started.append(value)
        self.running[value] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.running))
        try:
            if not self.open:
                await self.running[value]
            self.done.append(value)
        finally:
            del self.running[value]

    def let_all(self) -> None:
        """Let all runs end, and those that come."""
        self.open = True
        for run in self.running.values():
            run.set_result(None)

    def let(self, value: bytes, error: Exception | None = None) -> None:
        if error is None:
            self.running[value].set_result(None)
        else:
            self.running[value].set_exception(error)

    async def end(self, partition: Settling, value: bytes, error: Exception | None = None) -> None:
        """Let a run end, and what follows from that."""
        self.let(value, error)
        await partition.settle()

    async def end_all(self, partition: MemoryPartition) -> None:
        """Let all runs end, and those that come, until nothing is left to do."""
        self.let_all()
        await partition.to_rest()


class Refusing:
    """Makes a broker refuse values that begin with something, on topics that end with something."""

    def __init__(self, transport: MemoryLaneTransport, *prefixes: bytes) -> None:
        self.prefixes = prefixes
        self.topics = ""
        self.tries: list[int] = []
        self._clock = transport.clock
        self._produce = transport.broker.produce
        transport.broker.produce = self  # type: ignore[method-assign,assignment]

    def __call__(self, name: str, epoch: int, records: Sequence[Outgoing]) -> list[int]:
        """Refuse, or append."""
        for out in records:
            if self.prefixes and (out.value or b"").startswith(self.prefixes) and out.topic.endswith(self.topics):
                self.tries.append(self._clock.wall_ms())
                if isinstance(out, Publication):  # as the client notes it
                    out.destination.refuse("denied")
                raise HandOffRefusedError(out.topic, "MessageSizeTooLargeError", len(out.value or b""))
        return self._produce(name, epoch, records)


class Stubborn:
    """A handler that swallows its cancellation until it is let go, and then fails; `b"fine"` does not wait."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.over = asyncio.Event()

    async def __call__(self, value: bytes) -> None:
        self.started.append(value)
        while value != b"fine" and not self.over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.over.wait()
        if value != b"fine":
            raise BankDownError


def the(turn: Turn) -> tuple[Outgoing, RetryMetadata]:
    """Return the one record that a turn publishes, and its metadata."""
    (out,) = turn.publishes
    metadata = decode_metadata(out.headers)
    assert metadata is not None
    return out, metadata


def offsets(records: list[Record]) -> list[int]:
    found = []
    for record in records:
        metadata = decode_metadata(record.headers)
        assert metadata is not None
        found.append(metadata.origin.offset)
    return found


def problems(partition: MemoryPartition) -> list[str]:
    return [o.message or "" for o in partition.observer.of(Event.FAILED)]


def failures(partition: MemoryPartition) -> list[str]:
    """Return why the lane has closed, in order."""
    return [o.message or "" for o in partition.observer.of(Event.LANE_FAILED)]


def rows(partition: MemoryPartition) -> list[PendingRow]:
    """Return what waits, in the order in which it is due."""
    table = partition.transport.pending
    return [] if table is None else [decode_row(value) for _, value in table.page(None, 100)]


def damage(partition: MemoryPartition, offset: int = 0, *, version: bool = False) -> None:
    """Take a byte out of the row of a record, or only change its version."""
    table = partition.transport.pending
    assert table is not None
    keyed = {parse_row_key(key).origin_offset: (key, value) for key, value in table.page(None, 99)}
    key, value = keyed[offset]
    bad = b"\0" + value[1:] if version else value[:-40] + value[-39:]
    table.write([Row(key[IDENTITY_AT:], bad, "?")], None)


def crowd(orphans: Orphans, count: int | None = None) -> list[asyncio.Future[Any]]:
    """Return so many runs that a handler has left behind; by default as many as it may."""
    ends = [asyncio.get_running_loop().create_future() for _ in range(orphans.limit if count is None else count)]
    for end in ends:
        orphans.adopt(end)
    return ends


async def settle() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def about(name: str, verb: Verb, offset: int, **more: Any) -> Command:
    """Return a command about a record of the main topic."""
    return Command(id=name, verb=verb, failure_id=f"app/orders@kq8G0bTz/0/{offset}", **more)


def post(partition: MemoryPartition, *commands: Command | HandlerCommand | JobCommand) -> None:
    """Put commands on the control topic, and wait for nothing."""
    for command in commands:
        sent = command.to_record(partition.handler.topology.control, partition.engine.partition)
        partition.transport.append(TopicPartition(sent.topic, sent.partition), sent.key, sent.value)


async def tell(partition: MemoryPartition, verb: HandlerVerb, **words: Any) -> dict[str, Any]:
    """Send a command about the handler; return its event."""
    return await partition.obey(HandlerCommand(id=f"told-{next(TOLD)}", verb=verb, **words))


async def reopen(partition: MemoryPartition) -> None:
    """Make the lane give up and open again."""
    partition.lane.fail(RuntimeError("lane"))
    await partition.settle()
    await partition.advance(100)


def resumed_before(partition: MemoryPartition, killed: str) -> list[Any]:
    """Have a resume on the control topic just before a pause, and its worker killed at a step; return that step."""
    post(partition, HandlerCommand(id="early", verb=HandlerVerb.RESUME))
    if killed == "at the look":
        return [partition.transport.pause("bounds")]  # type: ignore[arg-type]
    durable, after = killed != "after the look", killed != "after the pause"
    return [partition.transport.pause(Step.COMMIT, after=after, durable=durable)] if killed else []


def scheduler_of(partition: MemoryPartition) -> Scheduler:
    """Return that of the present session."""
    assert partition.engine.session is not None
    return partition.engine.session.scheduler


def held(partition: MemoryPartition) -> int:
    return partition.waiting.get("held", 0)


def committed(partition: MemoryPartition) -> int:
    return partition.transport.offsets.get(MAIN, 0)


class Rig:
    """A lane with doubles all round; notes what it is told."""

    def __init__(self, clock: VirtualClock, limits: LaneLimits | None = None) -> None:
        self.clock = clock
        self.transport = MemoryLaneTransport(clock)
        self.transport.attach(SITE, "life")
        self.transport.broker.logs[MAIN].end = 1_000
        self.transport.broker.notes[MAIN] = "r0:life"  # its own: there is nothing to write before it opens
        self.observer = RecordingObserver()
        self.opened: list[tuple[int, Mapping[TopicPartition, int]]] = []
        self.closed = 0
        self.rooms = 0
        self.settled: list[tuple[str, bool, tuple[int, ...]]] = []
        self.lane = Lane(
            name="app.orders.0",
            handler="orders",
            partition=0,
            transport=self.transport,
            clock=clock,
            observer=self.observer,
            on_open=lambda session, starts: self.opened.append((session, starts)),
            on_close=self._on_close,
            on_applied=self._on_applied,
            limits=limits,
        )
        self.task: asyncio.Task[None] | None = None

    settle = staticmethod(settle)

    def _on_close(self) -> None:
        self.closed += 1

    def _on_applied(self, _turns: list[Turn]) -> None:
        self.rooms += 1

    async def start(self) -> Rig:
        """Run the lane until it is open or waits."""
        self.task = asyncio.create_task(self.lane.run())
        await self.settle()
        return self

    @property
    def state(self) -> str:
        """The lane's state, as text: mypy would narrow an enum member."""
        return self.lane.state.value

    @property
    def done(self) -> bool:
        return self.task is not None and self.task.done()

    async def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        await self.settle()

    def turn(self, name: str, next_offset: int = -1, *, publishes: int = 0, size: int = 1, **more: object) -> Turn:
        out = tuple(Outgoing(RETRY.topic, 0, None, name.encode() + b"x" * size, ()) for _ in range(publishes))
        return Turn(
            source=MAIN if next_offset >= 0 else None,
            next_offset=next_offset,
            publishes=out,
            observations=(Observation(event=Event.SCHEDULED, handler="orders", message=name),),
            on_settled=lambda committed, offsets: self.settled.append((name, committed, offsets)),
            **more,  # type: ignore[arg-type]
        )

    def submit(self, name: str, next_offset: int = -1, *, publishes: int = 0, **more: object) -> None:
        """Submit such a turn in the lane's session."""
        self.lane.submit(self.lane.session, self.turn(name, next_offset, publishes=publishes, **more))  # type: ignore[arg-type]

    async def hand_over(self, name: str, next_offset: int = -1, **more: Any) -> None:
        """Submit such a turn, and let the lane do what it can."""
        self.submit(name, next_offset, **more)
        await self.settle()


MakeRig = Callable[..., Rig]
