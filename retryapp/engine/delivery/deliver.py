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
from retryapp.core.classify import DeadReason, Failure
from retryapp.core.control import MarkKind, is_open
from retryapp.core.decide import Dead, Decision, RetryAt, SkipNow, for_free
from retryapp.core.durations import duration_text
from retryapp.core.errors import (
    DamagedMetadataError,
    NewerFormatError,
    NewerRecordError,
    RetryAppError,
)
from retryapp.core.headers import RETRY_DUE_MS, decode_metadata
from retryapp.core.hops import (
    Outgoing,
    after_failure,
    arriving,
    counted_from_ms,
    counting_from,
    restore,
    to_row,
    to_tier,
    too_large_to_wait,
    waiting_size,
    without_payload,
)
from retryapp.core.jobs import Level
from retryapp.core.letters import opened
from retryapp.core.lifecycle import Skipped, Succeeded
from retryapp.core.metadata import RetryMetadata
from retryapp.core.publication import Publication
from retryapp.core.record import Headers, failure_id
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import ALONE, encode_row
from retryapp.core.rules import ErrorClass
from retryapp.core.text import counted, cut_text
from retryapp.engine.delivery.damage import (
    bury_cancelled,
    bury_damaged,
    bury_lost,
    bury_surplus,
    handled,
    last_resort,
    letter_mark,
    recovered,
    to_end,
    unreadable,
)
from retryapp.engine.delivery.delivery import delivery_of
from retryapp.engine.delivery.judge import decision_of, judge, trace_text
from retryapp.engine.delivery.reference import reference_of
from retryapp.engine.delivery.run import Outcome, Run
from retryapp.engine.handler.handler import Delivery, Handler
from retryapp.engine.handler.publish import announced, give_up
from retryapp.engine.lane.turn import Turn, observed, to_event
from retryapp.ports import Event, Observation, Row

MAX_LEVEL_BYTES: Final = 300
"""Of a rule's name, and of an error's text: each transaction writes them while the partition is paused."""

logger = logging.getLogger("retryapp.events")


class HandlerTimeoutError(RetryAppError, TimeoutError):
    """A handler ran longer than its policy allows: a retryable failure, and rules for `TimeoutError` match it."""

    __module__ = "retryapp"  # records name it as rules and people do

    def __init__(self, handler: Handler) -> None:
        self.timeout_ms = handler.policy.timeout_ms
        limit = duration_text(self.timeout_ms)
        super().__init__(f"handler {handler.name} did not finish within {limit} (RetryPolicy(timeout=…))")


class WorkerCrashedError(RetryAppError):
    """Several workers died while this record ran alone; it is not run again."""

    def __init__(self, handler: str, times: int) -> None:
        self.times = times
        super().__init__(
            f"{counted(times, 'worker')} ended while this record ran alone in handler {handler} (killed, out of "
            f"memory, exit): it is not run again (max_crashes)"
        )


class ReleaseTimeoutError(RetryAppError, TimeoutError):
    """Nobody has released a record before the deadline of `Defer`: a retryable failure, which spends the attempt."""

    __module__ = "retryapp"  # records name it as rules and people do

    def __init__(self, handler: str, waited_ms: int) -> None:
        self.waited_ms = waited_ms
        waited = duration_text(waited_ms)
        super().__init__(f"nobody has released the record within {waited} after handler {handler} raised Defer")


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
    return _failed(run, WorkerCrashedError(context.handler.name, times), now_ms, Dead(DeadReason.CRASHED))


def _failed(run: Run, error: BaseException, failed_ms: int, decision: Decision | None = None) -> Turn:
    try:
        return _failed_turn(run, failed_ms, error, decision)
    except Exception as fault:  # noqa: BLE001 - whatever it is: the record is dead with its coordinates, and the fault told
        return last_resort(run, error, fault, failed_ms)


def unpack(run: Run) -> Turn | None:
    """Find what the handler sees; return the turn that dead-letters a record that cannot be read.

    Raises:
        NewerRecordError: a newer retryapp wrote the row.
    """
    record, claim = run.record, run.claim
    if claim is None and record.damage is None:
        if record.headers:
            shown = arriving if run.context.handler.topology.letters_of is None else opened
            run.shown = shown(record)
        return _passed(run)
    damage = unreadable(record) if claim is None else claim.damage
    if damage is None:
        try:
            run.metadata = (None if claim is None else claim.metadata) or _waiting(record.headers)
            run.shown = restore(record, run.metadata)
            if (done := _passed(run)) is not None:
                return done
            if claim is not None and claim.lost is not None:
                return bury_lost(run, run.metadata, claim.lost)
            if claim is not None and claim.cancelled:
                return bury_cancelled(run, run.metadata)
            if claim is not None and claim.surplus:
                return bury_surplus(run, run.metadata)
            if claim is not None and claim.on_hold is not None:
                return run.settle(rows=(claim.on_hold,))
            if claim is not None and claim.expired and _has_come(run):
                return _expired(run, run.metadata)
        except NewerFormatError as exc:
            raise NewerRecordError(record.coordinates, exc.finding) from exc
        except DamagedMetadataError as exc:
            damage = exc
    return None if damage is None else bury_damaged(run, damage, run.context.clock.wall_ms())


def _passed(run: Run) -> Turn | None:
    """Return the turn of a dead letter that a command has replayed or discarded before its handler had it."""
    letters = run.context.letters
    if letters is None or (origin := run.origin).topic_id != run.context.topic_id:
        return None
    if is_open(mark := letters.mark_of(origin.offset)):
        return None
    handler, metadata = run.context.handler, run.metadata
    numbers: Any = {} if metadata is None else {"delivery": metadata.delivery + 1, "attempt": metadata.attempt}
    name, why = failure_id(handler.group, origin), f"the letter is {mark}"
    facts: Any = {"failure_id": name, "origin": origin.text, "why": why, "at_ms": run.context.clock.wall_ms()}
    event = Skipped(group=handler.group, handler=handler.name, **numbers, **facts)
    return run.settle(
        publishes=(to_event(event, topology=handler.topology, partition=origin.partition),),
        observations=(observed(Event.SKIPPED, handler.main, origin, failure_id=name, reason=why),),
        skipped=run.claim is None,
    )


def _expired(run: Run, metadata: RetryMetadata) -> Turn:
    """Return the turn of a record that nobody has released: its attempt has failed, and the next begins at once."""
    context, due_at_ms = run.context, metadata.due_at_ms or 0
    now_ms = run.started_ms = context.clock.wall_ms()
    held = counted_from_ms(metadata), run.record.timestamp_ms, due_at_ms  # since another hold ended, or its delivery
    run.metadata = counting_from(metadata, context.pace.later_ms(*held, now_ms, run.circuit))
    error = ReleaseTimeoutError(context.handler.name, max(0, due_at_ms - metadata.last_failed_ms))
    logger.warning("retryapp.defer_expired", extra={"handler": context.handler.main, "failure_id": metadata.failure_id})
    failure = judge(error, run, now_ms)
    if failure.error_class is ErrorClass.PAUSING:  # spends nothing: the pause is what ends it
        return _failed_turn(run, now_ms, error)
    decision = decision_of(run, failure, now_ms)
    if isinstance(decision, RetryAt):
        decision = replace(decision, due_at_ms=now_ms, delay_ms=0)
    return _failed_turn(run, now_ms, error, decision)


def _waiting(headers: Headers) -> RetryMetadata:
    metadata = decode_metadata(headers)
    if metadata is None or metadata.due_at_ms is None:
        raise DamagedMetadataError(RETRY_DUE_MS, "a record that waits has a due time")
    return metadata


def is_due(run: Run) -> bool:
    """Tell whether it may begin: a first delivery, or a row that is due by a clock that is not in doubt.

    What waits for its release does not begin, it ends at its deadline; where that has not come, its row waits on.
    """
    return run.claim is None or (not run.claim.expired and _has_come(run))


def _has_come(run: Run) -> bool:
    clock = run.context.clock
    return run.claim is None or (clock.trusted and run.claim.due_at_ms <= clock.wall_ms())


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
        publishes=(
            *recovered(run),
            *letter_mark(run.context, MarkKind.SKIPPED, run.shown.headers, run.origin),
            to_event(event, topology=handler.topology, partition=run.shown.partition),
        ),
        observations=(_observation(Event.SKIPPED, run, delivery, ended_ms, **facts),),
        skipped=run.claim is None,
    )


def _observation(event: Event, run: Run, delivery: Delivery, ended_ms: int, **more: Any) -> Observation:
    shown = run.shown
    return Observation(
        event=event,
        handler=run.context.handler.main,
        topic=shown.topic,
        partition=shown.partition,
        offset=shown.offset,
        failure_id=delivery.failure_id,
        attempt=delivery.attempt,
        lateness_ms=delivery.lateness_ms,
        duration_ms=ended_ms - delivery.started_ms,
        age_ms=None if delivery.first_failed_ms is None else ended_ms - delivery.first_failed_ms,
        **more,
    )


def _level(delivery: Delivery, failure: Failure, now_ms: int) -> Level:
    rule = "" if failure.rule is None else failure.rule.name
    why = cause_name(failure.error_type, None, failure.message)  # no values of records: everybody sees it
    facts: Any = {"by": cut_text(f"rule {rule}", MAX_LEVEL_BYTES), "why": cut_text(why, MAX_LEVEL_BYTES)}
    return Level(since_ms=now_ms, record=delivery.failure_id, **facts)


def _failed_turn(run: Run, failed_ms: int, error: BaseException, decision: Decision | None = None) -> Turn:
    context = run.context
    handler, delivery = context.handler, delivery_of(run)
    failure = judge(error, run, failed_ms)
    spent = int(not failure.deferred)
    if decision is None and spent and (wait_ms := context.pace.failed(run, failure)) is not None:  # in an outage
        decision, spent = for_free(handler.policy, wait_ms=wait_ms, now_ms=failed_ms), 0
    elif decision is None and failure.error_class is ErrorClass.PAUSING:
        run.pauses, spent = _level(delivery, failure, failed_ms), 0
    decision = decision or decision_of(run, failure, failed_ms)
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
    published: tuple[Outgoing, ...] = ()
    rows: tuple[Row, ...] = ()
    if isinstance(decision, RetryAt):
        outgoing = to_tier(run.shown, topology=handler.topology, metadata=metadata)
        if (reference := reference_of(run, decision.due_at_ms)) is not None:
            outgoing = without_payload(outgoing)
        if waiting_size(outgoing) + len(failure.circuit) > context.max_bytes:  # its row names the circuit
            outgoing, metadata = None, too_large_to_wait(metadata)
        else:
            facts |= {"tier": decision.tier, "due_at_ms": decision.due_at_ms}
            event = Event.DEFERRED if failure.deferred else Event.SCHEDULED
            flags = ALONE if handler.batch is not None and issubclass(type(error), HandlerTimeoutError) else 0
            row = to_row(outgoing, metadata, flags, reference)
            row = row.in_circuit(failure.circuit) if failure.circuit else row
            rows = (Row(identity_of(metadata.origin), encode_row(row), decision.tier),)
            if reference is None and handler.policy.max_attempts is None and metadata.delivery > 1:  # an earlier has it
                outgoing = without_payload(outgoing)
            published = (outgoing,)
    if outgoing is None:
        trace = trace_text(run, error)
        letters = decision.dead_letters if isinstance(decision, Dead) else None
        published, metadata, event = to_end(context, run.shown, replace(metadata, error_trace=trace), letters)
        facts |= {"reason": metadata.reason, "trace": trace}
    then = _observation(event, run, delivery, failed_ms, **facts)
    waits = event is Event.DEFERRED
    return run.settle(rows=rows, publishes=published, observations=(then,) if waits else (failed, then), held=waits)
