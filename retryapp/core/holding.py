"""How an ordered handler holds back the records behind one that failed: at its death, and when they become many."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from retryapp.core.errors import InvalidSettingError
from retryapp.core.values import keyword_value_type


class OnDead(StrEnum):
    """What becomes of the later records of a sequence when one is dead."""

    RELEASE = "release"
    """They go on."""
    HOLD = "hold"
    """They wait until somebody replays, discards or releases the dead one."""


@keyword_value_type
class Holding:
    """What an ordered handler does besides keeping its order."""

    on_dead: str = OnDead.RELEASE

    def __post_init__(self) -> None:
        """Check the values: callers without type checks pass anything here."""
        if self.on_dead not in list(OnDead):
            raise InvalidSettingError("on_dead", self.on_dead, "one of " + ", ".join(OnDead))

    @property
    def stops(self) -> bool:
        """Whether a sequence stops behind a dead record."""
        return self.on_dead == OnDead.HOLD

    def check(self, order: str, *, drop: bool) -> None:
        """Refuse what makes no sense with an order, or without dead letters; raise `InvalidSettingError`."""
        if not self.stops:
            return
        if order not in _HOLDING:
            raise InvalidSettingError("on_dead", self.on_dead, f"with order={_OR}, where others wait")
        if drop:
            problem = "with a dead-letter topic: what is discarded cannot be replayed, and that is what others wait for"
            raise InvalidSettingError("on_dead", self.on_dead, problem)

    @property
    def text(self) -> str:
        """Return what it asks for, for people; empty where that is nothing."""
        if not self.stops:
            return ""
        return "behind a dead record its sequence stops until somebody replays, discards or releases it"


_HOLDING: Final = ("key", "partition")
_OR: Final = "'key' or 'partition'"
