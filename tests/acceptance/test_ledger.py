"""The ledger beside real workers: at many moments while they run and one is killed, at rest, and of damaged topics."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from harness import HandlerSpec, Stage, wait_for

from retryapp.core.headers import decode_metadata
from retryapp.core.lifecycle import Succeeded, decode_event
from retryapp.core.record import Record
from retryapp.core.topology import TopicSpec
from retryapp.kafka import KafkaAdmin, read_topic
from retryapp.ledger import Fault, Ledger, take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(150)]

ROUND = 48  # of each kind as many as of another
CUTS, MOVING = 14, 8
"""Ledgers that are taken while records come, and how many of them at least have some that wait."""


def feed(stage: Stage, topic: str, stop: threading.Event) -> int:
    """Publish records until told to stop, a quarter of which each fails never, once, twice, always; return how many."""
    fed = 0
    while not stop.is_set():
        stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(fed, fed + ROUND)])
        fed += ROUND
        stop.wait(0.2)
    return fed


@dataclass
class Feeding:
    """A feeder in a thread."""

    stage: Stage
    topic: str
    fed: int = 0

    def __post_init__(self) -> None:
        """Begin."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.fed = feed(self.stage, self.topic, self._stop)

    def end(self) -> None:
        """Let it end."""
        self._stop.set()
        self._thread.join(30)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_every_moment_of_a_running_group_adds_up(stage: Stage, delivery: str) -> None:
    """Two workers, one killed and started again; no cut finds fault, and the last one agrees with the service."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms"), options={"delivery": delivery})
    first = stage.worker()
    stage.worker()
    topology, allowed = stage.topology(topic), delivery == "at_least_once"
    feeding = Feeding(stage, topic)
    cuts: list[Ledger] = []
    try:
        while len(cuts) < CUTS or len([cut for cut in cuts if cut.total.pending]) < MOVING:
            cuts.append(take_ledger(stage.connection, topology, copies_allowed=allowed))
            if len(cuts) == 8:
                first.kill()
            if len(cuts) == 10:
                stage.worker(ready=False)
    finally:
        feeding.end()
    stage.wait_settled(topic)
    cuts.append(take_ledger(stage.connection, topology, copies_allowed=allowed))
    assert [problem for cut in cuts for problem in cut.problems] == []
    received = [cut.total.received for cut in cuts]
    assert received == sorted(received)
    rest = cuts[-1].total
    assert (rest.received, rest.pending, rest.unknown, rest.lost) == (feeding.fed, 0, 0, 0)
    assert rest.done == len(stage.service.done(topic)) == feeding.fed * 3 // 4
    assert (rest.dead, rest.recovered) == (feeding.fed // 4, feeding.fed // 2)
    if delivery == "exactly_once":
        assert rest.copies == 0


@dataclass
class Book:
    """A group at rest whose topics are rebuilt with something missing, or there twice, and put right again."""

    stage: Stage
    topic: str
    specs: dict[str, TopicSpec]

    def take(self) -> Ledger:
        """Count."""
        return take_ledger(self.stage.connection, self.stage.topology(self.topic))

    def rebuild(self, topic: str, records: Sequence[Record]) -> None:
        """Make a topic anew with other records, all of which the group has passed."""
        admin = KafkaAdmin(self.stage.connection)
        client = AdminClient({"bootstrap.servers": self.stage.bootstrap})
        client.delete_topics([topic])[topic].result(10)
        wait_for(lambda: topic not in admin.topic_names(), f"{topic} is gone")
        wait_for(lambda: admin.create([self.specs[topic]]), f"{topic} is made")
        admin.wait_for_topics([topic])
        producer = Producer({"bootstrap.servers": self.stage.bootstrap, "acks": "all"})
        for record in records:
            producer.produce(
                topic, partition=record.partition, key=record.key, value=record.value, headers=list(record.headers)
            )
        assert producer.flush(10) == 0
        if topic in self.stage.topology(self.topic).consumed:
            places = [TopicPartition(topic, n, kept.end) for n, kept in admin.offsets(topic).items()]
            request = ConsumerGroupTopicPartitions(self.stage.group, places)
            (future,) = client.alter_consumer_group_offsets([request]).values()
            assert all(place.error is None for place in future.result(10).topic_partitions)

    def damaged(self, topic: str, change: Callable[[list[Record]], list[Record]]) -> Ledger:
        """Count with a topic changed; it is as before afterwards."""
        whole = list(read_topic(self.stage.connection, topic))
        self.rebuild(topic, change(whole))
        try:
            return self.take()
        finally:
            self.rebuild(topic, whole)

    def failure_of(self, record: Record) -> tuple[str, int]:
        """Return failure id and attempt of a record of ours."""
        if record.topic == self.stage.topology(self.topic).events:
            event = decode_event(record.value or b"")
            assert isinstance(event, Succeeded)
            return event.failure_id, event.attempt
        metadata = decode_metadata(record.headers)
        assert metadata is not None
        return metadata.failure_id, metadata.attempt


@pytest.fixture(scope="module")
def book(bootstrap: str, make_stage: Callable[[str], Stage]) -> Iterator[Book]:
    """Twelve records whose worker has stopped: each fails never, once, twice or always; three more wait for an hour."""
    stage = make_stage(bootstrap)
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="100ms 200ms"))
    worker = stage.worker()
    stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(12)])
    stage.produce(topic, [{"id": 12, "reject": True}])
    stage.wait_settled(topic)
    assert worker.stop() == 0
    stage.program(HandlerSpec(topic=topic, policy="1h"))
    worker = stage.worker()
    stage.produce(topic, [{"id": i, "fail": 1} for i in range(13, 16)])
    wait_for(lambda: stage.evidence(topic).waiting() == 3, "three wait")
    assert worker.stop() == 0
    states = KafkaAdmin(stage.connection).describe_topics(stage.topology(topic).owned)
    plain = TopicSpec("", None, 2, 1, {}, {})  # type: ignore[arg-type]  # its role is of no use here
    kept = ("cleanup.policy", "message.timestamp.type", "max.message.bytes")
    specs = {
        name: replace(plain, name=name, config={setting: state.config[setting] for setting in kept})
        for name, state in states.items()
    }
    made = Book(stage, topic, specs)
    whole = made.take()
    assert whole.problems == ()
    yield made
    assert made.take() == whole, "all damage was undone"


def test_a_group_at_rest_adds_up(book: Book) -> None:
    """By the command, in a process of its own; the figures are those of the service."""
    command = [sys.executable, "-m", "retryapp.cli.main", "ledger", "--broker", book.stage.bootstrap]
    found = subprocess.run(
        [*command, "--group", book.stage.group, "--json"], capture_output=True, check=False, timeout=60
    )
    assert found.returncode == 0, found.stdout + found.stderr
    (handler,) = json.loads(found.stdout)["handlers"]
    whole = handler["total"]
    assert (whole["received"], whole["done"], whole["recovered"], whole["pending"], whole["dead"]) == (16, 9, 6, 3, 4)
    assert handler["problems"] == []


STATIONS = ["retry", "redelivery", "dlq", "events"]


def topic_of(book: Book, station: str) -> str:
    """Return the name of a topic."""
    topology = book.stage.topology(book.topic)
    names = {"retry": topology.retry_topics[0], "redelivery": topology.redelivery, "dlq": topology.dlq}
    return names.get(station, topology.events)


def is_of_a_record(book: Book, record: Record) -> bool:
    """Tell whether a record tells of one of the main topic; an event may not."""
    if record.topic != book.stage.topology(book.topic).events:
        return True
    return isinstance(decode_event(record.value or b""), Succeeded)


@pytest.mark.parametrize("station", STATIONS)
def test_a_record_taken_out_of_a_topic_is_named(book: Book, station: str) -> None:
    """With the station where it is missed; a dead letter that was all there was shows in the workers' counts."""
    topic = topic_of(book, station)
    taken: list[tuple[str, int]] = []

    def without_one(records: list[Record]) -> list[Record]:
        at = next(
            n
            for n, record in enumerate(records)
            if is_of_a_record(book, record) and (station != "dlq" or book.failure_of(record)[1] == 3)
        )
        taken.append(book.failure_of(records[at]))
        return records[:at] + records[at + 1 :]

    ledger = book.damaged(topic, without_one)
    ((failure_id, attempt),) = taken
    problems = [problem for problem in ledger.problems if problem.failure_id == failure_id]
    assert len(problems) == len(ledger.problems) == 1
    end = station in ("dlq", "events")
    assert problems[0].fault is (Fault.LOST if end else Fault.GAP)
    assert ledger.total.lost == end
    if end:
        assert problems[0].station == f"redelivery topic, attempt {attempt - 1} failed"
        assert problems[0].where[0].startswith(f"{book.stage.topology(book.topic).redelivery}[")


@pytest.mark.parametrize("station", STATIONS)
def test_a_record_that_is_there_twice_is_named(book: Book, station: str) -> None:
    """With both places."""
    topic = topic_of(book, station)
    doubled: list[Record] = []

    def with_a_copy(records: list[Record]) -> list[Record]:
        doubled.append(next(record for record in records if is_of_a_record(book, record)))
        return [*records, doubled[0]]

    ledger = book.damaged(topic, with_a_copy)
    (problem,) = ledger.problems
    assert (problem.fault, problem.failure_id) == (Fault.TWICE, book.failure_of(doubled[0])[0])
    assert len(set(problem.where)) == 2
    assert all(place.startswith(f"{topic}[{doubled[0].partition}]@") for place in problem.where)
    assert (ledger.total.copies, ledger.total.lost) == (1, 0)


def test_a_waiting_record_without_its_row_is_lost(book: Book) -> None:
    """It was parked, and the table does not have it."""
    changelog = book.stage.topology(book.topic).pending_changelog
    gone: list[Record] = []

    def without_the_last_row(records: list[Record]) -> list[Record]:
        removed = {record.key for record in records if record.value is None}
        gone.append([r for r in records if len(r.key or b"") == 20 and r.key not in removed][-1])
        return [record for record in records if record.key != gone[0].key]

    ledger = book.damaged(changelog, without_the_last_row)
    (problem,) = ledger.problems
    assert (problem.fault, problem.station) == (Fault.LOST, "retry topic, attempt 1 failed")
    assert problem.offset == int.from_bytes((gone[0].key or b"")[12:], "big")
    assert (ledger.total.lost, ledger.total.pending) == (1, 2)


def test_a_row_without_its_tier_record_is_an_orphan(book: Book) -> None:
    """The retry topic keeps that time, and has no such record."""
    retry = topic_of(book, "retry")
    ledger = book.damaged(retry, lambda records: records[:-1])
    (problem,) = ledger.problems
    assert (problem.fault, problem.station) == (Fault.GAP, "pending table, attempt 1 failed")
    assert ledger.total.pending == 3


def test_a_record_whose_only_trace_is_taken_out_shows_in_the_workers_counts(book: Book) -> None:
    """It was rejected at its first delivery: nobody can name it, and its range can be named."""
    ledger = book.damaged(topic_of(book, "dlq"), lambda records: [r for r in records if book.failure_of(r)[1] != 1])
    (problem,) = ledger.problems
    assert (problem.fault, problem.failure_id) == (Fault.LOST, None)
    assert "failed in" in problem.text
    assert (ledger.total.lost, ledger.total.dead, ledger.total.done) == (1, 3, 9)
