"""Commits that a broker has acknowledged and lost, by its own files.

Kafka may note a transaction as complete although partitions of it have no marker (docs/reliability.md, "What no client
can prevent"). Its log says so at times, and at times it does not; so the segments are read, too.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka.record.memory_records import MemoryRecords

from retryapp.broker import Broker
from retryapp.broker.config import log_dir

_DROPPED = "while trying to send transaction markers for {group}."
_STATE = struct.Struct(">hqhib")
"""Begin of a value of ``__transaction_state``: version, producer id and epoch, time-out, state."""
_PREPARED, _COMPLETE = 2, 4
"""States: the commit is decided; all markers are written."""
_HANDED_OFF = ".retry", ".dlq", ".events"
"""Topics of ours that are not compacted, which takes markers away, too: how what follows the group's name may end."""


class _Commit(NamedTuple):
    at_ms: int
    producer: int
    number: int
    """Of the partition, on each topic."""
    value: bytes
    """Names the topics."""


def dropped_markers(broker: Broker, group: str) -> int:
    """Return how often a broker dropped commit markers of a group, by its log or by its segments."""
    line = _DROPPED.format(group=group)
    told = sum(log.read_text(errors="replace").count(line) for log in broker.log.parent.glob("broker.log*"))
    return told + lost_commits(log_dir(broker.data), group)


def lost_commits(logs: Path, group: str) -> int:
    """Return how many hand-offs of a group were noted as committed and have no marker, by the segments of a broker."""
    commits = list(_commits(logs, group))
    markers: dict[Path, dict[int, list[int]]] = {}
    lost = 0
    for commit in commits:
        ends = sorted(each.at_ms for each in commits if each.producer == commit.producer)
        following = bisect_right(ends, commit.at_ms)
        next_ms = ends[following] if following < len(ends) else 1 << 62
        for folder in logs.glob(f"{group}.*-{commit.number}"):
            topic = folder.name.rpartition("-")[0]
            if not topic.endswith(_HANDED_OFF) or written(topic) not in commit.value:
                continue
            if folder not in markers:
                markers[folder] = _markers(folder)
            lost += not any(commit.at_ms <= at_ms < next_ms for at_ms in markers[folder][commit.producer])
    return lost


def written(topic: str) -> bytes:
    """Return the name of a topic, of 126 bytes at most, as a transaction's state has it: behind its length plus 1."""
    return bytes([len(topic) + 1]) + topic.encode()


def _commits(logs: Path, group: str) -> Iterator[_Commit]:
    decided: dict[bytes, _Commit] = {}
    for batch in _batches(logs.glob("__transaction_state-*")):
        for record in batch:
            name = record.key[4:] if record.key else b""  # version, length
            if not name.startswith(f"{group}.".encode()) or not record.value:
                continue
            _, producer, _, _, state = _STATE.unpack_from(record.value)
            if state == _PREPARED:
                number = int(name.rpartition(b".")[2])
                decided[name] = _Commit(record.timestamp, producer, number, record.value)
            elif state == _COMPLETE and name in decided:
                yield decided.pop(name)


def _markers(folder: Path) -> dict[int, list[int]]:
    """Return when the commit markers of each producer were written to a partition, by the clock of its broker."""
    found: dict[int, list[int]] = defaultdict(list)
    for batch in _batches([folder]):
        if batch.is_control_batch:
            found[batch.producer_id] += [record.timestamp for record in batch if record.key[3:4] == b"\x01"]
    return found


def _batches(folders: Any) -> Iterator[Any]:
    for folder in folders:
        for segment in sorted(folder.glob("*.log")):
            records = MemoryRecords(segment.read_bytes())
            while records.has_next():
                yield records.next_batch()
