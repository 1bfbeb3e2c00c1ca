"""Code that holds the event loop is named in the log."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast

import pytest

from retryapp.runtime.machine.held_loop import ROUNDS, HeldLoop


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return what was logged of it."""
    return [record for record in caplog.records if record.name == "retryapp.events"]


def hold(watch: HeldLoop) -> None:
    for _ in range(3 * ROUNDS):
        watch.look()


def handle_of(path: str, module: str, call: Callable[[], object]) -> Callable[[], None]:
    """Return the function `handle` of a file, which calls for longer than a loop may be held."""
    source, names = f"def handle():\n    for _ in range({3 * ROUNDS}): call()", {"__name__": module, "call": call}
    exec(compile(source, path, "exec"), names)  # noqa: S102 - ours
    return cast("Callable[[], None]", names["handle"])


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_function_that_holds_the_loop_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """The loop cannot answer while it runs; the second time adds nothing."""
    watch = HeldLoop()
    for _ in range(2):
        hold(watch)
        await turns()
    assert [line.msg for line in lines(caplog)] == ["retryapp.loop_held"]
    line = hold.__code__.co_firstlineno + 2
    assert lines(caplog)[0].place == f"test_held_loop.py:{line} in hold"
    assert "it has held the event loop for 2s" in lines(caplog)[0].error_message


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="a thread has no clock here")
async def test_a_call_that_keeps_pythons_lock_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """The watching thread misses its rounds, too; it looks when the call ends, and the loop has answered before."""
    watch = HeldLoop(round_s=0.001)
    watch.look()
    await turns()
    sum(range(5_000_000))
    watch.look()
    assert lines(caplog)[0].place.endswith("in test_a_call_that_keeps_pythons_lock_is_named")
    assert "It keeps Python's lock" in lines(caplog)[0].error_message


async def test_functions_of_one_name_are_named_each(caplog: pytest.LogCaptureFixture) -> None:
    """Handlers in several files often have the same."""
    watch = HeldLoop()
    for module in ("orders", "payments", "orders"):
        handle_of(f"/srv/{module}/handlers.py", module, watch.look)()
        await turns()
    assert len(lines(caplog)) == 2


async def test_an_app_that_is_installed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """It looks like a library, but retryapp has called it; what the loop has called may be any library."""
    loop = asyncio.get_running_loop()
    watch = HeldLoop()
    handle = handle_of("/venv/lib/site-packages/shop/handlers.py", "shop.handlers", watch.look)
    loop.call_soon(handle)
    await turns()
    assert lines(caplog) == []
    loop.call_soon(handle_of("/venv/lib/site-packages/retryapp/engine.py", "retryapp.engine", handle))
    await turns()
    assert lines(caplog)[0].place == "handlers.py:2 in handle"


def test_a_loop_that_is_closed_is_watched_no_longer() -> None:
    """Its thread ends."""

    async def watch() -> HeldLoop:
        return HeldLoop(round_s=0.001)

    asyncio.run(watch()).start()
    threads = [thread for thread in threading.enumerate() if thread.name == "held-loop"]
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


async def test_a_loop_that_answers_is_not_held(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is asked, and after it was held too briefly."""
    watch = HeldLoop()
    for _ in range(3 * ROUNDS):
        for _ in range(ROUNDS):
            watch.look()
        await turns()
    assert lines(caplog) == []


async def test_its_thread_names_what_blocks() -> None:
    """The coroutine blocks until the line is there."""
    places = SimpleQueue[str]()

    class Note(logging.Handler):
        """Hands on the places."""

        def emit(self, record: Any) -> None:
            places.put(record.place)

    logger, note = logging.getLogger("retryapp.events"), Note()
    logger.addHandler(note)
    watch = HeldLoop(round_s=0.001)
    watch.start()
    try:
        assert places.get(timeout=30).endswith("in test_its_thread_names_what_blocks")
    finally:
        logger.removeHandler(note)
        watch.end()
