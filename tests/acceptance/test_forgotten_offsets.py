"""A group whose offsets the broker has forgotten goes on where it was, on a real broker (rule 11).

Kafka forgets the offsets of a group that nobody was in for a week; here the group is deleted, which does the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from harness import HandlerSpec, Stage, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(120)]

COUNT = 12


def forget(stage: Stage) -> None:
    """Have the broker forget the group, which nobody is in any more."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})

    def done() -> bool:
        try:
            admin.delete_consumer_groups([stage.group])[stage.group].result(10)
        except KafkaException:
            return False
        return True

    wait_for(done, "the group has no members any more, and is deleted", every_s=0.3)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("lose_store", [False, True], ids=["store kept", "store lost"])
def test_a_forgotten_group_goes_on_where_it_was(
    bootstrap: str, make_stage: Callable[[str], Stage], delivery: str, lose_store: bool
) -> None:
    """What was done is not delivered again, what waits fires, and what came meanwhile is delivered."""
    stage = make_stage(bootstrap)
    topic = stage.main_topic()

    def program(life: int) -> None:
        data = str(stage.folder / (f"data{life}" if lose_store else "data"))
        stage.program(
            HandlerSpec(topic=topic, policy="6s"), options={"delivery": delivery}, app_options={"datadir": data}
        )

    program(0)
    stage.produce(topic, [{"id": i, "fail": i % 3 == 0} for i in range(COUNT)])
    worker = stage.worker("before")
    evidence = stage.evidence(topic)
    waiting = COUNT // 3
    wait_for(
        lambda: (evidence.waiting(), sum(evidence.committed(topic).values())) == (waiting, COUNT),
        "some wait, the others are done",
    )
    worker.stop()
    forget(stage)
    assert sum(evidence.committed(topic).values()) <= 0
    stage.produce(topic, [{"id": i, "fail": 0} for i in range(COUNT, COUNT + 4)])
    program(1)
    stage.worker("after")
    stage.wait_settled(topic)
    visits = Counter((visit.facts["id"], visit.attempt) for visit in stage.service.of(topic))
    first = {(i, 1): 1 for i in range(COUNT + 4)}
    second = {(i, 2): 1 for i in range(0, COUNT, 3)}
    assert visits == first | second
