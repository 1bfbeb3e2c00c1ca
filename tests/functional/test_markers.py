"""The harness finds a commit that a broker has acknowledged and lost."""

from __future__ import annotations

import struct
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from harness.markers import lost_commits, written

LANE = "g.orders.1"
TOPIC = "g.orders.retry"


def batch(at_ms: int, key: bytes, value: bytes, *, control: bool = False) -> bytes:
    made = DefaultRecordBatchBuilder(2, 0, 1, 7, 0, 0, 1 << 20)
    made.append(0, at_ms, key, value, [])
    written = bytearray(made.build())
    written[22] |= 0x20 * control  # the attributes' lower byte
    return bytes(written)


def transaction(begun_ms: int, *, ends: int, topic: str = TOPIC) -> bytes:
    key = struct.pack(">hh", 0, len(LANE)) + LANE.encode()
    states = [(begun_ms, 1), (begun_ms + 1, ends), (begun_ms + 2, ends + 2)]
    return b"".join(
        batch(at_ms, key, struct.pack(">hqhib", 1, 7, 0, 60_000, state) + written(topic)) for at_ms, state in states
    )


def marker(at_ms: int, *, commits: bool) -> bytes:
    return batch(at_ms, struct.pack(">hh", 0, commits), b"", control=True)


def lost(logs: Path, states: bytes, retry: bytes) -> int:
    for name, segment in (("__transaction_state-3", states), (f"{TOPIC}-1", retry)):
        (logs / name).mkdir()
        (logs / name / "00000000000000000000.log").write_bytes(segment)
    return lost_commits(logs, "g")


def test_a_commit_with_its_marker_is_not_lost(tmp_path: Path) -> None:
    states = transaction(100, ends=2) + transaction(200, ends=2)
    retry = b"".join(
        [batch(100, b"k", b"v"), marker(101, commits=True), batch(200, b"k", b"v"), marker(202, commits=True)]
    )
    assert lost(tmp_path, states, retry) == 0


def test_a_commit_whose_records_a_later_marker_rolls_back_is_lost(tmp_path: Path) -> None:
    states = transaction(100, ends=2) + transaction(200, ends=3) + transaction(300, ends=2)
    retry = b"".join(
        [batch(100, b"k", b"v"), marker(201, commits=False), batch(300, b"k", b"v"), marker(301, commits=True)]
    )
    assert lost(tmp_path, states, retry) == 1


def test_a_transaction_that_was_rolled_back_is_no_lost_commit(tmp_path: Path) -> None:
    assert lost(tmp_path, transaction(100, ends=3), batch(100, b"k", b"v") + marker(101, commits=False)) == 0


def test_a_commit_of_a_topic_whose_name_has_that_of_another_in_it_is_none_of_that(tmp_path: Path) -> None:
    """As of a retry topic for one delay, and of what a handler of dead letters has."""
    states = transaction(100, ends=2, topic=f"{TOPIC}.1s") + transaction(200, ends=2, topic=f"g.{TOPIC}")
    assert lost(tmp_path, states, b"") == 0
