"""Plain functions in daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from collections.abc import Callable

from retryapp.engine.handler.threads import Threads


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.002)


async def test_a_thread_is_used_again_and_no_more_are_kept_than_asked() -> None:
    """So a connection in a thread's locals is found again, and a burst leaves no threads behind."""
    threads = Threads(keep=2)
    first = await threads.run(threading.get_ident, name="one")
    second = await threads.run(threading.get_ident, name="two")
    assert first.result == second.result != threading.get_ident()
    together = threading.Barrier(5)

    def meet() -> threading.Thread:
        together.wait()
        return threading.current_thread()

    used = [ended.result for ended in await asyncio.gather(*(threads.run(meet, name="burst") for _ in range(5)))]
    until(lambda: sum(thread.is_alive() for thread in used) == 2)


async def test_threads_end_with_their_handler() -> None:
    """Free ones do not outlive it."""
    threads = Threads(keep=1)
    thread = (await threads.run(threading.current_thread, name="one")).result
    assert thread.is_alive()
    assert thread.daemon
    del threads
    gc.collect()
    until(lambda: not thread.is_alive())


async def test_a_run_sees_the_callers_context_and_changes_a_copy() -> None:
    """As `asyncio.to_thread` does it; the thread carries the run's name meanwhile."""
    variable = contextvars.ContextVar[str]("variable")
    variable.set("caller")

    def look() -> tuple[str, str]:
        found = variable.get()
        variable.set("changed")
        return found, threading.current_thread().name

    threads = Threads(keep=1)
    for name in ("first", "second"):
        assert (await threads.run(look, name=name)).result == ("caller", name)
    assert variable.get() == "caller"


def test_a_function_that_ends_after_its_loop_is_closed_hurts_nobody() -> None:
    over, seen = threading.Event(), list[threading.Thread]()

    def hang() -> None:
        seen.append(threading.current_thread())
        over.wait(10)

    threads = Threads(keep=1)

    async def begin() -> None:
        threads.run(hang, name="hang")

    asyncio.run(begin())
    over.set()
    until(lambda: seen and not seen[0].is_alive())
