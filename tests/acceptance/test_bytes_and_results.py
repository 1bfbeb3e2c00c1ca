"""One worker with several handlers: bytes, sizes, codecs, damage, published results, duplicates."""

from __future__ import annotations

import json
import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from acceptance.books import grouped, named, results
from acceptance.damage import CODECS, DAMAGED, NO_ROW, codecs_in, damage, damage_rows, segment_of
from confluent_kafka import Producer
from harness import Answer, HandlerSpec, Stage, Visit, wait_for
from harness.operator import Operator
from harness.service import fail_first

from retryapp.broker.config import log_dir
from retryapp.core.hops import restore
from retryapp.core.lifecycle import Skipped
from retryapp.core.record import Headers
from retryapp.kafka import KafkaAdmin, read_topic

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(120)]

FINE, HOPELESS = b"f" * 3_000_000, b"h" * 3_000_000
OUT_PARTITIONS = 3


def answer(visit: Visit) -> Answer:
    """Answer by topic: `raw` fails for good, `big` once where it fits uncompressed; else by what the value says."""
    if visit.topic.startswith("raw"):
        return Answer(503)
    if visit.topic.startswith("big"):
        return Answer(503 if visit.value == HOPELESS or (visit.attempt == 1 and visit.value != FINE) else 200)
    return fail_first(visit)


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, bootstrap: str, make_stage: Callable[[str], Stage]) -> Iterator[Stage]:
    """A worker with a handler for each story; two topics have damaged batches before it begins."""
    stage = make_stage(bootstrap)
    stage.service.rule = answer
    topics = {name: stage.main_topic(name) for name in ("raw", "metadata", "publishing", "events")}
    single = ("big", "codecs", "torn", "short")
    topics |= {name: stage.main_topic(name, partitions=1) for name in single}
    out = stage.main_topic("payments", OUT_PARTITIONS)
    stage.program(
        HandlerSpec(topic=topics["raw"], policy="100ms*2", value="bytes"),
        HandlerSpec(topic=topics["metadata"], policy="100ms"),
        HandlerSpec(topic=topics["publishing"], policy="12s", publishes=out),
        HandlerSpec(topic=topics["events"], policy="700ms", deduplicate="header:event-id"),
        HandlerSpec(topic=topics["big"], policy="500ms", value="bytes", concurrency=2),
        HandlerSpec(topic=topics["codecs"], policy="200ms"),
        HandlerSpec(topic=topics["torn"], policy="200ms"),
        HandlerSpec(topic=topics["short"], policy="200ms"),
    )
    if not os.environ.get("RETRYAPP_TEST_BROKER"):  # only the files of our own broker can be damaged
        damage(stage, log_dir(request.getfixturevalue("broker").data))
    damage_rows(stage)
    stage.worker()
    yield stage
    assert stage.workers[0].stop() == 0
    assert "Traceback" not in stage.workers[0].log


@pytest.fixture
def damaged(house: Stage) -> Stage:
    """The house, where batches could be damaged."""
    if os.environ.get("RETRYAPP_TEST_BROKER"):
        pytest.skip("the files of a broker that is not ours cannot be damaged")
    return house


SENT: list[tuple[bytes | None, bytes | None, Headers]] = [
    (b"poison", b"\xff\x00\xfe\x80 not text", ()),
    (b"empty value", b"", (("a", b""),)),
    (None, b"null key", (("trace-id", b"\x00\x01"),)),
    (b"null value", None, (("trace-id", None),)),
    (None, None, (("only", b"headers"),)),
    (b"", b"empty key", ()),
    (
        b"other frameworks",
        b"{}",
        (
            ("kafka_dlt-original-topic", b"orders"),
            ("spring_json_header_types", b'{"a":"b"}'),
            ("kafka_dlt-original-offset", b"\x00\x00\x00\x00\x00\x00\x00\x07"),
            ("twice", b"1"),
            ("twice", b"2"),
            ("twice", None),
            ("null", None),
            ("empty", b""),
            ("", b"no name"),
            ("gr\u00fc\u00dfe", b"\xf0\x9f"),
        ),
    ),
    (b"names like ours", b"{}", (("retry-attempt", b"7"), ("retry-due-ms", b"never"), ("retry-foreign-x", b"1"))),
]
OLD_MS = time.time_ns() // 1_000_000 - 3_600_000
"""An hour ago: what is older than its topic keeps may go at any moment."""


def test_bytes_headers_and_time_are_untouched(house: Stage) -> None:
    """Key, value, foreign headers and timestamp are the same at each attempt and in the dead letter."""
    topic = named(house, "raw")
    evidence = house.evidence(topic)
    operator = Operator(house.bootstrap)
    for number, (key, value, headers) in enumerate(SENT):
        operator.publish(topic, value, key=key, partition=1, headers=list(headers), timestamp=OLD_MS + number)
    letters = wait_for(lambda: (found := evidence.dead())[len(SENT) - 1 :] and found, "all are dead")
    house.wait_settled(topic)
    visits = grouped(house.service.of(topic), lambda visit: int(visit.failure_id.rsplit("/", 1)[1]))
    assert len(letters) == len(SENT)
    for letter, metadata in letters:
        number = metadata.origin.offset
        key, value, headers = SENT[number]
        wanted = (key, value, headers, OLD_MS + number)
        seen = visits[number]
        assert [v.attempt for v in seen] == [1, 2, 3]
        assert {(v.key, v.value, v.headers, v.timestamp_ms) for v in seen} == {wanted}
        back = restore(letter, metadata)
        assert (back.key, back.value, back.headers, back.timestamp_ms) == wanted
        assert letter.key == key
        assert letter.value == (value or b"")
        assert letter.timestamp_ms > OLD_MS + 1_800_000, "our topics carry the broker's time: retention looks at it"
        if number != len(SENT) - 1:  # the last one's headers travel under a shield
            assert tuple(h for h in letter.headers if not h[0].startswith("retry-")) == headers


def test_damaged_metadata_is_a_dead_letter(house: Stage) -> None:
    """A row that cannot be read, or that has unreadable metadata, is dead: never delivered, no counter reset."""
    topic = named(house, "metadata")
    evidence = house.evidence(topic)
    wait_for(lambda: len(evidence.dead()) >= len(DAMAGED), "all are dead")
    house.produce(topic, [{"id": "behind", "fail": 1}])
    wait_for(lambda: "behind" in house.service.done(topic), "rows still come")
    evidence.wait_settled()
    letters = evidence.dead()
    assert Counter((letter.key, letter.value) for letter, _ in letters) == Counter(
        (None, NO_ROW) if key == NO_ROW else (key, b"kept") for key in DAMAGED
    )
    assert {metadata.reason for _, metadata in letters} == {"damaged"}
    assert sorted(metadata.origin.offset for _, metadata in letters) == list(range(len(DAMAGED)))
    assert [m.attempt for letter, m in letters if letter.key == b"due"] == [1], "the attempt that can be read stays"
    assert {visit.facts["id"] for visit in house.service.of(topic)} == {"behind"}


def test_a_damaged_batch_is_one_dead_letter_and_odd_header_names_stay(damaged: Stage) -> None:
    """The odd record takes every hop with its bytes; the damaged batch is named by offsets; its neighbours are done."""
    topic = named(damaged, "torn")
    wait_for(lambda: damaged.service.done(topic) == {"before", "odd", "after"}, "all that can be read is done")
    damaged.wait_settled(topic)
    odd = [visit for visit in damaged.service.of(topic) if visit.facts["id"] == "odd"]
    assert [visit.attempt for visit in odd] == [1, 2]
    assert {tuple(map(tuple, visit.headers)) for visit in odd} == {(("\udcff\udcfe", b"h\xff"),)}
    letters = {metadata.reason: (record, metadata) for record, metadata in damaged.evidence(topic).dead()}
    assert set(letters) == {"damaged", "exhausted"}
    record, metadata = letters["damaged"]
    assert (record.key, record.value) == (None, b"")
    assert (metadata.origin.topic, metadata.origin.offset) == (topic, 3)
    assert "offsets 3 to 4" in metadata.error_message
    record, _ = letters["exhausted"]
    assert ("retry-escaped-%FF%FE", b"h\xff") in record.headers


def test_no_offset_of_a_batch_that_says_it_is_shorter_is_forgotten(damaged: Stage) -> None:
    """The broker believes the header and never gives the batch for its second offset."""
    topic = named(damaged, "short")
    evidence = damaged.evidence(topic)
    wait_for(lambda: evidence.dead(), "the first offset is dead")
    damaged.produce(topic, [{"id": "after"}], 1)
    wait_for(lambda: damaged.service.done(topic) == {"before", "after"}, "all that can be read is done")
    damaged.wait_settled(topic)
    dead = [metadata for _, metadata in evidence.dead()]
    assert [(each.reason, each.origin.offset) for each in dead] == [("damaged", 1), ("damaged", 2)]


def test_every_codec_is_read_and_retried(house: Stage, request: pytest.FixtureRequest) -> None:
    """One topic with batches of all kinds: each record is done at its second attempt or dead with its very bytes."""
    topic = named(house, "codecs")
    sent = {}
    for name in CODECS:
        producer = Producer({"bootstrap.servers": house.bootstrap, "compression.codec": name, "linger.ms": 200})
        for number in range(10):
            fact = {"id": f"{name}-{number}", "fail": 99 if number == 0 else 1, "padding": "compress me " * 200}
            sent[str(fact["id"])] = json.dumps(fact).encode()
            producer.produce(topic, sent[str(fact["id"])], partition=0)
        assert producer.flush(10) == 0
    if not os.environ.get("RETRYAPP_TEST_BROKER"):  # only the files of our own broker can be read
        logs = log_dir(request.getfixturevalue("broker").data)
        assert codecs_in(segment_of(logs, topic)) == set(CODECS.values()), "the producer compressed as configured"
    hopeless = {f"{name}-0" for name in CODECS}
    wait_for(lambda: house.service.done(topic) == set(sent) - hopeless, "all but the hopeless are done")
    house.wait_settled(topic)
    dead = {json.loads(letter.value or b"{}")["id"]: (letter, m) for letter, m in house.evidence(topic).dead()}
    assert set(dead) == hopeless
    assert all(restore(*dead[name]).value == sent[name] for name in hopeless)
    assert Counter(visit.value for visit in house.service.of(topic)) == dict.fromkeys(sent.values(), 2)


def publish(stage: Stage, topic: str, values: list[bytes], compression: str = "none") -> list[object]:
    """Publish values, each in a batch of its own, to partition 0; return what the broker refused."""
    client = Producer(
        {"bootstrap.servers": stage.bootstrap, "message.max.bytes": 10_000_000, "compression.type": compression}
    )
    errors: list[object] = []
    for value in values:
        client.produce(topic, value, partition=0, on_delivery=lambda error, _m: errors.append(error) if error else None)
        assert client.flush(20) == 0
    return errors


def digests(visits: list[Visit], attempt: int) -> list[int]:
    """Return checksums of the values of an attempt: a failing comparison of megabytes is unreadable."""
    return sorted(zlib.crc32(visit.value or b"") for visit in visits if visit.attempt == attempt)


def test_a_million_bytes_and_three_megabytes_that_fit_only_compressed(house: Stage) -> None:
    """Values of 1,000,000 bytes, and of the size that fits exactly, come back as they were.

    Of 3 MB the broker took a few compressed kilobytes: the handler gets them; one that fails is dead with its
    coordinates, by which it can still be read.
    """
    rng = random.Random(7)
    topic = named(house, "big")
    limit = int(KafkaAdmin(house.connection).describe_topics([topic])[topic].config["max.message.bytes"])
    exact = rng.randbytes(limit - 72)  # what a batch with one record and no key needs besides
    retried = [*(rng.randbytes(1_000_000) for _ in range(3)), exact, b"small"]
    assert publish(house, topic, [exact + b"x"])
    assert not publish(house, topic, retried)
    assert not publish(house, topic, [FINE, HOPELESS], "gzip")
    house.wait_settled(topic)
    visits = house.service.of(topic)
    assert digests(visits, 1) == sorted(map(zlib.crc32, [*retried, FINE, HOPELESS]))
    assert digests(visits, 2) == sorted(map(zlib.crc32, retried))
    evidence = house.evidence(topic)
    ((record, metadata),) = evidence.dead()
    assert (metadata.reason, record.value) == ("too-large", b"")
    assert metadata.error_type.endswith("ServiceError")
    origin = metadata.origin
    kept = next(read_topic(house.connection, origin.topic, start={origin.partition: origin.offset}))
    assert (kept.offset, kept.value == HOPELESS) == (origin.offset, True)
    assert evidence.repeated_handoffs() == {}


def test_a_topic_that_does_not_serve_fails_attempts_and_no_partition(house: Stage) -> None:
    """Missing, ours, too small: the others go on, and a topic that is made later is found."""
    topic, out = named(house, "publishing"), named(house, "payments")
    before = len(house.workers[0].log.splitlines())
    missing, small = f"missing-{house.group}", f"small-{house.group}"
    admin = KafkaAdmin(house.connection)
    admin.create_main_topic(small, partitions=1)
    admin.wait_for_topics([small])
    Operator(house.bootstrap).configure(small, "max.message.bytes", "100")
    ours = house.topology(topic).dlq
    house.produce(topic, [{"id": 0, "to": missing}, {"id": 1}, {"id": 2, "to": small}, {"id": 3, "to": ours}], 1)
    wait_for(lambda: 1 in {result["id"] for _, result in results(house, out)}, "the others publish")
    evidence = house.evidence(topic)
    wait_for(lambda: evidence.waiting() == 3, "three wait")
    failed = {m.origin.offset: (m.error_type.rsplit(".", 1)[1], m.error_message) for _, m in evidence.retries()}
    assert failed[0][0] == "DestinationError"
    assert "no such topic" in failed[0][1]
    assert failed[2][0] == failed[3][0] == "PublishRefusedError"
    assert "max.message.bytes" in failed[2][1]
    assert "retryapp's own" in failed[3][1]
    assert missing not in admin.topic_names(), "looking makes no topic"
    admin.create_main_topic(missing, partitions=OUT_PARTITIONS)
    house.wait_settled(topic)
    assert [result["attempt"] for _, result in results(house, missing)] == [2]
    assert sorted(metadata.origin.offset for _, metadata in evidence.dead()) == [2, 3]
    lines = house.workers[0].log.splitlines()[before:]
    failed_lanes = [line for line in lines if "retryapp.lane_failed" in line and topic in line]
    unknown = f"topic {ours} is not there"
    assert [line for line in failed_lanes if unknown not in line] == [], "the client may not know a topic just made"


def test_an_event_that_was_sent_several_times_is_handled_once(house: Stage) -> None:
    """Beside the first, while it waits, and after it was done; each skip is on record once."""
    topic = named(house, "events")
    evidence = house.evidence(topic)
    producer = house.producer()

    def send(*events: int) -> None:
        for event in events:
            value = json.dumps({"id": event, "fail": event % 2}).encode()
            header = ("event-id", f"event-{event}".encode())
            producer.produce(topic, value, key=str(event), partition=event % 2, headers=[header])
        assert producer.flush(10) == 0

    send(*range(20), *range(20))
    wait_for(lambda: len(evidence.retries()) == 10, "half of them wait")
    send(*range(20))
    wait_for(lambda: house.service.done(topic) == set(range(20)), "all are done")
    send(*range(20))
    house.wait_settled(topic)
    assert len({(visit.facts["id"], visit.failure_id) for visit in house.service.of(topic)}) == 20
    skipped = [event.failure_id for event in evidence.events(Skipped)]
    assert len(skipped) == len(set(skipped)) == 60
