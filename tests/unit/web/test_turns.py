"""Threads of the pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from retryapp.web.turns import Turns, compute

ENDS = """
import asyncio, time
from retryapp.web.turns import Turns, compute

async def ask():
    turns = Turns(1)
    asked = [asyncio.ensure_future(each) for each in (turns.take(lambda: time.sleep(600)), compute(time.sleep, 600))]
    await asyncio.wait(asked, timeout=0.2)

asyncio.new_event_loop().run_until_complete(ask())
"""


def test_a_process_that_ends_does_not_wait_for_a_page() -> None:
    """One that counts dead letters, or whose broker is away. In a process of its own: its end is what is looked at."""
    subprocess.run([sys.executable, "-c", ENDS], check=True)


async def test_what_a_call_raises_or_returns_reaches_the_page() -> None:
    """From a thread that takes the next call, too."""
    turns = Turns(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await turns.take(lambda: 1 // 0)
        assert await turns.take(lambda: 7) == await compute(lambda: 7)
