"""What an error of a handler means for its record: the class of the failure, and what the policy decides."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any, Final

from retryapp.core.classify import Failure, classify
from retryapp.core.decide import Decision, RetryAt, decide
from retryapp.core.errors import PublishError, RetryAppError, UndecodableError
from retryapp.core.hops import failures_in_a_row, next_counted_ms
from retryapp.core.metadata import DEFERRED, MAX_EPOCH_MS
from retryapp.core.rules import ErrorClass
from retryapp.core.traces import place_of, plain_text, shorten_trace
from retryapp.core.verdicts import BrokenVerdictError
from retryapp.engine.delivery.delivery import delivery_of
from retryapp.engine.delivery.run import Run

MOST_WARNED_OF: Final = 100
"""Names that a handler has no circuit of: one made from a record's id is another each time."""

logger = logging.getLogger("retryapp.events")


class UnprintableError(RetryAppError):
    """A handler raised an error that cannot be inspected: a retryable failure."""

    def __init__(self, handler: str) -> None:
        self.handler = handler
        super().__init__(f"handler {handler} raised an error whose own code fails when its type or text is asked for")


def cause_of(run: Run, error: BaseException) -> str | None:
    """Return what tells causes of failures apart; None for an error that is about a record by its kind."""
    failure = judge(error, run, run.context.clock.wall_ms())
    alike = failure.error_class in (ErrorClass.RETRYABLE, ErrorClass.PAUSING) and not failure.deferred
    return failure.fingerprint if alike else None


def judge(error: BaseException, run: Run, failed_ms: int) -> Failure:
    """Classify what was raised, also where its own code (`__str__`, a property, its type's) fails on the way."""
    handler, policy = run.context.handler, run.context.handler.policy
    facts: dict[str, Any] = {"otherwise": policy.otherwise, "delivery": delivery_of(run), "now_ms": failed_ms}
    facts["text_of"] = partial(_text_of, run)

    def warn_once(event: str, name: str, text: str) -> None:
        if name not in handler.warned_of and len(handler.warned_of) < MOST_WARNED_OF:
            handler.warned_of.add(name)
            logger.warning(event, extra={"handler": handler.main, "error_message": text})

    def warn(predicate: str, fault: BaseException) -> None:
        place = place_of(fault)
        problem = str(fault) if place is None else f"raised {type(fault).__qualname__} at {place}"
        text = f"when={predicate} {problem}: its rule does not match such errors"
        warn_once("retryapp.predicate_failed", predicate, text)

    try:
        try:
            failure = classify(error, policy.on, on_fault=warn, **facts)
        except BrokenVerdictError as broken:  # told where the verdict was raised
            told = BrokenVerdictError(broken.verdict, broken.problem).with_traceback(error.__traceback__)
            failure = classify(told, policy.on, on_fault=warn, **facts)
        if failure.circuit and failure.circuit not in handler.circuits:
            text = (
                f"Unavailable({failure.circuit!r}): the handler has no circuit of this name, so it is a failure as any"
            )
            warn_once("retryapp.circuit_unknown", f"circuit {failure.circuit}", text)
            return replace(failure, circuit="")
    except BaseException:  # noqa: BLE001 - user code runs in there: even SystemExit is the record's failure
        facts["text_of"] = plain_text  # it has no value of a record, and masking may be what fails
        return classify(UnprintableError(handler.name), policy.on, on_fault=warn, **facts)
    return failure


def hot_wait_s(run: Run, error: BaseException) -> float | None:
    """Return how long the delivery waits before it tries again in place; None: it has failed with this error.

    Not for what would fail alike or what somebody has decided, not in an outage, and not for a suspect
    (`engine.partition.suspects`).
    """
    context = run.context
    if run.last_try or run.on_end is not None:
        return None
    if issubclass(type(error), UndecodableError | PublishError):  # its own code may fail where it is asked
        return None
    failure, hot = judge(error, run, context.clock.wall_ms()), context.handler.policy.hot
    if failure.error_class is not ErrorClass.RETRYABLE or failure.retry_after_ms is not None:
        return None
    hot = hot if failure.rule is None or failure.rule.hot is None else failure.rule.hot
    if hot is None or run.hot_attempt > hot.retries:
        return None
    if context.pace.is_out(failure.circuit):
        return None
    return hot.delay_ms(run.hot_attempt, context.random.random()) / 1000


def _text_of(run: Run, error: BaseException) -> str:
    """Return what an error says, without what is masked in its records: as a whole, since a part is not found."""
    mask, text = run.context.handler.mask, plain_text(error)
    return text if mask is None else (run.free or mask.freeing([run.shown]))(text)


def trace_text(run: Run, error: BaseException) -> str | None:
    try:
        return shorten_trace(error, partial(_text_of, run))
    except BaseException:  # noqa: BLE001 - the same: the record is dead, if without a traceback
        return None


def is_last(run: Run, error: BaseException) -> bool:
    """Tell whether a record that fails with an error, now and not in an outage, is not tried again."""
    now_ms = run.context.clock.wall_ms()
    return not isinstance(decision_of(run, judge(error, run, now_ms), now_ms), RetryAt)


def decision_of(run: Run, failure: Failure, failed_ms: int) -> Decision:
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
