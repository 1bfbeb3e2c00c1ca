"""The user's own agent, RocksDB table and timer beside our handlers, while workers join, leave and start again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from acceptance.books import repeating
from confluent_kafka import Producer
from harness import HandlerSpec, Stage, Worker, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(300)]

PARTITIONS = 4
KEYS = ("k0", "k9", "k4", "k5", "k1", "k2", "k6", "k11")
"""Two for each partition, by the hash that Java's and Faust's producers use."""
LONGEST_PAUSE_S = 5.0
"""Between two ticks of a timer that should come every 0.2 s; the tests' machine is busy."""

NEIGHBOURS = """

tallies = app.Table("tallies", default=list, partitions=SPEC["partitions"], key_type=str)
numbers = app.topic(SPEC["numbers"], key_type=str, key_serializer="json", value_type=int, value_serializer="json")


@app.agent(numbers)
async def tally(stream):
    \"\"\"Count each number of a key once, in order; at least once brings some again, a gap would be a loss.\"\"\"
    async for event in stream.events():
        count, last = tallies[event.key] or (0, 0)
        if event.value > last:
            if event.value != last + 1:
                await tell("gaps", key=event.key, last=last, value=event.value)
            tallies[event.key] = [count + 1, event.value]


@app.timer(interval=0.2)
async def tick():
    await tell("ticks")


@app.page("/tallies/{key}/")
@app.table_route(table=tallies, match_info="key")
async def show_tally(web, request, key):
    count, last = tallies[key] or (0, 0)
    return web.json({"count": count, "last": last, "pid": os.getpid()})


async def tell(what, **facts):
    value = _text(json.dumps(facts).encode())
    told = {"failure_id": what, "attempt": 1, "key": None, "value": value, "headers": [], "timestamp_ms": 0}
    await call_service(what, {**told, "due_at_ms": None})
"""


@dataclass(slots=True)
class Traffic:
    """Numbers for the agent and records for the handler, in turn."""

    producer: Producer
    """As Faust's own: its router looks for a key on the worker that has its partition by that hash."""
    numbers: str
    orders: str
    last: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    order_ids: set[int] = field(default_factory=set)

    def publish(self) -> None:
        for key in KEYS:
            self.last[key] += 1
            # as the table's keys are written
            self.producer.produce(self.numbers, str(self.last[key]), key=json.dumps(key))
        number = len(self.order_ids)
        self.order_ids.add(number)
        fact = json.dumps({"id": number, "fail": number % 3})
        self.producer.produce(self.orders, fact, key=str(number), partition=number % PARTITIONS)
        self.producer.poll(0)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Publish from a thread: about 160 numbers and 20 orders a second."""
        with repeating(self.publish, 0.05):
            yield
        assert self.producer.flush(20) == 0


def tallies(worker: Worker) -> dict[str, dict[str, Any]]:
    """Ask a worker's view for all keys; those of another worker's partitions it fetches there."""
    found = {}
    for key in KEYS:
        status, body = worker.get(f"/tallies/{key}/")
        if status == 200:
            found[key] = json.loads(body)
    return found


def exact(worker: Worker, traffic: Traffic) -> set[int]:
    """Wait until a worker's view says for each key that every number was counted once; return who has the keys."""

    def right() -> bool:
        counted = {key: (answer["count"], answer["last"]) for key, answer in tallies(worker).items()}
        return counted == {key: (last, last) for key, last in traffic.last.items()}

    wait_for(right, f"{worker.name} says that all are counted", timeout_s=60, every_s=0.2)
    return {answer["pid"] for answer in tallies(worker).values()}


def longest_pause_s(stage: Stage, pid: int) -> float:
    """Return the longest time between two ticks of a process."""
    times = sorted(visit.at_ms for visit in stage.service.of("ticks") if visit.pid == pid)
    assert len(times) > 10, "its timer ticks"
    return max(after - before for before, after in pairwise(times)) / 1000


def test_neighbours_through_a_join_a_leave_and_a_restart(stage: Stage) -> None:
    """Counts are exact on whoever has them, the timer ticks on, and our own records are all done."""
    orders, numbers = stage.main_topic("orders", PARTITIONS), stage.main_topic("numbers", PARTITIONS)
    stage.program(HandlerSpec(topic=orders), code=NEIGHBOURS, partitions=PARTITIONS, numbers=numbers)
    producer = Producer({"bootstrap.servers": stage.bootstrap, "partitioner": "murmur2_random", "linger.ms": 5})
    traffic = Traffic(producer, numbers, orders)
    first = stage.worker("first")

    def counted(more: int) -> bool:
        return len(stage.service.done(orders)) >= more

    with traffic.flowing():
        wait_for(lambda: counted(20), "records flow")
    exact(first, traffic)
    with traffic.flowing():
        second = stage.worker("second")
        wait_for(lambda: second.pid in {visit.pid for visit in stage.service.of(orders)}, "the second one works")
    for worker in (first, second):
        assert exact(worker, traffic) == {first.pid, second.pid}, "each has keys"
    with traffic.flowing():
        assert second.stop() == 0
        done = len(stage.service.done(orders))
        wait_for(lambda: counted(done + 20), "records flow on")
    assert exact(first, traffic) == {first.pid}
    assert first.stop() == 0
    again = stage.worker("again")
    with traffic.flowing():
        wait_for(lambda: again.pid in {visit.pid for visit in stage.service.of(orders)}, "a new one goes on alone")
    assert exact(again, traffic) == {again.pid}
    wait_for(lambda: stage.service.done(orders) == traffic.order_ids, "our own records are done")
    stage.wait_settled(orders)
    assert not stage.evidence(orders).repeated_handoffs()
    assert not stage.evidence(orders).dead()
    assert [visit.facts for visit in stage.service.of("gaps")] == []
    assert longest_pause_s(stage, first.pid) < LONGEST_PAUSE_S
    for worker in stage.workers:
        assert "Traceback" not in worker.log
