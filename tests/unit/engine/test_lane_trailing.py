"""A lane whose transport leaves offsets behind sees to it that a batch comes which takes them along."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doubles import MAIN, Rig

from retryapp.ports import LaneBatch, LaneReceipt
from retryapp.testing import Step


@pytest.fixture
def trailing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A lane whose transport commits no offset together with a change."""
    commit: Any = rig.transport.commit

    async def trail(batch: LaneBatch) -> LaneReceipt:
        return replace(await commit(batch), behind=bool(batch.changes))

    monkeypatch.setattr(rig.transport, "commit", trail)
    return rig


async def test_a_lane_that_falls_idle_commits_what_it_left_behind(trailing: Rig) -> None:
    """After a tick, once."""
    trailing.submit("a", 8, publishes=1)
    await trailing.settle()
    assert len(trailing.transport.batches) == 1
    for _ in range(4):
        await trailing.advance(250)
    assert [batch.offsets for batch in trailing.transport.batches] == [{MAIN: 8}, {MAIN: 8}]


async def test_a_lane_that_goes_on_need_not(trailing: Rig) -> None:
    """An offset that comes by itself takes it along."""
    trailing.submit("a", 8, publishes=1)
    await trailing.settle()
    trailing.submit("b", 9)
    for _ in range(4):
        await trailing.advance(250)
    assert [batch.offsets for batch in trailing.transport.batches] == [{MAIN: 8}, {MAIN: 9}]


async def test_a_lane_in_mid_commit_asks_again(trailing: Rig) -> None:
    """What is being committed may leave offsets behind as well."""
    trailing.submit("a", 8, publishes=1)
    await trailing.settle()
    gate = trailing.transport.pause(Step.COMMIT)
    trailing.submit("b", 9, publishes=1)
    for _ in range(3):
        await trailing.advance(250)
    gate.set()
    for _ in range(4):
        await trailing.advance(250)
    assert [batch.offsets for batch in trailing.transport.batches] == [{MAIN: 8}, {MAIN: 9}, {MAIN: 9}]
    assert trailing.transport.batches[-1].changes == 0


async def test_a_lane_that_has_closed_commits_nothing_more(trailing: Rig) -> None:
    """Its transport did, with its last request."""
    trailing.submit("a", 8, publishes=1)
    await trailing.settle()
    trailing.lane.finish()
    for _ in range(4):
        await trailing.advance(250)
    assert len(trailing.transport.batches) == 1
