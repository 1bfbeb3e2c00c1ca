"""Records that come without a pause, from a program that lives through what its brokers do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from harness.stage import Stage
from retryapp.stage import wait_for

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

    def publish(self, over: threading.Event, partitions: int) -> None:
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
                place = {"key": str(self.count), "partition": self.count % 3 % partitions}
                producer.produce(self.topic, json.dumps(fact).encode(), on_delivery=noted, **place)
                self.count += 1
            producer.poll(0)
        left = producer.flush(FLUSH_S)
        if left:
            raise RuntimeError(f"{left} records were not taken")


@contextmanager
def flowing(stage: Stage, topic: str, partitions: int) -> Iterator[Flow]:
    """Publish records while the block runs; at its end the brokers have all of them."""
    flow, over = Flow(stage, topic), threading.Event()
    thread = threading.Thread(target=flow.publish, args=(over, partitions), name="flow")
    thread.start()
    try:
        yield flow
    finally:
        over.set()
        thread.join(FLUSH_S + 10)
    assert not thread.is_alive(), "the flow has ended"
    assert flow.refused == [], "the brokers took every record"
