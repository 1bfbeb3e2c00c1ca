"""Hides tracebacks of what a line of ours names with its remedy: Faust and its client print them before it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    TopicAuthorizationFailedError,
)
from typing_extensions import override

REFUSALS: Final = (GroupAuthorizationFailedError, InconsistentGroupProtocolError, InvalidSessionTimeoutError)
"""Errors that end a worker, whose last line names them: its group does not take it."""
_LIBRARIES: Final = ("aiokafka.", "faust.", "mode.", "retryapp.runtime.faust.", "retryapp.runtime.worker")
"""The last ones: services of theirs. What ends the process otherwise says so in `retryapp.runtime.app`."""


class LastLine(logging.Filter):
    """Hides errors of the libraries about a refusal, unless the worker logs at debug level.

    `crash`: what ends the worker; while it is a refusal, all that the libraries say of their stop comes of it. A topic
    that this login may not use is named by the lane, which goes on.
    """

    def __init__(self, crash: Callable[[], BaseException | None]) -> None:
        super().__init__()
        self._crash = crash

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is shown; as a filter of `logging`."""
        if record.levelno < logging.ERROR or not record.name.startswith(_LIBRARIES):
            return True
        error = record.exc_info[1] if record.exc_info else None
        is_denied = isinstance(error, TopicAuthorizationFailedError) or TopicAuthorizationFailedError in (
            record.args or ()
        )
        is_named = isinstance(error, REFUSALS) or isinstance(self._crash(), REFUSALS)
        hides = is_named or (is_denied and record.name.startswith("aiokafka.producer."))
        return not hides or logging.getLogger().isEnabledFor(logging.DEBUG)
