"""Classify an exception: its class, what is stored about it, and which cause it belongs to.

Rules, in this order:

1. Walk the chain of ``__cause__``, outermost error first; the first error with a verdict decides.
2. ``Reject`` and ``RetryLater`` are verdicts; an undecodable value is ``undecodable`` unless a rule names
   ``UndecodableError`` itself; else the first of the policy's rules that matches the type (subclasses match).
3. Of an exception group the worst member decides: rejected, then non-retryable or undecodable, then the longest
   ``RetryLater``, then retryable. A group whose members have no verdict is judged by its own type.
4. Without a verdict an error is retryable.

The number of errors examined is bounded, cycles end, and errors raised by a user's ``__str__`` are contained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from retryapp.core.errors import InvalidPolicyError, UndecodableError
from retryapp.core.metadata import MAX_MESSAGE_BYTES, MAX_NAME_BYTES
from retryapp.core.text import cut_text
from retryapp.core.traces import fingerprint_of, place_of, qualified_name, shorten_trace
from retryapp.core.values import keyword_value_type
from retryapp.core.verdicts import Reject, RetryLater

MAX_ERRORS: Final = 1_000
"""Errors of one failure that are examined, causes and members of groups included."""
MAX_NESTING: Final = 20
"""Levels of groups within groups that are examined."""


class ErrorClass(StrEnum):
    """What an error means for its record."""

    RETRYABLE = "retryable"
    """May succeed later."""
    NON_RETRYABLE = "non-retryable"
    """Will never succeed: dead letter at once."""


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


@dataclass(frozen=True, slots=True)
class Rule:
    """Exception types and what they mean.

    Raises:
        InvalidPolicyError: no type is given, or one is no exception type.
    """

    error_types: tuple[type[BaseException], ...]
    error_class: ErrorClass

    def __post_init__(self) -> None:
        if not self.error_types:
            raise InvalidPolicyError("on", f"{self.error_class}()", "a rule needs at least one exception type")
        given: tuple[object, ...] = self.error_types  # callers without type checks pass instances here
        for error_type in given:
            if not isinstance(error_type, type) or not issubclass(error_type, BaseException):
                raise InvalidPolicyError("on", error_type, "expected exception types, as non_retryable(ValueError)")

    @property
    def names(self) -> tuple[str, ...]:
        """The types' qualified names."""
        return tuple(map(qualified_name, self.error_types))

    def matches(self, error: BaseException) -> bool:
        """Tell whether the error is of one of the types or of a subclass."""
        return issubclass(type(error), self.error_types)

    def matches_only(self, base: type[BaseException], error: BaseException) -> bool:
        """Tell whether the error matches a type that is ``base`` or narrower."""
        narrow = tuple(each for each in self.error_types if each not in base.__mro__[1:])
        return issubclass(type(error), narrow)


def retryable(*error_types: type[BaseException]) -> Rule:
    """Say that errors of these types may go away: an exception from a later, broader rule."""
    return Rule(error_types, ErrorClass.RETRYABLE)


def non_retryable(*error_types: type[BaseException]) -> Rule:
    """Say that errors of these types never go away: dead letter at once."""
    return Rule(error_types, ErrorClass.NON_RETRYABLE)


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
    """Wait that the handler asked for; None: the schedule's."""
    fingerprint: str
    place: str | None = None
    """Where it was raised in the user's code."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one error means for the record; the highest ``rank`` wins in a group."""

    error: BaseException
    reason: DeadReason | None = None
    retry_after_ms: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        if self.reason is DeadReason.REJECTED:
            return 3, 0
        if self.reason is not None:
            return 2, 0
        return (0, 0) if self.retry_after_ms is None else (1, self.retry_after_ms)


def classify(error: BaseException, rules: Iterable[Rule] = ()) -> Failure:
    """Classify an error by the policy's rules.

    Type and message are the outermost error's, or those of ``Reject`` or of the deciding member of a group.
    """
    verdict = _judge(error, tuple(rules), _Budget(), MAX_NESTING)
    shown = _shown_error(error, verdict)
    message = cut_text(_text_of(shown), MAX_MESSAGE_BYTES)
    return Failure(
        error_type=cut_text(qualified_name(type(shown)), MAX_NAME_BYTES),
        message=message,
        error_class=ErrorClass.RETRYABLE if verdict is None or verdict.reason is None else ErrorClass.NON_RETRYABLE,
        reason_if_dead=None if verdict is None else verdict.reason,
        retry_after_ms=None if verdict is None else verdict.retry_after_ms,
        fingerprint=fingerprint_of(error, message),
        place=place_of(shown),
    )


def trace_of(error: BaseException) -> str | None:
    """Return the shortened traceback that a dead letter carries; None where there is none."""
    return shorten_trace(error, _text_of)


class _Budget:
    """The errors examined so far, at most `MAX_ERRORS`: cycles and bombs end here."""

    def __init__(self) -> None:
        self.examined: set[int] = set()

    def take(self, error: BaseException) -> bool:
        if len(self.examined) >= MAX_ERRORS or id(error) in self.examined:
            return False
        self.examined.add(id(error))
        return True


def _judge(error: BaseException, rules: tuple[Rule, ...], budget: _Budget, levels: int) -> _Verdict | None:
    current: BaseException | None = error
    while current is not None and budget.take(current):
        verdict = _judge_alone(current, rules, budget, levels)
        if verdict is not None:
            return verdict
        current = current.__cause__
    return None


def _judge_alone(error: BaseException, rules: tuple[Rule, ...], budget: _Budget, levels: int) -> _Verdict | None:
    if isinstance(error, Reject):
        return _Verdict(error, DeadReason.REJECTED)
    if isinstance(error, RetryLater):
        return _Verdict(error, retry_after_ms=error.after_ms)
    if isinstance(error, BaseExceptionGroup) and levels:
        verdicts = filter(None, (_judge(member, rules, budget, levels - 1) for member in error.exceptions))
        worst = max(verdicts, key=lambda verdict: verdict.rank, default=None)
        if worst is not None:
            return worst
    undecodable = isinstance(error, UndecodableError)
    for rule in rules:
        if rule.matches_only(UndecodableError, error) if undecodable else rule.matches(error):
            return _Verdict(error, None if rule.error_class is ErrorClass.RETRYABLE else DeadReason.NON_RETRYABLE)
    return _Verdict(error, DeadReason.UNDECODABLE) if undecodable else None


def _shown_error(error: BaseException, verdict: _Verdict | None) -> BaseException:
    if verdict is not None and (isinstance(verdict.error, Reject) or isinstance(error, BaseExceptionGroup)):
        error = verdict.error
    while isinstance(error, BaseExceptionGroup):  # finite: a group's members are fixed when it is made
        error = error.exceptions[0]
    return error


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - user code: a __str__ that raises must not cost the record its failure
        return f"(its text cannot be had: __str__ raised {qualified_name(type(broken))})"
