"""Without transactions a lane asks whether it still owns its partition before it publishes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.engine.lane import NotMemberError
from retryapp.engine.transport import LaneProtocol
from retryapp.ports import LaneBatch, Standing


class Acks:
    """Two records are there."""

    async def offsets(self) -> list[int]:
        """Return where."""
        return [4, 5]


class Asking(SimpleNamespace):
    """A lane as far as its steps without transactions look at it."""

    _ask, _check, _go_in_steps = LaneProtocol._ask, LaneProtocol._check, LaneProtocol._go_in_steps

    async def standing(self) -> Standing:
        """Answer as the coordinator does."""
        self.asked += 1
        return self.answer

    async def _publish(self, batch: LaneBatch) -> Acks:
        self.published.append(batch)
        return Acks()

    _log = _publish

    def _anchor(self, *_told: Any) -> None:
        """The broker's time is of no account here."""


def lane(answer: Standing, *, silent_s: float) -> Any:
    """Return a lane that has not heard of its coordinator for so long."""
    clock = SimpleNamespace(monotonic_s=lambda: 100.0, counted_ms=lambda: 0.0)
    return Asking(
        clock=clock, answer=answer, asked=0, published=[], _proved_s=100.0 - silent_s, generation=3,
        place=SimpleNamespace(name="app.orders.0"),
    )  # fmt: skip


async def test_a_former_owner_publishes_nothing() -> None:
    """It was stopped or cut off, and another has its partition."""
    former = lane(Standing.GONE, silent_s=2)
    with pytest.raises(NotMemberError):
        await former._go_in_steps(LaneBatch())
    assert (former.asked, former.published) == (1, [])


@pytest.mark.parametrize(
    ("answer", "silent_s", "asked"), [(Standing.MEMBER, 2, 1), (Standing.REBALANCING, 2, 1), (Standing.GONE, 0.5, 0)]
)
async def test_an_owner_publishes(answer: Standing, silent_s: float, asked: int) -> None:
    """Who has just been heard of is not asked, and who is about to join again has to finish first."""
    owner = lane(answer, silent_s=silent_s)
    receipt = await owner._go_in_steps(LaneBatch())
    assert (owner.asked, len(owner.published), receipt.changelog_offset) == (asked, 2, 5)
