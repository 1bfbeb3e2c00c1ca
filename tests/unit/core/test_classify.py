"""Classification: rules, causes, groups, verdicts; names, traces and fingerprints."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from retryapp.core.classify import DeadReason, ErrorClass, classify, non_retryable, retryable, trace_of
from retryapp.core.errors import InvalidDurationError, InvalidPolicyError, UndecodableError
from retryapp.core.metadata import MAX_MESSAGE_BYTES, MAX_TRACE_BYTES
from retryapp.core.verdicts import Reject, RetryLater


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


def test_a_cause_decides_when_the_outer_error_says_nothing() -> None:
    """The chain is walked outermost first."""
    rules = [non_retryable(ValueError), retryable(OSError)]
    deep = caused(RuntimeError(), KeyError(), ValueError("bad"))
    assert classify(deep, rules).error_class is ErrorClass.NON_RETRYABLE
    assert classify(caused(OSError(), ValueError("bad")), rules).error_class is ErrorClass.RETRYABLE


def test_reject_speaks_for_itself_wherever_it_stands() -> None:
    """Its text is the message; no rule overrides it."""
    reject = Reject("negative")
    for error in (reject, caused(RuntimeError("outer"), reject), ExceptionGroup("g", [reject])):
        failure = classify(error, [retryable(Reject)])
        assert failure.reason_if_dead is DeadReason.REJECTED
        assert failure.message == "negative"
        assert failure.error_type == "retryapp.core.verdicts.Reject"


def test_retry_later_gives_its_wait_wherever_it_stands() -> None:
    """Also as a cause and in a group, where the longest wait counts."""
    assert classify(RetryLater(2)).retry_after_ms == 2_000
    assert classify(caused(RuntimeError(), RetryLater("1m"))).retry_after_ms == 60_000
    group = ExceptionGroup("g", [RetryLater(2), OSError(), RetryLater(9), RetryLater(3)])
    failure = classify(group)
    assert (failure.retry_after_ms, failure.error_class) == (9_000, ErrorClass.RETRYABLE)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([OSError(), ValueError(), Reject("r"), RetryLater(5)], DeadReason.REJECTED),
        ([RetryLater(5), ValueError(), OSError()], DeadReason.NON_RETRYABLE),
        ([OSError(), UndecodableError("JSON", "x")], DeadReason.UNDECODABLE),
        ([OSError(), ExceptionGroup("inner", [RuntimeError(), ValueError()])], DeadReason.NON_RETRYABLE),
        ([OSError(), caused(RuntimeError(), ValueError())], DeadReason.NON_RETRYABLE),
        ([OSError(), RuntimeError()], None),
    ],
)
def test_the_worst_member_of_a_group_decides(members: list[Exception], reason: DeadReason | None) -> None:
    """Rejected goes before non-retryable, which goes before a wait, which goes before retryable."""
    rules = [retryable(OSError), non_retryable(ValueError)]
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
    tower: Exception = ValueError("deep")
    for _ in range(500):
        tower = ExceptionGroup("g", [tower])
    assert classify(tower, [non_retryable(KeyError)]).message == "deep"


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
    trace = trace_of(caught.value)
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
    assert [line.split('"')[1] for line in str(trace_of(error)).splitlines()[:-1]] == ["billing.py", "httpx.py"]
    assert classify(error).place == "httpx.py:2 in step"
    assert classify(raised("json.decoder", "billing", "retryapp.engine")).place == "billing.py:2 in step"
    assert 'File "retryapp.engine.handler.py", line 2' in str(trace_of(raised("retryapp.engine.handler")))
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


def test_a_rule_needs_exception_types() -> None:
    """A rule without types, or with something else, is a policy error."""
    with pytest.raises(InvalidPolicyError, match="at least one"):
        non_retryable()
    with pytest.raises(InvalidPolicyError, match="expected exception types"):
        retryable(int)  # type: ignore[arg-type]
    with pytest.raises(InvalidPolicyError, match="expected exception types"):
        retryable(ValueError("x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "milliseconds"),
    [
        (0, 0), (1.5, 1_500), (0.0001, 1), ("120", 120_000), (" 0 ", 0), ("1m30s", 90_000),
        (timedelta(minutes=2), 120_000), (timedelta(0), 0),
    ],
)  # fmt: skip
def test_retry_later_takes_seconds_timedelta_or_text(after: float | timedelta | str, milliseconds: int) -> None:
    """Never rounded down: a service that asks for time gets it."""
    assert RetryLater(after).after_ms == milliseconds


@pytest.mark.parametrize(
    "after",
    [
        -1, "-1", float("nan"), float("inf"), "", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", None, True, 10**12,
        timedelta(-1),
    ],
)  # fmt: skip
def test_retry_later_refuses_what_is_no_wait(after: object) -> None:
    """A wrong wait is named, never taken for none."""
    with pytest.raises(InvalidDurationError):
        RetryLater(after)  # type: ignore[arg-type]


def test_verdicts_survive_pickling() -> None:
    """They cross process borders with what they say."""
    later = pickle.loads(pickle.dumps(RetryLater("90s", "busy")))  # noqa: S301 - our own bytes
    assert (later.after_ms, later.text, str(later)) == (90_000, "busy", "busy")
    assert pickle.loads(pickle.dumps(Reject("no"))).text == "no"  # noqa: S301 - our own bytes
