"""What of a key is still on topics after it was erased from the lake, and when the broker lets go of it."""

from __future__ import annotations

from dataclasses import dataclass

from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, find_handlers, read_topic
from retryapp.pipeline.sources import stations_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Records of the key on one topic."""

    topic: str
    records: int
    expires_ms: int | None  # when the retention of the newest of them ends; None: no limit


def find_remains(admin: KafkaAdmin, group: str, key: bytes) -> tuple[Remains, ...]:
    """Read a group's main, retry and dead-letter topics and count a key's records."""
    handlers = find_handlers(admin, group)
    states = admin.describe_topics(_holding_keys(handlers, admin.topic_names()))
    found = []
    for name, state in sorted(states.items()):
        times = [record.timestamp_ms for record in read_topic(admin.connection, name) if record.key == key]
        if not times:
            continue
        retention_ms = int(state.config.get("retention.ms", "-1"))
        kept = retention_ms < 0 or "compact" in state.config.get("cleanup.policy", "delete")
        found.append(Remains(topic=name, records=len(times), expires_ms=None if kept else max(times) + retention_ms))
    return tuple(found)


def _holding_keys(handlers: tuple[HandlerTopology, ...], names: tuple[str, ...]) -> set[str]:
    archived = {name for name, (topology, _) in stations_of(handlers, names).items() if name != topology.events}
    return archived | {topology.main for topology in handlers}
