"""Topics of others: looked at once in a while, doubted after a failure, and no reason for a lane to stand still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import BankDownError, failures, problems, serving

from retryapp.core.policy import RetryPolicy
from retryapp.core.publication import FRESH_S, PROBLEM_S, REFUSED_S, Destination, TopicLook, partition_of
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.handler.publish import Destinations
from retryapp.ports import Event, LaneBatch, LaneReceipt
from retryapp.testing import MemoryDestinations, MemoryLaneTransport, MemoryPartition, VirtualClock

OUT = "payments"
DAY = RetryPolicy("1d")


async def publish(value: bytes, record: Delivery) -> None:
    """Publish the value, to the topic that it names first."""
    topic, _, result = value.rpartition(b" ")
    record.publish(topic.decode() or OUT, result)


def count(partition: MemoryPartition) -> int:
    """Return how many results a committed reader sees."""
    return len(partition.records(OUT))


# -- looks ------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_looked_at_once_in_a_while() -> None:
    """Not for each record, and again when that was long ago."""
    async with MemoryPartition(publish, concurrency=4) as orders:
        await orders.send(*[b"v"] * 20)
        assert orders.destinations.looked == [OUT]
        await orders.advance(int(FRESH_S * 1_000) - 1)
        await orders.send(b"v")
        assert orders.destinations.looked == [OUT]
        await orders.advance(1)
        await orders.send(b"v")
        assert orders.destinations.looked == [OUT] * 2
        assert count(orders) == 22


async def test_a_topic_that_is_not_there_fails_the_attempt_and_is_found_once_it_is_made() -> None:
    """The partition goes on meanwhile, and nobody asks for each record."""
    topics = MemoryDestinations({"other": 1})
    async with serving(publish, "5s", b"1", b"other 2", b"3", destinations=topics) as (orders, _):
        assert orders.waiting == {"5s": 2}
        assert problems(orders) == [f"publish to {OUT!r}: there is no such topic; create it first"] * 2
        assert topics.looked == [OUT, "other"]
        topics.topics = {OUT: 1}
        await orders.advance(int(PROBLEM_S * 1_000))
        assert (count(orders), len(orders.records("other"))) == (2, 1)


@pytest.mark.parametrize("seen", [{}, {OUT: TopicLook(1, max_bytes=9), "other": TopicLook(1, max_bytes=9)}])
async def test_what_a_topic_does_not_take_is_one_cause_whoever_finds_it(seen: dict[str, TopicLook]) -> None:
    """The first attempt hears of it after the handler has ended, others in the handler; each topic has its own."""
    topics = MemoryDestinations(seen)
    async with serving(publish, DAY, b"1", b"2", b"other 3", destinations=topics) as (orders, _):
        first, later, other = (each.fingerprint for each in orders.observer.of(Event.FAILED))
        assert first == later != other


async def test_a_topic_that_nobody_can_look_at_fails_the_attempt_and_is_looked_at_again() -> None:
    """At once: who has answered before knows nothing of it."""
    topics = MemoryDestinations()
    topics.error = ConnectionError("no broker")
    async with serving(publish, DAY, b"1", destinations=topics) as (orders, _):
        assert problems(orders) == [f"publish to {OUT!r}: it could not be looked at (no broker)"]
        topics.error = None
        await orders.send(b"2")
        assert count(orders) == 1


async def test_an_old_look_is_good_enough_while_nobody_can_tell() -> None:
    """The topic was there, and nothing speaks against it."""
    async with serving(publish, DAY, b"1") as (orders, _):
        orders.destinations.error = ConnectionError("no broker")
        await orders.advance(int(FRESH_S * 1_000))
        await orders.send(b"2", b"3")
        assert (count(orders), problems(orders), len(orders.destinations.looked)) == (3, [], 2)


async def test_a_run_that_gives_up_leaves_the_look_to_the_others(clock: VirtualClock) -> None:
    """One is cancelled, the other gets the answer."""
    topics = MemoryDestinations()
    destinations = Destinations(topics, clock, tuple)
    found = destinations.of(OUT)
    looks = [asyncio.create_task(destinations.look(found)) for _ in range(2)]
    await asyncio.sleep(0)
    looks[0].cancel()
    await asyncio.gather(*looks, return_exceptions=True)
    assert (looks[0].cancelled(), looks[1].exception(), found.partitions, topics.looked) == (True, None, 1, [OUT])


# -- what a broker refuses --------------------------------------------------------------------------------------------


class Choosy(MemoryLaneTransport):
    """A broker that refuses transactions with records for a topic, for reasons that nobody can see beforehand."""

    refuses: str | None = "for no reason"
    largest: int | None = None
    is_led = True

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """Refuse them as the client library tells it: of the batch, then of the transaction."""
        for out in batch.publishes:
            if out.topic != OUT:
                continue
            if not self.is_led:
                raise TimeoutError("no leader")
            destination: Destination = out.destination  # type: ignore[attr-defined]
            if self.largest is not None and len(out.value or b"") > self.largest:
                destination.refuse_size([out.size])  # type: ignore[attr-defined]
            elif self.largest is None and self.refuses is not None:
                destination.refuse(self.refuses)
            else:
                continue
            raise ConnectionError("the transaction has failed")
        return await super().commit(batch)


async def test_a_topic_whose_broker_refuses_records_fails_attempts_not_the_lane() -> None:
    """The lane fails once; then the handlers are told, until the broker may have changed its mind."""
    clock = VirtualClock()
    transport = Choosy(clock)
    async with serving(publish, "40s", b"1", b"other 2", transport=transport) as (orders, _):
        await orders.advance(1_000)
        assert orders.waiting == {"40s": 1}
        assert problems(orders) == [f"publish to {OUT!r}: for no reason"]
        assert len(orders.records("other")) == 1
        assert len(failures(orders)) == 1
        transport.refuses = None
        await orders.advance(int(REFUSED_S * 1_000))
        await orders.advance(10_000)
        assert count(orders) == 1


async def test_a_size_that_the_broker_refuses_is_remembered() -> None:
    """Where its limit cannot be read: smaller records pass, those of that size fail in the handler."""
    transport = Choosy(VirtualClock())
    transport.largest = 100
    topics = MemoryDestinations()
    async with serving(publish, DAY, b"x" * 200, b"x" * 100, transport=transport, destinations=topics) as (orders, _):
        await orders.advance(1_000)
        assert (orders.waiting, count(orders)) == ({"1d": 1}, 1)
        assert "max.message.bytes" in problems(orders)[0]


async def test_after_a_failed_transaction_its_topics_are_looked_at_again() -> None:
    """One that was deleted meanwhile fails attempts; its lane would try for ever."""
    transport, topics = Choosy(VirtualClock()), MemoryDestinations({OUT: 1})
    transport.refuses = None
    async with serving(publish, DAY, b"1", transport=transport, destinations=topics) as (orders, _):
        transport.is_led, topics.topics = False, {}
        await orders.send(b"2")
        await orders.advance(1_000)
        assert (orders.waiting, topics.looked) == ({"1d": 1}, [OUT, OUT])
        assert "no such topic" in problems(orders)[0]


@pytest.mark.parametrize("doubted_first", [True, False])
def test_what_a_broker_refuses_outlives_the_doubt(doubted_first: bool) -> None:
    """In whichever order a batch and its transaction are told of: another look would find nothing wrong."""
    destination = Destination(OUT)
    destination.see(TopicLook(1), 0.0)
    steps = [lambda: destination.doubt(0), lambda: destination.refuse("for no reason")]
    for step in steps if doubted_first else reversed(steps):
        step()
    assert destination.fresh(1.0)
    assert destination.problem == "for no reason"
    destination.doubt(0)
    assert destination.fresh(1.0)
    assert not destination.fresh(1.0 + REFUSED_S)
    destination.see(TopicLook(1), 40.0)
    assert (destination.fresh(41.0), destination.problem) == (True, None)


def test_a_partition_that_its_broker_refuses_closes_no_other() -> None:
    """In whichever lane that came out; after a while another look says how it is."""
    destination = Destination(OUT)
    destination.see(TopicLook(3), 0.0)
    destination.refuse("it has no leader", 1)
    destination.refuse("too few copies", 2)
    destination.doubt(1)
    assert destination.fresh(1.0)
    assert (destination.problem, destination.closed) == (None, {1: "it has no leader", 2: "too few copies"})
    destination.doubt(1)
    assert destination.fresh(1.0), "of what it says now a look may know nothing"
    assert not destination.fresh(1.0 + REFUSED_S)
    destination.see(TopicLook(3, closed={1: "it has no leader"}), 40.0)
    assert destination.closed == {1: "it has no leader"}
    assert not destination.fresh(40.0 + PROBLEM_S), "it is looked at again soon"
    destination.doubt(0)
    assert not destination.fresh(40.0), "that another partition is closed says nothing of this one"


def test_a_look_opens_no_partition_that_its_broker_has_just_refused() -> None:
    """Brokers before 3.7 do not tell of it. Each refusal has its own time, and none prolongs what a look has said."""
    destination = Destination(OUT)
    destination.see(TopicLook(3), 0.0)
    destination.refuse("too few copies", 1)
    assert destination.fresh(1.0)
    destination.doubt(0)
    destination.see(TopicLook(3, closed={2: "it has no leader"}), 2.0)
    assert destination.closed == {1: "too few copies", 2: "it has no leader"}
    destination.refuse("too few copies", 0)
    assert destination.fresh(3.0)
    assert not destination.fresh(2.0 + PROBLEM_S)
    destination.see(TopicLook(3), 10.0)
    assert destination.closed == {0: "too few copies", 1: "too few copies"}
    assert not destination.fresh(1.0 + REFUSED_S)
    destination.see(TopicLook(3), 1.0 + REFUSED_S)
    assert destination.closed == {0: "too few copies"}
    assert not destination.fresh(3.0 + REFUSED_S)
    destination.see(TopicLook(3), 3.0 + REFUSED_S)
    assert (destination.closed, destination.fresh(FRESH_S)) == ({}, True)


KEYS = {partition_of(key, 3): key for key in (b"%d" % number for number in range(20))}  # one for each partition


@pytest.mark.parametrize("where", [{"partition": 2}, {"key": KEYS[2]}], ids=["by number", "by key"])
async def test_a_partition_that_takes_no_records_fails_attempts_of_its_own_records_only(where: dict[str, Any]) -> None:
    """A transaction with them would stop its lane, and with it the records of all others."""
    topics = MemoryDestinations({OUT: TopicLook(3, closed={2: "it has no leader"})})

    async def handler(value: bytes, record: Delivery) -> None:
        record.publish(OUT, value, **(where if value == b"closed" else {"key": KEYS[1]}))

    async with serving(handler, DAY, b"1", b"closed", b"2", destinations=topics) as (orders, _):
        assert problems(orders) == [f"publish to {OUT!r}: partition 2 takes no records now: it has no leader"]
        assert (orders.waiting, [record.value for record in orders.records(OUT, 1)]) == ({"1d": 1}, [b"1", b"2"])


async def test_records_without_a_key_go_where_they_are_taken() -> None:
    """As Kafka's own clients send them; if no partition takes any, the attempt fails."""
    topics = MemoryDestinations({OUT: TopicLook(3, closed={0: "why", 2: "why"})})

    async def handler(value: bytes, record: Delivery) -> None:
        record.publish(OUT, value)

    numbers = [b"%d" % number for number in range(20)]
    async with serving(handler, DAY, *numbers, destinations=topics) as (orders, _):
        assert [record.value for record in orders.records(OUT, 1)] == numbers
    topics = MemoryDestinations({OUT: TopicLook(1, closed={0: "why"})})
    async with serving(handler, DAY, b"1", destinations=topics) as (orders, _):
        assert problems(orders) == [f"publish to {OUT!r}: partition 0 takes no records now: why"]


def test_a_batch_that_is_too_large_is_no_matter_of_its_records() -> None:
    """From then on each travels alone; a lone one that is refused gives the limit."""
    destination = Destination(OUT)
    destination.see(TopicLook(1), 0.0)
    destination.refuse_size([600, 700])
    assert (destination.batch_bytes, destination.objection(None, None, 700)) == (0, None)
    destination.refuse_size([700])
    assert destination.objection(None, None, 699) is None
    assert destination.objection(None, None, 700) is not None
    destination.see(TopicLook(1, max_bytes=5_000), 0.0)
    assert (destination.batch_bytes, destination.max_bytes) == (5_000, 5_000)


async def test_a_failure_of_the_handler_wins_over_what_it_published() -> None:
    """Its own error is told, and the topic is not even looked at."""

    async def handler(value: bytes, record: Delivery) -> None:
        record.publish("missing", value)
        raise BankDownError("no answer")

    async with serving(handler, DAY, b"1", destinations=MemoryDestinations({})) as (orders, _):
        assert (problems(orders), orders.destinations.looked) == (["no answer"], [])
