"""Classify a failure: what it means, what is stored about it, and which cause it belongs to.

The first answer wins:

1. A verdict that the handler raised: ``Reject``, ``Skip``, ``RetryLater``, ``Defer`` or ``Unavailable``, the outermost
   along ``__cause__``. In a group ``Reject`` always counts; else each member has to be one, and the longest wait of
   ``RetryLater`` and ``Defer`` goes before ``Unavailable``, and that before ``Skip``.
2. The first of the policy's rules that matches (`core.rules`).
3. An undecodable value is ``undecodable``.
4. The class of errors that no rule names.

Where a group is retryable by 2 or 4, the longest ``RetryLater`` among its members sets the wait. The number of errors
examined is bounded, cycles end, and errors raised by a user's ``__str__`` are contained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from retryapp.core.errors import UndecodableError, shown
from retryapp.core.metadata import MAX_EPOCH_MS, MAX_MESSAGE_BYTES, MAX_NAME_BYTES
from retryapp.core.rules import ErrorClass, OnFault, Rule, first_answer, non_retryable
from retryapp.core.text import cut_text
from retryapp.core.traces import fingerprint_of, place_of, plain_text, qualified_name
from retryapp.core.values import keyword_value_type
from retryapp.core.verdicts import BrokenVerdictError, Defer, Reject, RetryLater, Skip, Unavailable

Verdict = Reject | Skip | RetryLater | Defer | Unavailable
"""What a handler says by raising it."""
_UNDECODABLE = non_retryable(UndecodableError)


class DeadReason(StrEnum):
    """Why a record is dead: the word in ``retry-reason``."""

    EXHAUSTED = "exhausted"
    """All attempts are used up."""
    NON_RETRYABLE = "non-retryable"
    """The policy says that this error never goes away."""
    REJECTED = "rejected"
    """The handler raised ``Reject``."""
    EXPIRED = "expired"
    """The next wait would end past ``max_elapsed``."""
    UNDECODABLE = "undecodable"
    """The value is not what the handler takes."""
    DAMAGED = "damaged"
    """The ``retry-*`` headers, or the batch, cannot be read."""
    TOO_LARGE = "too-large"
    """The record does not fit into the topic; its value was dropped, its coordinates kept."""
    CRASHED = "crashed"
    """It ended its worker too often."""
    GONE = "gone"
    """It waited by reference, and the main topic does not have it any more."""
    OVERFLOW = "overflow"
    """Too many records waited for it (``overflow="release"``)."""
    CANCELLED = "cancelled"
    """Somebody has cancelled its retries."""


@keyword_value_type
class Failure:
    """What is known about one failed attempt."""

    error_type: str
    """Qualified name of the exception type, as ``httpx.ConnectError`` or ``ValueError``."""
    message: str
    """Its text, at most ``MAX_MESSAGE_BYTES`` of UTF-8."""
    error_class: ErrorClass
    reason_if_dead: DeadReason | None
    """Why the record is dead now, whatever the attempts; None when it may be retried."""
    retry_after_ms: int | None
    """Wait that the handler or the error asked for; None: the schedule's."""
    fingerprint: str
    place: str | None = None
    """Where it was raised in the user's code."""
    rule: Rule | None = None
    """The rule that decided; None: no rule did."""
    circuit: str = ""
    """Name of the circuit that counts it; empty: the handler's own."""
    asked_by_handler: bool = False
    """The wait is the handler's own: no circuit counts it."""
    deferred: bool = False
    """It is no failure: the record waits for its release, so long at most."""


class _Verdict(NamedTuple):
    """What a handler has said by raising it."""

    error: Verdict
    whole: bool = True
    """It speaks for everything that has failed."""
    later: RetryLater | None = None
    """That with the longest wait: it counts although others have failed otherwise."""

    def rank(self, now_ms: int) -> tuple[int, int]:
        if isinstance(self.error, RetryLater | Defer):
            return 2, _compared_ms(self.error, now_ms)
        return (3 if isinstance(self.error, Reject) else int(isinstance(self.error, Unavailable))), 0


def classify(
    error: BaseException,
    rules: Iterable[Rule] = (),
    *,
    otherwise: ErrorClass = ErrorClass.RETRYABLE,
    delivery: Any = None,
    now_ms: int = 0,
    on_fault: OnFault | None = None,
    text_of: Callable[[BaseException], str] = plain_text,
) -> Failure:
    """Classify an error by the policy's rules.

    Type and message are the outermost error's, or those of ``Reject``, ``Skip`` or of the deciding member of a group.

    Args:
        error: what the handler raised.
        rules: ordered, the first match wins.
        otherwise: the class of errors that no rule names.
        delivery: what predicates get.
        now_ms: when it failed; a wait for an instant counts from here.
        on_fault: see `core.rules`.
        text_of: returns the text of an error, which is cut after that.

    Raises:
        BrokenVerdictError: a verdict asks for a wait that is none, as a subclass may.
    """
    verdict = first_answer(error, _verdict, partial(_verdict_of_group, now_ms))
    said = None if verdict is None else verdict.error if verdict.whole else verdict.later or verdict.error
    decisive: BaseException | None = said
    rule: Rule | None = None
    reason: DeadReason | None = None
    if verdict is not None and verdict.whole:
        error_class = _class_of(verdict.error)
        reason = DeadReason.REJECTED if error_class is ErrorClass.NON_RETRYABLE else None
    else:
        found = ((each, each.find(error, delivery, on_fault)) for each in rules)
        rule, culprit = next((pair for pair in found if pair[1] is not None), (None, None))
        error_class = otherwise if rule is None else rule.error_class
        if rule is None and (culprit := _UNDECODABLE.find(error)) is not None:
            error_class, reason = ErrorClass.NON_RETRYABLE, DeadReason.UNDECODABLE
        elif error_class is ErrorClass.NON_RETRYABLE:
            reason = DeadReason.NON_RETRYABLE
        if rule is None and culprit is None and verdict is not None and verdict.later is None:
            decisive = first_answer(error, _failed, _first_of)  # the verdicts of the others have decided nothing
        decisive = culprit or decisive
    asked_ms, asked_by_handler = None, False
    if error_class is ErrorClass.RETRYABLE:
        waits = RetryLater | Defer if verdict is not None and verdict.whole else RetryLater
        if isinstance(said, waits):
            asked_ms, asked_by_handler = _wait_ms(said, now_ms), True
        elif rule is not None and rule.wait is not None and decisive is not None:
            asked_ms = rule.wait(decisive, now_ms)
    circuit = "" if rule is None else rule.circuit
    if verdict is not None and verdict.whole and isinstance(verdict.error, Unavailable):
        circuit = verdict.error.circuit
    shown = _shown_error(error, decisive)
    message = cut_text(text_of(shown), MAX_MESSAGE_BYTES)
    return Failure(
        error_type=cut_text(qualified_name(type(shown)), MAX_NAME_BYTES),
        message=message,
        error_class=error_class,
        reason_if_dead=reason,
        retry_after_ms=asked_ms,
        fingerprint=fingerprint_of(error, message),
        place=place_of(shown),
        rule=rule,
        circuit=circuit,
        asked_by_handler=asked_by_handler,
        deferred=verdict is not None and verdict.whole and isinstance(verdict.error, Defer),
    )


def _wait_ms(verdict: RetryLater | Defer, now_ms: int) -> int:
    """Return the wait that a verdict asks for; a subclass may have made anything of it."""
    name = qualified_name(type(verdict))
    try:
        wait_ms: object = verdict.wait_ms(now_ms)
    except Exception as fault:
        raise BrokenVerdictError(name, f"asking for it raised {shown(fault)}") from fault
    if type(wait_ms) is not int or not 0 <= wait_ms <= MAX_EPOCH_MS:
        raise BrokenVerdictError(name, f"it is {shown(wait_ms)}")
    return wait_ms


def _compared_ms(verdict: RetryLater | Defer, now_ms: int) -> int:
    """Return a wait, to compare those of a group. One that cannot be used is the longest: so it is told."""
    try:
        return _wait_ms(verdict, now_ms)
    except BrokenVerdictError:
        return MAX_EPOCH_MS + 1


def _class_of(verdict: Verdict) -> ErrorClass:
    if isinstance(verdict, Reject):
        return ErrorClass.NON_RETRYABLE
    return ErrorClass.SKIPPABLE if isinstance(verdict, Skip) else ErrorClass.RETRYABLE


def _verdict(error: BaseException) -> _Verdict | None:
    if not isinstance(error, Verdict):
        return None
    return _Verdict(error, later=error if isinstance(error, RetryLater) else None)


def _verdict_of_group(now_ms: int, members: list[_Verdict | None]) -> _Verdict | None:
    found = [each for each in members if each is not None]
    if not found:
        return None
    worst = max(found, key=lambda each: each.rank(now_ms))
    whole = len(found) == len(members) and all(each.whole for each in found)
    waits = [each.later for each in found if each.later is not None]
    later = max(waits, key=lambda each: _compared_ms(each, now_ms), default=None)
    return worst._replace(whole=whole or isinstance(worst.error, Reject), later=later)


def _failed(error: BaseException) -> BaseException | None:
    return None if isinstance(error, Verdict | BaseExceptionGroup) else error


def _first_of(members: list[BaseException | None]) -> BaseException | None:
    return next((each for each in members if each is not None), None)


def _shown_error(error: BaseException, decisive: BaseException | None) -> BaseException:
    if decisive is not None and (isinstance(decisive, (Reject, Skip)) or isinstance(error, BaseExceptionGroup)):
        error = decisive
    while isinstance(error, BaseExceptionGroup):  # finite: a group's members are fixed when it is made
        error = error.exceptions[0]
    return error
