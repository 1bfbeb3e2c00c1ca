"""What one delivery of a record comes to: one turn.

Nothing but an offset (ok), the `succeeded` event (ok after a failure), the `skipped` event, a row with its copy on the
retry topic, or a dead letter, as `core.decide` says. What the handler has published goes with the first two. Everything
that a handler raises is a failure of the record, never of the worker. The handler is called in `engine.delivery.pool`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

from retryapp.core.causes import cause_name
from retryapp.core.classify import Failure, classify, trace_of
from retryapp.core.decide import Dead, DeadReason, Decision, RetryAt, SkipNow, decide, for_free
from retryapp.core.errors import (
    DamagedMetadataError,
    NewerFormatError,
    NewerRecordError,
    PublishError,
    RetryAppError,
    UndecodableError,
)
from retryapp.core.foreign import strip
from retryapp.core.headers import RETRY_DUE_MS, decode_metadata
from retryapp.core.hops import (
    Outgoing,
    after_failure,
    arriving,
    failures_in_a_row,
    next_counted_ms,
    restore,
    to_row,
    to_tier,
    too_large_to_wait,
    waited,
    waiting_size,
    without_payload,
)
from retryapp.core.jobs import Level
from retryapp.core.letters import opened, read_letter
from retryapp.core.lifecycle import Skipped, Succeeded
from retryapp.core.metadata import DEFERRED, MAX_EPOCH_MS, RELEASED, RetryMetadata
from retryapp.core.publication import Publication
from retryapp.core.record import Headers, failure_id
from retryapp.core.rows import ALONE, encode_row, identity_of
from retryapp.core.rules import ErrorClass
from retryapp.core.text import cut_text
from retryapp.engine.delivery.damage import (
    bury_cancelled,
    bury_damaged,
    bury_lost,
    bury_surplus,
    handled,
    last_resort,
    recovered,
    to_end,
    unreadable,
)
from retryapp.engine.delivery.reference import reference_of
from retryapp.engine.delivery.run import Outcome, Run
from retryapp.engine.handler.handler import Delivery, Handler
from retryapp.engine.handler.publish import Outbox, announced, give_up
from retryapp.engine.lane.turn import Turn, observed, to_event
from retryapp.ports import Event, Observation, Row

MAX_LEVEL_BYTES: Final = 300
"""Of a rule's name, and of an error's text: each transaction writes them while the partition is paused."""

MOST_WARNED_OF: Final = 100
"""Names that a handler has no circuit of: one made from a record's id is another each time."""

logger = logging.getLogger("retryapp.events")


class HandlerTimeoutError(RetryAppError, TimeoutError):
    """A handler ran longer than its policy allows: a retryable failure, and rules for `TimeoutError` match it."""

    def __init__(self, handler: Handler) -> None:
        self.timeout_ms = handler.policy.timeout_ms
        super().__init__(f"handler {handler.name} did not finish within {self.timeout_ms} ms (RetryPolicy(timeout=…))")


class WorkerCrashedError(RetryAppError):
    """Several workers died while this record ran alone; it is not run again."""

    def __init__(self, handler: str, times: int) -> None:
        self.times = times
        super().__init__(
            f"{times} workers ended while this record ran alone in handler {handler} (killed, out of memory, exit): "
            f"it is not run again (max_crashes)"
        )


class ReleaseTimeoutError(RetryAppError, TimeoutError):
    """Nobody has released a record before the deadline of `Defer`: a retryable failure, which spends the attempt."""

    def __init__(self, handler: str, waited_ms: int) -> None:
        self.waited_ms = waited_ms
        super().__init__(f"nobody has released the record within {waited_ms} ms after handler {handler} raised Defer")


class UnprintableError(RetryAppError):
    """A handler raised an error that cannot be inspected: a retryable failure."""

    def __init__(self, handler: str) -> None:
        self.handler = handler
        super().__init__(f"handler {handler} raised an error whose own code fails when its type or text is asked for")


def outcome_of(run: Run, error: BaseException | None) -> Outcome:
    """Return what a run comes to whose handler has ended, or raised an error."""
    if error is not None:
        return _failed(run, error, run.context.clock.latest_ms())
    if (pace := run.context.pace).gated:
        pace.fine(run)
    if run.metadata is not None:
        return _succeeded(run, run.metadata, run.context.clock.wall_ms())
    published, marks = () if run.outbox is None else run.outbox.published, handled(run)
    return _published(run, published, marks) if published or marks else run.record.next_offset


def timed_out(run: Run) -> Turn:
    """Return the turn of a run that ignores its time-out."""
    return _failed(run, HandlerTimeoutError(run.context.handler), run.context.clock.latest_ms())


def crashed(run: Run, times: int) -> Turn:
    """Return the turn of a record that ended `times` workers while it ran alone; it is not run again."""
    context = run.context
    if (buried := unpack(run)) is not None:
        return buried
    now_ms = run.started_ms = context.clock.wall_ms()
    error = WorkerCrashedError(context.handler.name, times)
    return _failed_turn(run, now_ms, error, Dead(DeadReason.CRASHED))


def _failed(run: Run, error: BaseException, failed_ms: int) -> Turn:
    try:
        return _failed_turn(run, failed_ms, error)
    except Exception as fault:  # noqa: BLE001 - whatever it is: the record is dead with its coordinates, and the fault told
        return last_resort(run, error, fault, failed_ms)


def delivery_of(run: Run) -> Delivery:
    """Return the delivery of a run that has begun, for its handler."""
    if run.delivery is None:
        run.delivery = _delivery(run)
    return run.delivery


def unpack(run: Run) -> Turn | None:
    """Find what the handler sees; return the turn that dead-letters a record that cannot be read.

    Raises:
        NewerRecordError: a newer retryapp wrote the row.
    """
    record, claim = run.record, run.claim
    damage = unreadable(record) if claim is None else claim.damage
    if damage is None and claim is None:
        shown = arriving if run.context.handler.topology.letters_of is None else opened
        run.shown = shown(record) if record.headers else record
        return None
    if damage is None:
        try:
            run.metadata = (None if claim is None else claim.metadata) or _waiting(record.headers)
            run.shown = restore(record, run.metadata)
            if claim is not None and claim.lost is not None:
                return bury_lost(run, run.metadata, claim.lost)
            if claim is not None and claim.cancelled:
                return bury_cancelled(run, run.metadata)
            if claim is not None and claim.surplus:
                return bury_surplus(run, run.metadata)
            if claim is not None and claim.on_hold is not None:
                return run.settle(rows=(claim.on_hold,))
            if claim is not None and claim.expired:
                return _expired(run, run.metadata)
        except NewerFormatError as exc:
            raise NewerRecordError(record.coordinates, exc.finding) from exc
        except DamagedMetadataError as exc:
            damage = exc
    return None if damage is None else bury_damaged(run, damage, run.context.clock.wall_ms())


def _expired(run: Run, metadata: RetryMetadata) -> Turn:
    """Return the turn of a record that nobody has released: its attempt has failed, and the next begins at once."""
    context, due_at_ms = run.context, metadata.due_at_ms or 0
    now_ms = run.started_ms = context.clock.wall_ms()
    run.metadata = waited(metadata, due_at_ms - run.record.timestamp_ms)  # since another hold ended, or its delivery
    error = ReleaseTimeoutError(context.handler.name, max(0, due_at_ms - metadata.last_failed_ms))
    decision = _decision(run, _judge(error, run, now_ms), now_ms)
    if isinstance(decision, RetryAt):
        decision = replace(decision, due_at_ms=now_ms, delay_ms=0)
    logger.warning("retryapp.defer_expired", extra={"handler": context.handler.main, "failure_id": metadata.failure_id})
    return _failed_turn(run, now_ms, error, decision)


def _waiting(headers: Headers) -> RetryMetadata:
    metadata = decode_metadata(headers)
    if metadata is None or metadata.due_at_ms is None:
        raise DamagedMetadataError(RETRY_DUE_MS, None, "a record that waits has a due time")
    return metadata


def _delivery(run: Run) -> Delivery:
    context, shown, metadata = run.context, run.shown, run.metadata
    if run.started_ms is None:  # asked for afterwards: few need it, and a wall clock costs more than a counter
        clock = context.clock
        run.started_ms = clock.wall_ms() - round((clock.monotonic_s() - run.started_s) * 1000)
    origin = run.origin
    failed = None if metadata is None or metadata.held else metadata
    letter = None if context.handler.topology.letters_of is None else read_letter(shown.headers)
    return Delivery(
        failure_id=failure_id(context.handler.group, origin),
        attempt=1 if metadata is None else metadata.attempt + 1,
        hot_attempt=run.hot_attempt,
        origin=origin,
        timestamp_ms=shown.timestamp_ms,
        key=shown.key,
        raw_value=shown.value,
        headers=shown.headers if letter is None else strip(shown.headers),
        letter=letter,
        due_at_ms=None if failed is None else failed.due_at_ms,
        started_ms=run.started_ms,
        first_failed_ms=None if failed is None else failed.first_failed_ms,
        last_failed_ms=None if failed is None else failed.last_failed_ms,
        last_error_type=None if failed is None else failed.error_type,
        last_error_message=None if failed is None else failed.error_message,
        replays=0 if metadata is None else metadata.replays,
        number=1 if metadata is None else metadata.delivery + 1,
        released=metadata is not None and metadata.tier == RELEASED,
        edited=None if metadata is None else metadata.edited,
    )


def is_due(run: Run) -> bool:
    """Tell whether it may begin: a first delivery, or a row that is due by a clock that is not in doubt."""
    clock = run.context.clock
    return run.claim is None or (clock.trusted and run.claim.due_at_ms <= clock.wall_ms())


def open_delivery(run: Run) -> Delivery:
    """Return the delivery that the handler takes, with what it publishes."""
    delivery, context = delivery_of(run), run.context
    if context.handler.takes_delivery:
        delivery.outbox = run.outbox = Outbox(context.handler.destinations, delivery.failure_id, context.max_bytes)
    return delivery


async def close_delivery(run: Run) -> None:
    """Take nothing more from the handler; raise what it says that the record failed with, or `PublishError`."""
    if (outbox := run.outbox) is not None:
        wishes = outbox.close()
        if (failed := outbox.failed) is not None:
            outbox.failed = None
            try:
                raise failed
            finally:
                del failed  # this frame is in its traceback, as in `DeliveryPool._call`
        if wishes:
            await outbox.take(run.context.random)


def cause_of(run: Run, error: BaseException) -> str | None:
    """Return what tells causes of failures apart; None for an error that is about a record by its kind."""
    failure = _judge(error, run, run.context.clock.wall_ms())
    alike = failure.error_class in (ErrorClass.RETRYABLE, ErrorClass.PAUSING) and not failure.deferred
    return failure.fingerprint if alike else None


def _judge(error: BaseException, run: Run, failed_ms: int) -> Failure:
    """Classify what was raised, also where its own code (`__str__`, a property, its type's) fails on the way."""
    handler, policy = run.context.handler, run.context.handler.policy
    facts: dict[str, Any] = {"otherwise": policy.otherwise, "delivery": delivery_of(run), "now_ms": failed_ms}

    def warn_once(event: str, name: str, text: str) -> None:
        if name not in handler.warned_of and len(handler.warned_of) < MOST_WARNED_OF:
            handler.warned_of.add(name)
            logger.warning(event, extra={"handler": handler.main, "error_message": text})

    def warn(predicate: str, fault: BaseException) -> None:
        text = f"when={predicate} raised {type(fault).__qualname__}: its rule does not match such errors"
        warn_once("retryapp.predicate_failed", predicate, text)

    try:
        failure = classify(error, policy.on, on_fault=warn, **facts)
        if failure.circuit and failure.circuit not in handler.circuits:
            text = (
                f"Unavailable({failure.circuit!r}): the handler has no circuit of this name, so it is a failure as any"
            )
            warn_once("retryapp.circuit_unknown", f"circuit {failure.circuit}", text)
            failure = replace(failure, circuit="")
        return replace(failure, message=_free(run, failure.message)) if handler.mask else failure
    except BaseException:  # noqa: BLE001 - user code runs in there: even SystemExit is the record's failure
        return classify(UnprintableError(handler.name), policy.on, on_fault=warn, **facts)


def hot_wait_s(run: Run, error: BaseException) -> float | None:
    """Return how long the delivery waits before it tries again in place; None: it has failed with this error.

    Not for what would fail alike or what somebody has decided, not in an outage, and not for a suspect
    (`engine.partition.suspects`).
    """
    context = run.context
    hot = context.handler.policy.hot
    if hot is None or run.hot_attempt > hot.retries or run.last_try or run.on_end is not None:
        return None
    if isinstance(error, UndecodableError | PublishError):
        return None
    failure = _judge(error, run, context.clock.wall_ms())
    if failure.error_class is not ErrorClass.RETRYABLE or failure.retry_after_ms is not None:
        return None
    if context.pace.is_out(failure.circuit):
        return None
    return hot.delay_ms(run.hot_attempt, context.random.random()) / 1000


def _free(run: Run, text: str) -> str:
    """Return a text of an error without what is masked in its record."""
    mask = run.context.handler.mask
    return text if mask is None else mask.free(text, run.shown.headers, run.shown.value)


def _trace(run: Run, error: BaseException) -> str | None:
    try:
        trace = trace_of(error)
        return trace and _free(run, trace)
    except BaseException:  # noqa: BLE001 - the same: the record is dead, if without a traceback
        return None


def _published(run: Run, published: tuple[Publication, ...], marks: tuple[Outgoing, ...]) -> Turn:
    record, main = run.record, run.context.handler.main
    observations = (observed(Event.SUCCEEDED, main, record, attempt=1), *announced(main, published))
    return run.settle(publishes=published + marks, fine=True, observations=observations, on_settled=give_up(published))


def _succeeded(run: Run, metadata: RetryMetadata, ended_ms: int) -> Turn:
    handler, shown, delivery = run.context.handler, run.shown, delivery_of(run)
    published = () if run.outbox is None else run.outbox.published
    event = Succeeded(
        group=handler.group,
        handler=handler.name,
        failure_id=delivery.failure_id,
        origin=delivery.origin.text,
        attempt=delivery.attempt,
        delivery=metadata.delivery + 1,
        replays=delivery.replays,
        started_ms=delivery.started_ms,
        ended_ms=ended_ms,
        lateness_ms=max(0, delivery.lateness_ms or 0),
        worker=run.context.worker,
    )
    return run.settle(
        publishes=(
            *published,
            *handled(run),
            *recovered(run),
            to_event(event, topology=handler.topology, partition=shown.partition),
        ),
        observations=(_observation(Event.SUCCEEDED, run, delivery, ended_ms), *announced(handler.main, published)),
        on_settled=give_up(published) if published else None,
    )


def _skipped(run: Run, failure: Failure, ended_ms: int) -> Turn:
    handler, delivery, metadata = run.context.handler, delivery_of(run), run.metadata
    event = Skipped(
        group=handler.group,
        handler=handler.name,
        failure_id=delivery.failure_id,
        origin=delivery.origin.text,
        why=failure.message,
        delivery=1 if metadata is None else metadata.delivery + 1,
        attempt=delivery.attempt,
        replays=delivery.replays,
        rule=None if failure.rule is None else failure.rule.name,
        worker=run.context.worker,
        at_ms=ended_ms,
    )
    facts = {"reason": failure.message, "error_type": failure.error_type, "place": failure.place}
    return run.settle(
        publishes=(*recovered(run), to_event(event, topology=handler.topology, partition=run.shown.partition)),
        observations=(_observation(Event.SKIPPED, run, delivery, ended_ms, **facts),),
        skipped=run.claim is None,
    )


def _observation(event: Event, run: Run, delivery: Delivery, ended_ms: int, **more: Any) -> Observation:
    return observed(
        event,
        run.context.handler.main,
        run.shown,
        failure_id=delivery.failure_id,
        attempt=delivery.attempt,
        lateness_ms=delivery.lateness_ms,
        duration_ms=ended_ms - delivery.started_ms,
        age_ms=None if delivery.first_failed_ms is None else ended_ms - delivery.first_failed_ms,
        **more,
    )


def is_last(run: Run, error: BaseException) -> bool:
    """Tell whether a record that fails with an error, now and not in an outage, is not tried again."""
    now_ms = run.context.clock.wall_ms()
    return not isinstance(_decision(run, _judge(error, run, now_ms), now_ms), RetryAt)


def _decision(run: Run, failure: Failure, failed_ms: int) -> Decision:
    if failure.deferred:
        wait_ms = failure.retry_after_ms or 0
        return RetryAt(min(failed_ms + wait_ms, MAX_EPOCH_MS - 1), wait_ms, DEFERRED)
    context, first_ms = run.context, next_counted_ms(run.metadata, failed_ms)
    return decide(
        context.handler.policy,
        attempt=delivery_of(run).attempt,
        failures=failures_in_a_row(run.metadata, failure.rule),
        first_failed_ms=first_ms + context.pace.away_ms(first_ms, failed_ms, run.circuit, failure.circuit),
        failure=failure,
        now_ms=failed_ms,
        rng=context.random.random(),
    )


def _level(delivery: Delivery, failure: Failure, now_ms: int) -> Level:
    rule = "" if failure.rule is None else failure.rule.name
    why = cause_name(failure.error_type, None, failure.message)  # no values of records: everybody sees it
    facts: Any = {"by": cut_text(f"rule {rule}", MAX_LEVEL_BYTES), "why": cut_text(why, MAX_LEVEL_BYTES)}
    return Level(since_ms=now_ms, record=delivery.failure_id, **facts)


def _failed_turn(run: Run, failed_ms: int, error: BaseException, decision: Decision | None = None) -> Turn:
    context = run.context
    handler, delivery = context.handler, delivery_of(run)
    failure = _judge(error, run, failed_ms)
    spent = int(not failure.deferred)
    if decision is None and spent and (wait_ms := context.pace.failed(run, failure)) is not None:  # in an outage
        decision, spent = for_free(handler.policy, wait_ms=wait_ms, now_ms=failed_ms), 0
    elif decision is None and failure.error_class is ErrorClass.PAUSING:
        run.pauses, spent = _level(delivery, failure, failed_ms), 0
    decision = decision or _decision(run, failure, failed_ms)
    if isinstance(decision, SkipNow):
        return _skipped(run, failure, failed_ms)
    metadata = after_failure(
        run.metadata,
        group=handler.group,
        handler=handler.name,
        origin=delivery.origin,
        origin_timestamp_ms=run.shown.timestamp_ms,
        attempt=delivery.attempt - 1 + spent,
        hot_attempts=run.hot_attempt,
        started_ms=delivery.started_ms,
        worker=context.worker,
        failed_ms=failed_ms,
        policy_digest=handler.policy_digest,
        failure=failure,
        decision=decision,
        spent=spent > 0,
    )
    facts: dict[str, Any] = {
        "error_class": failure.error_class,
        "error_type": failure.error_type,
        "message": failure.message,
        "place": failure.place,
        "fingerprint": failure.fingerprint,
    }
    failed = _observation(Event.FAILED, run, delivery, failed_ms, **facts)
    outgoing: Outgoing | None = None
    rows: tuple[Row, ...] = ()
    if isinstance(decision, RetryAt):
        outgoing = to_tier(run.shown, topology=handler.topology, metadata=metadata)
        if (reference := reference_of(run, decision.due_at_ms)) is not None:
            outgoing = without_payload(outgoing)
        if waiting_size(outgoing) > context.max_bytes:
            outgoing, metadata = None, too_large_to_wait(metadata)
        else:
            facts |= {"tier": decision.tier, "due_at_ms": decision.due_at_ms}
            event = Event.DEFERRED if failure.deferred else Event.SCHEDULED
            flags = ALONE if handler.batch is not None and isinstance(error, HandlerTimeoutError) else 0
            row = to_row(outgoing, metadata, flags, reference)
            row = row.in_circuit(failure.circuit) if failure.circuit else row
            rows = (Row(identity_of(metadata.origin), encode_row(row), decision.tier),)
            if reference is None and handler.policy.max_attempts is None and metadata.delivery > 1:  # an earlier has it
                outgoing = without_payload(outgoing)
    if outgoing is None:
        trace = _trace(run, error)
        letters = decision.dead_letters if isinstance(decision, Dead) else None
        outgoing, metadata, event = to_end(context, run.shown, replace(metadata, error_trace=trace), letters)
        facts |= {"reason": metadata.reason, "trace": trace}
    then = _observation(event, run, delivery, failed_ms, **facts)
    waits = event is Event.DEFERRED
    return run.settle(rows=rows, publishes=(outgoing,), observations=(then,) if waits else (failed, then), held=waits)
