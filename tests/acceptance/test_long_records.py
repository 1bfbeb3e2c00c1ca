"""One record hangs: those after it in its partition are settled and retried on time, also when the worker dies."""

from __future__ import annotations

from collections import Counter

import pytest
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for

from retryapp.core.marks import PROGRESS, read_progress
from retryapp.core.record import Origin
from retryapp.core.settled import decode_settled
from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(120)]

BEHIND = 40
LATE_MS = 5_000
"""Far above what a retry waits on a busy machine (it is printed), far below the hung record's time-out."""


def settled(stage: Stage, topic: str) -> dict[int, bool]:
    """Return what the lane says of the records beyond offset 0, by its last progress record."""
    changelog = stage.evidence(topic).records(stage.topology(topic).pending_changelog)
    value = [record.value or b"" for record in changelog if record.key == PROGRESS][-1]
    (state,) = KafkaAdmin(stage.connection).describe_topics([topic]).values()
    return decode_settled(read_progress(value).settled, Origin(topic, state.topic_id, 0, 0))


def test_records_behind_a_hung_one_are_retried_on_time_and_a_kill_repeats_none(stage: Stage) -> None:
    """A quarter of them waits at the kill; each outcome is there once, and the ledger adds up before and after."""
    gate = Gate()
    topic = stage.main_topic(partitions=1)

    def rule(visit: Visit) -> Answer:
        if visit.facts["id"] == "hangs":
            return Answer(gate=gate)
        return Answer(503 if visit.attempt <= visit.facts["fail"] else 200)

    stage.service.rule = rule
    stage.program(HandlerSpec(topic=topic, policy="1s 1h", concurrency=4, timeout="60s"))
    stage.produce(topic, [{"id": "hangs"}, *({"id": n, "fail": n % 4} for n in range(BEHIND))], 1)
    worker = stage.worker("killed")
    evidence = stage.evidence(topic)
    twice = BEHIND // 4 * 2  # they fail at least twice
    wait_for(
        lambda: (
            (evidence.waiting(), len(evidence.retries()), len(evidence.succeeded()))
            == (twice, BEHIND // 4 * 5, BEHIND // 4)
        ),
        "a half waits for an hour, a quarter has succeeded at its second attempt",
    )
    waits_ms = [visit.at_ms - visit.due_at_ms for visit in stage.service.of(topic) if visit.due_at_ms is not None]
    print(f"retries behind a hung record: n {len(waits_ms)}, late by {min(waits_ms)} to {max(waits_ms)} ms")  # noqa: T201 - for the report
    assert 0 <= min(waits_ms) <= max(waits_ms) < LATE_MS
    assert evidence.committed(topic) == {0: 0}
    evidence.balance()
    everyone = BEHIND + 1 + len(waits_ms)
    wait_for(lambda: len(settled(stage, topic)) == BEHIND, "those that succeeded at once are noted, too")

    worker.kill()
    stage.worker("next")
    wait_for(lambda: len(stage.service.of(topic)) > everyone, "the hung one is delivered again")
    gate.open()
    wait_for(lambda: evidence.unsettled() == 0, "the offset has passed them all")
    visits = Counter((visit.facts["id"], visit.attempt) for visit in stage.service.of(topic))
    assert visits.pop(("hangs", 1)) == 2
    assert set(visits.values()) == {1}, "nothing else ran again"
    assert len(visits) == BEHIND + len(waits_ms)
    assert evidence.repeated_handoffs() == {}
    total = evidence.balance()
    assert (total.received, total.done, total.pending) == (BEHIND + 1, BEHIND + 1 - twice, twice)
