"""The retention of topics that records wait in, looked at on a real broker while a worker runs."""

from __future__ import annotations

import asyncio
import math
import uuid
from types import SimpleNamespace
from typing import Any

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from harness import wait_for

from retryapp.core.policy import RetryPolicy
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, PlanOptions, ensure_topics
from retryapp.runtime.observe.retentions import RetentionWatch

WEEK_AND_HOUR_S = 7 * 86_400 + 3_600


def set_retention(admin: KafkaAdmin, topic: str, retention_ms: int) -> None:
    """Change a topic as an operator would."""
    entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin._client.incremental_alter_configs([resource])[resource].result(10)


async def test_a_retention_that_is_changed_while_a_worker_runs_is_seen(admin: KafkaAdmin) -> None:
    """Shorter, for ever, and what cannot be asked any more."""
    policy = RetryPolicy("5m 1h")
    topology = HandlerTopology(f"g{uuid.uuid4().hex[:8]}", "orders", delays_ms=policy.schedule.nominal_delays_ms)
    plan = ensure_topics(admin, [topology], PlanOptions(create_main_partitions=1))
    served: Any = {"orders": SimpleNamespace(handler=SimpleNamespace(topology=topology, policy=policy))}
    watch = RetentionWatch(served, lambda: admin.connection)
    assert watch.retentions() == {}, "nothing was looked at"
    watch.learn(plan)
    (retry,) = topology.retry_topics
    told = watch.retentions()["orders"]
    assert (told.longest_wait_s, told.needed_s) == (3_600, WEEK_AND_HOUR_S)
    assert told.topics_s == {retry: WEEK_AND_HOUR_S, topology.redelivery: WEEK_AND_HOUR_S}
    looking = asyncio.create_task(watch.run(every_s=0.05))
    try:
        set_retention(admin, retry, 60_000)
        set_retention(admin, topology.redelivery, -1)
        changed = {retry: 60, topology.redelivery: math.inf}
        await asyncio.to_thread(wait_for, lambda: watch.retentions()["orders"].topics_s == changed, "both changes")
        admin._client.delete_topics([retry])[retry].result(10)
        left = {topology.redelivery}
        await asyncio.to_thread(wait_for, lambda: set(watch.retentions()["orders"].topics_s) == left, "one is gone")
        assert not looking.done()
    finally:
        looking.cancel()
