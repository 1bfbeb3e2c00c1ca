"""How an ordered handler holds back the records behind one that failed: at its death, and when they become many."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from retryapp.core.checks import check_count, check_word
from retryapp.core.errors import InvalidSettingError
from retryapp.core.values import keyword_value_type


class OnDead(StrEnum):
    """What becomes of the later records of a sequence when one is dead."""

    RELEASE = "release"
    """They go on."""
    HOLD = "hold"
    """They wait until somebody replays, discards or releases the dead one."""


class Overflow(StrEnum):
    """What happens when more would wait than may."""

    BLOCK = "block"
    """The partition takes in no more records until fewer wait."""
    RELEASE = "release"
    """The record that the others wait for is dead, and they go on."""


NO_CAP: Final = 1 << 62


@keyword_value_type
class Holding:
    """What an ordered handler does besides keeping its order."""

    on_dead: str = OnDead.RELEASE
    max_sequences: int = NO_CAP
    """Sequences per partition that may wait."""
    max_sequence_size: int = NO_CAP
    """Records of one sequence that may wait, with the one that they wait for."""
    overflow: str = Overflow.BLOCK

    def __post_init__(self) -> None:
        """Check the values: callers without type checks pass anything here."""
        words: tuple[tuple[str, Any], ...] = ("on_dead", OnDead), ("overflow", Overflow)
        for name, known in words:
            check_word(name, getattr(self, name), known)
        for name in _CAPS:
            check_count(name, getattr(self, name))
        if self.releases and not self._caps:
            raise InvalidSettingError(
                "overflow", self.overflow, f"it needs {' or '.join(_CAPS)}: without a cap nothing overflows"
            )
        if self.stops and self.releases:
            problem = (
                "it cannot be combined with on_dead='hold': overflow lets later records go on, hold makes them wait"
            )
            raise InvalidSettingError("overflow", self.overflow, problem)

    @property
    def stops(self) -> bool:
        """Whether a sequence stops behind a dead record."""
        return self.on_dead == OnDead.HOLD

    @property
    def releases(self) -> bool:
        """Whether a record is dead that too many wait for."""
        return self.overflow == Overflow.RELEASE

    @property
    def _caps(self) -> list[str]:
        return [f"{name}={getattr(self, name)}" for name in _CAPS if getattr(self, name) != NO_CAP]

    def check(self, order: str, *, drop: bool) -> None:
        """Refuse what makes no sense with an order, or without dead letters; raise `InvalidSettingError`."""
        if self.stops and order not in {"key", "partition"}:
            raise InvalidSettingError("on_dead", self.on_dead, "it needs order='key' or order='partition'")
        if self.stops and drop:
            problem = (
                "it cannot be combined with dead_letters='drop': the later records wait for a replay, and there is none"
            )
            raise InvalidSettingError("on_dead", self.on_dead, problem)
        if self._caps and order != "key":
            name, cap = self._caps[0].split("=")
            problem = "it needs order='key': with any other order no later records of a key wait in the table"
            raise InvalidSettingError(name, int(cap), problem)

    @property
    def text(self) -> str:
        """Return what it asks for, for people; empty where that is nothing."""
        stop = "behind a dead record its sequence stops until somebody replays, discards or releases it"
        then = "what the others wait for is dead" if self.releases else "the partition takes in no more"
        caps = [f"{', '.join(self._caps)}: beyond that {then}"] if self._caps else []
        return "; ".join([stop] * self.stops + caps)


_CAPS: Final = ("max_sequences", "max_sequence_size")
