"""Policies: what they accept, what they refuse, their text and digest."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from retryapp.core.errors import InvalidPolicyError
from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import Rule, non_retryable, pausing, retryable, skippable
from retryapp.core.schedule import parse_schedule


@pytest.mark.parametrize(
    ("hot", "problem"), [("5s*2", "take 10s"), ("forever(1s)", "have an end"), ("often", "hot"), (3, "hot")]
)
def test_tries_in_place_of_a_rule_are_bounded_as_the_policys(hot: Any, problem: str) -> None:
    """Its text has them, so the digest tells them apart."""
    with pytest.raises(InvalidPolicyError, match=problem):
        RetryPolicy("1m", timeout="10s", on=[retryable(OSError, hot=hot)])
    policy = RetryPolicy("1m", on=[retryable(OSError, hot="50ms*3")])
    assert "retryable=OSError hot=(50ms*3)" in policy.text
    assert policy.digest != RetryPolicy("1m", on=[retryable(OSError)]).digest


def test_one_delay_is_one() -> None:
    """It had 1 delays."""
    with pytest.raises(InvalidPolicyError, match="has 1 delay, so 2 attempts"):
        RetryPolicy("5m", max_attempts=3)
    with pytest.raises(InvalidPolicyError, match="has 2 delays, so 3 attempts"):
        RetryPolicy("5m*2", max_attempts=4)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_elapsed", {"max_elapsed": "5"}),
        ("max_elapsed", {"max_elapsed": "-5m"}),
        ("timeout", {"timeout": "0s"}),
        ("on", {"on": [ValueError]}),
        ("on", {"on": "ValueError"}),
        ("otherwise", {"otherwise": "skippable"}),
        ("otherwise", {"otherwise": ["retryable"]}),
        ("max_attempts", {"max_attempts": 3}),
        ("max_attempts", {"max_attempts": 1, "on": retryable(OSError, schedule="1s")}),
        ("hot", {"hot": ""}),
        ("hot", {"hot": "50*3"}),
        ("hot", {"hot": "10s*3", "timeout": "30s"}),
    ],
)
def test_a_wrong_field_is_named(field: str, options: dict[str, object]) -> None:
    """No invalid policy can be made."""
    with pytest.raises(InvalidPolicyError) as caught:
        RetryPolicy("1s", **options)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.exit_code == 2


def test_a_policy_is_frozen_and_pickles() -> None:
    """Nothing changes it afterwards; it travels to other processes."""
    policy = RetryPolicy("1s", max_elapsed=timedelta(days=1), on=non_retryable(ValueError))
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_attempts = 9  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301 - our own bytes
    assert hash(policy) == hash(pickle.loads(pickle.dumps(policy)))  # noqa: S301 - as above


def test_the_text_names_everything_that_decides() -> None:
    """Schedule, deadline, time-out and rules in their order."""
    policy = RetryPolicy(
        "60s*2", max_elapsed="24h", timeout="30s", on=[retryable(ConnectionError), non_retryable(OSError, ValueError)]
    )
    assert policy.text == (
        "1m*2; max_elapsed=1d; timeout=30s; retryable=ConnectionError; non-retryable=OSError,ValueError"
    )


def is_late(_delivery: object, _error: BaseException) -> bool:
    return False


def test_the_text_names_what_rules_ask_and_do() -> None:
    """Conditions by name, schedules, topics; each changes the digest."""
    rules = [
        retryable(TimeoutError, schedule="1s*20", anywhere=False),
        non_retryable(ValueError, when=is_late, dead_letters="invalid"),
        [skippable(KeyError)],
    ]
    policy = RetryPolicy("1m*2", max_attempts=9, on=rules, otherwise="non-retryable")
    assert policy.text == (
        "1m*2; max_attempts=9; timeout=5m; retryable=TimeoutError anywhere=no schedule=(1s*20); "
        f"non-retryable=ValueError when={__name__}.is_late dead_letters=invalid; skippable=KeyError; "
        "otherwise=non-retryable"
    )
    others = [RetryPolicy("1m*2", on=rules), RetryPolicy("1m*2", on=rules[1:]), RetryPolicy("1m*2", on=rules[::-1])]
    assert len({policy.digest, *(other.digest for other in others)}) == 4
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301 - our own bytes


def test_attempts_follow_the_longest_schedule_unless_bounded() -> None:
    """With schedules of rules, a policy may allow fewer attempts, or more."""
    rule = retryable(TimeoutError, schedule="1s*20")
    assert RetryPolicy("1m*2", on=rule).max_attempts == 21
    assert [RetryPolicy("1m*2", max_attempts=n, on=rule).max_attempts for n in (3, 40)] == [3, 40]
    assert RetryPolicy("1m*2", on=rule).delays_ms == (1_000, 60_000)


def test_a_policy_without_rules_is_read_from_its_text() -> None:
    """As a handler takes it."""
    for text in ("5m*2 30m", "30s*5;", "exp(1s, x2, cap=10m, 8); max_elapsed = 1d;timeout=30s ; "):
        policy = RetryPolicy.parse(text)
        assert RetryPolicy.parse(policy.text) == policy
    assert policy.timeout_ms == 30_000
    assert policy.max_elapsed_ms == 86_400_000


@pytest.mark.parametrize(
    "text", ["", "5x", "1s; retryable=OSError", "1s; timeout=1s; timeout=2s", "1s; timeout", "1s;;", "1s; timeout=0", 7]
)
def test_a_text_that_is_no_policy_is_refused(text: str) -> None:
    """Rules among it: their types cannot be found by name."""
    with pytest.raises(InvalidPolicyError):
        RetryPolicy.parse(text)


@pytest.mark.parametrize("make", [retryable, non_retryable, skippable, pausing])
def test_whether_causes_count_is_true_or_false(make: Callable[..., Rule]) -> None:
    """The text "no" counted as True."""
    with pytest.raises(InvalidPolicyError, match="anywhere='no': expected True or False"):
        make(ValueError, anywhere="no")


@pytest.mark.parametrize("name", ["", "a.b", "dlq", "retry", "events", "control", "é", "x" * 61, 7])
def test_a_dead_letter_topic_has_a_plain_name(name: str) -> None:
    """One that no other handler's topic can have."""
    with pytest.raises(InvalidPolicyError) as caught:
        non_retryable(ValueError, dead_letters=name)
    assert caught.value.field == "dead_letters"
    assert RetryPolicy("1s", on=non_retryable(ValueError, dead_letters="bad_-1")).dead_letters == ("bad_-1",)


def test_hot_waits_are_a_schedule_and_in_the_text() -> None:
    """Shorter than the time-out, by 1 ms at least; a policy without them has the text that it always had."""
    policy = RetryPolicy("1m*2", hot="exp(50ms, x2, 3)", timeout="351ms")
    assert policy.text == "1m*2; hot=exp(50ms, x2, 3); timeout=351ms"
    assert RetryPolicy("1m*2", hot=parse_schedule("10s*3"), timeout="31s").hot == parse_schedule("10s*3")
    assert RetryPolicy("1m*2").text == "1m*2; timeout=5m"
    with pytest.raises(InvalidPolicyError, match=r"hot='50ms\*7'.*its waits take 350ms, and timeout=350ms"):
        RetryPolicy("1m*2", hot="50ms*7", timeout="350ms")


def test_the_digest_is_stable_and_tells_policies_apart() -> None:
    """It is a pure function of the text; the value below must not change between versions."""
    assert RetryPolicy("5m*2 30m*3 1h").digest == "9595788a26c2"
    assert RetryPolicy("300s*2 30m*3 60m").digest == RetryPolicy("5m*2 30m*3 1h").digest
    assert RetryPolicy("5m*2 30m*3 2h").digest != RetryPolicy("5m*2 30m*3 1h").digest
    assert RetryPolicy("5m", on=non_retryable(ValueError)).digest != RetryPolicy("5m").digest


def test_a_policy_without_end_has_no_number_of_attempts() -> None:
    """Whichever schedule is endless; a number beside it is refused, and so are tries in place without end."""
    policy = RetryPolicy("forever(10s)", max_elapsed="1d")
    assert (policy.max_attempts, policy.delays_ms) == (None, (10_000,))
    assert policy.text == "forever(10s); max_elapsed=1d; timeout=5m"
    assert RetryPolicy.parse(policy.text) == policy
    assert policy.digest != RetryPolicy("10s", max_elapsed="1d").digest
    ruled = RetryPolicy("1s", on=retryable(OSError, schedule="forever(2s)"))
    assert (ruled.max_attempts, ruled.delays_ms) == (None, (1_000, 2_000))
    with pytest.raises(InvalidPolicyError, match="without end"):
        RetryPolicy("1s", on=retryable(OSError, schedule="forever(2s)"), max_attempts=5)
    for options in ({"max_attempts": 2}, {"hot": "forever(1s)"}):
        with pytest.raises(InvalidPolicyError) as caught:
            RetryPolicy("forever(10s)", **options)  # type: ignore[arg-type]
        assert caught.value.field in options
