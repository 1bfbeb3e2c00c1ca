"""Policies: what they accept, what they refuse, their text and digest."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timedelta

import pytest

from retryapp.core.classify import non_retryable, retryable
from retryapp.core.errors import InvalidPolicyError
from retryapp.core.policy import RetryPolicy


def test_n_delays_make_n_plus_one_attempts() -> None:
    """The first delivery counts."""
    policy = RetryPolicy("5m*2 30m*3 1h")
    assert policy.max_attempts == 7
    assert policy.max_elapsed_ms is None
    assert policy.timeout_ms == 300_000


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_elapsed", {"max_elapsed": "5"}),
        ("max_elapsed", {"max_elapsed": "-5m"}),
        ("timeout", {"timeout": "0s"}),
        ("on", {"on": [ValueError]}),
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


def test_the_digest_is_stable_and_tells_policies_apart() -> None:
    """It is a pure function of the text; the value below must not change between versions."""
    assert RetryPolicy("5m*2 30m*3 1h").digest == "9595788a26c2"
    assert RetryPolicy("300s*2 30m*3 60m").digest == RetryPolicy("5m*2 30m*3 1h").digest
    assert RetryPolicy("5m*2 30m*3 2h").digest != RetryPolicy("5m*2 30m*3 1h").digest
    assert RetryPolicy("5m", on=non_retryable(ValueError)).digest != RetryPolicy("5m").digest
