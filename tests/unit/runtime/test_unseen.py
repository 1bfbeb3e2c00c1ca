"""Topics that a client does not know yet are asked for again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retryapp.runtime.consumer import RetryConsumer


@pytest.mark.usefixtures("no_fausts_part")
async def test_topics_that_a_young_broker_does_not_know_yet_are_asked_for_again(
    consumer: RetryConsumer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is given anything of them; by itself the client would look again in five minutes."""
    monkeypatch.setattr(consumer.app.assignor, "assigned_actives", set)
    monkeypatch.setattr("retryapp.runtime.consumer._TOPICS_AGAIN_S", 0.0)
    consumer.intake.on_assigned = consumer.intake.on_revoked = None
    client.unseen = [{"orders", "clicks"}, {"clicks"}]
    await consumer.on_partitions_assigned(set(), 4)
    await asyncio.gather(*consumer._futures)
    assert (client.looked, client.unseen) == (2, [])
    client.unseen = [{"orders"}] * 1_000
    await consumer.on_partitions_assigned(set(), 5)
    await asyncio.sleep(0)
    await consumer.on_partitions_revoked(set())  # the next assignment looks by itself
    await asyncio.wait_for(asyncio.gather(*consumer._futures), 5)
    assert client.unseen
