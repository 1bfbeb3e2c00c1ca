"""The lock of a worker's suspects: one that runs alone, or groups."""

from __future__ import annotations

import asyncio

import pytest
from doubles import settle

from retryapp.engine.delivery.alone import AloneLock


class Holders:
    """Tasks that hold a lock until they are told to leave it."""

    def __init__(self) -> None:
        self.lock = AloneLock()
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    async def ask(self, *names: str) -> list[str]:
        """Have tasks ask for it, those with a capital letter to be alone; return who is inside."""
        for name in names:
            self._leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await settle()
        return self.inside

    async def leave(self, *names: str) -> list[str]:
        """Have them leave; return who is inside then."""
        for name in names:
            self._leave[name].set()
        await settle()
        return self.inside

    async def cancel(self, name: str) -> list[str]:
        """Cancel one; return who is inside then."""
        self.tasks[name].cancel()
        await settle()
        return self.inside

    async def _hold(self, name: str) -> None:
        async with self.lock.held(alone=name.isupper()):
            self.inside.append(name)
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)


@pytest.fixture
async def holders() -> Holders:
    return Holders()


async def test_groups_hold_it_together_and_one_alone_by_itself(holders: Holders) -> None:
    """Whoever waits for it is not overtaken: groups that go on and on would keep it for ever."""
    assert await holders.ask("a", "b", "X", "c", "Y") == ["a", "b"]
    assert await holders.leave("a") == ["b"]
    assert await holders.leave("b") == ["X"]
    assert await holders.leave("X") == ["c"]
    assert await holders.leave("c") == ["Y"]
    assert await holders.leave("Y") == []
    assert await holders.ask("d") == ["d"]


async def test_who_is_cancelled_holds_nothing(holders: Holders) -> None:
    """A session may end while it holds the lock, waits for it, or has just got it."""
    assert await holders.ask("X", "Y", "a", "b") == ["X"]
    await holders.cancel("Y")
    assert await holders.cancel("X") == ["a", "b"]
    await holders.ask("Z", "c")
    assert await holders.cancel("Z") == ["a", "b", "c"]
    await holders.ask("W")
    holders.tasks["W"].cancel()
    assert await holders.leave("a", "b", "c") == []
    await holders.ask("d", "V")
    holders._leave["d"].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await holders.cancel("V") == []
    assert await holders.ask("e") == ["e"]
