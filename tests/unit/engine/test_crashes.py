"""What if the process dies here? At every step of a lane, and at every turn of the event loop in between.

A worker leads a life with records that are fine, slow, fail once, fail for ever and cannot be processed; its lane opens
anew twice in it. It is killed at a point: nothing is flushed, nothing given back. The next worker goes on with what is
in Kafka and on the disk, and in the end Kafka has to say that nothing was lost, repeated or early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import pytest
from crashes import Point, World
from doubles import MAIN, REDELIVERY

from retryapp.testing import MemoryPartition, Step

OPENINGS = 3
OPENING = (Step.HOLD, Step.PROVE, Step.FENCE, Step.COMMITTED, Step.RECOVER, Step.RELEASE)
LEAST = {Step.HOLD: OPENINGS + 2, Step.PROVE: 2 * OPENINGS, Step.COMMIT: 15, Step.CLOSE: OPENINGS}
"""How often an undisturbed life comes to a step, at least; the others once in each opening."""


STORES = pytest.mark.parametrize("store", ["kept", "lost"])
COMMITS = pytest.mark.parametrize("durable", [False, True], ids=["not committed", "committed, answer lost"])


def sweep(crash: Callable[[Point], Coroutine[Any, Any, bool]], step: Step, *, durable: bool = False) -> int:
    """Crash at each call of a step in turn until there is none; return how many there were.

    Args:
        crash: does so, in an event loop of its own, and tells whether the point was reached.
        step: which.
        durable: see `Point`.
    """
    for n in count():
        if not asyncio.run(crash(Point(step, n, durable))):
            return n
    raise AssertionError("a life has an end")


def crash_once(store: str) -> Callable[[Point], Coroutine[Any, Any, bool]]:
    """Return a scenario: one crash, then a life to the end."""

    async def crash(point: Point) -> bool:
        it = World()
        died = await it.die_at(point)
        if died.reached and store == "lost":
            it.kafka.lose_store()
        if died.reached:
            await it.survive()
        it.check((point, store))
        return died.reached

    return crash


@STORES
@pytest.mark.parametrize("step", [*OPENING, Step.CLOSE])
def test_a_worker_that_dies_while_its_lane_opens_or_closes(step: Step, store: str) -> None:
    """In each opening and each closing of its life."""
    assert sweep(crash_once(store), step) >= LEAST.get(step, OPENINGS)


@STORES
@COMMITS
def test_a_worker_that_dies_in_a_transaction(durable: bool, store: str) -> None:
    """Before it is committed, or after that and before the local store is written and the next turn is taken."""
    assert sweep(crash_once(store), Step.COMMIT, durable=durable) >= LEAST[Step.COMMIT]


SECOND = [
    *(Point(step) for step in OPENING),
    Point(Step.PROVE, 1),
    *(Point(Step.COMMIT, n, durable) for n in (0, 2) for durable in (False, True)),
]


# -- between the steps ------------------------------------------------------------------------------------------------


def state_of(worker: MemoryPartition, world: World) -> tuple[object, ...]:
    """Return what an `await` on a record's way may have changed."""
    engine, lane = worker.engine, worker.lane
    return (
        len(worker.transport.calls), len(world.runs), len(world.finished), len(world.unsent), worker.clock.sleeping,
        lane.state, lane.session, len(lane._queue), lane._rest is None, engine.in_flight, engine._draining,
        len(engine._running), len(engine.firing.claimed), len(engine._unreleased), len(engine.firing.ahead),
        tuple(worker._next.values()),
    )  # fmt: skip


def dies_at_change(world: World, n: int) -> Callable[[MemoryPartition], bool]:
    """Return the moment at which a worker's state has changed for the n-th time, since it is being stopped if it is."""
    seen: list[object] = []

    def now(worker: MemoryPartition) -> bool:
        state = state_of(worker, world)
        if (world.stopped_at is None or worker.engine._draining) and (not seen or state != seen[-1]):
            seen.append(state)
        return len(seen) > n

    return now


@pytest.mark.parametrize("stopped_at", [None, *range(1, 20, 2)])
def test_a_worker_that_dies_at_any_turn_of_the_event_loop(stopped_at: int | None) -> None:
    """Handlers run, outcomes wait for earlier ones, transactions travel, the lane rests; also while it is stopped."""

    async def crash(n: int) -> bool:
        world = World(stopped_at=stopped_at)
        world.move_away()
        died = await world.die_when(dies_at_change(world, n))
        if died:
            await world.survive()
            world.check((stopped_at, n))
        return died

    n = next(n for n in count() if not asyncio.run(crash(n)))
    assert n >= (90 if stopped_at is None else 2)


def test_a_worker_that_dies_while_a_record_waits_for_its_due_time() -> None:
    """It was fired by a clock that ran ahead; whoever reads it next waits as well."""

    async def crash() -> None:
        world = World()

        def ahead(worker: MemoryPartition) -> bool:
            if world.kafka.read(REDELIVERY) and not jumped:
                jumped.append(world.clock.wall_ms())
                world.clock.jump_wall(-5_000)
            return bool(jumped) and worker.engine.idle(MAIN) and not worker.engine.idle(REDELIVERY)

        jumped: list[int] = []
        assert await world.die_when(ahead)
        assert await world.die_when(ahead)
        await world.survive()
        assert world.clock.wall_ms() > jumped[0]
        world.check("ahead")

    asyncio.run(crash())
