"""``from retryapp.testing.fixtures import start_partition`` in ``conftest.py``; needs pytest and pytest-asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from retryapp.engine.handler.handler import HandlerFunction
from retryapp.testing.partition import MemoryPartition

StartPartition = Callable[..., Awaitable[MemoryPartition]]


@pytest_asyncio.fixture
async def start_partition() -> AsyncIterator[StartPartition]:
    """Start partitions in memory, which end with the test."""
    async with AsyncExitStack() as stack:

        async def start(function: HandlerFunction, *args: Any, **options: Any) -> MemoryPartition:
            return await stack.enter_async_context(MemoryPartition(function, *args, **options))

        yield start
