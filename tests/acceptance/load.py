"""Two workers under load while their brokers come and go, and what has to be true of every record afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from acceptance.books import check_books, check_counts
from confluent_kafka import KafkaError, Message, Producer
from harness import HandlerSpec, Stage, wait_for
from harness.markers import dropped_markers
from harness.three_brokers import ThreeBrokers

PARTITIONS = 3
POLICY, WAITS_MS = "300ms 600ms", (300, 600)
BATCH, EVERY_S = 8, 0.2
FLUSH_S = 60.0


@dataclass(slots=True)
class Flow:
    """What is published to a topic of a stage: ids from 0, a quarter each fails never, once, twice, always."""

    stage: Stage
    topic: str
    count: int = 0
    refused: list[KafkaError] = field(default_factory=list)

    def goes_on(self, more: int = 8, timeout_s: float = 60.0) -> None:
        """Wait until so many more records are done at their first attempt, and so many after a failure."""
        before = self._done()

        def further() -> bool:
            return all(now >= was + more for now, was in zip(self._done(), before, strict=True))

        wait_for(further, f"{more} more records are done, at once and after a wait", timeout_s=timeout_s)

    def _done(self) -> tuple[int, int]:
        service = self.stage.service
        fine = [visit.attempt for visit in service.of(self.topic) if service.finished.get(visit.number) == 200]
        return sum(attempt == 1 for attempt in fine), sum(attempt > 1 for attempt in fine)

    def publish(self, over: threading.Event) -> None:
        """Publish until it is over; end when the brokers have taken all of it."""
        producer = Producer(
            {
                "bootstrap.servers": self.stage.bootstrap,
                "enable.idempotence": True,  # copies are rare: after some faults it begins a new epoch, and sends again
                "linger.ms": 5,
                "log_level": 0,
            }
        )

        def noted(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.refused.append(error)

        while not over.wait(EVERY_S):
            for _ in range(BATCH):
                fact: dict[str, Any] = {"id": self.count, "fail": self.count % 4}
                place = {"key": str(self.count), "partition": self.count % PARTITIONS}
                producer.produce(self.topic, json.dumps(fact).encode(), on_delivery=noted, **place)
                self.count += 1
            producer.poll(0)
        left = producer.flush(FLUSH_S)
        if left:
            raise RuntimeError(f"{left} records were not taken")


@contextmanager
def _flowing(stage: Stage, topic: str) -> Iterator[Flow]:
    """Publish records while the block runs; at its end the brokers have all of them."""
    flow, over = Flow(stage, topic), threading.Event()
    thread = threading.Thread(target=flow.publish, args=(over,), name="flow")
    thread.start()
    try:
        yield flow
    finally:
        over.set()
        thread.join(FLUSH_S + 10)
    assert not thread.is_alive(), "the flow has ended"
    assert flow.refused == [], "the brokers took every record"


@contextmanager
def under_load(stage: Stage, brokers: ThreeBrokers) -> Iterator[Flow]:
    """Have records flow and fail while the block runs; then the books are right and all workers still run.

    Nothing is lost, early or handed on twice, ledger and counts agree, and every record is done or dead as the policy
    says. Only where a broker's log says that it dropped markers of acknowledged commits is the test no proof.
    """
    topic = stage.main_topic(partitions=PARTITIONS)
    stage.program(HandlerSpec(topic=topic, policy=POLICY, concurrency=4), partitions=PARTITIONS)
    for name in ("first", "second"):
        stage.worker(name, ready=False)
    for worker in stage.workers:
        worker.wait_ready()
    with _flowing(stage, topic) as flow:
        flow.goes_on()
        yield flow
        flow.goes_on()
    try:
        _check(stage, flow)
    except AssertionError:
        if any(dropped_markers(node, stage.group) for node in brokers.nodes.values()):
            pytest.xfail("Kafka took acknowledged commits back (docs/reliability.md)")
        raise


def _check(stage: Stage, flow: Flow) -> None:
    stage.wait_settled(flow.topic, timeout_s=90)
    check_books(stage, flow.topic, flow.count, WAITS_MS)
    for worker in stage.workers:
        worker.wait_ready()
    assert {worker.stop() for worker in stage.workers} == {0}
    check_counts(stage.evidence(flow.topic))
