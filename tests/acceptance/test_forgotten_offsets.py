"""A group whose offsets the broker has forgotten goes on where it was.

Kafka forgets the offsets of a group that was empty for a week; here the group is deleted, which does the same.
"""

from __future__ import annotations

from collections import Counter

import pytest
from acceptance.books import delete_group
from harness import HandlerSpec, Stage, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(120)]

COUNT = 12


@pytest.mark.parametrize(
    "store", ["lost", pytest.param("kept", marks=pytest.mark.extended)], ids=lambda store: f"store {store}"
)
def test_a_forgotten_group_goes_on_where_it_was(stage: Stage, store: str) -> None:
    """What was done is not delivered again, what waits fires, and what came meanwhile is delivered."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="10s"))
    stage.produce(topic, [{"id": i, "fail": i % 3 == 0} for i in range(COUNT)])
    worker = stage.worker("before", env={"RETRYAPP_DATADIR": str(stage.folder / "data")})
    evidence = stage.evidence(topic)
    wait_for(
        lambda: (evidence.waiting(), sum(evidence.committed(topic).values())) == (COUNT // 3, COUNT),
        "some wait, the others are done",
    )
    assert worker.stop() == 0
    delete_group(stage)
    assert sum(evidence.committed(topic).values()) <= 0
    stage.produce(topic, [{"id": i, "fail": 0} for i in range(COUNT, COUNT + 4)])
    stage.worker("after", env={"RETRYAPP_DATADIR": str(stage.folder / ("data" if store == "kept" else "data2"))})
    stage.wait_settled(topic)
    visits = Counter((visit.facts["id"], visit.attempt) for visit in stage.service.of(topic))
    first = {(i, 1): 1 for i in range(COUNT + 4)}
    second = {(i, 2): 1 for i in range(0, COUNT, 3)}
    assert visits == first | second
