"""A producer that repeats itself: one record of each event is handled, also across kill -9 and other machines."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable

import pytest
from harness import HandlerSpec, Stage, wait_for

from retryapp.core.lifecycle import Skipped, decode_event
from retryapp.kafka import KafkaAdmin, read_topic
from retryapp.ledger import take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(180)]

PARTITIONS = 4


def produce(stage: Stage, topic: str, events: Iterable[int]) -> int:
    """Publish a record for each event named, to the event's partition; two of three fail once or twice."""
    producer, sent = stage.producer(), list(events)
    for event in sent:
        value = json.dumps({"id": event, "fail": event % 3}).encode()
        headers = [("event-id", f"event-{event}".encode())]
        producer.produce(topic, value, key=str(event), partition=event % PARTITIONS, headers=headers)
    assert producer.flush(20) == 0, "the broker did not take all records"
    return len(sent)


def test_each_event_is_handled_once_across_kill_9(stage: Stage) -> None:
    """Duplicates beside the first, while it waits, after its worker was killed, and on a machine without the table."""
    topic = stage.main_topic(partitions=PARTITIONS)
    spec = HandlerSpec(topic=topic, policy="300ms 500ms", deduplicate="header:event-id")
    stage.program(spec)
    first = stage.worker("first")
    order = random.Random(7)
    sent = [event for event in range(400) for _ in range(order.choice((1, 1, 2, 3)))]
    total = produce(stage, topic, sent)
    wait_for(lambda: len(stage.service.done(topic)) > 60, "some are done")
    first.kill()
    total += produce(stage, topic, order.sample(range(400), 150))  # of those done, waiting and not yet read
    stage.worker("first")
    total += produce(stage, topic, [*range(400, 450), *range(400, 450)])
    stage.worker("second", ready=False)  # it has no local table of the partitions that it takes over
    total += produce(stage, topic, range(450))
    stage.wait_settled(topic, timeout_s=100)

    visits = stage.service.of(topic)
    assert stage.service.done(topic) == set(range(450)), "every event was handled"
    handled = defaultdict(set)
    for visit in visits:
        handled[visit.facts["id"]].add(visit.failure_id)
    assert [event for event, ids in handled.items() if len(ids) > 1] == [], "by one record of it"

    topology = stage.topology(topic)
    assert set(KafkaAdmin(stage.connection).describe_topics([topology.seen_changelog])) == {topology.seen_changelog}
    events = [decode_event(record.value or b"") for record in read_topic(stage.connection, topology.events)]
    skipped = [event.failure_id for event in events if isinstance(event, Skipped)]
    assert len(set(skipped)) == total - 450
    assert len(skipped) == len(set(skipped)), "each skip is on record once"
    ledger = take_ledger(stage.connection, topology)
    assert ledger.problems == ()
    whole = ledger.total
    assert (whole.received, whole.done, whole.skipped, whole.lost) == (total, 450, total - 450, 0)
    log = "".join(worker.log for worker in stage.workers)
    assert "Traceback" not in log
