"""Whether a broker answers: counted from its last answer, and logged once."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

from retryapp.engine.handler.threads import Ended, Threads
from retryapp.kafka import LoginRefusedError
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.observe.contact import EVERY_S, SILENT_S, Contact
from retryapp.testing import VirtualClock


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what would run in a thread run at once: a virtual clock does not wait for threads."""

    async def call(_threads: Threads, function: Callable[[], object], *, name: str) -> Ended:
        try:
            return Ended(function())
        except LoginRefusedError as error:
            return Ended(error=error)

    monkeypatch.setattr(Threads, "run", call)


async def pass_time(clock: VirtualClock, seconds: float) -> None:
    for _ in range(round(seconds / EVERY_S)):
        clock.advance(round(EVERY_S * 1000))
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.usefixtures("at_once")
async def test_a_silence_is_one_line_at_its_begin_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Its length is counted from the last answer; numbers are remembered only while a broker answers."""
    clock = VirtualClock()
    answered_s = -inf
    remembered: list[float] = []
    contact = Contact(clock, lambda: "kafka-1:9092", lambda: answered_s)
    caplog.set_level(logging.INFO)

    async def remember() -> None:
        remembered.append(clock.monotonic_s())

    task = asyncio.create_task(contact.run(remember))

    await pass_time(clock, 20)
    assert contact.silence() is None, "none was asked yet"
    answered_s = clock.monotonic_s()
    await pass_time(clock, 42)
    silence = contact.silence()
    assert silence == "broker kafka-1:9092 has not answered for 42 s"
    assert contact.silent_s() == 42
    assert max(remembered) - answered_s < SILENT_S
    (line,) = caplog.messages
    assert "broker kafka-1:9092 has not answered for 6 s" in line
    answered_s = clock.monotonic_s()
    await pass_time(clock, 2)
    task.cancel()
    assert caplog.messages[1:] == ["A broker answers again: before, broker kafka-1:9092 has not answered for 42 s"]
    assert max(remembered) == clock.monotonic_s()


@pytest.mark.usefixtures("at_once")
async def test_a_refused_login_explains_a_silence(caplog: pytest.LogCaptureFixture) -> None:
    """After a change of password brokers hang up on a running client: "look whether it runs" would mislead."""
    clock = VirtualClock()
    answered_s, tries, working = clock.monotonic_s(), list[float](), False

    def prove() -> None:
        tries.append(clock.monotonic_s())
        if not working:
            raise LoginRefusedError("log in", "kafka-1:9092", "SaslAuthenticationFailed (user 'ann')")

    contact = Contact(clock, lambda: "kafka-1:9092", lambda: answered_s, prove)
    task = asyncio.create_task(contact.run(lambda: asyncio.sleep(0)))

    await pass_time(clock, 70)
    silence = contact.silence() or ""
    assert silence.startswith("broker kafka-1:9092 has not answered for 70 s: could not log in on kafka-1:9092: Sasl")
    assert "(user 'ann'). Correct the login" in silence
    (line,) = caplog.messages
    assert "Correct the login" in line, "the line about the silence names the refused login"
    assert [later - first for first, later in itertools.pairwise(tries)] == [30, 30], "and not asked all the time"
    working = True
    await pass_time(clock, 30)
    assert contact.silence() == "broker kafka-1:9092 has not answered for 100 s", "it is refused no more"
    task.cancel()


def test_a_topic_may_be_read_again_once_no_broker_refuses_it() -> None:
    """The client tells of refusals only, several a second while there is one."""
    clock = VirtualClock()
    contact = Contact(clock, lambda: "b:9092", clock.monotonic_s)
    contact.refuse("orders")
    assert contact.refused("clicks") is None
    clock.advance(round(SILENT_S * 1000) - 1)
    assert "may not read orders. Grant READ" in str(contact.refused("orders"))
    clock.advance(1)
    assert contact.refused("orders") is None


async def test_a_login_that_cannot_be_tried_ends_no_look() -> None:
    """Libraries for logins have errors of their own: a ticket that has expired, say."""
    clock = VirtualClock()
    answered_s = clock.monotonic_s()

    def prove() -> None:
        raise ValueError("no ticket")

    contact = Contact(clock, lambda: "kafka-1:9092", lambda: answered_s, prove)
    clock.advance(12_000)
    assert await contact._look_for_refusal()
    assert (contact.silence() or "").endswith("for 12 s: the login could not be tried: ValueError('no ticket')")


async def test_handlers_that_hold_all_threads_of_the_loop_do_not_hide_a_silence() -> None:
    """Which may be just what they wait for."""
    loop, over, clock = asyncio.get_running_loop(), threading.Event(), VirtualClock()
    loop.set_default_executor(ThreadPoolExecutor(1))
    held = loop.run_in_executor(None, over.wait)
    answered_s = clock.monotonic_s()
    contact = Contact(clock, lambda: "kafka-1:9092", lambda: answered_s)
    clock.advance(12_000)
    try:
        await contact._look_for_refusal()
    finally:
        over.set()
        await held


def test_several_brokers_are_named_as_such() -> None:
    """Any one that answers ends the silence."""
    clock = VirtualClock()
    contact = Contact(clock, lambda: "a:1,b:2", lambda: 1_000)
    assert contact.silence() is None
    clock.advance(12_000)
    assert contact.silence() == "brokers a:1,b:2 have not answered for 12 s"


async def test_the_last_answer_is_that_of_any_connection_and_is_kept_when_connections_close(
    consumer: RetryConsumer, thread: Any
) -> None:
    """A broker that goes takes its connections with it."""
    answered = thread.client.answered
    answered |= {1: SimpleNamespace(_last_action=70.0), ("coordinator", 1): SimpleNamespace(_last_action=90.0)}
    assert consumer.answered_s() == 90.0
    answered.clear()
    assert consumer.answered_s() == 90.0
    answered[2] = SimpleNamespace(_last_action=80.0)
    assert consumer.answered_s() == 90.0


@pytest.mark.parametrize(("ago_s", "asked"), [(0.0, 0), (30.0, 1)])
async def test_a_broker_is_asked_when_nothing_else_asks_it(
    consumer: RetryConsumer, thread: Any, monkeypatch: pytest.MonkeyPatch, ago_s: float, asked: int
) -> None:
    """In a long rebalance nothing is fetched: the silence would be ours."""
    metadata: list[float] = []
    client = thread.client
    client.answered[1] = SimpleNamespace(_last_action=time.monotonic() - ago_s)
    monkeypatch.setattr(
        type(client),
        "_client",
        SimpleNamespace(_conns=client.answered, force_metadata_update=lambda: metadata.append(1)),
    )

    def check_errors(_client: Any) -> None:
        raise GroupAuthorizationFailedError("app")

    monkeypatch.setattr(type(client), "check_errors", check_errors, raising=False)
    monkeypatch.setattr(consumer, "sleep", lambda _seconds: asyncio.sleep(0))
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer._watch_group.fun(consumer)
    assert len(metadata) == asked


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda task: task.set_exception(KafkaError("unexpected")), "unexpected"),
        (lambda task: task.cancel(), "has ended"),
        (lambda task: task.set_result(None), "has ended"),
    ],
    ids=["error", "cancelled", "returned"],
)
@pytest.mark.parametrize("which", [0, 1], ids=["fetching", "refreshing metadata"])
async def test_a_worker_whose_client_does_its_work_no_more_ends(
    consumer: RetryConsumer,
    thread: Any,
    monkeypatch: pytest.MonkeyPatch,
    which: int,
    end: Callable[[asyncio.Future[None]], object],
    words: str,
) -> None:
    """Nothing else asks how a task of it ended: partitions would stand still, and look well."""
    client, rounds = thread.client, itertools.count()
    client.tasks[which] = ended = asyncio.get_running_loop().create_future()

    async def rest(_seconds: float) -> None:
        if (number := next(rounds)) == 1:
            end(ended)
        assert number < 3, "it goes on"

    monkeypatch.setattr(type(client), "check_errors", lambda _client: None, raising=False)
    monkeypatch.setattr(consumer, "sleep", rest)
    with pytest.raises(KafkaError, match=words):
        await consumer._watch_group.fun(consumer)


async def test_the_tasks_of_a_client_that_is_closed_may_end(
    consumer: RetryConsumer, thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing cancels them; the consumer may still look once."""
    client = thread.client
    client._closed = True
    client.tasks[0].cancel()
    rounds: list[float] = []

    async def rest(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            consumer._stopped.set()

    monkeypatch.setattr(type(client), "check_errors", lambda _client: None, raising=False)
    monkeypatch.setattr(consumer, "sleep", rest)
    await consumer._watch_group.fun(consumer)
    assert len(rounds) == 2
