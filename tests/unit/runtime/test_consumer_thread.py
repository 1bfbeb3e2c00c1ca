"""What belongs to the consumer's own thread, how its client reads, and until when the worker is a member."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import aiokafka
import pytest
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from aiokafka.protocol.commit import OffsetFetchResponse_v3
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as TopicPartitionOfClient
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

from retryapp.engine.worker.intake import Stamped
from retryapp.ports import TopicPartition
from retryapp.runtime.faust import consumer as consumer_module
from retryapp.runtime.faust import consumer_thread as thread_module
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.faust.consumer_thread import RetryConsumerThread
from retryapp.runtime.machine.clock import counted_s

OURS = TopicPartition("orders", 0)
MAIN, USERS, CHANGELOG = TP("orders", 0), TP("clicks", 0), TP("app-tallies-changelog", 0)


@pytest.fixture
def elsewhere(thread: Any) -> Iterator[threading.Thread]:
    """The consumer's thread, really another one than the test's."""
    loop = asyncio.new_event_loop()
    made = threading.Thread(target=loop.run_forever, daemon=True)
    made.start()
    thread.thread_loop = loop
    yield made
    loop.call_soon_threadsafe(loop.stop)
    made.join(5)
    loop.close()


async def test_holds_and_positions_are_set_in_the_consumers_thread(
    consumer: RetryConsumer, client: Any, elsewhere: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There they come either before a fetch has returned or after it, never between its records and their stamp."""
    seen: dict[str, threading.Thread] = {}

    def noting(name: str) -> None:
        stock = getattr(client, name)

        def noted(*arguments: Any) -> Any:
            seen[name] = threading.current_thread()
            return stock(*arguments)

        monkeypatch.setattr(client, name, noted)

    class Epochs(dict[TopicPartition, int]):
        def __setitem__(self, tp: TopicPartition, epoch: int) -> None:
            seen["epoch"] = threading.current_thread()
            super().__setitem__(tp, epoch)

    for name in ("pause", "seek", "resume"):
        noting(name)
    consumer.intake.epoch = Epochs({OURS: 0})
    await consumer.hold([OURS])
    await consumer.reposition({OURS: 4})
    assert seen == dict.fromkeys(("pause", "epoch", "seek", "resume"), elsewhere)
    assert consumer.intake.epoch == {OURS: 1}


async def test_a_position_that_the_topic_has_not_is_told_and_not_moved(
    consumer: RetryConsumer, client: Any, elsewhere: threading.Thread
) -> None:
    """The client library would go on at the beginning or the end; what lies between would be skipped in silence."""
    told: asyncio.Queue[tuple[TopicPartition, int]] = asyncio.Queue()
    consumer.intake.on_out_of_range = lambda tp, position: told.put_nowait((tp, position))
    await consumer.reposition({OURS: 4})

    def refuse(client: Any) -> tuple[int, bool]:
        state = client.state_value(aiokafka.TopicPartition(*OURS))
        state.await_reset(OffsetResetStrategy.EARLIEST)
        return state.position, state.paused

    assert await consumer.in_thread(refuse) == (4, True)
    assert await told.get() == (OURS, 4)


async def test_a_worker_with_nothing_to_fetch_does_not_look_idle(
    consumer: RetryConsumer, client: Any, elsewhere: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its partitions may be full for long; the client library would give the membership up."""
    subscription = SimpleNamespace(_last_fetch_ended=0.0)
    monkeypatch.setattr(type(client), "_subscription", subscription)
    consumer.pause_partitions(consumer.assignment())
    assert [found async for found in consumer.getmany(1.0)] == []
    assert subscription._last_fetch_ended > 0


async def test_an_error_of_the_group_ends_the_worker_also_when_nothing_is_fetched(
    consumer: RetryConsumer, client: Any, elsewhere: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client keeps it until it is asked, and neither heartbeats nor joins before; Faust never asks."""
    asked: list[threading.Thread] = []

    def check_errors(_client: Any) -> None:
        asked.append(threading.current_thread())
        if len(asked) == 2:
            raise GroupAuthorizationFailedError("app")

    monkeypatch.setattr(type(client), "check_errors", check_errors, raising=False)
    monkeypatch.setattr(consumer_module, "_WATCH_S", 0.001)
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer._watch_group.fun(consumer)
    assert asked == [elsewhere, elsewhere]


async def test_the_worker_reads_what_is_committed(stopped_thread: RetryConsumerThread) -> None:
    """A hand-off of an aborted transaction never was; this holds for the user's own topics too."""
    made = stopped_thread._create_worker_consumer(stopped_thread.transport)
    assert made._isolation_level == "read_committed"
    await made.stop()


@pytest.mark.parametrize("seek", ["committed", "changelog", None])
async def test_a_fetch_that_faust_sought_under_is_given_back(
    seek: str | None,
    consumer: RetryConsumer,
    client: Any,
    stopped_thread: RetryConsumerThread,
    records: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited through a rebalance and took what comes behind the seek; the main loop would throw that away."""
    client.assigned = {aiokafka.TopicPartition(*tp) for tp in (MAIN, USERS, CHANGELOG)}

    async def fetch(_self: Any, *_: Any, **__: Any) -> Any:
        if seek == "committed":
            await consumer.perform_seek()
        elif seek == "changelog":
            await consumer.seek_wait({CHANGELOG: 3})
        return {MAIN: records(MAIN, 2, start=4), USERS: records(USERS, 3, start=7)}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    monkeypatch.setattr(stopped_thread, "_positions", dict)
    stopped_thread._consumer = client
    found = await stopped_thread._fetch_records(client, {MAIN, USERS})
    if seek is None:
        assert set(found) == {MAIN, USERS}
        assert client.positions == {}
    else:
        client.positions.pop(aiokafka.TopicPartition(*CHANGELOG), None)
        assert set(found) == {MAIN}, "lanes seek ours, and stamps tell what is stale"
        assert client.positions == {aiokafka.TopicPartition(*USERS): 7}


# -- fetching ---------------------------------------------------------------------------------------------------------


class Fetches:
    """What the thread fetches, one after the other, and of which partitions; `then` happens in the last fetch."""

    def __init__(self, *found: dict[TP, list[Any]], then: Callable[[], object] = bool) -> None:
        self.found = list(found)
        self.then = then
        self.asked: list[Any] = []

    async def __call__(self, _client: Any, active: Any, **_: Any) -> Stamped:
        self.asked.append(set(active))
        records = Stamped(self.found.pop(0))
        records.stamp, records.positions = {OURS: 0}, {}
        if not self.found:
            self.then()
        return records


@pytest.fixture
def fetching(
    stopped_thread: RetryConsumerThread, client: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[tuple[dict[TP, list[int]], list[Any]]]]:
    """Have the thread fetch; return the offsets that it returns, and what it asked for."""

    async def run(*found: dict[TP, list[Any]], then: Callable[[], object] = bool) -> Any:
        fetches = Fetches(*found, then=then)
        monkeypatch.setattr(type(client), "_max_poll_records", None, raising=False)
        monkeypatch.setattr(stopped_thread, "_consumer", client)
        monkeypatch.setattr(stopped_thread, "_fetch_records", fetches)
        returned = await stopped_thread._fetch_on(1.0)
        return {tp: [record.offset for record in batch] for tp, batch in returned.items()}, fetches.asked

    return run


async def test_records_of_ours_are_handed_over_until_the_users_topics_have_some(
    consumer: RetryConsumer, records: Any, fetching: Any
) -> None:
    """The main loop, which may have much to do, need not ask for each fetch. A full partition is not asked for."""
    consumer.intake.on_records = lambda tp: consumer.intake.waiting(tp) == 3 and consumer.on_buffer_full(MAIN)
    ours = [{MAIN: records(MAIN, 2)}, {MAIN: records(MAIN, 1, start=2)}]
    both = {USERS: records(USERS, 1), MAIN: records(MAIN, 1, start=3)}
    returned, asked = await fetching(*ours, both)
    assert returned == {USERS: [0], MAIN: [3]}, "in order: the main loop takes these after those"
    assert consumer.intake.waiting(OURS) == 3
    assert asked == [{MAIN, USERS}, {MAIN, USERS}, {USERS}]


@pytest.mark.parametrize("why", ["rebalance", "spill", "all full"])
async def test_the_main_loop_gets_the_turn_when_it_has_more_to_do(
    why: str, consumer: RetryConsumer, records: Any, fetching: Any
) -> None:
    """What was fetched goes with it, and is taken in if it may be."""
    then = {
        "rebalance": consumer.stop_flow,
        "spill": lambda: consumer._spill.update({USERS: deque()}),
        "all full": lambda: consumer.pause_partitions({MAIN, USERS}),
    }[why]
    returned, _ = await fetching({MAIN: records(MAIN, 1)}, {MAIN: records(MAIN, 1, start=1)}, then=then)
    assert returned == ({} if why == "all full" else {MAIN: [1]})
    assert consumer.intake.waiting(OURS) == (2 if why == "all full" else 1)


async def test_a_fault_of_ours_with_records_ends_the_fetch_loop(
    consumer: RetryConsumer, records: Any, fetching: Any
) -> None:
    """Told by the event loop only, they would be passed over."""

    def broken(_tp: TopicPartition) -> None:
        raise RuntimeError("a fault of ours")

    consumer.intake.on_records = broken
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await fetching({MAIN: records(MAIN, 1)})


async def test_a_refused_fetch_leaves_the_client_able_to_count_as_idle(
    runtime: Any, client: Any, stopped_thread: RetryConsumerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a main loop that hangs would keep its partitions for good. The refusal is noted, too."""
    subscription = SubscriptionState()
    monkeypatch.setattr(type(client), "_subscription", subscription)
    monkeypatch.setattr(stopped_thread, "_consumer", client)
    monkeypatch.setattr(stopped_thread, "_positions", dict)
    monkeypatch.setattr(thread_module, "_DENIED_REST_S", 0.0)

    async def refused(_self: Any, *_: Any, **__: Any) -> Any:
        with subscription.fetch_context():
            raise TopicAuthorizationFailedError("orders")

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", refused)
    assert await stopped_thread._fetch_records(client, {MAIN}) == {}
    await asyncio.sleep(0.001)
    assert subscription.fetcher_idle_time > 0
    assert [runtime.contact.refused(topic) is not None for topic in ("orders", "clicks")] == [True, False]


# -- membership and topics -----------------------------------------------------------------------------------------


async def test_membership_lapses_when_the_coordinator_is_silent_for_a_session(
    consumer: RetryConsumer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from when it was asked, and only a yes counts; each assignment begins with one."""
    now_s, session_s = [100.0], consumer.app.conf.broker_session_timeout

    async def nothing(*_: Any, **__: Any) -> None:
        now_s[0] += 1.0

    for module in ("consumer", "consumer_thread"):
        monkeypatch.setattr(f"retryapp.runtime.faust.{module}.counted_s", lambda: now_s[0])
    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_assigned", nothing)
    monkeypatch.setattr(consumer.app.assignor, "assigned_actives", set)
    assert consumer.lapsed()
    for generation in (3, 4):
        await consumer.on_partitions_assigned({MAIN}, generation)
    assert not consumer.lapsed()
    now_s[0] += session_s
    assert consumer.lapsed(), "the second assignment was a second ago"
    assert await client._do_heartbeat()
    assert not consumer.lapsed()
    now_s[0] += session_s
    assert not consumer.lapsed()
    client.member = False
    assert not await client._do_heartbeat()
    now_s[0] += 0.1
    assert consumer.lapsed()
    consumer.heard(now_s[0] - session_s)
    assert not consumer.lapsed()


@pytest.mark.usefixtures("no_fausts_part")
@pytest.mark.parametrize(("refusal", "moved"), [(14, 0), (16, 1)], ids=["it loads", "it has moved"])
async def test_a_coordinator_that_tells_no_offsets_is_asked_again(
    consumer: RetryConsumer, client: Any, monkeypatch: pytest.MonkeyPatch, refusal: int, moved: int
) -> None:
    """Its answer has an error and no topics: the client library takes it for a group that has committed nothing."""
    monkeypatch.setattr(consumer.app.assignor, "assigned_actives", set)
    await consumer.on_partitions_assigned({MAIN}, 3)
    await consumer.on_partitions_assigned({MAIN}, 4)
    client.answers = [
        OffsetFetchResponse_v3(0, [], refusal),
        OffsetFetchResponse_v3(0, [("orders", [(0, 7, "note", 0)])], 0),
    ]
    coordinator = GroupCoordinator.__new__(GroupCoordinator)
    coordinator.group_id, coordinator._retry_backoff_ms = "app", 0
    coordinator._send_req, coordinator.ensure_coordinator_known = client._send_req, AsyncMock()
    place = TopicPartitionOfClient(*MAIN)
    assert await coordinator.fetch_committed_offsets([place]) == {place: OffsetAndMetadata(7, "note")}
    assert (client.lost_coordinators, client.answers) == (moved, [])


async def test_no_setting_is_read_for_a_record(consumer: RetryConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record asks whether the worker is still a member, and a look at a setting takes 4 us."""
    monkeypatch.setattr(type(consumer.app), "conf", property(lambda _: pytest.fail("read")))
    consumer.heard(counted_s())
    assert not consumer.lapsed()


async def test_numbers_of_partitions_are_reported_whenever_the_broker_was_asked(
    stopped_thread: RetryConsumerThread, consumer: RetryConsumer
) -> None:
    """By them a worker learns that a topic has grown; an unknown topic has none."""
    made = stopped_thread._create_worker_consumer(stopped_thread.transport)
    counts: list[Any] = []
    consumer.intake.on_counted = counts.append
    (listener,) = made._client.cluster._listeners
    known = {"orders": {0, 1, 2}}
    for cluster in (SimpleNamespace(partitions_for_topic=known.get), SimpleNamespace(partitions_for_topic={}.get)):
        listener(cluster)
    await asyncio.sleep(0)
    assert counts == [{"orders": 3}, {"orders": 0}]
    await made.stop()


@pytest.mark.usefixtures("no_fausts_part")
async def test_topics_that_a_young_broker_does_not_know_yet_are_asked_for_again(
    consumer: RetryConsumer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is given anything of them; by itself the client would look again in five minutes."""
    monkeypatch.setattr(consumer.app.assignor, "assigned_actives", set)
    monkeypatch.setattr("retryapp.runtime.faust.consumer._TOPICS_AGAIN_S", 0.0)
    consumer.intake.on_assigned = consumer.intake.on_revoked = None
    client.unseen = [{"orders", "clicks"}, {"clicks"}]
    await consumer.on_partitions_assigned(set(), 4)
    await asyncio.gather(*consumer._futures)
    assert (client.looked, client.unseen) == (2, [])
    client.unseen = [{"orders"}] * 1_000
    await consumer.on_partitions_assigned(set(), 5)
    await asyncio.sleep(0)
    await consumer.on_partitions_revoked(set())  # the next assignment looks by itself
    await asyncio.gather(*consumer._futures)
    assert client.unseen
