"""The configured app: what `faust -A retryapp.main worker` finds.

Handlers are declared in a program of one's own so far, and that program is started instead of this one. Until this
app can be configured from a file it has no handlers, and its worker refuses to start.
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
        """Say what to do, and end the process.

        Raises:
            SystemExit: always, with the code of a configuration error.
        """
        error = NoHandlersError(__name__)
        print(  # noqa: T201 - the last word of a process that cannot start
            f"retryapp: {error}: 'retryapp worker MODULE', or 'faust -A MODULE worker -l info'",
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(error.exit_code)


app = faust.App("retryapp", broker="kafka://localhost:9092", store="rocksdb://", Worker=UnconfiguredWorker)
retries = Retries(app)
