"""The consumer: what reaches the engine, what reaches the user's agents, and when partitions flow."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiokafka
import pytest
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

from retryapp.ports import TopicPartition
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.faust.consumer_thread import RetryConsumerThread

MAIN = TP("orders", 0)
RETRY = TP("app.orders.retry", 0)
USERS = TP("clicks", 0)
OURS = TopicPartition(*MAIN)


def client_tp(tp: TP) -> Any:
    """Return the client library's name for a partition."""
    return aiokafka.TopicPartition(*tp)


async def poll(consumer: RetryConsumer) -> list[tuple[TP, int]]:
    """Fetch once; return what went the way of the user's agents."""
    return [(tp, message.offset) async for tp, message in consumer.getmany(1.0)]


class _Agent:
    """An agent's queue as the fetch loop sees it."""

    def __init__(self, consumer: RetryConsumer, tp: TP, maxsize: int) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue(maxsize)
        topics: Any = consumer.app.topics
        topics._tp_index[tp] = {self}  # what Faust's conductor makes its callbacks of
        topics._acking_topics.add(tp.topic)

    async def take_all(self, consumer: RetryConsumer) -> list[int]:
        found = []
        async for _, message in consumer.getmany(1.0):
            self.queue.put_nowait(message)
            found.append(message.offset)
        return found

    def process(self, consumer: RetryConsumer, count: int) -> None:
        for _ in range(count):
            message = self.queue.get_nowait()
            tp = TP(message.topic, message.partition)
            consumer._acked_index[tp].add(message.offset)
            consumer._acked[tp].append(message.offset)


@pytest.fixture
async def spilling(consumer: RetryConsumer, thread: Any, records: Any) -> _Agent:
    """An agent of the user's with room for two of six records that were fetched."""
    agent = _Agent(consumer, USERS, maxsize=2)
    thread.fetches = [{USERS: records(USERS, 6)}]
    assert await agent.take_all(consumer) == [0, 1]
    return agent


# -- holding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assigned", [True, False])
async def test_a_hold_pauses_and_throws_away_what_is_buffered(
    consumer: RetryConsumer, client: Any, records: Any, assigned: bool
) -> None:
    """What the group has taken away cannot be paused, but a fetch of it may be on its way."""
    if not assigned:
        client.assigned.clear()
    consumer.intake.put({MAIN: records(MAIN, 3)}, {})
    await consumer.hold([OURS])
    assert client.paused == ({client_tp(MAIN)} if assigned else set())
    assert consumer.intake.waiting(OURS) == 0
    assert consumer.intake.epoch[OURS] == 1


async def test_fetches_are_stamped_with_the_epochs_at_their_end(
    consumer: RetryConsumer, stopped_thread: RetryConsumerThread, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the consumer's thread a hold comes either before a fetch has returned or after it, never between."""

    async def fetch(_self: Any, *_: Any, **__: Any) -> Any:
        consumer.intake.epoch[OURS] += 1  # held while the fetch waited: what it returns was let go after that
        return {MAIN: records(MAIN)}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    monkeypatch.setattr(stopped_thread, "_positions", dict)
    found = await stopped_thread._fetch_records(None, {MAIN})
    assert list(found) == [MAIN]
    assert found.stamp == {OURS: 1}
    consumer.intake.epoch[OURS] += 1
    assert found.stamp == {OURS: 1}, "a later hold must not make it young again"


async def test_a_fetch_carries_the_positions_of_what_is_not_held(
    stopped_thread: RetryConsumerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not too often; a held partition's position belongs to no session, a new one has none, the user's are theirs."""

    def state(position: int | None, *, paused: bool = False) -> Any:
        return SimpleNamespace(position=position, paused=paused, has_valid_position=position is not None)

    states = {
        client_tp(MAIN): state(7),
        client_tp(RETRY): state(3, paused=True),
        client_tp(TP("orders", 1)): state(None),
        client_tp(USERS): state(9),
    }
    assignment = SimpleNamespace(tps=set(states), state_value=states.get)
    subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
    stopped_thread._consumer = SimpleNamespace(_subscription=subscription)

    async def fetch(_self: Any, *_: Any, **__: Any) -> Any:
        return {}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    assert (await stopped_thread._fetch_records(None, {MAIN})).positions == {OURS: 7}
    assert (await stopped_thread._fetch_records(None, {MAIN})).positions == {}
    stopped_thread._looked_s -= 60
    subscription.subscription = None
    assert (await stopped_thread._fetch_records(None, {MAIN})).positions == {}


async def test_a_hold_that_is_cancelled_throws_away_what_is_buffered(
    consumer: RetryConsumer, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline may pass while the consumer's thread is busy."""
    begun = asyncio.Event()

    async def busy(_function: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(consumer, "in_thread", busy)
    consumer.intake.put({MAIN: records(MAIN, 3)}, {})
    holding = asyncio.create_task(consumer.hold([OURS]))
    await begun.wait()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert consumer.intake.waiting(OURS) == 0


async def test_positions_of_what_the_group_has_taken_away_are_not_set(consumer: RetryConsumer, client: Any) -> None:
    """The lane must not believe that its records flow."""
    client.assigned.clear()
    with pytest.raises(RuntimeError, match="not assigned any more"):
        await consumer.reposition({OURS: 4})


async def test_an_assignment_holds_our_partitions_before_anything_else(
    consumer: RetryConsumer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust's part takes time in which the client would fetch from wherever it stands."""
    paused_at_faust: list[set[Any]] = []
    told: list[Any] = []

    async def fausts_part(_self: Any, _assigned: set[TP], _generation: int = 0) -> None:
        paused_at_faust.append(set(client.paused))

    async def on_assigned(*what: Any) -> None:
        told.append(what)

    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_assigned", fausts_part)
    monkeypatch.setattr(consumer.app.assignor, "assigned_actives", lambda: {MAIN, USERS})
    consumer.intake.on_assigned = on_assigned
    await consumer.on_partitions_assigned({MAIN, USERS}, 3)
    assert paused_at_faust == [{client_tp(MAIN)}]
    assert told == [(1, "member", {OURS, TopicPartition(*USERS)})]


async def test_faust_does_not_seek_our_partitions(consumer: RetryConsumer, client: Any) -> None:
    """Where ours go on is the lanes' business; an empty list would seek all."""
    client.committed = {client_tp(MAIN): 3, client_tp(USERS): 5}
    await consumer.perform_seek()
    assert consumer._read_offset[USERS] == 5
    assert MAIN not in consumer._read_offset
    client.assigned = {client_tp(MAIN)}
    await consumer.perform_seek()
    assert client.asked_for_committed == 1


async def test_faust_cannot_commit_our_partitions(consumer: RetryConsumer, stopped_thread: RetryConsumerThread) -> None:
    """A plain commit moves offsets back or past an open transaction; its regular commits leave them out."""
    for tp in (MAIN, USERS):
        consumer._acked[tp].append(0)
    assert set(consumer._filter_tps_with_pending_acks()) == {USERS}
    with pytest.raises(RuntimeError, match="only lanes may"):
        await stopped_thread._commit({MAIN: 4})


# -- a rebalance ------------------------------------------------------------------------------------------------------


async def test_nothing_is_handed_on_and_nothing_is_asked_while_the_flow_is_stopped(
    consumer: RetryConsumer, client: Any, thread: Any, records: Any
) -> None:
    """The flow stops for a rebalance while a fetch is under way: its records belong to nobody any more."""
    thread.fetches = [{MAIN: records(MAIN, 2), USERS: records(USERS, 2)}]
    thread.hand_over.clear()
    polling = asyncio.create_task(poll(consumer))
    await thread.fetched.wait()
    consumer.stop_flow()
    thread.hand_over.set()
    assert await polling == []
    assert consumer.intake.waiting(OURS) == 0
    assert (client.asked_for_committed, client.positions) == (0, {})
    assert consumer._delivered == {}


async def test_the_users_partitions_stay_paused_until_the_rebalance_is_over(
    consumer: RetryConsumer, thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust resumes them before it seeks; changelogs it must be able to resume at once, or no table recovers."""
    changelog = TP("app-counts-changelog", 0)
    monkeypatch.setattr(type(consumer.app.tables), "changelog_topics", {changelog.topic}, raising=False)
    thread.client.assigned |= {client_tp(changelog)}
    consumer.settled = False
    consumer.pause_partitions({MAIN, USERS, changelog})
    consumer.resume_partitions({USERS, changelog})
    assert consumer._get_active_partitions() == {changelog}
    await poll(consumer)
    consumer.settled = True
    await poll(consumer)
    assert thread.polled == [{changelog}, {changelog, USERS}]
    consumer.pause_partitions({USERS})
    consumer.resume_partitions({USERS})
    assert USERS in consumer._get_active_partitions(), "at rest there is nothing to wait for"


@pytest.mark.usefixtures("no_fausts_part")
async def test_only_the_last_assignments_end_settles(consumer: RetryConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a rebalance that another has overtaken says nothing about positions."""
    monkeypatch.setattr(consumer.app.assignor, "assigned_actives", set)
    consumer.intake.on_assigned = consumer.intake.on_revoked = None
    await consumer.on_partitions_assigned({MAIN, USERS}, 4)
    await consumer.on_partitions_revoked({MAIN, USERS})
    seen = [consumer.settled]
    consumer.rebalance_over(4)  # its end comes late, between revoke and assignment
    seen.append(consumer.settled)
    await consumer.on_partitions_assigned({MAIN, USERS}, 5)
    consumer.rebalance_over(4)
    seen.append(consumer.settled)
    consumer.rebalance_over(5)
    assert [*seen, consumer.settled] == [False, False, False, True]


# -- the user's agents ------------------------------------------------------------------------------------------------


async def test_spilled_records_come_in_order_before_newer_ones(
    consumer: RetryConsumer, thread: Any, records: Any
) -> None:
    """A fetch that was on its way queues behind the spill, also when the agent got room in the meantime."""
    agent = _Agent(consumer, USERS, maxsize=2)
    thread.fetches = [{USERS: records(USERS, 5), MAIN: records(MAIN, 3)}, {USERS: records(USERS, 2, start=5)}]
    seen = await agent.take_all(consumer)
    assert consumer.intake.waiting(OURS) == 3, "a full agent does not stop our records"
    assert consumer._get_active_partitions() == {MAIN}
    thread.hand_over.clear()
    thread.fetched.clear()
    on_its_way = asyncio.create_task(agent.take_all(consumer))
    await thread.fetched.wait()
    agent.process(consumer, 1)
    thread.hand_over.set()
    seen += await on_its_way
    while len(seen) < 7:
        agent.process(consumer, agent.queue.qsize())
        found = await agent.take_all(consumer)
        assert found, f"stuck after {seen}"
        seen += found
    assert seen == list(range(7))
    assert USERS in consumer._get_active_partitions()


async def test_the_agents_own_signal_does_not_reopen_a_partition_whose_spill_is_not_empty(
    consumer: RetryConsumer, spilling: _Agent
) -> None:
    """Faust's queue says that it has room when it is half empty: the spill could grow without end."""
    consumer.on_buffer_drop(USERS)
    assert USERS not in consumer._get_active_partitions()
    consumer._spill.clear()
    consumer.on_buffer_drop(USERS)
    assert USERS in consumer._get_active_partitions()


async def test_a_spill_is_handed_on_when_nothing_else_may_be_fetched(consumer: RetryConsumer, spilling: _Agent) -> None:
    """A worker may have none of our partitions, or all of them may be full: the user's agent goes on all the same."""
    consumer.pause_partitions({MAIN})
    assert consumer._get_active_partitions() == set()
    for rest in ([2, 3], [4, 5]):
        spilling.process(consumer, 2)
        assert await spilling.take_all(consumer) == rest
    assert consumer._get_active_partitions() == {USERS}


async def test_nothing_spilled_is_committed_before_it_was_processed(consumer: RetryConsumer, spilling: _Agent) -> None:
    """Spilled records count as delivered: what is committed stops before the first that is not acknowledged."""
    assert consumer._new_offset(USERS) is None
    spilling.process(consumer, 2)
    assert consumer._new_offset(USERS) == 2
    await spilling.take_all(consumer)
    spilling.process(consumer, 1)
    assert consumer._new_offset(USERS) == 3
    assert consumer._new_offset(USERS) is None


async def test_offsets_are_committed_as_a_prefix_of_what_was_delivered(
    consumer: RetryConsumer, thread: Any, records: Any
) -> None:
    """An agent with concurrency may finish out of order; gaps in the offsets (markers, compaction) do not matter."""
    _Agent(consumer, USERS, maxsize=0)
    thread.fetches = [{USERS: [*records(USERS, 2), *records(USERS, 2, start=7)]}]
    await poll(consumer)
    seen = []
    for offset in (7, 1, 0, 8):
        consumer._acked_index[USERS].add(offset)
        consumer._acked[USERS].append(offset)
        seen.append(consumer._new_offset(USERS))
    assert seen == [None, None, 8, 9]


async def test_a_seek_forgets_the_spill(
    consumer: RetryConsumer, thread: Any, client: Any, records: Any, spilling: _Agent
) -> None:
    """After a rebalance that left the partition here its records are fetched again."""
    spilling.process(consumer, 2)
    client.committed = {client_tp(USERS): 2}
    await consumer.perform_seek()
    thread.fetches = [{USERS: records(USERS, 2, start=2)}]
    consumer.resume_partitions({USERS})
    assert await spilling.take_all(consumer) == [2, 3]


async def test_a_spill_that_is_being_handed_on_ends_with_its_session(consumer: RetryConsumer, spilling: _Agent) -> None:
    """A rebalance comes between two spilled records: the rest would be taken for newer than what the seek reads."""
    spilling.process(consumer, 2)
    handing = aiter(consumer.getmany(1.0))
    _, message = await anext(handing)
    assert message.offset == 2
    consumer.stop_flow()
    await consumer.perform_seek()
    consumer.resume_flow()
    assert [message.offset async for _, message in handing] == []


async def test_a_spill_waits_while_the_flow_is_stopped(consumer: RetryConsumer, spilling: _Agent) -> None:
    """Faust empties the agents' queues for a rebalance: that is no room."""
    spilling.process(consumer, 2)
    consumer.stop_flow()
    polling = asyncio.create_task(spilling.take_all(consumer))
    for _ in range(20):
        await asyncio.sleep(0)
    assert spilling.queue.empty()
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)
