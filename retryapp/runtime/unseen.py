"""Topics that the client library does not know.

A broker that has just started answers before it knows its topics. The assignor gives nobody anything of those, and the
client would next ask after `metadata_max_age_ms`, which Faust sets to 5 minutes: so long a group stood still.
"""

from __future__ import annotations

from typing import Final

import aiokafka

AGAIN_S: Final = 1.0
"""Seconds between two looks."""


async def look_again(consumer: aiokafka.AIOKafkaConsumer) -> list[str]:
    """Ask the broker once more, where a subscribed topic is not known; a client that then knows it joins again.

    Args:
        consumer: the client's, in its own thread.

    Returns:
        The topics that were not known before, sorted; none where all were.
    """
    cluster = consumer._client.cluster
    missing = sorted(topic for topic in consumer.subscription() if not cluster.partitions_for_topic(topic))
    if missing:
        await consumer._client.force_metadata_update()
    return missing
