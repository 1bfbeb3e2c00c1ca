"""SIGTERM before a worker's event loop runs: its process ends at once, with the exit code of a stop.

The default action of the signal ends a process, but not the first one of a container: the kernel ignores it there, and
the container would be killed at the end of its grace period. Faust takes the signal over when its event loop runs;
until then the worker has no partition, so it has nothing to give back.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

_STDERR: Final = 2
_TEXT: Final = "stopped by SIGTERM before the worker had begun"
_LINES: Final = {
    "text": f"retryapp: {_TEXT}\n",
    "json": json.dumps({"level": "INFO", "logger": "retryapp", "message": _TEXT}) + "\n",
}


@contextmanager
def stopped_early(log_format: Literal["text", "json"]) -> Iterator[None]:
    """End this process on SIGTERM while the body runs and nothing else handles the signal; for the main thread."""
    line, worker = _LINES[log_format].encode(), os.getpid()

    def end(_number: int, _frame: object) -> None:
        if os.getpid() != worker:  # a child that the app has forked: it is no worker, and ends as it would without this
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        with suppress(OSError):
            os.write(_STDERR, line)  # not through `sys.stderr`, which may be in the middle of a write
        os._exit(0)  # an exception could be swallowed by what it interrupts, as by a module that is imported

    ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
