"""What a worker tells of its partitions to those who look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition as ClientTopicPartition
from samples import waiting_row

from retryapp import RetryPolicy, retryable
from retryapp.core.causes import CauseCount
from retryapp.core.circuit import Circuit, CircuitBreaker
from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.jobs import Part, PartState
from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.row_keys import parse_row_key
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.handler.handler import Order
from retryapp.engine.handler.places import Places
from retryapp.engine.lane.lane import LaneState
from retryapp.ports import Event, Observation, PartitionInfo
from retryapp.runtime.app import Runtime
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.observe.lanes import LaneWatch
from retryapp.runtime.view import RuntimeView
from retryapp.testing import VirtualClock
from retryapp.testing.tables import MemoryPendingTable


def engine(*, running: int) -> Any:
    """Return what the view asks of a partition's engine."""
    nothing: Any = {"commands": None, "release_lag_ms": 0, "blocked": None, "sources": (), "begun_rows": ()}
    return SimpleNamespace(running=running, looked_ms=5, context=SimpleNamespace(pace=Pace()), **nothing)


async def test_what_a_table_has_yet_to_read_is_told_while_it_counts(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pending table's before the lane opens, the dead letters' behind the open lane; else an old number."""
    runtime.served["orders"].partitions = runtime.served["orders"].complete = 1
    topology = runtime.served["orders"].handler.topology
    behind = {(topology.pending_changelog, 0): 7, (topology.dlq, 0): 3}
    monkeypatch.setattr(runtime, "_reader", SimpleNamespace(behind=behind.__getitem__))
    lane = SimpleNamespace(state=LaneState.OPENING, session=0, last_error=None, refusal=None)
    placed: Any = SimpleNamespace(
        engine=engine(running=0),
        lane=lane,
        transport=SimpleNamespace(pending=None, dead={}, letters_counted=False),
    )
    runtime.placed["orders", 0] = placed
    view = RuntimeView(runtime)
    seen = []
    for state in (LaneState.OPENING, LaneState.OPEN, LaneState.IDLE):
        lane.state = state
        (info,) = view.partitions("orders")
        seen.append((info.pending_behind, info.dead_behind, info.looked_ms))
    assert seen == [(7, 0, None), (0, 3, 5), (0, 0, None)]


@pytest.fixture
def silent_s(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The length of the brokers' silence, to be set."""
    seconds = [0.0]
    monkeypatch.setattr(runtime.contact, "silent_s", lambda: seconds[0])
    return seconds


CAUSE = CauseCount(cause_id="c1-1", name="E", records=700, attempts=1, first_ms=1, last_ms=1, sample="x")


@pytest.fixture
def orders(runtime: Runtime) -> Any:
    """Partition 0 of two, with an open lane: 742 records wait, 3 are dead, 2 of which stop sequences."""
    runtime.served["orders"].partitions = runtime.served["orders"].complete = 2
    runtime.assigned = True
    asked: Any = {"due": lambda *_: ((), 5_000), "page": lambda *_: []}
    pending = SimpleNamespace(counts=lambda: {"1s": 700, "10s": 42, "stopped": 2}, causes=lambda: [CAUSE], **asked)
    placed: Any = SimpleNamespace(
        engine=engine(running=1),
        lane=SimpleNamespace(state=LaneState.OPEN, session=1, last_error=None, refusal=None),
        transport=SimpleNamespace(
            pending=pending, dead={"dlq": SimpleNamespace(count=lambda: 3, causes=list)}, letters_counted=True
        ),
    )
    runtime.placed["orders", 0] = placed
    return placed


def test_what_waits_is_listed_by_due_time_over_partitions_and_circuits(runtime: Runtime) -> None:
    """Each record once, over pages of any size: rows of a circuit have keys that sort elsewhere."""
    runtime.served["orders"].partitions = runtime.served["orders"].complete = 2
    for number in (0, 1):
        table = MemoryPendingTable()
        dues = range(1_000 + number, 1_012, 2)
        table.write([waiting_row(at, due_at_ms=at, circuit="ledger" if at % 3 else "") for at in dues], 0)
        runtime.placed["orders", number] = cast(
            "Any",
            SimpleNamespace(lane=SimpleNamespace(state=LaneState.OPEN), transport=SimpleNamespace(pending=table)),
        )
    view = RuntimeView(runtime)
    for limit in (1, 3, 50):
        found, after = list[int](), None
        while page := list(view.pending_page("orders", after=after, limit=limit)):
            found += [parse_row_key(entry.key).due_at_ms for entry in page]
            after = page[-1].key
        assert found == [*range(1_000, 1_012)]


def test_what_a_partition_tells_while_a_job_goes_on_can_be_sent(runtime: Runtime, orders: Any) -> None:
    """To the other workers and to programs; as long as one did, each worker was silent for the others."""
    parts = [Part(job="a", verb="replay"), Part(job="b", verb="replay", state=PartState.ENDED)]
    orders.engine.commands = SimpleNamespace(levels=SimpleNamespace(paused=None, forced={}), parts=parts)
    info = RuntimeView(runtime).partitions("orders")[0]
    assert json.loads(json.dumps(asdict(info)))["jobs"] == {"running": 1}


def test_a_dead_record_that_stops_its_sequence_does_not_wait(runtime: Runtime, orders: Any) -> None:
    """Its row is in the table of what waits, and it counted there and as dead."""
    info = RuntimeView(runtime).partitions("orders")[0]
    assert (info.pending, info.pending_by_tier, info.stopped, info.dead) == (742, {"1s": 700, "10s": 42}, 2, 3)


def test_a_handler_names_all_its_topics(runtime: Runtime) -> None:
    """That of commands was missing."""
    (info,) = RuntimeView(runtime).handlers()
    topics = {*info.topics.values(), *info.retry_topics, *info.publishes}
    assert topics == {*runtime.served["orders"].handler.topology.named}


def test_a_circuit_is_full_while_as_many_run_of_it_as_may(runtime: Runtime, orders: Any) -> None:
    places, clock = Places(1), VirtualClock()
    circuits = {"ledger": Circuit(CircuitBreaker())}
    orders.engine.context.pace = Pace(clock, Random(1), circuits=circuits, places={"ledger": places})
    full = []
    for change in (places.take, places.free):
        change("row")
        full.append(RuntimeView(runtime).partitions("orders")[0].circuits["ledger"].full)
    assert full == [True, False]


def test_causes_of_what_waits_are_those_of_open_tables(runtime: Runtime, orders: Any) -> None:
    """Of all partitions here; a table that is still being read counts too few."""
    runtime.placed["orders", 1] = orders
    assert RuntimeView(runtime).waiting_causes("orders") == {0: [CAUSE], 1: [CAUSE]}
    orders.lane.state = LaneState.OPENING
    assert RuntimeView(runtime).waiting_causes("orders") == {}


def numbers(info: PartitionInfo) -> tuple[int | None, int | None]:
    return info.pending, info.dead


def test_due_times_are_those_of_open_tables(runtime: Runtime, orders: Any) -> None:
    """Threads that count them come late: the lane may open again, and its table is not theirs before it has."""
    orders.transport.pending.due_times = lambda start_ms, stop_ms, limit: [start_ms, stop_ms][:limit]
    view, span = RuntimeView(runtime), {"start_ms": 1, "stop_ms": 9, "limit": 5}
    assert view.due_times("orders", 0, **span) == [1, 9]
    orders.lane.state = LaneState.OPENING
    assert view.due_times("orders", 0, **span) == []


def test_without_open_tables_the_last_known_numbers_are_shown_with_their_age(runtime: Runtime, orders: Any) -> None:
    """Never 0: not while the lane opens, and not after the partition was revoked."""
    view = RuntimeView(runtime)
    now, elsewhere = view.partitions("orders")
    assert (numbers(now), now.as_of_ms) == ((742, 3), None)
    assert (numbers(elsewhere), elsewhere.as_of_ms) == ((None, None), None)
    orders.lane.state = LaneState.OPENING
    orders.transport.pending, orders.transport.dead = None, {}
    opening = view.partitions("orders")[0]
    assert numbers(opening) == (742, 3)
    assert opening.as_of_ms is not None
    assert abs(opening.as_of_ms - runtime.clock.wall_ms()) < 2_000
    runtime.placed.clear()
    runtime.assigned = False
    revoked = view.partitions("orders")[0]
    assert (revoked.state, numbers(revoked), revoked.as_of_ms) == ("idle", (742, 3), opening.as_of_ms)
    runtime.assigned = True
    assert numbers(view.partitions("orders")[0]) == (None, None), "another worker has it: that one knows"
    runtime.assigned = False
    assert view.partitions("orders")[0].state == "elsewhere"


def test_a_lane_that_was_never_open_here_has_no_numbers(runtime: Runtime, orders: Any) -> None:
    """Its table is a part of what it will be."""
    orders.lane.state = LaneState.OPENING
    assert numbers(RuntimeView(runtime).partitions("orders")[0]) == (None, None)


def test_dead_letters_are_unknown_until_all_are_read(
    runtime: Runtime, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read after the lane has opened: it is not known how many, or where they end. Then they are listed."""
    for orders.transport.letters_counted, behind in ((True, 7), (False, 0)):
        monkeypatch.setattr(runtime, "behind", lambda _main, _number, behind=behind: (0, behind))
        view = RuntimeView(runtime)
        info = view.partitions("orders")[0]
        assert (numbers(info), info.as_of_ms) == ((742, None), None)
        assert view.letters_counted("orders", 0) == orders.transport.letters_counted


async def test_without_a_broker_the_worker_is_not_ready_and_its_numbers_are_as_old_as_the_last_answer(
    runtime: Runtime, orders: Any, silent_s: list[float]
) -> None:
    """Also while its lanes are open: they learn of it much later. Lags are not waited for."""
    view = RuntimeView(runtime)
    silent_s[0] = 4.9
    known = view.partitions("orders")[0]
    assert (view.ready(), view.silence(), known.as_of_ms) == (True, None, None)
    silent_s[0] = 12.0
    last = view.partitions("orders")[0]
    assert view.silence() == "broker 127.0.0.1:1 has not answered for 12 s"
    assert not view.ready()
    assert (last.state, numbers(last)) == ("open", (742, 3))
    assert last.as_of_ms is not None
    assert 4_900 <= runtime.clock.wall_ms() - last.as_of_ms < 6_900
    with pytest.raises(BrokerUnreachableError, match="has not answered for 12 s"):
        await view.lags("orders")


async def test_a_worker_whose_main_topic_is_deleted_is_not_ready_and_says_so(
    runtime: Runtime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group takes its partitions away, so no lane is left that could fail.

    Not at the first answer without it: a broker that has just started does not know all topics.
    """
    view, runtime.assigned, now_s = RuntimeView(runtime), True, 100.0
    monkeypatch.setattr(runtime.clock, "monotonic_s", lambda: now_s)
    runtime.served["orders"].partitions = runtime.served["orders"].complete = 2
    runtime.intake.on_counted({"orders": 0})  # as the client counts before it has asked
    assert ([info.state for info in view.partitions("orders")], view.ready()) == (["elsewhere"] * 2, True)
    runtime.intake.on_counted({"orders": 2})
    runtime.intake.on_counted({"orders": 0})
    runtime.contact.look_for_missing()
    assert ([info.state for info in view.partitions("orders")], view.ready()) == (["elsewhere"] * 2, True)
    now_s += 5
    for _ in range(2):
        runtime.contact.look_for_missing()
        runtime.intake.on_counted({"orders": 0})
    infos = view.partitions("orders")
    assert ([info.state for info in infos], view.ready()) == (["closed"] * 2, False)
    assert "the brokers do not know topic orders: it was deleted" in str(infos[0].last_error)
    assert sum("do not know topic orders" in line for line in caplog.messages) == 1
    runtime.intake.on_counted({"orders": 2})
    assert ([info.state for info in view.partitions("orders")], view.ready()) == (["elsewhere"] * 2, True)


def client_of(runtime: Runtime, *held: int, unled: Mapping[int, int | None] | None = None) -> Any:
    """Return a client that holds these partitions; the group has committed 90 of 100 records."""
    leaders = unled or {}

    async def committed(tps: Collection[Any]) -> dict[Any, Any]:
        return dict.fromkeys(tps, SimpleNamespace(offset=90))

    async def ends(tps: Collection[Any]) -> dict[Any, int]:
        assert not {tp.partition for tp in tps} & {*leaders}, "the client would ask until there is a leader"
        return dict.fromkeys(tps, 100)

    async def times(asked: dict[Any, int]) -> dict[Any, Any]:
        return {tp: SimpleNamespace(offset=95) for tp in await ends([*asked])}

    async def position(tp: Any) -> int:
        assert tp.partition == 0, "it waits until there is one"
        return 100

    assert isinstance(runtime.app.consumer, RetryConsumer)
    runtime.app.consumer._thread.thread_loop.close()  # never run
    cluster = SimpleNamespace(leader_for_partition=lambda tp: leaders.get(tp.partition, 7))
    return SimpleNamespace(
        _client=SimpleNamespace(cluster=cluster),
        offsets_for_times=times,
        _coordinator=SimpleNamespace(fetch_committed_offsets=committed),
        end_offsets=ends,
        position=position,
        assignment=lambda: {ClientTopicPartition("orders", number) for number in held},
    )


@pytest.mark.parametrize(
    ("unled", "lag"),
    [({}, [(0, 0), (1, 10)]), ({1: -1}, [(0, 0)]), ({0: None}, [(1, 10)]), ({0: -1, 1: -1}, [])],
    ids=["all led", "one without a leader", "one unknown", "none led"],
)
async def test_a_partition_whose_lane_does_not_open_lags(
    runtime: Runtime, orders: Any, monkeypatch: pytest.MonkeyPatch, unled: dict[int, int | None], lag: list[Any]
) -> None:
    """Where its offset stands. It was left out of the sum, and the others' looked like all.

    One without a leader has no lag, and hides that of no other.
    """
    shut = SimpleNamespace(state=LaneState.OPENING, refusal=None)
    orders.engine.in_flight = 0
    runtime.placed["orders", 1] = cast("Any", SimpleNamespace(lane=shut, engine=SimpleNamespace(in_flight=0)))
    runtime.served["orders"].deletes_after_ms = 60_000
    client = client_of(runtime, 0, 1, unled=unled)
    monkeypatch.setattr(RetryConsumer, "in_thread", lambda _self, ask: ask(client))
    lags = await RuntimeView(runtime).lags("orders")
    assert [(each.partition, each.main) for each in lags] == lag
    assert [each.partition for each in lags if each.expiring] == [number for number, behind in lag if behind]


async def test_a_rebalance_while_lags_are_asked_for_fails_no_page(
    runtime: Runtime, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer's thread answers later: the partition may be gone by then. Pages and metrics ended in a KeyError."""
    client = client_of(runtime)

    async def in_thread(_self: RetryConsumer, ask: Any) -> Any:
        runtime.placed.clear()
        return await ask(client)

    monkeypatch.setattr(RetryConsumer, "in_thread", in_thread)
    assert [lag.main for lag in await RuntimeView(runtime).lags("orders")] == [10]


async def test_a_worker_with_an_open_lane_that_does_not_move_is_not_ready(runtime: Runtime, orders: Any) -> None:
    """A topic refuses a hand-off or may not be read, or all runs hang; the page and a metric have it too."""
    view = RuntimeView(runtime)

    async def told() -> tuple[bool, str | None, bool]:
        info, _ = view.partitions("orders")
        text = await view.metrics_text()
        return view.ready(), info.stalled, b'retryapp_lanes_stalled{handler="orders"} 1.0' in text

    assert await told() == (True, None, False)
    orders.lane.refusal = HandOffRefusedError("app.orders.dlq", "MessageSizeTooLargeError", 900, 800)
    assert await told() == (False, str(orders.lane.refusal), True)
    assert "takes 900 bytes uncompressed, the topic at most 800 (max.message.bytes)" in str(orders.lane.refusal)
    orders.lane.refusal = None
    orphans = runtime.served["orders"].handler.orphans
    ends = [asyncio.get_running_loop().create_future() for _ in range(orphans.limit)]
    for end in ends:
        orphans.adopt(end, "app/orders/0/7")
    assert await told() == (False, orphans.problem, True)
    ends[0].set_result(None)
    await asyncio.sleep(0)
    assert await told() == (True, None, False)
    runtime.contact.refuse("orders")
    assert await told() == (False, runtime.contact.refused("orders"), True)


def test_a_handler_without_dead_letters_shows_what_ended(runtime: Runtime) -> None:
    """Since the worker's start; one that has a dead-letter topic shows what is there."""
    view, handler = RuntimeView(runtime), runtime.served["orders"].handler
    runtime.metrics.observe(Observation(event=Event.DISCARDED, handler="orders", reason="exhausted", count=3))
    (info,) = view.handlers()
    assert (info.discarded, info.topics["dlq"]) == (None, handler.topology.dlq)
    object.__setattr__(handler, "topology", replace(handler.topology, drop=True))
    (info,) = view.handlers()
    assert (info.discarded, "dlq" in info.topics) == (3, False)


def test_a_policys_deadline_and_the_schedules_of_its_rules_are_told(runtime: Runtime) -> None:
    """The page of a journey plans by them."""
    view, handler = RuntimeView(runtime), runtime.served["orders"].handler
    told = [(each.schedule, each.rule_schedules, each.max_elapsed_ms) for each in view.handlers()]
    assert told == [("1s 10s", (), None)]
    ruled = RetryPolicy("1m*5", on=[retryable(TimeoutError, schedule="1s*20")], max_elapsed="3h")
    object.__setattr__(handler, "policy", ruled)
    told = [(each.schedule, each.rule_schedules, each.max_elapsed_ms) for each in view.handlers()]
    assert told == [("1m*5", ("1s*20",), 10_800_000)]


def test_since_when_a_partition_is_blocked_is_the_first_failure_of_what_is_next(runtime: Runtime, orders: Any) -> None:
    """By its first failure: one that fails every few seconds would never seem old by its last."""
    handler = runtime.served["orders"].handler
    object.__setattr__(handler, "order", Order.PARTITION)
    orders.transport.pending, orders.engine.blocked = MemoryPendingTable(), "later records wait for offset 0"
    view = RuntimeView(runtime)
    info = view.partition("orders", 0)
    assert info is not None
    assert info.blocked_since_ms == pytest.approx(runtime.clock.wall_ms(), abs=1_000), "its row is not written yet"
    assert view.gauges().blocked == {"orders": 0}, "it has failed this minute: that is how the order works"
    orders.transport.pending.write([waiting_row(0, due_at_ms=9_000, first_failed_ms=2_000, last_failed_ms=8_000)], 0)
    seen = []
    for blocked in ("later records wait for offset 0", None):
        orders.engine.blocked = blocked
        info = view.partition("orders", 0)
        assert info is not None
        seen.append((info.blocked, info.blocked_since_ms, view.gauges().blocked))
    assert seen == [("later records wait for offset 0", 2_000, {"orders": 1}), (None, None, {"orders": 0})]

    object.__setattr__(handler, "order", Order.KEY)
    orders.engine.blocked = "no new records come in"
    info = view.partition("orders", 0)
    assert info is not None
    assert info.blocked_since_ms is None, "a cap is reached: what is next, and may be young, does not say since when"
    assert view.gauges().blocked == {"orders": 1}


def test_a_lane_that_takes_too_long_to_open_still_shows_what_closed_it() -> None:
    """Until it was open: its next error may have nothing to do with that one."""
    watch = LaneWatch(VirtualClock())

    def told(event: Event, error_type: str | None = None, message: str | None = None) -> str | None:
        watch.observe(Observation(event=event, handler="orders", partition=0, error_type=error_type, message=message))
        return watch.look("orders", 0, 1, "opening", None).error

    slow = (Event.LANE_FAILED, "TimeoutError", "opening it took longer than 30 s")
    refused = "TooFewCopiesError: log[0] takes no records"
    assert told(Event.LANE_FAILED, *refused.split(": ")) == refused
    for _ in range(2):
        assert told(*slow) == f"TimeoutError: opening it took longer than 30 s; before that, {refused}"
    told(Event.LANE_OPENED)
    assert told(*slow) == "TimeoutError: opening it took longer than 30 s"


def test_that_the_group_took_a_partition_away_is_no_error_once_it_is_back() -> None:
    """A failure stays on the page after the lane has opened again, with its age."""
    watch = LaneWatch(VirtualClock())

    def told(event: Event, message: str | None = None, **facts: Any) -> str | None:
        watch.observe(Observation(event=event, handler="orders", partition=0, message=message, **facts))
        return watch.look("orders", 0, 1, "open", None).error

    assert told(Event.LANE_CLOSED, "the group is rebalancing") == "the group is rebalancing"
    assert told(Event.LANE_OPENED) is None
    failed = told(Event.LANE_FAILED, "gone", error_type="OSError")
    assert failed == told(Event.LANE_OPENED) == "OSError: gone"
