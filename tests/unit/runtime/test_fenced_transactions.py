"""A lane whose transaction is fenced while records of it are on their way."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ProducerFenced

from retryapp.core.hops import Outgoing
from retryapp.ports import LaneBatch, TopicPartition
from retryapp.runtime.publisher import KafkaTransport
from retryapp.testing import VirtualClock


class Fenced:
    """A client whose transaction is refused while records of it are on their way."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[None]] = []

    async def begin_transaction(self) -> None:
        """Go well."""

    def create_batch(self) -> Any:
        """Begin a batch, which takes anything."""
        return SimpleNamespace(append=lambda **_: True)

    async def send_batch(self, *_: Any, **__: Any) -> asyncio.Future[None]:
        """Take a batch."""
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]

    async def send_offsets_to_transaction(self, *_: Any) -> None:
        """Fail, and with it all that is on its way."""
        for future in self.sent:
            future.set_exception(ProducerFenced())
        self.sent.clear()
        raise ProducerFenced


async def test_a_fenced_transaction_leaves_no_traceback_behind() -> None:
    """What became of the records of a transaction that failed is looked at, or the event loop complains of each."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: complaints.append(told["message"]))
    place: Any = SimpleNamespace(
        name="app.orders.0",
        group="app",
        main=TopicPartition("orders", 0),
        changelog=TopicPartition("changelog", 0),
        topic_id="",
        changelog_id="",
        delivering=(),
    )
    nothing: Any = None
    lane = KafkaTransport(
        place=place,
        settings=nothing,
        consumer=nothing,
        reader=nothing,
        clock=VirtualClock(),
        generation=1,
        member_id="m",
    )
    client: Any = Fenced()
    lane._producer = client
    out = Outgoing(topic="app.orders.retry", partition=0, key=b"k", value=b"v", headers=())
    with pytest.raises(ProducerFenced):
        await lane.commit(LaneBatch(offsets={TopicPartition("orders", 0): 1}, publishes=[out]))
    gc.collect()
    assert complaints == []
