"""Without transactions a lane asks whether it still owns its partition before it publishes, and offsets may trail."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from doubles import MAIN, RETRY

from retryapp.core.errors import ChangelogSharedError
from retryapp.core.hops import Outgoing
from retryapp.core.lives import Mark
from retryapp.core.tally import Tally
from retryapp.engine.lane import NotMemberError
from retryapp.engine.limits import LaneLimits
from retryapp.engine.notes import Notes
from retryapp.engine.recovery import offsets_in
from retryapp.engine.site import LaneSite
from retryapp.engine.trailing import TRAIL_S, Trailing
from retryapp.engine.transport import LaneProtocol
from retryapp.ports import Committed, LaneBatch, Standing, TopicPartition

UNMARKED = 7
"""Bytes of a batch that is the first of its life."""


class Acks:
    """Records are there."""

    def __init__(self, offsets: list[int]) -> None:
        """Args: offsets: where."""
        self._offsets = offsets

    async def offsets(self) -> list[int]:
        """Return where."""
        return self._offsets


class Passing:
    """A clock that is set."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        """Return what it was set to."""
        return self.now_s

    def counted_ms(self) -> float:
        """Return the start of time."""
        return 0.0


class Asking(SimpleNamespace):
    """A lane as far as its steps without transactions look at it."""

    _ask, _check, _go_in_steps = LaneProtocol._ask, LaneProtocol._check, LaneProtocol._go_in_steps
    _may_trail, _commit_offsets, rest = LaneProtocol._may_trail, LaneProtocol._commit_offsets, LaneProtocol.rest

    async def move_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> Standing:
        """Take offsets as the coordinator does."""
        self.moved.append({tp: each.offset for tp, each in offsets.items()})
        return self.answer

    def _noted(self, batch: LaneBatch) -> dict[TopicPartition, Committed]:
        return {tp: Committed(offset, "") for tp, offset in batch.offsets.items()}

    def _beside(self) -> Any:
        return SimpleNamespace(
            counting=lambda: self.counting,
            said_by=lambda batch: batch.tally is not None,
            unmarked=lambda batch: batch.size == UNMARKED,
        )

    async def standing(self) -> Standing:
        """Answer as the coordinator does."""
        self.asked += 1
        return self.answer

    async def _publish(self, batch: LaneBatch) -> Acks:
        self.published.append(batch)
        return Acks([9] * len(batch.publishes))

    async def _log(self, batch: LaneBatch) -> Acks:
        self.published.append(batch)
        return Acks([4, 5])

    def _anchor(self, *_told: Any) -> None:
        """The broker's time is of no account here."""


def lane(answer: Standing, *, silent_s: float) -> Any:
    """Return a lane that has not heard of its coordinator for so long."""
    clock = Passing()
    return Asking(
        clock=clock, answer=answer, asked=0, published=[], moved=[], counting=[], _proved_s=100.0 - silent_s,
        generation=3, place=site(), pending=None, _trailing=Trailing(),
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


def handing_off(offset: int, changes: int = 1, **more: Any) -> LaneBatch:
    """Return a batch that hands records off and settles the main topic up to an offset."""
    out = Outgoing(*RETRY, b"k", b"v", ())
    return LaneBatch(offsets={MAIN: offset}, publishes=[out] * changes, **more)


async def test_offsets_of_hand_offs_move_together_under_load() -> None:
    """The first goes at once; those behind it go with the first that is late enough, and the lane is told meanwhile."""
    owner, behind = lane(Standing.MEMBER, silent_s=0), []
    for at in range(5):
        behind.append((await owner._go_in_steps(handing_off(at + 1))).behind)
        owner.clock.now_s += TRAIL_S / 2
    assert behind == [False, True, False, True, False]
    assert owner.moved == [{MAIN: 1}, {MAIN: 3}, {MAIN: 5}]


async def test_what_trails_goes_along_with_offsets_alone() -> None:
    """That is how a lane that falls idle has it committed; offsets of other topics go as well."""
    owner = lane(Standing.MEMBER, silent_s=0)
    await owner._go_in_steps(handing_off(1))
    await owner._go_in_steps(handing_off(2))
    assert not (await owner._go_in_steps(LaneBatch(offsets={RETRY: 7}))).behind
    assert owner.moved == [{MAIN: 1}, {MAIN: 2, RETRY: 7}]


async def test_what_trails_is_committed_when_the_lane_ends() -> None:
    """With its last request; a lane that has nothing behind asks for nothing."""
    owner = lane(Standing.MEMBER, silent_s=0)
    await owner._go_in_steps(handing_off(1))
    await owner._go_in_steps(handing_off(2))
    await owner.rest()
    await owner.rest()
    assert owner.moved == [{MAIN: 1}, {MAIN: 2}]


@pytest.mark.parametrize(
    ("more", "counting"),
    [
        ({"notes": {MAIN: "alone"}}, []),
        ({}, [MAIN]),
        ({"tally": Tally(from_offset=2, since_ms=0)}, []),
        ({"size": UNMARKED}, []),
    ],
    ids=["a mark", "beside a mark that counts", "an event says the counts", "the first of its life"],
)
async def test_what_stands_beside_an_offset_is_not_kept_waiting(more: Any, counting: list[TopicPartition]) -> None:
    """Found as it was, it would hold a crash against a record once more, or count records twice."""
    owner = lane(Standing.MEMBER, silent_s=0)
    await owner._go_in_steps(handing_off(1))
    owner.counting = counting
    await owner._go_in_steps(handing_off(2, **more))
    assert owner.moved == [{MAIN: 1}, {MAIN: 2}]


@pytest.mark.parametrize("large", [{"changes": LaneLimits().changes}, {"size": LaneLimits().size}])
async def test_no_more_trails_than_one_full_batch(large: Any) -> None:
    """A lane that opens looks back that far for copies, so the offsets go before what would be too much."""
    owner = lane(Standing.MEMBER, silent_s=0)
    await owner._go_in_steps(handing_off(1))
    await owner._go_in_steps(handing_off(2, size=1))
    assert owner.moved == [{MAIN: 1}]
    await owner._go_in_steps(handing_off(3, **large))
    assert owner.moved == [{MAIN: 1}, {MAIN: 2}]


async def test_what_trails_behind_a_session_that_fails_is_committed_once() -> None:
    """It is done: read again, what was well at once would run once more."""
    owner = lane(Standing.MEMBER, silent_s=0)
    await owner._go_in_steps(handing_off(1))
    await owner._go_in_steps(handing_off(2))
    await owner._trailing.catch_up(owner._commit_offsets, "app.orders.0")
    assert owner.moved == [{MAIN: 1}, {MAIN: 2}]
    assert not owner._trailing.offsets


async def test_a_member_no_more_leaves_it_to_the_next_one() -> None:
    """Which of them has come further is not for the former owner to say."""
    former = lane(Standing.MEMBER, silent_s=0)
    await former._go_in_steps(handing_off(1))
    await former._go_in_steps(handing_off(2))
    former.answer = Standing.GONE
    await former._trailing.catch_up(former._commit_offsets, "app.orders.0")
    assert not former._trailing.offsets
    former._trailing.offsets = {MAIN: Committed(2, "")}
    with pytest.raises(NotMemberError):
        former._check(Standing.GONE)
    assert not former._trailing.offsets


def site() -> LaneSite:
    """Return where the lane of the first partition belongs."""
    return LaneSite(
        name="app.orders.0", group="app", partition=0, sources=[MAIN, RETRY], main=MAIN, delivering=[MAIN],
        changelog=TopicPartition("app.orders.changelog", 0), dlq=TopicPartition("app.orders.dlq", 0),
    )  # fmt: skip


def test_the_first_counts_that_are_said_do_not_trail() -> None:
    """Where nothing said what was counted, as after a stop in good order, and later where they begin anew."""
    notes = Notes(site(), "b")
    first, same, said = Tally(from_offset=0, since_ms=1), Tally(from_offset=0, since_ms=1, received=2), None
    assert notes.said_by(LaneBatch(tally=first))
    notes.counted(LaneBatch(tally=first))
    assert not notes.said_by(LaneBatch(tally=same))
    assert not notes.said_by(LaneBatch(tally=said))
    assert notes.said_by(LaneBatch(tally=Tally(from_offset=2, since_ms=3)))


@pytest.mark.parametrize("found", ["", Mark(alone=False, count=0, life="a").text])
def test_the_first_offset_of_a_life_does_not_trail(found: str) -> None:
    """Until it is committed, what stands there tells of another life, or of none."""
    notes = Notes(site(), "b")
    notes.read({MAIN: Committed(3, found), RETRY: Committed(0, "")}, {MAIN: 3, RETRY: 0}, {MAIN: 3, RETRY: 0}, "")
    batch = LaneBatch(offsets={MAIN: 4})
    assert notes.unmarked(batch)
    assert not notes.unmarked(LaneBatch(offsets={RETRY: 1}))
    notes.beside(batch)
    assert not notes.unmarked(LaneBatch(offsets={MAIN: 5}))


@pytest.mark.parametrize(("next_offset", "alone"), [(4, True), (3, False), (5, False)])
async def test_a_store_never_passes_over_what_another_worker_wrote(next_offset: int, alone: bool) -> None:
    """Behind it the rows would wait in the changelog for ever; the lane opens again and reads them."""
    owner = lane(Standing.MEMBER, silent_s=0)
    owner.pending = SimpleNamespace(next_offset=next_offset)
    if alone:
        assert (await owner._go_in_steps(LaneBatch())).changelog_offset == 5
        return
    with pytest.raises(ChangelogSharedError, match=f"offset 4, not {next_offset}"):
        await owner._go_in_steps(LaneBatch())


def test_what_a_batch_publishes_to_the_changelog_counts_as_written_there() -> None:
    """As the records do that ask for the broker's time."""
    changelog = site().changelog
    batch = LaneBatch(publishes=[Outgoing(*RETRY, b"k", b"v", ()), Outgoing(*changelog, b"time", b"", ())])
    assert offsets_in(changelog, batch, [7, 9]) == [9]
