"""Failed Kafka records come back exactly when due: retries, delays and dead letters for Faust.

The public names are loaded on first use (PEP 562): ``import retryapp.core`` loads neither Faust nor Kafka clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retryapp.core.batch import Batch
    from retryapp.core.circuit import CircuitBreaker
    from retryapp.core.control import Edit
    from retryapp.core.deduplicate import Deduplicate
    from retryapp.core.errors import RetryAppError, UndecodableError
    from retryapp.core.http import http_errors
    from retryapp.core.policy import RetryPolicy
    from retryapp.core.rules import non_retryable, pausing, retryable, skippable
    from retryapp.core.schedule import exp, forever, sequence
    from retryapp.core.verdicts import Defer, Reject, RetryLater, Skip, Unavailable
    from retryapp.engine.delivery.deliver import HandlerTimeoutError, ReleaseTimeoutError
    from retryapp.retries import Delivery, Retries

__all__ = [
    "Batch",
    "CircuitBreaker",
    "Deduplicate",
    "Defer",
    "Delivery",
    "Edit",
    "HandlerTimeoutError",
    "Reject",
    "ReleaseTimeoutError",
    "Retries",
    "RetryAppError",
    "RetryLater",
    "RetryPolicy",
    "Skip",
    "Unavailable",
    "UndecodableError",
    "exp",
    "forever",
    "http_errors",
    "non_retryable",
    "pausing",
    "retryable",
    "sequence",
    "skippable",
]

_HOME = {
    "Batch": "retryapp.core.batch",
    "CircuitBreaker": "retryapp.core.circuit",
    "Deduplicate": "retryapp.core.deduplicate",
    "Defer": "retryapp.core.verdicts",
    "Delivery": "retryapp.retries",
    "Edit": "retryapp.core.control",
    "HandlerTimeoutError": "retryapp.engine.delivery.deliver",
    "Reject": "retryapp.core.verdicts",
    "ReleaseTimeoutError": "retryapp.engine.delivery.deliver",
    "Retries": "retryapp.retries",
    "RetryAppError": "retryapp.core.errors",
    "RetryLater": "retryapp.core.verdicts",
    "RetryPolicy": "retryapp.core.policy",
    "Skip": "retryapp.core.verdicts",
    "Unavailable": "retryapp.core.verdicts",
    "UndecodableError": "retryapp.core.errors",
    "exp": "retryapp.core.schedule",
    "forever": "retryapp.core.schedule",
    "http_errors": "retryapp.core.http",
    "non_retryable": "retryapp.core.rules",
    "pausing": "retryapp.core.rules",
    "retryable": "retryapp.core.rules",
    "sequence": "retryapp.core.schedule",
    "skippable": "retryapp.core.rules",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
