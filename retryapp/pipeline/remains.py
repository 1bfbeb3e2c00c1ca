"""What of a key is still on topics after it was erased from the lake, and when the broker lets go of it."""

from __future__ import annotations

from dataclasses import dataclass

from retryapp.core.errors import DamagedRowError
from retryapp.core.rows import decode_row
from retryapp.core.topology import TopicRole
from retryapp.kafka import KafkaAdmin, find_handlers, fold_changelog, read_keys
from retryapp.pipeline.sources import find_sources, retention_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Records of the key on one topic."""

    topic: str
    records: int
    expires_ms: int | None  # when the retention of the newest of them ends; None: no limit, or they wait
    waiting: bool = False  # rows of a changelog, which stay until their records have an outcome


def find_remains(admin: KafkaAdmin, group: str, key: bytes) -> tuple[Remains, ...]:
    """Count a key's records on a group's main, retry and dead-letter topics, and those that wait on its changelogs.

    Raises:
        GroupMissingError: the group has no topics there.
    """
    handlers, names = find_handlers(admin, group), admin.topic_names()
    archived = {life.topic for life in find_sources(admin, group) if life.station != TopicRole.EVENTS.value}
    found = []
    for name, kept_ms in retention_of(admin, archived | {topology.main for topology in handlers}).items():
        times = [arrived_ms for found_key, arrived_ms in read_keys(admin.connection, name) if found_key == key]
        if not times:
            continue
        expires_ms = None if kept_ms is None else max(times) + kept_ms
        found.append(Remains(topic=name, records=len(times), expires_ms=expires_ms))
    for changelog in {topology.pending_changelog for topology in handlers} & set(names):
        rows = fold_changelog(admin.connection, changelog, lambda _, row: _is_of(key, row))
        if waiting := sum(rows.values()):
            found.append(Remains(topic=changelog, records=waiting, expires_ms=None, waiting=True))
    return tuple(sorted(found, key=lambda part: part.topic))


def _is_of(key: bytes, row: bytes) -> bool:
    """Tell whether a row has a copy of a record of the key; of one that cannot be read, whether it may."""
    try:
        return decode_row(row).key == key
    except DamagedRowError:
        return key in row
