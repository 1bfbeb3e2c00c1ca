"""The whole analysis on real Kafka: a group with real workers, archived, analysed, and held against other evidence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retryapp.stage import wait_for

if TYPE_CHECKING:
    from harness import Stage
    from harness.service import Visit
    from history import CommandLine
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.extended]


@pytest.fixture
def stage(bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    """A group of its own with a service that says what fails."""
    from harness import open_stage

    (tmp_path / "stage").mkdir()
    with open_stage(bootstrap, tmp_path / "stage") as made:
        yield made


def test_journeys_of_a_real_group_are_what_its_service_saw(
    spark: SparkSession, stage: Stage, tmp_path: Path, command: CommandLine
) -> None:
    """Every attempt that the service answered is there, and fates agree with the ledger.

    Some need a service that is down for a while: its circuit opens, and what fails then spends no attempt. What waits
    and what is dead has the causes, and their counts, that the worker's page shows at that moment.
    """
    from harness import HandlerSpec
    from harness.service import Answer

    topic, usual = stage.main_topic(), stage.service.rule
    circuit = {"minimum_calls": 2, "break_for": "300ms", "probes": 1, "ramp": "300ms"}
    stage.program(HandlerSpec(topic=topic, policy="200ms 300ms", circuits={"ledger": circuit}))
    worker = stage.worker()

    def free() -> list[Visit]:
        return [visit for visit in stage.service.of(topic) if visit.facts.get("needs")]

    def of_worker() -> dict[str, tuple[int, int]]:
        """Return what the worker's page says: id of a cause → records that wait and that are dead."""
        page = json.loads(worker.get(f"/retries/{topic}/?format=json")[1])
        counts = [{each["cause_id"]: each["records"] for each in page[name]} for name in ("waiting_causes", "causes")]
        return {cause: (counts[0].get(cause, 0), counts[1].get(cause, 0)) for cause in counts[0] | counts[1]}

    stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(40)])
    stage.wait_settled(topic)
    stage.service.rule = lambda visit: Answer(503) if visit.facts.get("needs") else usual(visit)
    stage.produce(topic, [{"id": 200 + i, "needs": "ledger"} for i in range(10)])
    wait_for(lambda: len(free()) > 20, "they have failed for free")
    stage.service.rule = usual
    stage.produce(topic, [{"id": 300 + i, "reject": True} for i in range(2)])
    stage.wait_settled(topic)
    stage.produce(topic, [{"id": 400 + i, "waits": "1h"} for i in range(5)])
    wait_for(lambda: (5, 0) in of_worker().values(), "they wait")
    code, facts = command("analyse", "--broker", stage.bootstrap, "--group", stage.group, "--compare-ledger")
    assert (code, facts["journeys"], facts["ledger"]["differences"]) == (0, 47, []), facts
    page = command("report")[1]
    assert (page["counted_by"], page["totals"]["received"]) == ("workers", 57), page["ledger"]

    from retryapp.pipeline.analysis.derived import Derived
    from retryapp.pipeline.lake import open_lake

    derived = Derived(open_lake(spark, str(tmp_path / "lake")))
    journeys = {row["failure_id"]: row for row in derived.read("journeys").collect()}
    for identity, count in Counter(visit.failure_id for visit in free()).items():
        journey = journeys.pop(identity)
        assert (journey["fate"], journey["error_type"].rpartition(".")[2]) == ("done", "Unavailable")
        assert (len(journey["attempts"]), journey["missing"], journey["copies"]) == (count, 0, 0)
        assert sum(attempt["attempt"] is not None for attempt in journey["attempts"]) < count, "some were free"
    assert derived.read("readings").where("said.kind = 'circuit'").count() > 0
    seen: dict[str, dict[int, Any]] = {}
    for visit in (visit for visit in stage.service.of(topic) if not visit.facts.get("needs")):
        seen.setdefault(visit.failure_id, {})[visit.attempt] = visit
    waiting = [identity for identity, journey in journeys.items() if journey["fate"] == "pending"]
    assert [len(journeys.pop(identity)["attempts"]) for identity in waiting] == [1] * 5, "they asked no service"
    failed = {identity: visits for identity, visits in seen.items() if stage.service.finished[visits[1].number] != 200}
    assert set(journeys) == set(failed)
    for identity, visits in failed.items():
        journey = journeys[identity]
        assert [attempt["attempt"] for attempt in journey["attempts"]] == sorted(visits)
        done = stage.service.finished[visits[max(visits)].number] == 200
        assert journey["fate"] == ("done" if done else "dead")
        for attempt in journey["attempts"]:
            visit = visits[attempt["attempt"]]
            assert attempt["started_ms"] <= visit.at_ms <= attempt["ended_ms"]
            assert attempt["tier"] == {1: None, 2: "200ms", 3: "300ms"}[attempt["attempt"]]
            if visit.due_at_ms is not None:
                assert attempt["lateness_ms"] == attempt["started_ms"] - visit.due_at_ms >= 0
    assert {journey["reason"] for journey in journeys.values()} == {None, "exhausted", "rejected"}
    causes = command("causes")[1]["causes"]
    shown = [(row["cause_id"], (row["pending"], row["dead"])) for row in causes]
    assert {cause: counts for cause, counts in shown if any(counts)} == of_worker()
    assert sorted(of_worker().values()) == [(0, 2), (0, 10), (5, 0)]
