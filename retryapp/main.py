"""The app that `faust -A retryapp.main worker` finds: it has no handlers, and its worker refuses to start.

Handlers are declared in the user's own program, which is started instead.
"""

from __future__ import annotations

import sys
from typing import Any

import faust
from faust.worker import Worker

from retryapp.core.errors import NoHandlersError
from retryapp.retries import Retries

__all__ = ["app", "retries"]


class UnconfiguredWorker(Worker):
    """Refuses to start, before it takes a folder or a port."""

    def __init__(self, app: faust.App, *args: Any, **kwargs: Any) -> None:
        error = NoHandlersError(__name__)
        print(  # noqa: T201 - the last word of a process that cannot start
            f"retryapp: {error}: 'retryapp worker MODULE', or 'faust -A MODULE worker -l info'",
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(error.exit_code)


app = faust.App("retryapp", broker="kafka://localhost:9092", store="rocksdb://", Worker=UnconfiguredWorker)
retries = Retries(app)
