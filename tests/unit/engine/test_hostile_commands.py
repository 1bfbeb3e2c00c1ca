"""Commands and control topics as nobody should send them: refused or survived, and nothing behind them waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from doubles import CONTROL, MAIN, Refusing, about, events_of, failures, fine, pass_time, post, serving
from test_commands import Calls
from test_jobs import begin, part_of, partition, with_letters
from test_leaving import Worker
from typing_extensions import override

from retryapp.core.control import Verb
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.lifecycle import Commanded
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Order
from retryapp.engine.partition.commands import MOST_UNSETTLED, Commands
from retryapp.ports import Sink, TopicPartition
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import MemoryLaneTransport, MemoryReader, Step


def start(part: str) -> bytes:
    head = '{"v":1,"id":"a","job":"j","verb":"job-start","part":{"verb":"replay","filter":{},'
    return f"{head}{part}}}}}".encode()


def single(more: str, number: str = "0", verb: str = "cancel") -> bytes:
    """Return a command about a record with more fields."""
    return f'{{"v":1,"id":"a","verb":"{verb}","failure_id":"app/orders@kq8G0bTz/0/{number}"{more}}}'.encode()


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        (start('"upto":{},"every_ms":Infinity'), "malformed"),
        (start('"upto":{},"every_ms":NaN'), "malformed"),
        (start('"upto":{},"every_ms":1e-300'), "malformed"),
        (start('"upto":{},"every_ms":1e300'), "malformed"),
        (start('"upto":{},"share":[3,3,3]'), "malformed"),
        (start('"upto":{"\\ud800":3}'), "malformed"),
        (start('"upto":{"app.orders.dlq":99999999999999999999999999},"canary":99999999999999999999999'), None),
        (start('"upto":{"nosuch":5,"app.orders.dlq":99}'), None),
        (start('"upto":{},"' + "x" * 10_000 + '":1').replace(b'"filter":{}', b'"filter":{"no":1}'), "malformed"),
        (start('"upto":{}').replace(b'"filter":{}', b'"filter":{"' + b"x" * 10_000 + b'":1}'), "malformed"),
        (b"[" * 10_000, "malformed"),
        (b'{"v":1,"verb":' * 1_000, "malformed"),
        (b'{"v":' + b"9" * 6_000 + b"}", "malformed"),
        (b'{"v":1,"id":"a","verb":{"a":1}}', "malformed"),
        (b'{"verb":["handler-"]}', "malformed"),
        (b'{"v":2,"id":"a","verb":"handler-pause"}', "malformed"),
        (single("", "9223372036854775807"), "not-waiting"),
        (single("", "9" * 30), "malformed"),
        (single("", "9223372036854775807", "replay"), "no-letter"),
        (single(',"by":"\\ud800"'), "malformed"),
        (single(',"state":"\\u0000\\u001b"'), "not-waiting"),
    ],
)
async def test_no_command_stops_a_lane(value: bytes, refused: str | None) -> None:
    """Not on the way, and not after a restart; what is told of it is short."""
    async with with_letters(5) as (orders, service):
        orders.transport.append(CONTROL, None, value)
        await orders.advance(100)
        await orders.to_rest()
        event = events_of(orders, Commanded)[0]
        assert event.refused == refused
        assert len(event.text) <= 1_000
        assert len(service.again) == (5 if b"app.orders.dlq" in value else 0)
        assert failures(orders) == []
    async with partition(service, transport=orders.transport) as orders:
        await orders.advance(100)
        assert failures(orders) == []


@pytest.mark.usefixtures("slow_commands")
async def test_all_commands_that_were_there_are_obeyed_before_a_row_is_claimed() -> None:
    """However many there are, and however long their reading takes: else a cancelled record would run once more."""
    async with serving(Calls(), "1s*5") as (orders, calls):
        await orders.send(b"one")
    orders.clock.advance(2_000)
    for _ in range(1_500):
        orders.transport.append(CONTROL, None, b"none")
    post(orders, about("c1", Verb.CANCEL, 0))
    async with MemoryPartition(calls, "1s*5", transport=orders.transport) as orders:
        await orders.until(lambda: orders.dead_letters)
        assert [letter.reason for letter in orders.dead_letters] == ["cancelled"]
        assert len(calls.seen) == 1


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
async def test_a_replay_that_was_there_comes_before_what_waits_of_its_sequence(order: Order) -> None:
    """The row of the record is not in the table yet when that is looked for; each lane that opened failed on that."""
    seen: list[bytes] = []

    async def handle(value: bytes) -> None:
        seen.append(value)
        if len(seen) == 1:
            raise Reject("wrong")
        if len(seen) == 2:
            raise ValueError("down")

    async with serving(handle, "1h", b"dead", b"waits", key=b"a", order=order) as (orders, _):
        assert (len(orders.dead_letters), orders.waiting) == (1, {"1h": 1})
    post(orders, about("c1", Verb.REPLAY, 0))
    async with MemoryPartition(handle, "1h", order=order, transport=orders.transport) as orders:
        await orders.settle()
        assert (failures(orders), seen) == ([], [b"dead", b"waits", b"dead"])
        await orders.to_rest()
        assert seen[3:] == [b"waits"]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_kill_at_each_commit_of_its_opening_leaves_a_replay_to_be_obeyed_once(durable: bool) -> None:
    """Also where another record of its sequence waits."""
    for after in range(30):
        calls = list[bytes]()

        async def handle(value: bytes, calls: list[bytes] = calls) -> None:
            calls.append(value)
            if len(calls) <= 2:
                raise Reject("wrong") if value == b"dead" else ValueError("down")

        async with MemoryPartition(handle, "1h", order=Order.KEY) as orders:
            await orders.send(b"dead", b"waits", key=b"a")
        post(orders, about("c1", Verb.REPLAY, 0))
        dying = orders.transport.pause(Step.COMMIT, after=after, durable=durable)
        for _ in range(2):
            async with MemoryPartition(handle, "1h", order=Order.KEY, transport=orders.transport) as orders:
                await orders.settle()
                assert failures(orders) == []
        assert [event.refused for event in events_of(orders, Commanded)] == [None], after
        assert calls[:2] == [b"dead", b"waits"]
        assert {*calls[2:]} == {b"dead"}, after
        if not dying.reached:
            assert after > 2
            return
    pytest.fail("each opening has more than thirty commits")


async def test_a_good_command_waits_for_no_bad_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand that are malformed, newer or misplaced wait for their transactions twice; memory is bounded so."""
    calls, settle, waits = Calls(), Commands._settle, list[int]()

    async def settling(self: Commands) -> None:
        waits.append(1)
        await settle(self)

    monkeypatch.setattr(Commands, "_settle", settling)
    async with serving(calls, "1h*3", b"one") as (orders, _):
        for number in range(10_000):
            value = single("", str(number)).replace(b"/0/", b"/1/") if number % 2 else b'{"v":2}'
            orders.transport.append(CONTROL, None, value)
        orders.transport.append(CONTROL, None, single(""))
        await orders.until(lambda: orders.dead_letters)
        assert len(waits) == 10_000 // MOST_UNSETTLED
        await orders.settle()
        assert len(events_of(orders, Commanded)) == 10_001


async def test_a_control_topic_that_was_cut_is_read_on_from_its_end() -> None:
    """As when it was made again: its lane opens once more, and the next command is obeyed."""
    async with serving(Calls(), "1h*3", b"one") as (orders, _):
        for _ in range(3):
            await orders.command("retry-now", 0, state="other")
        log = orders.transport.broker.logs[CONTROL]
        log.entries.clear()
        log.end = 0
        await orders.advance(200)
        await orders.advance(200)
        assert len(failures(orders)) == 1
        assert (await orders.command("cancel", 0))["refused"] is None
        assert len(failures(orders)) == 1


async def test_the_oldest_commands_of_a_control_topic_may_be_gone() -> None:
    """Retention has deleted those that were not read."""
    async with serving(Calls(), "1h*3") as (orders, calls):
        await orders.send(b"one")
    for _ in range(3):
        orders.transport.append(CONTROL, None, single(""))
    log = orders.transport.broker.logs[CONTROL]
    del log.entries[:2]
    log.start = 2
    async with MemoryPartition(calls, "1h*3", transport=orders.transport) as orders:
        assert [letter.reason for letter in orders.dead_letters] == ["cancelled"]
        assert len(events_of(orders, Commanded)) == 1


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_cancelled_run_that_ends_while_a_topic_refuses_the_command_has_one_end(order: Order) -> None:
    """Its outcome waits for the command, which would put its row back."""
    gate, calls = asyncio.Event(), []

    async def handle(_value: bytes, delivery: Any) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt > 1:
            await gate.wait()
        raise ValueError("down")

    async with serving(handle, "1s", b"one", key=b"k", order=order) as (orders, _):
        await orders.advance(1_000)
        refusing = Refusing(orders.transport, b"{")
        refusing.topics = ".events"
        orders.transport.append(CONTROL, None, single(""))
        await orders.settle()
        assert refusing.tries
        gate.set()
        await orders.settle()
        refusing.prefixes = ()
        await orders.advance(60_000)
        await orders.to_rest()
        assert (len(orders.dead_letters), calls) == (1, [1, 2])
        assert [event.after for event in events_of(orders, Commanded)] == ["cancelling"]


async def test_a_command_about_a_record_whose_row_is_refused_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lane is hardly ever at rest: it has what others do, and rests after each transaction."""
    commit = MemoryLaneTransport.end_transaction

    async def slow(self: MemoryLaneTransport) -> None:
        await commit(self)
        self.clock.advance(5)

    monkeypatch.setattr(MemoryLaneTransport, "end_transaction", slow)
    async with serving(Calls(), "1h") as (orders, _):
        Refusing(orders.transport, b"bad")
        await orders.send(b"bad")
        assert orders.lane.refusal is not None
        pause = HandlerCommand(id="p", verb=HandlerVerb.PAUSE)
        post(orders, about("c", Verb.CANCEL, 0), about("d", Verb.CANCEL, 0), pause)
        await pass_time(orders, 1_000, 20)
        assert [event.refused for event in events_of(orders, Commanded)] == ["running", "running", None]


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_letter_is_replayed_once_while_what_comes_before_is_refused(order: Order) -> None:
    """Of an ordered handler everything waits then, so the second command must know of the first."""
    async with with_letters(1, order=order) as (orders, service):
        refusing = Refusing(orders.transport, b"bad")
        service.down.add(b"bad")
        await orders.send(b"bad", key=b"k")
        assert orders.lane.refusal is not None
        for number in "12":
            orders.transport.append(CONTROL, None, single("", verb="replay").replace(b'"a"', f'"c{number}"'.encode()))
            await orders.settle()
        refusing.prefixes = ()
        await orders.advance(60_000)
        await orders.to_rest()
        first, second = events_of(orders, Commanded)
        assert first.refused is None
        assert second.refused in ("running", "replayed")
        assert service.again == [b"0"]


@pytest.mark.parametrize("fine", [True, False])
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("waits", range(3))
async def test_a_cancelled_record_has_one_end_wherever_its_worker_dies(
    waits: int, after: int, durable: bool, fine: bool
) -> None:
    """The cancel comes before its run, while it waits for a runner, or amid it; the worker is killed at each commit."""
    gate = asyncio.Event()

    async def handle(value: bytes, delivery: Any) -> None:
        if delivery.attempt > 1:
            await gate.wait()
        if value == b"one" and (delivery.attempt == 1 or not fine):
            raise ValueError("down")

    async with serving(handle, "1s 1h", b"one", concurrency=1) as (orders, _):
        if waits == 1:
            orders.transport.append(MAIN, None, b"first")
        await orders.advance(1_000 if waits else 10)
        dying = orders.transport.pause(Step.COMMIT, after=after, durable=durable)
        orders.transport.append(CONTROL, None, single(""))
        await orders.advance(10)
        gate.set()
        await pass_time(orders, 1_500, 300)
    async with MemoryPartition(handle, "1s 1h", transport=orders.transport) as orders:
        await orders.to_rest()
        assert len([event for event in events_of(orders, Commanded) if event.command == "a"]) == 1
        succeeded = [each for each in orders.records("app.orders.events") if b'"succeeded"' in (each.value or b"")]
        ends = [*(letter.reason for letter in orders.dead_letters), *("done" for _ in succeeded)]
        assert ends == (["cancelled"] if not (fine and waits) else ends[:1])
        assert dying.reached or after > (1 if waits else 0)


async def test_a_control_topic_that_cannot_be_read_is_tried_once_a_second_and_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end is known five times a second, and each reading that fails costs all lanes their consumer."""
    tries, read = list[int](), MemoryReader.read

    async def denied(reader: MemoryReader, tp: TopicPartition, start: int, sink: Sink, **how: Any) -> int:
        if tp == CONTROL and len(tries) < 5:
            tries.append(orders.clock.wall_ms())
            raise ConnectionError("denied")
        return await read(reader, tp, start, sink, **how)

    async with serving(fine, "1h") as (orders, _):
        monkeypatch.setattr(MemoryReader, "read", denied)
        post(orders, about("c", Verb.CANCEL, 0))
        await pass_time(orders, 6_000, 200)
        assert [later - at for at, later in pairwise(tries)] == [1_000] * 4
        assert [event.command for event in events_of(orders, Commanded)] == ["c"]
    assert caplog.text.count("could not be read for commands") == 1


async def test_no_command_is_obeyed_again_after_a_reset_of_all_offsets() -> None:
    """Also a pause stays, and a job has ended; the group's metadata is gone with its offsets."""
    async with with_letters(10) as (orders, service):
        await orders.command("replay", 3)
        await orders.command("discard", 4)
        await orders.command("restore", 4)
        await begin(orders)
        await orders.to_rest()
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        before, again = len(events_of(orders, Commanded)), len(service.again)
    orders.transport.broker.notes.clear()
    orders.transport.broker.committed[MAIN] = 0
    orders.transport.lose_store()
    async with partition(service, transport=orders.transport) as orders:
        await orders.advance(1_000)
        assert (len(events_of(orders, Commanded)), len(service.again)) == (before, again)
        assert part_of(orders).state == "ended"
        calls = len(service.calls)
        await orders.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME))
        await orders.to_rest()
        assert len(service.calls) == calls + 10
        assert len(service.again) == again


async def test_a_control_topic_that_is_gone_keeps_commands_from_no_other() -> None:
    """Of two handlers; and what keeps one from its commands is told."""
    async with AsyncExitStack() as parts:
        worker, asked = Worker(parts), list[int]()
        orders, bills, more = [await worker.add(fine, main=main) for main in ("orders", "bills", "bills")]
        gone = orders.transport.place.control

        class Reader(MemoryReader):
            @override
            async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
                asked.append(len(tps))
                if gone in tps:
                    raise TimeoutError(f"{gone} has no leader")
                return dict.fromkeys(tps, (0, 7))

        reader = Reader(orders.transport.broker, orders.transport.request)
        with pytest.raises(TimeoutError, match="has no leader"):
            await worker.ownership.look_for_commands(reader)
        queues = [part.engine.commands.queue for part in (orders, bills, more) if part.engine.commands is not None]
        assert [queue.end for queue in queues] == [0, 7, 7]
        gone = None
        asked.clear()
        await worker.ownership.look_for_commands(reader)
        assert ([queue.end for queue in queues], asked) == ([7, 7, 7], [3])
