"""How many records a handler takes in one call, and how long they are gathered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from retryapp.core.durations import Duration, format_duration_ms, named_duration_ms
from retryapp.core.errors import InvalidSettingError

MAX_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Have a handler take lists of records of one partition.

    Args:
        size: how many at most, from 1 to 10,000.
        wait: how long the first one waits for others.

    Raises:
        InvalidSettingError: the size is out of range.
        InvalidDurationError: the wait is no duration.
    """

    size: int = 100
    wait: Duration = "50ms"
    wait_ms: int = field(init=False)

    def __post_init__(self) -> None:
        size: object = self.size
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
            raise InvalidSettingError("batch size", size, f"expected a whole number from 1 to {MAX_SIZE}")
        object.__setattr__(self, "wait_ms", named_duration_ms("batch wait", self.wait))

    @property
    def text(self) -> str:
        """Both, for people."""
        return f"up to {self.size} records, gathered for {format_duration_ms(self.wait_ms)}"
