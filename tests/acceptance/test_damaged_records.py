"""Records that the client library cannot decode, written by other clients or damaged on the broker's disk."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c
from harness import HandlerSpec, Service, Stage, wait_for

from retryapp.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

CRC, ATTRIBUTES, LAST_DELTA = 17, 21, 23


@pytest.fixture
def stage(broker: Broker, cache_dir: Path, tmp_path: Path) -> Iterator[Stage]:
    """A stage on a broker of its own, whose files are damaged; the session's is asked for first, for its skip."""
    assert broker.bootstrap
    own = Broker(cache_dir, data=tmp_path / "broker")
    own.start()
    service = Service()
    service.start()
    made = Stage(own.bootstrap, tmp_path, service)
    yield made
    made.close()
    service.stop()
    own.close()


async def publish_odd_name(stage: Stage, topic: str, value: bytes, name: bytes) -> None:
    """Publish a record with one header of this two-byte name, which no Python client would write."""
    producer = AIOKafkaProducer(bootstrap_servers=stage.bootstrap)
    await producer.start()
    try:
        builder = producer.create_batch()
        builder.append(key=b"odd", value=value, timestamp=1_600_000_000_000, headers=[("ab", b"h\xff")])
        builder.close()
        raw = bytearray(builder._build()).replace(b"\x04ab", b"\x04" + name)
        raw[CRC:ATTRIBUTES] = struct.pack(">I", calc_crc32c(bytes(raw[ATTRIBUTES:])))
        builder._build = lambda: bytes(raw)
        await (await producer.send_batch(builder, topic, partition=0))
    finally:
        await producer.stop()


def damage_log(folder: Path, topic: str, needle: bytes) -> None:
    """Flip a bit of a value in the broker's log of partition 0."""
    (segment,) = folder.glob(f"broker/**/{topic}-0/00000000000000000000.log")
    raw = segment.read_bytes()
    at = raw.index(needle)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([raw[at] ^ 0x20]))


def shorten_batch(folder: Path, topic: str, needle: bytes) -> None:
    """Make the header of a batch in the broker's log of partition 0 say that it has one offset only."""
    (segment,) = folder.glob(f"broker/**/{topic}-0/00000000000000000000.log")
    raw = segment.read_bytes()
    at = 0
    while needle not in raw[at : (end := at + 12 + struct.unpack_from(">i", raw, at + 8)[0])]:
        at = end
    assert struct.unpack_from(">i", raw, at + LAST_DELTA) == (1,), "two records in one batch"
    with segment.open("r+b") as file:
        file.seek(at + LAST_DELTA)
        file.write(bytes(4))


async def test_odd_header_names_and_a_damaged_batch(stage: Stage, tmp_path: Path) -> None:
    """The odd record takes every hop with its bytes; the damaged batch is one dead letter; its neighbours are done."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="200ms"))
    stage.produce(topic, [{"id": "before", "fail": 1}], 1)
    await publish_odd_name(stage, topic, json.dumps({"id": "odd", "fail": 1}).encode(), b"\xff\xfe")
    await publish_odd_name(stage, topic, json.dumps({"id": "hopeless", "fail": 9}).encode(), b"\xff\xfe")
    stage.produce(topic, [{"id": "broken-1"}, {"id": "broken-2"}], 1)
    stage.produce(topic, [{"id": "after", "fail": 1}], 1)
    damage_log(tmp_path, topic, b"broken-1")
    stage.worker()
    wait_for(lambda: stage.service.done(topic) == {"before", "odd", "after"}, "all that can be read is done")
    stage.wait_settled(topic)
    odd = [visit for visit in stage.service.of(topic) if visit.facts["id"] == "odd"]
    assert [visit.attempt for visit in odd] == [1, 2]
    assert {tuple(map(tuple, visit.headers)) for visit in odd} == {(("\udcff\udcfe", b"h\xff"),)}
    letters = {metadata.reason: (record, metadata) for record, metadata in stage.evidence(topic).dead()}
    assert set(letters) == {"damaged", "exhausted"}
    record, metadata = letters["damaged"]
    assert (record.key, record.value) == (None, b"")
    assert (metadata.origin.topic, metadata.origin.offset) == (topic, 3)
    assert "offsets 3 to 4" in metadata.error_message
    record, _ = letters["exhausted"]
    assert ("retry-escaped-%FF%FE", b"h\xff") in record.headers
    assert "Traceback" not in stage.workers[0].log


async def test_a_damaged_batch_among_those_that_wait(stage: Stage, tmp_path: Path) -> None:
    """On a retry topic it is named by where it lay; what waits beside it comes back."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="1s", concurrency=1))
    worker = stage.worker()
    stage.produce(topic, [{"id": "gone", "fail": 1}], 1)
    wait_for(lambda: stage.evidence(topic).waiting() == 1, "it waits")
    wait_for(lambda: stage.service.done(topic) == {"gone"}, "it was read before the damage")
    worker.kill()
    (retry,) = stage.topology(topic).retry_topics
    # back to the start, as an operator would set it: what was parked is read again
    stage.reset_offset(retry, 0)
    damage_log(tmp_path, retry, b"gone")
    stage.worker()
    wait_for(lambda: len(stage.evidence(topic).dead()) == 1, "the damaged batch is dead")
    ((_, metadata),) = stage.evidence(topic).dead()
    assert metadata.reason == "damaged"
    assert (metadata.origin.topic, metadata.origin.offset) == (retry, 0)
    stage.produce(topic, [{"id": "next", "fail": 1}], 1)
    wait_for(lambda: stage.service.done(topic) == {"gone", "next"}, "it goes on")


async def test_no_offset_of_a_batch_that_says_it_is_shorter_is_forgotten(stage: Stage, tmp_path: Path) -> None:
    """The broker believes the header and never gives the batch for its second offset."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="200ms"))
    stage.produce(topic, [{"id": "before"}], 1)
    stage.produce(topic, [{"id": "broken-1"}, {"id": "broken-2"}], 1)
    shorten_batch(tmp_path, topic, b"broken-1")
    stage.worker()
    wait_for(lambda: len(stage.evidence(topic).dead()) == 1, "the first offset is dead")
    stage.produce(topic, [{"id": "after"}], 1)
    wait_for(lambda: stage.service.done(topic) == {"before", "after"}, "all that can be read is done")
    stage.wait_settled(topic)
    dead = [metadata for _, metadata in stage.evidence(topic).dead()]
    assert [(each.reason, each.origin.offset) for each in dead] == [("damaged", 1), ("damaged", 2)]
