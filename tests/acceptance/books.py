"""What the books of a group at rest must say: the service's own visits against the topics."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from harness import Evidence, Stage, Visit, Worker, wait_for
from harness.operator import Operator, answered

from retryapp.core.lifecycle import Progress
from retryapp.core.record import Record
from retryapp.kafka import read_topic

T = TypeVar("T")


def named(stage: Stage, name: str) -> str:
    """Return the topic of this stage that was made as `name`."""
    return f"{name}-{stage.group}"


def partitions(worker: Worker, topic: str) -> list[dict[str, Any]]:
    """Return the rows of a worker's own page of partitions; none while it does not answer."""
    status, body = worker.get(f"/retries/{topic}/partitions?routed=1&format=json")
    return json.loads(body)["partitions"] if status == 200 else []


def results(stage: Stage, out: str) -> list[tuple[Record, dict[str, Any]]]:
    """Return what a committed reader of an output topic sees, with its JSON."""
    return [(record, json.loads(record.value or b"")) for record in read_topic(stage.connection, out)]


def delete_group(stage: Stage) -> None:
    """Delete the stage's group with all its offsets, as soon as its last member has left."""
    operator = Operator(stage.bootstrap)

    def deleted() -> bool:
        try:
            answered(operator.admin.delete_consumer_groups([stage.group]))
        except KafkaException as error:
            if error.args[0].name() == "NON_EMPTY_GROUP":
                return False
            raise
        return True

    wait_for(deleted, "the group has no members any more, and is deleted", every_s=0.3)


@contextmanager
def repeating(step: Callable[[], object], every_s: float) -> Iterator[None]:
    """Do something again and again in a thread while the block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def by_record(visits: list[Visit]) -> dict[str, list[Visit]]:
    """Group visits by failure id, in order of arrival."""
    return grouped(visits, lambda visit: visit.failure_id)


def grouped(visits: list[Visit], by: Callable[[Visit], T]) -> dict[T, list[Visit]]:
    found: defaultdict[T, list[Visit]] = defaultdict(list)
    for visit in visits:
        found[by(visit)].append(visit)
    return found


def check_books(
    stage: Stage, topic: str, count: int, waits_ms: tuple[int, ...], *, same_policy: bool = True, copied: bool = False
) -> None:
    """Check that every record has one fate, none came early, and none was handed over twice.

    A run that was cut off runs again with its attempt number: visits may repeat, what was recorded may not.

    Args:
        stage: where it ran; everything must be settled.
        topic: the main topic; values have `id` from 0 and `fail`, the number of attempts that fail.
        count: how many records there are.
        waits_ms: the policy's waits.
        same_policy: every worker had it; else waits are not compared.
        copied: the broker has dropped markers; hand-offs may be there twice.
    """
    evidence = stage.evidence(topic)
    visits = stage.service.of(topic)
    ids = {visit.failure_id: visit.facts["id"] for visit in visits}
    hopeless = {visit.facts["id"] for visit in visits if visit.facts.get("fail", 0) > len(waits_ms)}
    published = sorted(json.loads(record.value or b"")["id"] for record in evidence.records(topic))
    assert set(published) == set(range(count)), (
        "every record was taken; a broker that fails may make its producer send one again"
    )
    assert sorted(ids.values()) == published, "every record was delivered, under one failure id"
    assert stage.service.done(topic) == set(range(count)) - hopeless, "all that can be done is done"
    dead = [number for number in published if number in hopeless]
    letters = sorted(ids[m.failure_id] for _, m in evidence.dead())
    assert (sorted(set(letters)) if copied else letters) == dead, "all that cannot is dead, once"
    assert copied or evidence.repeated_handoffs() == {}
    recovered = {v.failure_id for v in visits if v.facts.get("fail") and v.facts["id"] not in hopeless}
    assert {event.failure_id for event in evidence.succeeded()} == recovered
    if same_policy:
        for _, metadata in evidence.retries():
            assert (metadata.due_at_ms or 0) - metadata.last_failed_ms == waits_ms[metadata.attempt - 1], metadata
    check_times(evidence, visits, len(waits_ms) + 1)


def check_times(evidence: Evidence, visits: list[Visit], max_attempts: int) -> None:
    """Check that no attempt begins before it is due, that none is one too many, and that no number is left out."""
    due = evidence.due_times()
    for visit in visits:
        if visit.attempt > 1:
            assert visit.at_ms >= due[visit.failure_id, visit.attempt] == visit.due_at_ms, visit
    for seen in by_record(visits).values():
        attempts = {visit.attempt for visit in seen}
        assert attempts == set(range(1, len(attempts) + 1))
        assert len(attempts) <= max_attempts


def check_counts(evidence: Evidence) -> None:
    """Check the workers' counts of the main topic: every offset is in one range, every record is counted once.

    All workers must have stopped: they write what they have counted when a partition leaves them.
    """
    topology = evidence.topology
    records, retries = evidence.records(topology.main), evidence.retries()
    for number, committed in evidence.committed(topology.main).items():
        ranges = [event for event in evidence.events(Progress) if event.partition == number]
        offsets = [record.offset for record in records if record.partition == number]
        failed = {m.origin.offset for _, m in retries if m.origin.partition == number}
        assert [event.from_offset for event in ranges] == [0, *(event.to_offset for event in ranges[:-1])]
        assert ranges[-1].to_offset == offsets[-1] + 1 == committed
        for event in ranges:
            inside = [offset for offset in offsets if event.from_offset <= offset < event.to_offset]
            assert event.received == len(inside)
            assert event.failed == len(failed.intersection(inside))
            assert event.first_try_ok == event.received - event.failed
