"""Count the different records of the last calls, as a circuit does to judge its service."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

MAX_DIFFERENT: Final = 10_000
"""Failed records that one sampling window keeps apart. With more, it drops its oldest part."""

_SLICES: Final = 10


@dataclass(slots=True)
class _Slice:
    number: int
    fine: int = 0
    failed: set[Hashable] = field(default_factory=set)


class Calls:
    """The different records of the last ``sampling_ms``: how many went well, and which failed last."""

    def __init__(self, sampling_ms: int) -> None:
        self._width_ms = sampling_ms / _SLICES
        self._slices: deque[_Slice] = deque()

    def clear(self) -> None:
        self._slices.clear()

    def add(self, place: Hashable, *, fine: bool, now_ms: float) -> None:
        number = int(now_ms // self._width_ms)
        slices = self._slices
        while slices and slices[0].number <= number - _SLICES:
            slices.popleft()
        if not slices or slices[-1].number < number:
            slices.append(_Slice(number))
        for each in slices:
            if each.failed:
                each.failed.discard(place)  # its last outcome counts, once
        if fine:
            slices[-1].fine += 1
            return
        slices[-1].failed.add(place)
        while len(slices) > 1 and self.failed > MAX_DIFFERENT:
            slices.popleft()

    @property
    def failed(self) -> int:
        return sum(len(each.failed) for each in self._slices)

    @property
    def all(self) -> int:
        return self.failed + sum(each.fine for each in self._slices)
