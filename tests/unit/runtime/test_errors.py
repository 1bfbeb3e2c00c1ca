"""The runtime's own errors follow the house's rules."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from retryapp.core.errors import RetryAppError
from retryapp.runtime import errors

FACTS: dict[str, Any] = {
    "topic": "orders",
    "partition": 7,
    "committed": 90,
    "position": 95,
    "first": 100,
    "end": 150,
    "lane": "app.orders.7",
    "rows": 3,
    "topics": ("orders", "app.orders.retry"),
    "store": 160,
}
ERRORS = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]


@pytest.mark.parametrize("error_type", ERRORS, ids=lambda each: each.__name__)
def test_every_error_shows_its_facts_and_survives_pickling(error_type: type[RetryAppError]) -> None:
    """Facts are attributes and stand in the message; a copy from another process is the same."""
    facts = {name: FACTS[name] for name in inspect.signature(error_type).parameters}
    error = error_type(**facts)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy)) == (error_type, str(error))
    for name, value in facts.items():
        assert getattr(copy, name) == value
        assert (", ".join(value) if isinstance(value, tuple) else str(value)) in str(error)
    assert "Operator action:" in str(error_type.__doc__)
    assert error.exit_code == 3
