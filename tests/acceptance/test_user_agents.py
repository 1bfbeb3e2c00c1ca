"""The user's own agents beside handlers: a slow one stops nobody, and loses nothing."""

from __future__ import annotations

from collections import defaultdict

import pytest
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for
from harness.service import fail_first

from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]

BUFFER = 5
"""Records that the agent's queue takes; one fetch brings many more."""


def by_partition(visits: list[Visit]) -> dict[int, list[int]]:
    """Return the offsets that the user's agent saw, in order of arrival."""
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for visit in visits:
        partition, offset = visit.failure_id.split("/")
        seen[int(partition)].append(int(offset))
    return dict(seen)


@pytest.mark.timeout(120)
def test_a_slow_agent_stops_no_handler_and_loses_nothing(stage: Stage) -> None:
    """Its records wait outside its full queue, through a rebalance too; none is committed before it was processed."""
    orders, clicks = stage.main_topic("orders"), stage.main_topic("clicks")
    gates = [Gate(), Gate()]
    stage.service.rule = lambda visit: Answer(gate=gates[0]) if visit.topic == clicks else fail_first(visit)
    stage.program(
        HandlerSpec(topic=orders, policy="200ms"), agent=clicks, app_options={"stream_buffer_maxsize": BUFFER}
    )
    evidence = stage.evidence(orders)
    stage.worker("first")

    stage.produce(clicks, [{"id": f"c{n}"} for n in range(100)])
    wait_for(lambda: stage.service.of(clicks), "the agent has begun with its first record")
    stage.produce(orders, [{"id": f"o{n}", "fail": n % 2} for n in range(40)])
    wait_for(lambda: len(stage.service.done(orders)) == 40, "the handler works while the agent is stuck")
    stage.wait_settled(orders)
    assert len(stage.service.of(clicks)) == 1
    assert evidence.committed(clicks) == {0: 0, 1: 0}

    gates[0].open()
    wait_for(lambda: len(stage.service.done(clicks)) == 100, "the agent has caught up")
    assert by_partition(stage.service.of(clicks)) == {0: list(range(50)), 1: list(range(50))}, "in order, once"
    wait_for(lambda: evidence.committed(clicks) == {0: 50, 1: 50}, "all is committed")

    gates[0] = gates[1]
    stage.produce(clicks, [{"id": f"d{n}"} for n in range(100)])
    wait_for(lambda: len(stage.service.of(clicks)) > 100, "the agent is stuck again")
    second = stage.worker("second")
    wait_for(lambda: second.pid in {v.pid for v in stage.service.of(clicks)}, "the second worker has one of them")
    begun = by_partition(stage.service.of(clicks))
    for partition, offset in evidence.committed(clicks).items():  # Faust counts what it interrupts as processed
        assert offset <= max(begun[partition]) + 1
    gates[1].open()
    wait_for(lambda: len(stage.service.done(clicks)) == 200, "both agents have caught up")
    for partition, offsets in by_partition(stage.service.of(clicks)).items():
        assert list(dict.fromkeys(offsets)) == list(range(100)), f"partition {partition}: in order, none left out"
    ends = {number: place.end for number, place in KafkaAdmin(stage.connection).offsets(clicks).items()}
    wait_for(lambda: evidence.committed(clicks) == ends, "all is committed")
