"""Batches as no client writes them, damage in the files of a broker, and rows that nobody can read."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from acceptance.books import named
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c
from harness import Stage
from harness.operator import Operator
from samples import waiting

from retryapp.core.headers import encode_metadata
from retryapp.core.marks import PROGRESS, progress_value
from retryapp.core.record import Headers, Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.kafka import KafkaAdmin
from retryapp.kafka.plan import ensure_topics

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Name and number in the attributes of a batch (Kafka's protocol guide, "Record Batch")."""
CRC, ATTRIBUTES, LAST_DELTA = 17, 21, 23
"""Where they begin in a batch, offset and length included."""

NO_ROW = b"no row"


def changed(name: str, value: bytes | None) -> Callable[[Headers], Headers]:
    return lambda good: tuple((dict(good) | {name: value}).items())


DAMAGED: dict[bytes, Callable[[Headers], Headers]] = {
    NO_ROW: lambda _: (),
    b"no headers": lambda _: (),
    b"foreign only": lambda _: (("x", b"1"),),
    b"attempt": changed("retry-attempt", b"many"),
    b"negative attempt": changed("retry-attempt", b"-1"),
    b"due": changed("retry-due-ms", b"soon"),
    b"null due": changed("retry-due-ms", None),
    b"origin": changed("retry-origin", b"nowhere"),
    b"two attempts": lambda good: (*good, ("retry-attempt", b"1")),
    b"no version": changed("retry-version", b"0"),
}
"""By key: the headers that a row has instead of good ones."""


def damage(stage: Stage, logs: Path) -> None:
    """Publish to `torn` and `short`, and change bytes of a batch of each in the broker's files."""
    torn, short = named(stage, "torn"), named(stage, "short")
    broken = ({"id": "broken-1"}, {"id": "broken-2"})
    stage.produce(torn, [{"id": "before", "fail": 1}], 1)
    for fact in ({"id": "odd", "fail": 1}, {"id": "hopeless", "fail": 9}):
        asyncio.run(publish_batch(stage, torn, fact, odd_name=b"\xff\xfe"))
    asyncio.run(publish_batch(stage, torn, *broken))
    stage.produce(torn, [{"id": "after", "fail": 1}], 1)
    segment = segment_of(logs, torn)
    at = segment.read_bytes().index(b"broken-1")
    overwrite(segment, at, bytes([segment.read_bytes()[at] ^ 0x20]))

    stage.produce(short, [{"id": "before"}], 1)
    asyncio.run(publish_batch(stage, short, *broken))
    segment = segment_of(logs, short)
    raw, at = segment.read_bytes(), 0
    while b"broken-1" not in raw[at : (end := at + 12 + struct.unpack_from(">i", raw, at + 8)[0])]:
        at = end
    assert struct.unpack_from(">i", raw, at + LAST_DELTA) == (1,), "two records in one batch"
    overwrite(segment, at + LAST_DELTA, bytes(4))


def damage_rows(stage: Stage) -> None:
    """Have `DAMAGED` wait on the changelog of `metadata`, as if a worker had left them there."""
    topic = named(stage, "metadata")
    topology, operator = stage.topology(topic), Operator(stage.bootstrap)
    topic_id = ensure_topics(KafkaAdmin(stage.connection), [topology]).states[topic].topic_id
    for offset, (key, damaged) in enumerate(DAMAGED.items()):
        origin = Origin(topic, topic_id, 0, offset)
        headers = damaged(encode_metadata(replace(waiting(offset), origin=origin)))
        row = encode_row(PendingRow(key, b"kept", headers, attempt=1, delivery=1))
        place = {"key": identity_of(origin), "partition": 0}
        operator.publish(topology.pending_changelog, NO_ROW if key == NO_ROW else row, **place)
    passed = progress_value({topic: 0}, topic_id)
    operator.publish(topology.pending_changelog, passed, key=PROGRESS, partition=0)


def segment_of(logs: Path, topic: str) -> Path:
    (segment,) = (logs / f"{topic}-0").glob("*.log")
    return segment


def overwrite(file: Path, at: int, raw: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(raw)


async def publish_batch(stage: Stage, topic: str, *facts: dict[str, object], odd_name: bytes = b"") -> None:
    """Publish records in one batch; with a header of this two-byte name, which no Python client would write."""
    producer = AIOKafkaProducer(bootstrap_servers=stage.bootstrap)
    await producer.start()
    try:
        builder = producer.create_batch()
        headers = [("ab", b"h\xff")] if odd_name else []
        now_ms = time.time_ns() // 1_000_000
        for fact in facts:
            builder.append(key=b"k", value=json.dumps(fact).encode(), timestamp=now_ms, headers=headers)
        builder.close()
        if odd_name:
            raw = bytearray(builder._build()).replace(b"\x04ab", b"\x04" + odd_name)
            raw[CRC:ATTRIBUTES] = struct.pack(">I", calc_crc32c(bytes(raw[ATTRIBUTES:])))
            builder._build = lambda: bytes(raw)
        await (await producer.send_batch(builder, topic, partition=0))
    finally:
        await producer.stop()


def codecs_in(segment: Path) -> set[int]:
    """Return the codec numbers of all batches in a log segment: offset, length, 9 bytes, attributes in 2."""
    raw, position, found = segment.read_bytes(), 0, set()
    while position + LAST_DELTA <= len(raw):
        length = int.from_bytes(raw[position + 8 : position + 12], "big")
        if length == 0:  # preallocated
            break
        found.add(int.from_bytes(raw[position + ATTRIBUTES : position + LAST_DELTA], "big") & 0b111)
        position += 12 + length
    return found
