"""Classification: rules, causes, groups, verdicts; names, traces and fingerprints."""

from __future__ import annotations

import functools
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retryapp.core.classify import DeadReason, classify
from retryapp.core.errors import InvalidPolicyError, UndecodableError
from retryapp.core.metadata import MAX_MESSAGE_BYTES, MAX_TRACE_BYTES
from retryapp.core.rules import ErrorClass, non_retryable, retryable, skippable
from retryapp.core.traces import plain_text, shorten_trace
from retryapp.core.verdicts import Defer, Reject, RetryLater, Skip, Unavailable


def caused(outer: BaseException, *causes: BaseException) -> BaseException:
    """Chain errors by ``__cause__``, outermost first."""
    current = outer
    for cause in causes:
        current.__cause__ = cause
        current = cause
    return outer


def test_what_nobody_speaks_about_is_retryable() -> None:
    """The default is to try again."""
    failure = classify(RuntimeError("x"))
    assert (failure.error_class, failure.reason_if_dead) == (ErrorClass.RETRYABLE, None)
    assert (failure.error_type, failure.message) == ("RuntimeError", "x")


def test_the_first_rule_that_matches_wins() -> None:
    """Rules are ordered; subclasses match."""
    narrow_first = [retryable(ConnectionError), non_retryable(OSError)]
    assert classify(ConnectionResetError(), narrow_first).reason_if_dead is None
    assert classify(FileNotFoundError(), narrow_first).reason_if_dead is DeadReason.NON_RETRYABLE
    assert classify(ConnectionResetError(), narrow_first[::-1]).reason_if_dead is DeadReason.NON_RETRYABLE


def test_a_rule_looks_at_every_error_of_a_failure() -> None:
    """The order of the rules counts, not that of the errors: a broad rule after a narrow one does not kill a cause."""
    rules = [non_retryable(ValueError), retryable(OSError)]
    deep = caused(RuntimeError(), KeyError(), ValueError("bad"))
    assert classify(deep, rules).error_class is ErrorClass.NON_RETRYABLE
    assert classify(caused(OSError(), ValueError("bad")), rules).error_class is ErrorClass.NON_RETRYABLE
    assert classify(caused(OSError(), ValueError("bad")), rules[::-1]).error_class is ErrorClass.RETRYABLE
    broad = [retryable(ConnectionError), non_retryable(Exception)]
    for wrapped in (caused(RuntimeError(), ConnectionError()), ExceptionGroup("g", [KeyError(), ConnectionError()])):
        assert classify(wrapped, broad).error_class is ErrorClass.RETRYABLE
        assert classify(wrapped, broad[1:]).error_class is ErrorClass.NON_RETRYABLE


def test_a_rule_may_look_at_the_outermost_error_only() -> None:
    """Neither at causes nor at members of a group."""
    rule = non_retryable(ValueError, anywhere=False)
    assert classify(ValueError(), [rule]).error_class is ErrorClass.NON_RETRYABLE
    for error in (caused(RuntimeError(), ValueError()), ExceptionGroup("g", [ValueError()])):
        assert classify(error, [rule]).error_class is ErrorClass.RETRYABLE
    assert classify(ExceptionGroup("g", [ValueError()]), [non_retryable(ExceptionGroup, anywhere=False)]).rule


def test_what_no_rule_names_is_as_the_policy_says() -> None:
    """But an undecodable value and a verdict are what they are."""
    dead = {"otherwise": ErrorClass.NON_RETRYABLE}
    failure = classify(RuntimeError(), [retryable(OSError)], otherwise=ErrorClass.NON_RETRYABLE)
    assert (failure.reason_if_dead, failure.rule) == (DeadReason.NON_RETRYABLE, None)
    assert classify(OSError(), [retryable(OSError)], **dead).reason_if_dead is None  # type: ignore[arg-type]
    assert classify(UndecodableError("JSON", "x"), **dead).reason_if_dead is DeadReason.UNDECODABLE  # type: ignore[arg-type]
    assert classify(RetryLater(1), **dead).reason_if_dead is None  # type: ignore[arg-type]


def is_busy(delivery: int, error: BaseException) -> bool:
    return str(delivery) in str(error)


def is_broken(_delivery: object, error: BaseException) -> bool:
    """Raise, or return no bool."""
    if isinstance(error, OSError):
        return "yes"  # type: ignore[return-value]
    raise SystemExit


def test_a_rule_may_have_a_condition() -> None:
    """It gets the delivery and the error."""
    rules = [non_retryable(ValueError, when=is_busy)]
    assert classify(ValueError("7 of 9"), rules, delivery=7).rule is rules[0]
    assert classify(caused(KeyError(), ValueError("7 of 9")), rules, delivery=7).rule is rules[0]
    assert classify(ValueError("8 of 9"), rules, delivery=7).rule is None


@pytest.mark.parametrize("error", [ValueError(), OSError()])
def test_a_condition_that_fails_is_no_match(error: Exception) -> None:
    """Whatever it raises, and whatever it returns that is no bool; the next rule is asked."""
    faults: list[tuple[str, str]] = []
    rules = [non_retryable(Exception, when=is_broken), skippable(Exception)]
    failure = classify(error, rules, on_fault=lambda name, fault: faults.append((name, type(fault).__name__)))
    assert failure.rule is rules[1]
    expected = "TypeError" if isinstance(error, OSError) else "SystemExit"
    assert faults == [(f"{__name__}.is_broken", expected)]


async def coroutine(_delivery: object, _error: BaseException) -> bool:
    """Return a coroutine, which is always true."""
    return True


def several(_delivery: object, _error: BaseException) -> Iterator[bool]:
    yield True


def of_the_error(_error: BaseException) -> bool:
    return True


@pytest.mark.parametrize(
    "when",
    [lambda _delivery, _error: True, coroutine, 7, functools.partial(is_busy, 7), several, of_the_error, bool],
)
def test_a_condition_is_a_named_plain_function(when: Any) -> None:
    """The policy's text names it. One that cannot be asked matched nothing, so its failures had another outcome."""
    with pytest.raises(InvalidPolicyError, match="named function"):
        retryable(ValueError, when=when)


def test_skip_settles_wherever_it_stands() -> None:
    """By the handler or by a rule; the text says why. A rule has the last word over no verdict."""
    assert classify(Skip("stale")).error_class is ErrorClass.SKIPPABLE
    failure = classify(caused(RuntimeError(), Skip("stale")), [non_retryable(Exception)])
    assert (failure.error_class, failure.message, failure.reason_if_dead) == (ErrorClass.SKIPPABLE, "stale", None)
    assert classify(caused(RuntimeError(), KeyError("k")), [skippable(KeyError)]).error_class is ErrorClass.SKIPPABLE


@pytest.mark.parametrize(
    "members",
    [[Skip("a"), OSError()], [KeyError(), OSError()], [Skip("a"), ExceptionGroup("g", [Skip("b"), OSError()])]],
)
def test_a_group_is_skipped_only_as_a_whole(members: list[Exception]) -> None:
    """What else has failed there would be forgotten."""
    rules = [skippable(KeyError)]
    assert classify(ExceptionGroup("g", members), rules).error_class is ErrorClass.RETRYABLE
    assert classify(ExceptionGroup("g", [KeyError(), KeyError()]), rules).error_class is ErrorClass.SKIPPABLE
    assert classify(ExceptionGroup("g", [Skip("a"), Skip("b")]), rules).error_class is ErrorClass.SKIPPABLE
    assert classify(ExceptionGroup("g", [Skip("a"), RetryLater(3)]), rules).retry_after_ms == 3_000


def twice(error: Exception) -> list[list[Exception]]:
    """Return members of a group that have one error in common: the same object, or one cause."""
    return [[error, error], [caused(RuntimeError("a"), error), caused(RuntimeError("b"), error)]]


@pytest.mark.parametrize("members", twice(Skip("stale")) + twice(KeyError("k")))
def test_members_with_one_error_in_common_are_skipped_as_a_whole(members: list[Exception]) -> None:
    """As where two calls await one future: what speaks for one member speaks for each that has it."""
    group = ExceptionGroup("g", members)
    for error in (group, ExceptionGroup("outer", [group, group])):
        assert classify(error, [skippable(KeyError)]).error_class is ErrorClass.SKIPPABLE
    members = [*members, OSError()]
    assert classify(ExceptionGroup("g", members), [skippable(KeyError)]).error_class is ErrorClass.RETRYABLE


@pytest.mark.parametrize("members", twice(Unavailable("ledger")) + twice(Defer("1h")))
def test_members_with_one_verdict_in_common_have_it(members: list[Exception]) -> None:
    """The circuit that counts it, and that it is no failure."""
    failure = classify(ExceptionGroup("g", members))
    assert (failure.circuit, failure.deferred) in {("ledger", False), ("", True)}


def test_reject_speaks_for_itself_wherever_it_stands() -> None:
    """Its text is the message; no rule overrides it."""
    reject = Reject("negative")
    for error in (reject, caused(RuntimeError("outer"), reject), ExceptionGroup("g", [reject])):
        failure = classify(error, [retryable(Reject)])
        assert failure.reason_if_dead is DeadReason.REJECTED
        assert failure.message == "negative"
        assert failure.error_type == "retryapp.Reject"


def test_retry_later_gives_its_wait_wherever_it_stands() -> None:
    """Also as a cause and in a group, where the longest wait counts."""
    assert classify(RetryLater(2)).retry_after_ms == 2_000
    assert classify(caused(RuntimeError(), RetryLater("1m"))).retry_after_ms == 60_000
    group = ExceptionGroup("g", [RetryLater(2), OSError(), RetryLater(9), RetryLater(3)])
    failure = classify(group)
    assert (failure.retry_after_ms, failure.error_class) == (9_000, ErrorClass.RETRYABLE)
    deferred = [RetryLater(9), Defer("1h"), RetryLater(3)]
    for members in ([*deferred, ValueError()], [ExceptionGroup("inner", deferred), ValueError()]):
        failure = classify(ExceptionGroup("g", members))  # `Defer` counts only where nothing else has failed
        assert (failure.retry_after_ms, failure.error_type, failure.deferred) == (9_000, "retryapp.RetryLater", False)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([OSError(), ValueError(), Reject("r"), RetryLater(5)], DeadReason.REJECTED),
        ([RetryLater(5), ValueError(), OSError()], DeadReason.NON_RETRYABLE),
        ([KeyError(), UndecodableError("JSON", "x")], DeadReason.UNDECODABLE),
        ([OSError(), ExceptionGroup("inner", [RuntimeError(), ValueError()])], DeadReason.NON_RETRYABLE),
        ([OSError(), caused(RuntimeError(), ValueError())], DeadReason.NON_RETRYABLE),
        ([OSError(), RuntimeError()], None),
    ],
)
def test_a_verdict_then_the_first_rule_decides_about_a_group(
    members: list[Exception], reason: DeadReason | None
) -> None:
    """Reject always counts; a wait speaks for its member only, and the rules for all."""
    rules = [non_retryable(ValueError), retryable(OSError)]
    assert classify(ExceptionGroup("g", members), rules).reason_if_dead is reason


def test_a_group_is_told_by_its_deciding_member() -> None:
    """The member's type and text say more than the group's."""
    group = ExceptionGroup("unhandled", [OSError("disk"), ValueError("bad id")])
    failure = classify(group, [non_retryable(ValueError)])
    assert (failure.error_type, failure.message) == ("ValueError", "bad id")
    silent = classify(ExceptionGroup("unhandled", [ExceptionGroup("inner", [OSError("disk")])]))
    assert (silent.error_type, silent.message) == ("OSError", "disk")


def test_an_undecodable_value_is_dead_unless_a_rule_names_it() -> None:
    """A broad rule does not bring poison back; one that names the error does."""
    error = caused(UndecodableError("JSON", "line 1"), json.JSONDecodeError("bad", "x", 0))
    assert classify(error).reason_if_dead is DeadReason.UNDECODABLE
    assert classify(error, [retryable(Exception)]).reason_if_dead is DeadReason.UNDECODABLE
    assert classify(error, [retryable(ValueError)]).reason_if_dead is DeadReason.UNDECODABLE
    assert classify(error, [retryable(UndecodableError)]).reason_if_dead is None


def test_cycles_and_deep_nesting_end() -> None:
    """An error that is its own cause, or a tower of groups, costs nothing but a bounded look."""
    loop = RuntimeError("loop")
    loop.__cause__ = loop
    assert classify(loop).message == "loop"
    member = ValueError("of its cause")
    member.__cause__ = ExceptionGroup("g", [member, KeyError()])
    for error in (member, member.__cause__):
        assert classify(error, [non_retryable(OSError)]).rule is None
    tower: Exception = ValueError("deep")
    for _ in range(500):
        tower = ExceptionGroup("g", [tower])
    assert classify(tower, [non_retryable(KeyError)]).message == "deep"


def test_a_tower_of_groups_with_one_member_twice_is_looked_at_once() -> None:
    """Else its twenty levels would be a million looks at one error."""
    asked = list[BaseException]()

    def is_noted(_delivery: object, error: BaseException) -> bool:
        asked.append(error)
        return False

    tower: Exception = KeyError("deep")
    for _ in range(20):
        tower = ExceptionGroup("g", [tower, tower])
    assert classify(tower, [non_retryable(KeyError, when=is_noted)]).error_class is ErrorClass.RETRYABLE
    assert len(asked) == 1


def test_a_broken_text_does_not_cost_the_failure() -> None:
    """An exception whose ``__str__`` raises is still classified."""

    class NastyError(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    with pytest.raises(NastyError) as caught:
        raise NastyError
    failure = classify(caught.value, [non_retryable(ValueError)])
    assert failure.error_class is ErrorClass.NON_RETRYABLE
    assert "__str__ raised RuntimeError" in failure.message


def test_message_and_trace_are_cut_to_their_bounds() -> None:
    """A message is cut at its end, on a character; a trace keeps its last lines."""

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("é" * 5_000)

    with pytest.raises(ValueError, match="é") as caught:
        deep(300)
    failure = classify(caught.value)
    assert failure.message == "é" * (MAX_MESSAGE_BYTES // 2)
    trace = shorten_trace(caught.value, plain_text)
    assert trace is not None
    assert len(trace.encode()) <= MAX_TRACE_BYTES
    assert trace.splitlines()[-1].startswith("ValueError: é")
    assert trace.startswith("...\n  File ")
    assert "in " in trace.splitlines()[-2]


def test_a_fingerprint_groups_one_cause_and_parts_two() -> None:
    """Same type, place and template: same hash; another type, place, cause or message: another."""

    def charge(text: str, kind: type[Exception] = ValueError) -> Exception:
        raise kind(text)

    def refund(text: str) -> Exception:
        raise ValueError(text)

    def fingerprint(call: Callable[..., Exception], *arguments: object, cause: Exception | None = None) -> str:
        with pytest.raises((ValueError, KeyError)) as caught:
            call(*arguments)
        return classify(caused(caught.value, *([] if cause is None else [cause]))).fingerprint

    one = fingerprint(charge, "order 1")
    assert one == fingerprint(charge, "order 2")
    assert len(one) == 12
    assert one != fingerprint(refund, "order 1")
    assert one != fingerprint(charge, "order 1", KeyError)
    assert one != fingerprint(charge, "order 1", cause=OSError())
    answers = ("HTTP 503: maintenance", "500: boom", "ledger shard 7 is read-only", "404: x", "422: x")
    assert len({fingerprint(charge, answer) for answer in answers}) == len(answers)
    assert fingerprint(charge, answers[2]) == fingerprint(charge, "ledger shard 12 is read-only")


def test_the_template_of_a_cause_is_that_of_the_error_that_is_shown() -> None:
    """So whoever has the message, as the archive, has the name of the cause."""

    def fingerprint(*members: Exception) -> str:
        return classify(ExceptionGroup("2 of 3 failed", members), [non_retryable(ValueError)]).fingerprint

    bad = fingerprint(OSError("disk 1"), ValueError("bad id 7"))
    assert bad == fingerprint(OSError("disk 1"), ValueError("bad id 8"))
    assert bad != fingerprint(OSError("disk 1"), ValueError("no id"))
    assert bad == fingerprint(OSError("another disk"), ValueError("bad id 7"))
    long = classify(ValueError("\ud800" * 500 + "x")).message
    assert classify(ValueError(long)).fingerprint == classify(ValueError("\ud800" * 500 + "x")).fingerprint


def test_a_fingerprint_keeps_nothing_of_the_users_alive_and_asks_it_nothing() -> None:
    """A class that is made in a handler may hold a payload; one whose metaclass cannot be hashed has its verdict."""

    class Unhashable(type):
        def __eq__(cls, _other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    class NoPlaneError(Reject, metaclass=Unhashable):
        pass

    def made() -> weakref.ref[type]:
        class MadeError(ValueError):
            pass

        classify(MadeError("x"))
        return weakref.ref(MadeError)

    kept = made()
    gc.collect()
    assert kept() is None
    assert classify(NoPlaneError("no plane")).reason_if_dead is DeadReason.REJECTED


def test_a_trace_shows_the_users_code_and_not_what_called_it() -> None:
    """Frames of ours tell an operator nothing, unless there are no others."""

    def raised(*modules: str) -> Exception:
        call = None
        for module in modules:
            body = "inner()" if call else "raise ValueError('x')"
            space: dict[str, Any] = {"__name__": module, "inner": call}
            exec(compile(f"def step():\n    {body}\n", f"/lib/{module}.py", "exec"), space)  # noqa: S102 - code at a chosen place
            call = space["step"]
        with pytest.raises(ValueError, match="x") as caught:
            call()  # type: ignore[misc]
        assert caught.value.__traceback__ is not None
        return caught.value.with_traceback(caught.value.__traceback__.tb_next)

    error = raised("httpx", "billing", "retryapp.engine.delivery.deliver")
    trace = str(shorten_trace(error, plain_text))
    assert [line.split('"')[1] for line in trace.splitlines()[:-1]] == ["billing.py", "httpx.py"]
    assert classify(error).place == "httpx.py:2 in step"
    assert classify(raised("json.decoder", "billing", "retryapp.engine")).place == "billing.py:2 in step"
    trace = str(shorten_trace(raised("retryapp.engine.handler"), plain_text))
    assert 'File "retryapp.engine.handler.py", line 2' in trace
    assert classify(ValueError("x")).place is None


def test_a_fingerprint_ignores_line_numbers_and_machinery() -> None:
    """Code that moved within its file, or runs under another layer, has the same cause."""
    source = "def charge():\n    raise ValueError('x')\n"

    def fingerprint(prefix: str, module: str, path: str) -> str:
        space: dict[str, object] = {"__name__": module}
        exec(compile(prefix + source, path, "exec"), space)  # noqa: S102 - code at a chosen place
        with pytest.raises(ValueError, match="x") as caught:
            space["charge"]()  # type: ignore[operator]
        assert caught.value.__traceback__ is not None
        return classify(caught.value.with_traceback(caught.value.__traceback__.tb_next)).fingerprint

    here = fingerprint("", "billing", "/app/billing.py")
    assert here == fingerprint("\n\n\n", "billing", "/srv/other/billing.py")
    assert here != fingerprint("", "billing", "/app/refunds.py")
    bare = classify(ValueError("x")).fingerprint
    assert bare == fingerprint("", "faust.agents", "/lib/faust/agents.py")
    assert bare == fingerprint("", "asyncio.tasks", "/lib/asyncio/tasks.py")
    assert bare == fingerprint("", "retryapp.engine.delivery.deliver", "/lib/retryapp/engine/deliver.py")
    assert bare != fingerprint("", "retryapp.demo.handler", "/lib/retryapp/demo/handler.py")
    assert bare != fingerprint("", "billing", "/venv/site-packages/billing.py"), "an installed app is still the user's"


def test_a_failure_leaves_no_ring_of_garbage() -> None:
    """In a burst the collector would look for those of each failure: a tenth more processor time for a retry."""
    error, rules = caused(RuntimeError(), ConnectionError()), [non_retryable(KeyError), retryable(OSError)]
    classify(error, rules)  # what is made once
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            classify(error, rules)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_rule_needs_exception_types() -> None:
    """A rule without types, or with something else, is a policy error."""
    with pytest.raises(InvalidPolicyError, match="at least one"):
        non_retryable()
    with pytest.raises(InvalidPolicyError, match="expected exception types"):
        retryable(int)  # type: ignore[arg-type]
    with pytest.raises(InvalidPolicyError, match="expected exception types"):
        retryable(ValueError("x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", [Skip("dup"), Defer("1h")])
def test_a_group_is_named_by_what_failed_where_a_verdict_in_it_decides_nothing(verdict: Exception) -> None:
    """It is tried again because of the other error."""
    failure = classify(ExceptionGroup("both", [verdict, OSError("disk")]))
    assert (failure.error_type, failure.message, failure.error_class) == ("OSError", "disk", ErrorClass.RETRYABLE)
