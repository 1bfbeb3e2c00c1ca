"""``handler`` and ``outage``: what they say while no worker runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from retryapp.core.jobs import HandlerCommand, HandlerVerb, Level, Steering
from retryapp.core.marks import PROGRESS, control_text, progress_value
from retryapp.kafka import KafkaAdmin, KafkaConnection


def test_a_pause_that_waits_for_a_worker_is_shown(retryapp, shop):
    """Whether the partition has worked before or not; a worker that has obeyed it leaves nothing queued."""
    topology = shop.topology
    for number in (0, 1):
        pause = HandlerCommand(id="ab12cd34", verb=HandlerVerb.PAUSE, by="ann", why="deploy").to_record("", number)
        shop.publish(topology.control, number, pause.key or b"", pause.value)
    control = KafkaAdmin(KafkaConnection(shop.operator.bootstrap)).describe_topics([topology.control])
    topic_id = control[topology.control].topic_id
    paused = Steering(paused=Level(since_ms=1_700_000_000_000, by="ann", why="deploy"))
    obeyed = progress_value({}, "", control=control_text(topic_id, 1), steering=paused.written)
    place = (*shop.place, "--topic", topology.main)

    shown = retryapp("handler", "show", *place)
    assert shown.code == 1
    first, *queued = shown.out.strip().splitlines()
    assert first == "not paused"
    assert [line[: line.index(", since")] for line in queued] == [
        "partition 0: pause waits for a worker", "partition 1: pause waits for a worker",
    ]  # fmt: skip
    assert all(line.endswith("sent by ann: deploy") for line in queued)
    assert retryapp("outage", "show", *place).code == 0, "it is about something else"

    shop.publish(topology.pending_changelog, 0, PROGRESS, obeyed)
    facts = retryapp("handler", "show", *place, "--json").json
    assert list(facts["paused"]) == ["0"]
    assert [(each["partition"], each["verb"], each["why"]) for each in facts["queued"]] == [(1, "pause", "deploy")]


def test_a_partition_that_is_not_there_is_named(retryapp, shop):
    """Of a failure id, or of --partition: the topic is there, and the number is wrong."""
    wrong = shop.failure_id(9, 5)
    for words in (("pending", "show", *shop.place[:2], wrong), ("dead", "show", *shop.place[:2], wrong)):
        done = retryapp(*words)
        assert done.code == 3
        assert "partition 9 of topic" in done.err
        assert (
            "It has partitions 0 to 2: correct the number (in a failure id it is the one before the offset)" in done.err
        )


CIRCUITS = {
    "": "circuit of its own. Pause it instead: 'retryapp handler pause -A MODULE --why TEXT'",
    'circuits={"ledger": CircuitBreaker()}': "circuit of its own. It has: ledger",
    "circuit=CircuitBreaker()": "circuit bank. It has: its own, without --circuit",
}


@pytest.mark.parametrize("declared", CIRCUITS)
def test_an_outage_without_its_circuit_is_refused_at_once(retryapp, group: str, tmp_path: Path, declared: str) -> None:
    """The application says which circuits there are, so no broker and no worker is asked."""
    source = f"""
import faust
from retryapp import CircuitBreaker, Retries, RetryPolicy

app = faust.App("{group}", broker="kafka://127.0.0.1:1", store="memory://")
retries = Retries(app)

@retries.handler("orders", policy=RetryPolicy("1s"), {declared})
async def charge(order: bytes) -> None: ...
"""
    (tmp_path / f"{group}.py").write_text(source)
    more = ("--circuit", "bank") if "circuit=" in declared else ()
    done = retryapp("outage", "open", "-A", group, "--why", "ledger is down", *more)
    assert done.code == 2
    said = CIRCUITS[declared].replace("MODULE", group)
    assert f"the handler of orders has no {said}" in done.err
