"""Tasks of a worker that go on for as long as it runs, whatever one round of them raises."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.core.publication import TopicLook
from retryapp.runtime import app as module
from retryapp.runtime.app import Runtime

FAULTS = [TimeoutError(), OSError("reset"), RuntimeError("no token"), AssertionError()]
"""What a round may raise: a client library, and the program's own token provider, which it calls as it connects."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once a task has gone on after the faults."""
    monkeypatch.setattr(module, "_COMMANDS_S", 0.0)
    monkeypatch.setattr(module, "_GROWTH_S", 0.0)
    return asyncio.Event()


@pytest.mark.parametrize("fault", FAULTS)
async def test_commands_are_looked_for_again(
    fault: Exception, runtime: Runtime, done: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this task the worker would obey no command any more, and say nothing."""
    faults, lines, levels = [fault] * 3, list[str](), list[int]()
    monkeypatch.setattr(module.logger, "exception", lines.append)
    monkeypatch.setattr(module.logger, "log", lambda level, *_: levels.append(level))

    async def look(_reader: Any) -> None:
        if faults:
            raise faults.pop()
        done.set()

    runtime.look_for_commands = look  # type: ignore[method-assign]
    task = asyncio.create_task(runtime._look_for_commands(SimpleNamespace()))  # type: ignore[arg-type]
    await going_on(task, done)
    away = isinstance(fault, OSError)
    assert len(lines) == (0 if away else 3), "a broker that is away is no news"
    assert levels == [logging.WARNING, logging.DEBUG, logging.DEBUG] * away, "once"


async def test_partitions_are_counted_again(
    runtime: Runtime, done: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this task the worker would not read new partitions; those count that all our topics have."""
    served = next(iter(runtime.served.values()))
    served.partitions, served.complete = 4, 1
    topology, faults = served.handler.topology, [RuntimeError("no token")]
    looks = [{}, dict.fromkeys(topology.owned, TopicLook(3)) | {topology.dlq: TopicLook(2)}]
    counted: list[int] = []

    async def look(topic: str) -> TopicLook | None:
        if faults:
            raise faults.pop()
        return looks[min(len(counted), 2) - 1].get(topic)

    def complete(_served: Any, least: int) -> None:
        counted.append(least)
        if len(counted) == 3:
            done.set()

    monkeypatch.setattr(runtime.topics, "look", look)
    monkeypatch.setattr(runtime, "complete", complete)
    await going_on(asyncio.create_task(runtime._look_for_growth()), done)
    assert counted[:3] == [0, 0, 2]


async def test_a_worker_ends_whose_main_topic_was_made_again(
    runtime: Runtime, done: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a hand-over: it would read the new one from where it was in the former; one that is away says nothing."""
    (main, served), ended = next(iter(runtime.served.items())), list[str]()
    served.topic_id = "former"
    states: list[Any] = [{main: "new"}, {main: "former"}, {}, OSError("away")]

    async def look(topic: str) -> TopicLook | None:
        state = states.pop()
        if isinstance(state, Exception):
            raise state
        return TopicLook(1, topic_id=state[topic]) if topic in state else None

    async def leave(_grace_s: float) -> None:
        ended.append("handed over")

    monkeypatch.setattr(runtime.topics, "look", look)
    monkeypatch.setattr(module, "_OTHERS_S", 0.0)
    monkeypatch.setattr(module, "end_process", lambda why: (ended.append(why), done.set()))
    runtime.leave = leave  # type: ignore[method-assign]
    task = asyncio.create_task(runtime._look_for_other_topics())
    await done.wait()
    task.cancel()
    assert (states, ended[0], len(ended)) == ([], "handed over", 2)
    assert f"{main} was deleted and made again" in ended[1]


async def going_on(task: asyncio.Task[None], done: asyncio.Event) -> None:
    """Wait until a task has gone on, and end it."""
    waiting = asyncio.create_task(done.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done()
        assert done.is_set()
    finally:
        task.cancel()
        waiting.cancel()
