"""Rules: what a failure means for its record, by the errors that it consists of.

A failure consists of the error that was raised, its causes (``__cause__``) and the members of groups. The first rule,
in the order written, that matches one of them decides. A ``skippable`` rule has to match each member of a group: what
else has failed there would be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeVar

from retryapp.core.checks import is_function_of
from retryapp.core.errors import InvalidPolicyError, UndecodableError
from retryapp.core.metadata import MAX_NAME_BYTES
from retryapp.core.schedule import Schedule, parse_schedule
from retryapp.core.text import cut_text
from retryapp.core.topology import MAX_DEAD_LETTERS_CHARS, TAKEN_NAMES, names_dead_letters
from retryapp.core.traces import qualified_name

MAX_ERRORS: Final = 1_000
"""Errors of one failure that are examined, causes and members of groups included."""
MAX_NESTING: Final = 20
"""Levels of groups within groups that are examined."""

Predicate = Callable[..., bool]
"""A named function of the delivery (None where there is none) and an error: whether a rule matches."""
OnFault = Callable[[str, BaseException], None]
"""Gets the name of a predicate that raised, and what; an error without a traceback says what it returned."""
Answer = TypeVar("Answer")


class ErrorClass(StrEnum):
    """What an error means for its record."""

    RETRYABLE = "retryable"
    """May succeed later."""
    NON_RETRYABLE = "non-retryable"
    """Will never succeed: dead letter at once."""
    SKIPPABLE = "skippable"
    """The record needs no handling: done, without a result."""
    PAUSING = "pausing"
    """Nothing can succeed before somebody has acted: its partition is paused."""


@dataclass(frozen=True)
class Rule:
    """Exception types, conditions, and what they mean.

    Raises:
        InvalidPolicyError: no type is given, one is no exception type, or an option is none for this kind of rule.
    """

    error_types: tuple[type[BaseException], ...]
    error_class: ErrorClass
    when: Predicate | None = None
    schedule: Schedule | None = None
    """Waits of its own, by consecutive failures under this rule; None: the policy's."""
    hot: Schedule | None = None
    """Waits between tries in place after such errors; None: the policy's."""
    dead_letters: str | None = None
    """Name of the dead-letter topic, after ``{group}.{main}.dlq.``; None: the usual one."""
    anywhere: bool = True
    """Whether causes and members of groups count, too."""
    wait: Callable[[BaseException, int], int | None] | None = None
    """The wait in milliseconds that an error itself asks for, now; None, also as an answer: the schedule's."""
    circuit: str = ""
    """Name of the circuit that such errors are counted by; empty: the handler's own, if it has one."""
    made_by: str | None = None
    """The function of ours that made it, and what it was given: in the text instead of types, condition and wait."""

    def __post_init__(self) -> None:
        if not self.error_types:
            raise InvalidPolicyError("on", f"{self.error_class}()", "a rule needs at least one exception type")
        given: tuple[object, ...] = self.error_types  # callers without type checks pass instances here
        for error_type in given:
            if not isinstance(error_type, type) or not issubclass(error_type, BaseException):
                raise InvalidPolicyError("on", error_type, "expected exception types, as non_retryable(ValueError)")
        if type(self.anywhere) is not bool:
            raise InvalidPolicyError("anywhere", self.anywhere, "expected True or False")
        if self.when is not None:
            _check_predicate(self.when)
        if self.dead_letters is not None:
            _check_dead_letters(self.dead_letters)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(qualified_name, self.error_types))

    @cached_property
    def text(self) -> str:
        """Its part of the policy's text: equal texts match and mean the same."""
        parts = [f"{self.error_class.value}={self.made_by or ','.join(self.names)}"]
        if self.when is not None and self.made_by is None:
            parts.append(f"when={qualified_name(self.when)}")
        if not self.anywhere:
            parts.append("anywhere=no")
        if self.schedule is not None:
            parts.append(f"schedule=({self.schedule.text})")
        if self.hot is not None:
            parts.append(f"hot=({self.hot.text})")
        if self.circuit:
            parts.append(f"circuit={self.circuit}")
        if self.dead_letters is not None:
            parts.append(f"dead_letters={self.dead_letters}")
        return " ".join(parts)

    @cached_property
    def name(self) -> str:
        """Its text, cut to the length of a name in a header."""
        return cut_text(self.text, MAX_NAME_BYTES)

    def find(self, error: BaseException, delivery: Any = None, on_fault: OnFault | None = None) -> BaseException | None:
        """Return the first error of a failure that it matches, or None."""
        if not self.anywhere or _stands_alone(error):
            return error if self._matches(error, delivery, on_fault) else None

        def ask(each: BaseException) -> BaseException | None:
            return each if self._matches(each, delivery, on_fault) else None

        # the cause of one that is undecodable only says where the value is wrong
        return first_answer(error, ask, self._of_group, ends=(UndecodableError,))

    def _of_group(self, members: list[BaseException | None]) -> BaseException | None:
        found = [each for each in members if each is not None]
        whole = len(found) == len(members) or self.error_class is not ErrorClass.SKIPPABLE
        return found[0] if found and whole else None

    def _matches(self, error: BaseException, delivery: Any, on_fault: OnFault | None) -> bool:
        types = self.error_types
        if isinstance(error, UndecodableError):  # only a rule that names it: a broad one does not bring poison back
            types = tuple(each for each in types if each not in UndecodableError.__mro__[1:])
        if not issubclass(type(error), types):
            return False
        if self.when is None:
            return True
        try:
            answer: object = self.when(delivery, error)
        except BaseException as exc:  # noqa: BLE001 - user code: even SystemExit is no match, and never costs the record
            fault: BaseException | None = exc
        else:
            fault = None if isinstance(answer, bool) else TypeError(f"returned {type(answer).__qualname__}, not bool")
        if fault is not None and on_fault is not None:
            on_fault(qualified_name(self.when), fault)
        return fault is None and bool(answer)


def _stands_alone(error: BaseException) -> bool:
    return error.__cause__ is None and not isinstance(error, BaseExceptionGroup)


def first_answer(
    error: BaseException,
    ask: Callable[[BaseException], Answer | None],
    of_group: Callable[[list[Answer | None]], Answer | None],
    *,
    ends: tuple[type[BaseException], ...] = (),
) -> Answer | None:
    """Return the first answer of an error and its causes, outermost first; None: none has one.

    Each error is asked once, at most `MAX_ERRORS` in all: members of groups may be one object, or have one cause.

    Args:
        error: the outermost.
        ask: gets one error.
        of_group: gets the answers of a group's members, if the group itself has none.
        ends: types whose causes are not asked.
    """
    if _stands_alone(error):
        return ask(error)
    return _first(error, ask, of_group, ends, MAX_NESTING, {})


def _first(
    error: BaseException,
    ask: Callable[[BaseException], Answer | None],
    of_group: Callable[[list[Answer | None]], Answer | None],
    ends: tuple[type[BaseException], ...],
    levels: int,
    known: dict[int, Answer | None],
) -> Answer | None:
    """Answer for one error and its causes. A nested function that calls itself would leave a cycle for each failure."""
    answer: Answer | None = None
    current: BaseException | None = error
    asked: list[int] = []
    while current is not None and answer is None:
        if id(current) in known or len(known) >= MAX_ERRORS:
            answer = known.get(id(current))
            break
        known[id(current)] = None  # until it has one: a cycle ends here
        asked.append(id(current))
        answer = ask(current)
        if answer is None and isinstance(current, BaseExceptionGroup) and levels:
            answer = of_group([_first(each, ask, of_group, ends, levels - 1, known) for each in current.exceptions])
        current = None if isinstance(current, ends) else current.__cause__
    known.update(dict.fromkeys(asked, answer))
    return answer


def schedule_of(name: str, given: str | Schedule) -> Schedule:
    """Return a schedule, or that of a text; raise `InvalidPolicyError` for the argument of this name."""
    try:
        return given if isinstance(given, Schedule) else parse_schedule(given)
    except InvalidPolicyError as error:
        raise InvalidPolicyError(name, given, error.expected) from error


def retryable(
    *error_types: type[BaseException],
    when: Predicate | None = None,
    schedule: str | Schedule | None = None,
    hot: str | Schedule | None = None,
    anywhere: bool = True,
    circuit: str = "",
) -> Rule:
    """Say that errors of these types may go away.

    Args:
        error_types: subclasses match.
        when: a named function of the delivery and the error that returns a bool; it must be fast, and has no effects.
        schedule: waits after such errors, by their number in a row; None: the policy's.
        hot: waits between tries in place after such errors, as `hot` of the policy; None: the policy's.
        anywhere: False: only the error that was raised counts, no causes and no members of groups.
        circuit: one of the handler's `circuits`, which counts them; empty: the handler's `circuit`.
    """
    own = None if schedule is None else schedule_of("schedule", schedule)
    here = None if hot is None else schedule_of("hot", hot)
    return Rule(error_types, ErrorClass.RETRYABLE, when, schedule=own, hot=here, anywhere=anywhere, circuit=circuit)


def non_retryable(
    *error_types: type[BaseException],
    when: Predicate | None = None,
    dead_letters: str | None = None,
    anywhere: bool = True,
) -> Rule:
    """Say that errors of these types never go away: dead letter at once.

    Their dead letters go to ``{group}.{main}.dlq.{dead_letters}`` if that is named. For the other arguments see
    `retryable`.
    """
    return Rule(error_types, ErrorClass.NON_RETRYABLE, when, dead_letters=dead_letters, anywhere=anywhere)


def skippable(*error_types: type[BaseException], when: Predicate | None = None, anywhere: bool = True) -> Rule:
    """Say that records with these errors need no handling: they are skipped, with a ``skipped`` event.

    Of a group every member has to match. For the arguments see `retryable`.
    """
    return Rule(error_types, ErrorClass.SKIPPABLE, when, anywhere=anywhere)


def pausing(*error_types: type[BaseException], when: Predicate | None = None, anywhere: bool = True) -> Rule:
    """Say that with such errors nothing can succeed before somebody has acted: the record's partition is paused.

    The record waits without an attempt spent, until ``retryapp handler resume``. For the arguments see `retryable`.
    """
    return Rule(error_types, ErrorClass.PAUSING, when, anywhere=anywhere)


def _check_dead_letters(name: str) -> None:
    if not names_dead_letters(name):
        taken = ", ".join(sorted(TAKEN_NAMES))
        problem = f"expected up to {MAX_DEAD_LETTERS_CHARS} letters, digits, '-' and '_', and none of {taken}"
        raise InvalidPolicyError("dead_letters", name, problem)


def _check_predicate(when: object) -> None:
    expected = "expected a named function of the delivery and the error that returns a bool"
    name = getattr(when, "__qualname__", None)
    if not callable(when) or not isinstance(name, str):
        raise InvalidPolicyError("when", when, expected)
    if name.rsplit(".", 1)[-1] == "<lambda>":
        raise InvalidPolicyError("when", when, f"{expected}: a lambda has no name that could tell two policies apart")
    if not is_function_of(2, when):
        raise InvalidPolicyError("when", when, f"{expected}, and not a coroutine, generator or class")
