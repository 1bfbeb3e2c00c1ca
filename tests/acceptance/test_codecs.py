"""Batches of every codec on the main topic: read, tried again, and dead with their bytes; none is taken for damage."""

from __future__ import annotations

import json
import os
from importlib.metadata import requires
from pathlib import Path

import pytest
from aiokafka import codec
from confluent_kafka import Producer
from harness import HandlerSpec, Stage, wait_for
from packaging.requirements import Requirement

from retryapp.broker import Broker
from retryapp.broker.config import log_dir
from retryapp.core.hops import restore

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Name and number in the attributes of a batch (Kafka's protocol guide, "Record Batch")."""
RECORDS = 30
PADDING = "compress me " * 200


def test_the_codecs_are_installed_with_us() -> None:
    """The client library takes each as an extra; without one, good batches would look damaged."""
    (library,) = [found for found in map(Requirement, requires("retryapp") or ()) if found.name == "aiokafka"]
    assert library.extras >= {"lz4", "snappy", "zstd"}
    assert all((codec.has_gzip(), codec.has_snappy(), codec.has_lz4(), codec.has_zstd()))


def codecs_in(segment: Path) -> set[int]:
    """Return the codec numbers of all batches in a log segment: offset, length, 9 bytes, attributes in 2."""
    raw, position, found = segment.read_bytes(), 0, set()
    while position + 23 <= len(raw):
        length = int.from_bytes(raw[position + 8 : position + 12], "big")
        if length == 0:  # preallocated
            break
        found.add(int.from_bytes(raw[position + 21 : position + 23], "big") & 0b111)
        position += 12 + length
    return found


@pytest.mark.broker
@pytest.mark.acceptance
def test_every_codec_is_read_and_retried(stage: Stage, request: pytest.FixtureRequest) -> None:
    """One topic with batches of all kinds: each record is done at its second attempt or dead with its very bytes."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="200ms"), partitions=1)
    sent = {}
    for name in CODECS:
        producer = Producer({"bootstrap.servers": stage.bootstrap, "compression.codec": name, "linger.ms": 200})
        for number in range(RECORDS):
            fact = {"id": f"{name}-{number}", "fail": 99 if number == 0 else 1, "padding": PADDING}
            sent[str(fact["id"])] = json.dumps(fact).encode()
            producer.produce(topic, sent[str(fact["id"])], partition=0)
        assert producer.flush(10) == 0
    if not os.environ.get("RETRYAPP_TEST_BROKER"):  # only the files of our own broker can be read
        broker: Broker = request.getfixturevalue("broker")
        (segment,) = (log_dir(broker.data) / f"{topic}-0").glob("*.log")
        assert codecs_in(segment) == set(CODECS.values()), "the producer compressed as it was told"
    stage.worker()
    hopeless = {f"{name}-0" for name in CODECS}
    wait_for(lambda: stage.service.done(topic) == set(sent) - hopeless, "all but the hopeless are done")
    stage.wait_settled(topic)
    evidence = stage.evidence(topic)
    dead = {json.loads(letter.value or b"{}")["id"]: (letter, metadata) for letter, metadata in evidence.dead()}
    assert set(dead) == hopeless
    assert {metadata.reason for _, metadata in dead.values()} == {"exhausted"}
    assert all(restore(*dead[name]).value == sent[name] for name in hopeless)
    assert {visit.value for visit in stage.service.of(topic)} == set(sent.values())
    assert len(stage.service.of(topic)) == 2 * len(sent)
    assert not evidence.repeated_handoffs()
