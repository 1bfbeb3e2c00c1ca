"""Letters that are damaged, many or large, and topics and tables of letters that fail: commands and jobs go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from doubles import CONTROL, DLQ, events_of, failures, serving
from test_hostile_commands import single
from test_jobs import Service, begin, letters, part_of, partition, tell, with_letters
from two_lanes import with_letter
from typing_extensions import override

from retryapp import RetryPolicy, non_retryable
from retryapp.core.control import MarkKind, Verb, mark_of
from retryapp.core.errors import StoreBrokenError
from retryapp.core.jobs import JobPart, JobVerb, LetterFilter
from retryapp.core.lifecycle import Commanded
from retryapp.core.record import Headers, Record
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.dead_keeper import DeadLetterKeeper
from retryapp.engine.lane.rounds import Rounds
from retryapp.engine.partition.jobs import MOST_AHEAD_BYTES, Jobs
from retryapp.ports import TopicPartition
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import MemoryReader, Step
from retryapp.testing.tables import MemoryDeadLetterTable


def changed(letter: Record, name: str, value: bytes | None) -> Headers:
    """Return a letter's headers with another value of one, or one more."""
    others = tuple(each for each in letter.headers if each[0] != name)
    return (*others, (name, value))


def marks_in(table: Any) -> set[str | None]:
    """Return the marks of the letters in a table in memory."""
    found = (table.find(letter.failure_id) for letter in table.rows.values())
    return {letter.mark for letter in found}


async def test_no_letter_stops_a_job() -> None:
    """Whatever its headers say: each is replayed or refused, and the job ends."""
    async with with_letters(3) as (orders, service):
        letter = orders.records(DLQ)[0]
        more = ("retry-replays", "retry-replay-id", "retry-letter", "retry-delivery", "retry-due-ms", "retry-tier")
        values = b"", b"0", b"-1", b"9" * 30, b"4294967295", b"253402300799999", b"\xff", None, b"x" * 5_000
        for name in {*(name for name, _ in letter.headers), *more, "retry-null-value", "retry-no-payload"}:
            for value in values:
                headers = changed(letter, name, value)
                orders.transport.append(TopicPartition(DLQ, 0), letter.key, letter.value, headers)
    async with partition(service, transport=orders.transport) as orders:
        await orders.settle()
        looked = len(orders.records(DLQ))
        await begin(orders)
        await orders.to_rest()
        part = part_of(orders)
        assert (part.state, part.looked, part.done + part.refused.total()) == ("ended", looked, looked)
        assert failures(orders) == []


async def test_a_job_replays_no_record_that_ended_its_workers() -> None:
    """Not with `force` either, which is for single replays of these: a hundred of them would end all workers."""
    async with with_letters(3) as (orders, service):
        for letter in orders.records(DLQ)[:2]:
            orders.transport.append(
                TopicPartition(DLQ, 0), letter.key, letter.value, changed(letter, "retry-reason", b"crashed")
            )
    async with partition(service, transport=orders.transport) as orders:
        await begin(orders, force=True)
        await orders.to_rest()
        assert service.again == [b"2"]
        assert part_of(orders).refused == {"not-newest": 2, "crashed": 2}
        assert (await orders.command("replay", 0))["refused"] == "crashed"
        assert (await orders.command("replay", 0, force=True))["refused"] is None
        await begin(orders, "j2", Verb.DISCARD)
        await orders.to_rest()
        assert (part_of(orders, "j2").done, part_of(orders, "j2").refused["crashed"]) == (1, 0)


async def test_letters_of_others_are_refused() -> None:
    """Of another group, main topic, partition or life of the topic; a row of the same offset is unharmed."""
    async with serving(Service(), "1s") as (orders, service):
        await letters(orders, service, 1)
        letter = orders.records(DLQ)[0]
        places = b"orders@kq8G0bTz/1/1", b"bills@kq8G0bTz/0/1", b"orders@former/0/1"
        found = [changed(letter, "retry-origin", place) for place in places]
        for headers in (*found, changed(letter, "retry-group", b"other")):
            orders.transport.append(TopicPartition(DLQ, 0), letter.key, letter.value, headers)
        service.all_down = True
        await orders.send(b"1")
    service.all_down = False
    async with partition(service, transport=orders.transport) as orders:
        row = orders.transport.pending and dict(orders.transport.pending.rows)
        assert (await orders.command("replay", "app/orders@former/0/1"))["refused"] == "other-topic"
        assert row == (orders.transport.pending and orders.transport.pending.rows)
        await begin(orders)
        await orders.to_rest()
        assert part_of(orders).refused == {"misplaced": 3, "other-topic": 1}
        assert service.again == [b"0"]
        assert [value for value, replays, _ in service.calls if not replays] == [b"0", b"0", b"1", b"1"]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_letters_of_many_commands_are_read_together(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """Alone, each takes some milliseconds of the processor; where they cannot be read together, they are read so."""
    service, together, read, pick = Service(), list[int](), MemoryReader.read, MemoryReader.records
    alone: list[int] = []

    async def reading(self: MemoryReader, tp: TopicPartition, start: int, *args: Any, **more: Any) -> int:
        alone.extend([start] * (tp.topic == DLQ))
        return await read(self, tp, start, *args, **more)

    async def picking(
        self: MemoryReader, tp: TopicPartition, offsets: Sequence[int], **more: Any
    ) -> Mapping[int, Record]:
        together.append(len(offsets))
        if fails:
            raise TimeoutError("no leader")
        return await pick(self, tp, offsets, **more)

    async with partition(service) as orders:
        await letters(orders, service, 120)
        monkeypatch.setattr(MemoryReader, "read", reading)
        monkeypatch.setattr(MemoryReader, "records", picking)
        for number in (*range(120), 5):  # one of them twice
            orders.transport.append(CONTROL, None, single("", str(number), "replay"))
        await orders.settle()
        await orders.to_rest()
        assert [event.refused for event in events_of(orders, Commanded)] == [None] * 120 + ["waiting"]
        assert sorted(service.again, key=int) == [b"%d" % number for number in range(120)]
        assert (sum(together), len(together)) == (121, 3)
        assert len(alone) == (121 if fails else 0)


async def test_letters_of_commands_that_came_too_late_are_not_kept() -> None:
    """They may be as large as records, and the next commands may come in a month."""
    async with with_letters(8) as (orders, _):
        for number in range(8):
            orders.transport.append(CONTROL, None, single("", str(number), "replay"))
        orders.clock.advance(3_600_000)
        await orders.settle()
        assert [event.refused for event in events_of(orders, Commanded)] == ["expired"] * 8
        assert not orders.engine.commands._letters._ahead  # type: ignore[union-attr]


async def test_large_letters_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1 MB each, those of 50 commands were in memory together, of each partition."""
    service, pick, sizes = Service(), MemoryReader.records, list[int]()

    async def picking(*arguments: Any, **more: Any) -> Mapping[int, Record]:
        found = await pick(*arguments, **more)
        sizes.append(sum(len(record.value or b"") for record in found.values()))
        return found

    large = [b"%d" % number + bytes(300_000) for number in range(10)]
    async with partition(service) as orders:
        await orders.send(*large)
        await orders.to_rest()
        monkeypatch.setattr(MemoryReader, "records", picking)
        service.all_down = False
        for number in range(10):
            orders.transport.append(CONTROL, None, single("", str(number), "replay"))
        await orders.settle()
        await orders.to_rest()
        assert [event.refused for event in events_of(orders, Commanded)] == [None] * 10
        assert sorted(service.again) == large
        assert sizes
        assert max(sizes) < 1_500_000


async def test_faults_of_the_dead_letter_topic_are_none_of_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single command is refused, and a job rests; both go on once the topic can be read again."""
    service, read, broken = Service(), MemoryReader.read, [True]

    async def reading(self: MemoryReader, tp: TopicPartition, *args: Any, **more: Any) -> int:
        if tp.topic == DLQ and broken:
            raise TimeoutError("no leader")
        return await read(self, tp, *args, **more)

    async with partition(service) as orders:
        await letters(orders, service, 50)
        monkeypatch.setattr(MemoryReader, "read", reading)
        await begin(orders)
        assert (await orders.command("replay", 3))["refused"] == "not-ready"
        await orders.advance(5_000)
        broken.clear()
        await orders.advance(5_000)
        await orders.to_rest()
        assert sorted(map(int, service.again)) == list(range(50))
        assert (part_of(orders).looked, part_of(orders).refused, failures(orders)) == (50, {}, [])


@pytest.mark.parametrize("cut", [False, True])
async def test_a_letter_that_cannot_be_read_yet_is_not_called_gone(cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table has it from its commit on; committed readers only once transactions before it have ended.

    Where the topic was cut before it, it is gone.
    """
    read, behind = MemoryReader.read, [True]

    async def ending(_self: MemoryReader, _tp: TopicPartition) -> int:
        return 1

    async def reading(self: MemoryReader, tp: TopicPartition, start: int, *args: Any, **more: Any) -> int:
        return 1 if tp.topic == DLQ and behind else await read(self, tp, start, *args, **more)

    async with with_letters(2) as (orders, _):
        monkeypatch.setattr(MemoryReader, "read", reading)
        outcome = await orders.command("replay", 1)
        assert (outcome["refused"], outcome["text"]) == (
            "not-ready",
            "app.orders.dlq[0] cannot be read up to its letter yet: send it again in a minute",
        )
        if cut:
            monkeypatch.setattr(MemoryReader, "written_end", ending)
            assert (await orders.command("replay", 1))["refused"] == "no-letter"
            return
        behind.clear()
        assert (await orders.command("replay", 1))["refused"] is None


async def test_a_job_skips_no_letter_while_their_table_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails between the reading of letters and what is done to them, and is filled again."""
    service, look, keepers = Service(), Jobs._look, []

    async def failing(self: Jobs, *args: Any) -> Any:
        found = await look(self, *args)
        if keepers:
            keeper = keepers.pop()
            keeper._drop(RuntimeError("disk"))
            keeper.task.cancel()
            keeper.task = keeper._start(5.0)
        return found

    monkeypatch.setattr(Jobs, "_look", failing)
    async with partition(service) as orders:
        await letters(orders, service, 300)
        keepers += orders.transport.dead_keepers.values()
        await begin(orders)
        assert part_of(orders).done == 0
        await orders.advance(6_000)
        await orders.to_rest()
        assert sorted(map(int, service.again)) == list(range(300))
        assert part_of(orders).refused == {}


def break_table(lane: Any) -> None:
    """Have the table of letters fail for the letter of one record, until it is dropped, and for all marks."""
    (table,) = lane.dead.values()
    find = table.find

    def found(failure_id: str) -> Any:
        if failure_id.endswith("/0/30"):
            raise StoreBrokenError("dead", "Corruption: block checksum mismatch")
        return find(failure_id)

    def unmarked(_offset: int) -> None:
        raise StoreBrokenError("dead", "Corruption: block checksum mismatch")

    table.find, table.mark_of = found, unmarked


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_table_that_cannot_be_read_is_made_anew_and_closes_no_lane(order: Order) -> None:
    """A command is refused, or waits; a job rests, skips no letter, and leaves no sequence with what does not come."""
    async with with_letters(50, order=order, key=b"k") as (orders, service):
        break_table(orders.transport)
        assert (await orders.command("replay", 30))["refused"] == "not-ready"
        await orders.advance(6_000)
        break_table(orders.transport)
        await begin(orders)
        assert (part_of(orders).done < 50, orders.transport.letters_here) == (True, False)
        assert orders.engine.session is not None
        assert orders.engine.session.scheduler._fresh == {}
        await orders.send(b"50", key=b"k")
        assert service.calls[-1][0] == b"50"
        await orders.advance(6_000)
        await orders.to_rest()
        assert sorted(map(int, service.again)) == list(range(50))
        assert (part_of(orders).done, part_of(orders).refused, orders.lane.session) == (50, {}, 1)


async def test_runs_of_letters_wait_while_their_table_cannot_be_read() -> None:
    """It belongs to the other lane, which never closes for it: the handler's lane failed again and again."""
    async with with_letter() as (both, bad, tickets):
        break_table(both.orders.transport)
        await both.die(b"2")
        assert (tickets.seen, both.orders.transport.letters_here) == ([b"1"], False)
        bad.mended = True
        for _ in range(6):
            await both.orders.advance(1_000)
            await both.settle()
        assert (tickets.seen, both.marks) == ([b"1", b"2"], ["handled", "handled"])
        break_table(both.orders.transport)
        assert await both.command("replay", 0) == "not-ready"
        assert (both.orders.lane.session, both.letters.lane.session) == (1, 1)


async def test_a_step_whose_letters_are_made_anew_before_its_turn_holds_no_sequence_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not taken, so no row comes: a sequence that knew of one would wait for it."""
    look, turn, service, gone = Jobs._look, Rounds.turn, Service(), list[DeadLetterKeeper]()
    policy = RetryPolicy("1s*1", on=non_retryable(KeyError, dead_letters="invalid"))

    async def looking(self: Jobs, *args: Any) -> Any:
        found = await look(self, *args)
        orders.transport.pause("bounds")  # type: ignore[arg-type]
        gone.append(orders.transport.dead_keepers[f"{DLQ}.invalid"])
        return found

    async def turning(self: Rounds, who: object) -> None:
        await turn(self, who)
        if gone:
            keeper = gone.pop()
            keeper.rebuild()
            while keeper.table is None:  # noqa: ASYNC110 - it is open, and not read to its end
                await asyncio.sleep(0)

    async with MemoryPartition(service, policy, order=Order.KEY) as orders:
        await letters(orders, service, 1, b"k")
        monkeypatch.setattr(Jobs, "_look", looking)
        monkeypatch.setattr(Rounds, "turn", turning)
        await begin(orders)
        assert not orders.transport.letters_here
        await orders.send(b"1", key=b"k")
        assert service.calls[-1][0] == b"1"


async def test_a_turn_of_large_letters_is_no_larger_than_others() -> None:
    """Else its transaction would not end in time, in session after session."""
    service = Service()
    async with partition(service) as orders:
        await orders.send(*(b"%d" % n + b"x" * 400_000 for n in range(30)))
        await orders.to_rest()
        service.all_down, before = False, len(orders.transport.batches)
        await begin(orders)
        await orders.to_rest()
        assert len(service.again) == 30
        assert max(batch.size for batch in orders.transport.batches[before:]) < 3 * MOST_AHEAD_BYTES


async def test_each_session_of_a_job_has_its_canary() -> None:
    """The first one died when its canary had failed, and before that was written down."""
    service = Service()
    async with partition(service, "1h*1") as orders:
        await orders.send(*(b"%d" % n for n in range(400)))
        await orders.to_rest()
        dying = orders.transport.pause(Step.COMMIT, after=3)
        part = JobPart(
            verb=Verb.REPLAY, filter=LetterFilter(), canary=10, upto={DLQ: orders.records(DLQ)[-1].offset + 1}
        )
        await tell(orders, JobVerb.START, part=part)
        await orders.advance(100)
        assert dying.reached
        assert (part_of(orders).state, len(service.again)) == ("running", 10)
    async with partition(service, "1h*1", transport=orders.transport) as orders:
        await orders.advance(1_000)
        await orders.advance(1_000)
        assert (part_of(orders).state, len(service.again)) == ("paused", 20)


@pytest.mark.parametrize(("more", "state"), [(0, "ended"), (1, "paused")])
async def test_a_part_that_fails_and_has_nothing_left_ends(more: int, state: str) -> None:
    """What follows its last letter, as the end of a transaction, is nothing that somebody could resume."""
    async with partition(Service(), "1h*1") as orders:
        await orders.send(*(b"%d" % n for n in range(1 + more)))
        await orders.to_rest()
        upto = {DLQ: orders.records(DLQ)[-1].offset + 2}
        part = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), canary=1, upto=upto)
        await tell(orders, JobVerb.START, part=part)
        await orders.advance(1_000)
        ended, event = part_of(orders), events_of(orders, Commanded)[-1]
        assert (ended.state, ended.done, ended.paused) == (state, 1, "1 of the last 1 replays failed again")
        assert (event.verb, event.after) == ("job-pause" if more else "job-end", state)
        assert event.text.startswith(f"1 of the last 1 replays failed again; {state}: 1 done")


async def test_what_was_recovered_stays_so_without_history_and_disk() -> None:
    """The retry topic and events are expired, the stores gone: the same job sends nothing."""
    async with with_letters(10) as (orders, service):
        await begin(orders)
        await orders.to_rest()
    for name in ("app.orders.retry", "app.orders.events"):
        orders.transport.broker.logs[TopicPartition(name, 0)].entries.clear()
    orders.transport.lose_store()
    async with partition(service, transport=orders.transport) as orders:
        await orders.settle()
        before = len(service.calls)
        await begin(orders, "j2")
        await orders.to_rest()
        assert (len(service.calls), part_of(orders, "j2").refused) == (before, {"replayed": 10})
        (table,) = orders.transport.dead.values()
        assert marks_in(table) == {MarkKind.RECOVERED}


async def test_a_mark_that_comes_while_letters_are_read_stays() -> None:
    """The reading finds an older mark of its letter behind it."""
    async with with_letters(1) as (orders, _):
        await orders.command("replay", 0)
        await orders.to_rest()
        found, reading = orders.records(DLQ), asyncio.Event()

        class Slow(MemoryReader):
            async def read(self, tp: TopicPartition, start: int, sink: Any, *, background: bool = False) -> int:
                await reading.wait()
                sink(found[:2], 3)
                return 3

        table = MemoryDeadLetterTable()
        slow = Slow(orders.transport.broker, orders.transport.request)
        keeper = DeadLetterKeeper(
            "lane", lambda: table, dlq=TopicPartition(DLQ, 0), reader=slow, clock=orders.transport.clock
        )
        await orders.settle()
        last = found[-1]
        mark = mark_of(last.headers, last.value)
        assert mark is not None
        keeper.write([(last.offset, mark.to_record(DLQ, 0))])
        reading.set()
        await orders.settle()
        assert keeper.known.is_set()
        keeper.task.cancel()
        assert marks_in(table) == {MarkKind.RECOVERED}


async def test_a_table_that_fails_while_it_is_filled_is_made_anew() -> None:
    """With an error of any kind: read on, each reading failed on it, and no letter was ever known."""
    async with with_letters(1) as (orders, _):

        class Broken(MemoryDeadLetterTable):
            @override
            def write(self, *_: Any) -> None:
                raise OSError("no room")

        tables = iter([Broken(), MemoryDeadLetterTable()])
        lane = orders.transport
        facts: Any = {"dlq": TopicPartition(DLQ, 0), "reader": lane.reader, "clock": orders.clock}
        keeper = DeadLetterKeeper("lane", lambda: next(tables), **facts)
        await orders.settle()
        await orders.advance(10_000)
        keeper.task.cancel()
        assert keeper.known.is_set()
        assert keeper.table is not None
        assert keeper.table.next_offset > 0
