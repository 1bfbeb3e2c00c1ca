"""The demonstration: real flights, a failing HTTP service, two workers, and a balance taken from outside.

`faust -A retryapp.demo worker` finds `app` here; it is imported when asked for, so that reading the data or counting a
balance loads neither Faust nor Kafka.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["app", "retries"]


def __getattr__(name: str) -> Any:
    """Import the Faust application on first use (PEP 562)."""
    if name in __all__:
        # Importing the module binds it here as `app`; the application takes its place.
        module = import_module("retryapp.demo.app")
        globals().update({public: getattr(module, public) for public in __all__})
        return globals()[name]
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
