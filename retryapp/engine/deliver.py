"""Deliver: one delivery of a record to its handler becomes one turn.

1. decode metadata and value; 2. run the handler, bounded in time; 3. on a failure ask `core.decide`; 4. return the
   turn:
nothing but an offset (ok), the `succeeded` event (ok after a failure), a tier record, or a dead letter.

The handler runs outside any transaction. Everything that it raises is a failure of the record, never of the worker.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from retryapp.core.classify import Failure, classify
from retryapp.core.decide import RetryAt, decide
from retryapp.core.errors import DamagedMetadataError, RetryAppError, UnreadableRecordsError
from retryapp.core.headers import RetryMetadata
from retryapp.core.hops import (
    Outgoing,
    after_failure,
    arriving,
    first_failed_ms,
    restore,
    to_dead_letter,
    to_tier,
    too_large_to_wait,
    waiting_size,
)
from retryapp.core.lifecycle import Succeeded
from retryapp.core.record import Origin, Record, failure_id
from retryapp.engine.damage import bury_damaged, unreadable
from retryapp.engine.handler import Delivery, Handler, abandon, call
from retryapp.engine.park import waiting_metadata
from retryapp.engine.threads import NoThreadError
from retryapp.engine.turn import Turn, to_event
from retryapp.ports import Clock, Event, Observation, Random, TopicPartition

CANCEL_WAIT_S = 2.0
"""How long a cancelled handler may clean up before it is left to itself."""


_Outcome = asyncio.Future[BaseException | None]


class HandlerTimeoutError(RetryAppError):
    """A handler ran longer than its policy allows; the run was cancelled and counts as a retryable failure."""

    def __init__(self, handler: str, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        super().__init__(f"handler {handler} did not finish within {timeout_ms} ms (RetryPolicy(timeout=…))")


class UnprintableError(RetryAppError):
    """A handler raised an error that cannot even be looked at; it counts as a retryable failure."""

    def __init__(self, handler: str) -> None:
        self.handler = handler
        super().__init__(f"handler {handler} raised an error whose own code fails when its type or text is asked for")


class RunAbortedError(Exception):
    """The run was given up because its lane ended; its record will be read again by whoever owns it next."""


class Run:
    """One running delivery, which its partition may give up."""

    def __init__(self) -> None:
        self.aborted = False
        self.begun = False
        """The handler was called; before that a delivery may be given up at no cost."""
        self._scope: asyncio.Timeout | None = None

    def within(self, seconds: float | None) -> asyncio.Timeout:
        """Return a scope, to be entered at once, that bounds a wait in time and ends when the run is given up.

        Both raise TimeoutError. The scope before it is over.
        """
        loop = asyncio.get_running_loop()
        until_s = None if seconds is None else loop.time() + seconds
        self._scope = asyncio.timeout_at(loop.time() if self.aborted else until_s)
        return self._scope

    def abort(self) -> None:
        """Cancel the handler; its outcome will be ignored."""
        self.aborted = True
        if self._scope is not None:
            with suppress(RuntimeError):  # the scope is over
                self._scope.reschedule(asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """What deliveries of one handler and partition share."""

    handler: Handler
    clock: Clock
    random: Random
    topic_id: str
    """Short id of the main topic."""
    max_bytes: int
    """Largest record that our topics take."""


async def deliver(station: Station, record: Record, run: Run) -> Turn:
    """Deliver a record of the main or the redelivery topic once.

    Args:
        station: whose delivery it is.
        record: as read.
        run: lets the partition give the delivery up.

    Returns:
        The turn that settles the record.

    Raises:
        RunAbortedError: the run was given up; there is no outcome.
    """
    handler, clock = station.handler, station.clock
    try:
        if (damage := unreadable(record)) is not None:
            raise damage
        metadata = None if record.topic == handler.main else waiting_metadata(record)
    except (DamagedMetadataError, UnreadableRecordsError) as exc:
        return bury_damaged(
            handler, record, exc, now_ms=clock.wall_ms(), topic_id=station.topic_id, max_bytes=station.max_bytes
        )
    if metadata is None:
        seen = arriving(record)
        origin = Origin(record.topic, station.topic_id, record.partition, record.offset)
    else:
        seen = restore(record, metadata)
        origin = metadata.origin
    await _wait_until_startable(handler, (metadata.due_at_ms or 0) if metadata else 0, clock, run)
    delivery = _delivery(handler, seen, origin, metadata, clock.wall_ms())
    error = await _run(handler, seen, delivery, run)
    if run.aborted:
        raise RunAbortedError
    ended_ms = clock.wall_ms()
    if error is None:
        return _succeeded(handler, record, delivery, metadata, ended_ms)
    failed = _Failed(station, record, seen, delivery, metadata, ended_ms)
    return failed.turn(_judge(error, handler))


def _delivery(
    handler: Handler, seen: Record, origin: Origin, metadata: RetryMetadata | None, started_ms: int
) -> Delivery:
    common: dict[str, Any] = {
        "failure_id": failure_id(handler.group, origin),
        "origin": origin,
        "timestamp_ms": seen.timestamp_ms,
        "key": seen.key,
        "raw_value": seen.value,
        "headers": seen.headers,
        "started_ms": started_ms,
    }
    if metadata is None:
        return Delivery(attempt=1, **common)
    return Delivery(
        attempt=metadata.attempt + 1,
        due_at_ms=metadata.due_at_ms,
        first_failed_ms=metadata.first_failed_ms,
        last_failed_ms=metadata.last_failed_ms,
        last_error_type=metadata.error_type,
        last_error_message=metadata.error_message,
        replays=metadata.replays,
        **common,
    )


async def _wait_until_startable(handler: Handler, due_at_ms: int, clock: Clock, run: Run) -> None:
    """Wait for what must be before a handler is called: no attempt begins and no time-out runs meanwhile.

    The due time: another worker, whose clock runs ahead, may have fired the record. Room: see `Orphans`.
    """
    while due_at_ms > clock.wall_ms() or handler.orphans.full:
        try:
            async with run.within(None):
                while (early_ms := due_at_ms - clock.wall_ms()) > 0:
                    await clock.sleep(early_ms / 1000)
                await handler.orphans.room()
        except TimeoutError:
            raise RunAbortedError from None
    if run.aborted:
        raise RunAbortedError


async def _run(handler: Handler, seen: Record, delivery: Delivery, run: Run) -> BaseException | None:
    """Run the handler, in a task of its own; return what it raised.

    Whatever the handler does, this ends: `CANCEL_WAIT_S` after its time-out, after `Run.abort` or after its own
    cancellation a handler that still runs is left to itself.
    """
    run.begun = True
    outcome: _Outcome = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(_guarded(handler, seen, delivery, outcome), name=delivery.failure_id)
    try:
        async with run.within(handler.policy.timeout_ms / 1000):
            return await outcome
    except TimeoutError:
        if outcome.done() and not outcome.cancelled() and not run.aborted:
            return outcome.result()  # it ended in the very moment of its time-out
        await _end(handler, task, delivery)
        return HandlerTimeoutError(handler.name, handler.policy.timeout_ms)
    except asyncio.CancelledError:  # somebody ends this worker
        await _end(handler, task, delivery)
        raise


async def _end(handler: Handler, task: asyncio.Task[None], delivery: Delivery) -> None:
    """Cancel a run and give it a moment to clean up; then leave it to itself."""
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=CANCEL_WAIT_S)
    finally:
        if not task.done():
            abandon(handler, task, delivery)


async def _guarded(handler: Handler, seen: Record, delivery: Delivery, outcome: _Outcome) -> None:
    """Decode and call; tell what was raised. A task of its own: a handler that cancels its task spares the worker."""
    raised: BaseException | None = None
    try:
        await call(handler, handler.decode(seen.value), delivery)
    except NoThreadError as exc:  # nothing was run, so no attempt was made
        if not outcome.done():
            outcome.set_exception(exc)
        return
    except BaseException as exc:  # noqa: BLE001 - the edge to user code: even SystemExit is the record's failure
        raised = exc  # a cancellation too: by itself, or by us, and then nobody asks
    if not outcome.done():
        outcome.set_result(raised)


def _judge(error: BaseException, handler: Handler) -> Failure:
    """Classify what was raised, also where its own code (`__str__`, a property, its type's) fails on the way."""
    try:
        return classify(error, handler.policy.on)
    except BaseException:  # noqa: BLE001 - user code runs in there: even SystemExit is the record's failure
        return classify(UnprintableError(handler.name), handler.policy.on)


def _succeeded(
    handler: Handler, record: Record, delivery: Delivery, metadata: RetryMetadata | None, ended_ms: int
) -> Turn:
    publishes: tuple[Outgoing, ...] = ()
    if metadata is not None:
        event = Succeeded(
            group=handler.group,
            handler=handler.name,
            failure_id=delivery.failure_id,
            origin=delivery.origin.text,
            attempt=delivery.attempt,
            replays=metadata.replays,
            started_ms=delivery.started_ms,
            ended_ms=ended_ms,
            lateness_ms=max(0, delivery.lateness_ms or 0),
        )
        publishes = (to_event(event, topology=handler.topology, partition=record.partition),)
    return Turn(
        source=TopicPartition(record.topic, record.partition),
        next_offset=record.next_offset,
        publishes=publishes,
        observations=(_observation(Event.SUCCEEDED, handler, record, delivery, ended_ms),),
    )


def _observation(
    event: Event, handler: Handler, record: Record, delivery: Delivery, ended_ms: int, **more: Any
) -> Observation:
    return Observation(
        event=event,
        handler=handler.main,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        failure_id=delivery.failure_id,
        attempt=delivery.attempt,
        lateness_ms=delivery.lateness_ms,
        duration_ms=ended_ms - delivery.started_ms,
        **more,
    )


@dataclass(frozen=True, slots=True)
class _Failed:
    """A failed delivery on its way to a turn."""

    station: Station
    record: Record
    seen: Record
    delivery: Delivery
    metadata: RetryMetadata | None
    failed_ms: int

    def turn(self, failure: Failure) -> Turn:
        handler, delivery = self.station.handler, self.delivery
        decision = decide(
            handler.policy,
            attempt=delivery.attempt,
            first_failed_ms=first_failed_ms(self.metadata, self.failed_ms),
            failure=failure,
            now_ms=self.failed_ms,
            rng=self.station.random.random(),
        )
        metadata = after_failure(
            self.metadata,
            group=handler.group,
            handler=handler.name,
            origin=delivery.origin,
            origin_timestamp_ms=self.seen.timestamp_ms,
            attempt=delivery.attempt,
            started_ms=delivery.started_ms,
            failed_ms=self.failed_ms,
            policy_digest=handler.policy.digest,
            failure=failure,
            decision=decision,
        )
        facts: dict[str, Any] = {
            "error_class": failure.error_class,
            "error_type": failure.error_type,
            "message": failure.message,
        }
        failed = _observation(Event.FAILED, handler, self.record, delivery, self.failed_ms, **facts)
        max_bytes = self.station.max_bytes
        outgoing: Outgoing | None = None
        if isinstance(decision, RetryAt):
            outgoing = to_tier(self.seen, topology=handler.topology, metadata=metadata)
            if waiting_size(outgoing) > max_bytes:
                outgoing, metadata = None, replace(too_large_to_wait(metadata), error_trace=failure.trace)
            else:
                facts |= {"tier": decision.tier, "due_at_ms": decision.due_at_ms}
                event = Event.SCHEDULED
        if outgoing is None:
            outgoing, metadata = to_dead_letter(
                self.seen, topology=handler.topology, metadata=metadata, max_bytes=max_bytes
            )
            facts |= {"reason": metadata.reason, "trace": failure.trace}
            event = Event.DEAD
        return Turn(
            source=TopicPartition(self.record.topic, self.record.partition),
            next_offset=self.record.next_offset,
            publishes=(outgoing,),
            observations=(failed, _observation(event, handler, self.record, delivery, self.failed_ms, **facts)),
        )
