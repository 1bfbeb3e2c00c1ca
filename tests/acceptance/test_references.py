"""Records that wait by reference: a burst of large ones, a kill, and records that are deleted meanwhile."""

from __future__ import annotations

from collections import defaultdict

import pytest
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for
from harness.operator import Operator

from retryapp.core.row_keys import is_identity

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(120)]

RECORDS = 60
GONE = 10
SIZE = 200_000


def test_large_records_come_again_over_a_kill_and_deleted_ones_are_gone(stage: Stage) -> None:
    """Byte for byte, with no copy on our topics; the ledger adds up."""
    gate = Gate()
    topic = stage.main_topic(partitions=1)
    operator = Operator(stage.bootstrap)

    def rule(visit: Visit) -> Answer:
        return Answer(503) if visit.attempt == 1 else Answer(gate=gate)

    stage.service.rule = rule
    stage.program(HandlerSpec(topic=topic, policy="6s 1h", concurrency=8, payload="reference"))
    worker = stage.worker("killed")
    stage.produce(topic, [{"id": n, "blob": f"{n:03}" * (SIZE // 3)} for n in range(RECORDS)], 1)
    evidence, topology = stage.evidence(topic), stage.topology(topic)
    wait_for(lambda: (evidence.waiting(), evidence.committed(topic)) == (RECORDS, {0: RECORDS}), "all of them wait")
    operator.delete_records(topic, 0, GONE)
    rows = [each for each in evidence.records(topology.pending_changelog) if is_identity(each.key)]
    copies = evidence.retries()
    assert max(len(each.value or b"") for each in rows) < 2_000
    assert {(copy.value, metadata.no_payload) for copy, metadata in copies} == {(b"", True)}

    wait_for(lambda: sum(visit.attempt == 2 for visit in stage.service.of(topic)) >= 4, "some are tried again")
    worker.kill()
    gate.open()
    stage.worker("next")
    total = stage.wait_settled(topic)
    seen = defaultdict(set)
    for visit in stage.service.of(topic):
        seen[visit.facts["id"]].add((visit.key, visit.value, visit.headers, visit.timestamp_ms))
    assert {len(each) for each in seen.values()} == {1}, "each attempt saw the same"
    assert stage.service.done(topic) == set(range(GONE, RECORDS))
    letters = sorted((m.origin.offset, m.reason, m.attempt, m.no_payload) for _, m in evidence.dead())
    assert letters == [(offset, "gone", 1, True) for offset in range(GONE)]
    assert (total.received, total.done, total.dead, total.pending) == (RECORDS, RECORDS - GONE, GONE, 0)
