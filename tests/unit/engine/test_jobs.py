"""Jobs: each letter once, over crashes; at their pace; they pause themselves where replays fail again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from doubles import DLQ, events_of, pass_time, post, reopen, serving

from retryapp import RetryPolicy, non_retryable, pausing
from retryapp.core.control import LetterMark, MarkKind, Verb, mark_of
from retryapp.core.jobs import (
    HandlerCommand,
    HandlerVerb,
    JobCommand,
    JobPart,
    JobVerb,
    LetterFilter,
    Part,
    PartState,
    read_steering,
)
from retryapp.core.lifecycle import Commanded
from retryapp.core.rows import PendingRow, decode_row
from retryapp.engine.lane.rounds import Rounds
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition import scheduler
from retryapp.engine.partition.jobs import Jobs
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step

COMMANDS = count(1)


class Service:
    """A handler whose service is down for some."""

    def __init__(self, *down: bytes) -> None:
        self.down = set(down)
        self.all_down = True
        self.fault: type[Exception] = ValueError
        self.calls: list[tuple[bytes, int, str]] = []

    async def __call__(self, value: bytes, delivery: Any) -> None:
        self.calls.append((value, delivery.replays, delivery.idempotency_key))
        if self.all_down or value in self.down:
            raise self.fault(f"no {value.decode()}")

    @property
    def again(self) -> list[bytes]:
        return [value for value, replays, _ in self.calls if replays]


def partition(service: Service, policy: str = "1s*1", **more: Any) -> MemoryPartition:
    """Make a partition whose records die soon."""
    return MemoryPartition(service, policy, **more)


async def letters(orders: MemoryPartition, service: Service, number: int, key: bytes | None = None) -> None:
    """Have so many records die."""
    await orders.send(*(b"%d" % n for n in range(number)), key=key)
    await orders.to_rest()
    service.all_down = False


@asynccontextmanager
async def with_letters(
    number: int, policy: str = "1s*1", key: bytes | None = None, **more: Any
) -> AsyncIterator[tuple[MemoryPartition, Service]]:
    """Run such a partition, in which so many records have died."""
    service = Service()
    async with partition(service, policy, **more) as orders:
        await letters(orders, service, number, key)
        yield orders, service


async def begin(orders: MemoryPartition, job: str = "j1", verb: Verb = Verb.REPLAY, **more: Any) -> dict[str, Any]:
    fields = {"filter": LetterFilter(**more.pop("filter", {})), "canary": 0, **more}
    part = JobPart(verb=verb, upto={DLQ: orders.records(DLQ)[-1].offset + 1}, **fields)
    return await tell(orders, JobVerb.START, job, part=part)


async def tell(orders: MemoryPartition, verb: JobVerb, job: str = "j1", **more: Any) -> dict[str, Any]:
    """Send a command about a job; return its event."""
    command = JobCommand(id=f"c{next(COMMANDS)}", job=job, verb=verb, by="ann", **more)
    return await orders.obey(command)


def part_of(orders: MemoryPartition, job: str = "j1") -> Part:
    (last,) = [
        record.value
        for record in orders.records(orders.handler.topology.pending_changelog)
        if record.key == b"progress"
    ][-1:]
    found = read_steering(json.loads(last or b"{}")["steering"]).part(job)
    assert found is not None
    return found


def marks(orders: MemoryPartition, kind: MarkKind) -> list[LetterMark]:
    found = (mark_of(record.headers, record.value) for record in orders.records(DLQ))
    return [mark for mark in found if mark is not None and mark.mark is kind]


@pytest.mark.parametrize("verb", [Verb.REPLAY, Verb.DISCARD])
async def test_what_has_died_again_since_a_job_is_taken_by_the_next_one(verb: Verb) -> None:
    """The letters that the former has replayed are older, and looked at together with the newer ones."""
    async with with_letters(3) as (orders, service):
        service.all_down = True
        await begin(orders, "j1")
        await orders.to_rest()
        service.all_down = False
        assert (await begin(orders, "j2", verb))["refused"] is None
        await orders.to_rest()
        part = part_of(orders, "j2")
        assert (part.done, part.looked, dict(part.refused)) == (3, 6, {"not-newest": 3})
        assert Counter(service.again) == dict.fromkeys((b"0", b"1", b"2"), 3 if verb is Verb.REPLAY else 2)


@pytest.mark.parametrize("together", [1, 50])
async def test_of_a_record_with_letters_on_several_topics_the_newest_is_replayed_once(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offset was set back, so the older one has no mark: one job would replay that, and the next one the newer."""
    monkeypatch.setattr("retryapp.engine.partition.jobs.MOST_AT_ONCE", together)
    service, invalid = Service(), f"{DLQ}.invalid"
    policy = RetryPolicy("1h", on=non_retryable(KeyError, dead_letters="invalid"))
    async with serving(service, policy, b"0") as (orders, _):
        await orders.to_rest()
        service.fault = KeyError
        orders.transport.offsets[orders.engine.sources[0]] = 0
        await reopen(orders)
        await orders.to_rest()
        service.all_down = False
        for job in ("j1", "j2"):
            part = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), canary=0, upto={DLQ: 1, invalid: 1})
            assert (await tell(orders, JobVerb.START, job, part=part))["refused"] is None
            await orders.to_rest()
        assert service.again == [b"0"]
        assert [part_of(orders, job).done for job in ("j1", "j2")] == [1, 0]
        assert part_of(orders, "j1").refused == {"not-newest": 1}


async def test_all_letters_are_replayed_once() -> None:
    """With the failure id and idempotency key that they had; a job that is sent again does nothing."""
    async with with_letters(30) as (orders, service):
        assert (await begin(orders))["refused"] is None
        await orders.to_rest()
        assert sorted(service.again, key=int) == [b"%d" % n for n in range(30)]
        keys = {value: {key for each, _, key in service.calls if each == value} for value in service.again}
        assert all(len(found) == 1 for found in keys.values())
        part = part_of(orders)
        assert (part.state, part.done, part.looked, dict(part.refused)) == ("ended", 30, 30, {})
        assert {mark.command for mark in marks(orders, MarkKind.RECOVERED)} == {"j1"}
        assert (await begin(orders))["refused"] == "job-known"
        await begin(orders, "j2")
        await orders.to_rest()
        assert (len(service.again), part_of(orders, "j2").refused) == (30, {"replayed": 30})


async def test_only_what_fits_the_filter_is_taken() -> None:
    """By message here; `core.jobs` has the others."""
    async with with_letters(20) as (orders, service):
        await begin(orders, filter={"message": "NO 1"})
        await orders.to_rest()
        assert sorted(service.again, key=int) == [b"1", *(b"%d" % n for n in range(10, 20))]


async def test_what_dies_again_is_not_taken_a_second_time() -> None:
    """It lies beyond the end that was set before."""
    async with with_letters(5) as (orders, service):
        service.all_down = True
        await begin(orders)
        await orders.to_rest()
        assert len(service.again) == 5 * 2  # two attempts each
        assert part_of(orders).state == "ended"


async def test_letters_are_discarded_and_restored() -> None:
    """By jobs, as singly."""
    async with with_letters(6) as (orders, service):
        await begin(orders, "j1", Verb.DISCARD, filter={"message": "no 3"})
        await orders.advance(100)
        await begin(orders, "j2")
        await orders.to_rest()
        assert (len(service.again), part_of(orders, "j2").refused) == (5, {"discarded": 1})
        await begin(orders, "j3", Verb.RESTORE)
        await orders.advance(100)
        assert (part_of(orders, "j3").done, part_of(orders, "j3").refused["not-discarded"]) == (1, 5)


async def die_in_a_job(orders: MemoryPartition, part: JobPart, after: int, *, durable: bool) -> None:
    """Begin a job, and have the worker stand still in a commit, after so many others; the test then kills it there."""
    dying = orders.transport.pause(Step.COMMIT, after=after, durable=durable)
    post(orders, JobCommand(id="c", job="j1", verb=JobVerb.START, part=part, by="ann", why="mended"))
    await orders.settle()
    assert dying.reached


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("after", range(6))
async def test_a_killed_worker_neither_repeats_nor_skips_a_letter(after: int, durable: bool) -> None:
    """Whichever of its first commits it dies in, before or after that takes effect."""
    async with with_letters(250) as (orders, service):
        part = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), upto={DLQ: orders.records(DLQ)[-1].offset + 1})
        await die_in_a_job(orders, part, after, durable=durable)
    async with partition(service, transport=orders.transport) as orders:
        await orders.advance(100)
        await orders.to_rest()
        assert sorted(map(int, set(service.again))) == list(range(250))
        assert len(marks(orders, MarkKind.REPLAYED)) == len(marks(orders, MarkKind.RECOVERED)) == 250
        assert part_of(orders).done == 250


async def test_a_pause_while_a_job_looks_at_letters_skips_none_over_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn of a rule's pause writes down where jobs are, too: not beyond letters whose turns are in the lane."""
    service, looked, turn = Service(), count(1), Rounds.turn
    policy = RetryPolicy("1s*1", on=[pausing(KeyError)])

    async def stand_still(rounds: Rounds, who: object) -> None:
        if isinstance(who, Jobs) and next(looked) == 20:
            await asyncio.Event().wait()
        await turn(rounds, who)

    orders = MemoryPartition(service, policy)
    async with orders:
        await letters(orders, service, 30)
        monkeypatch.setattr(Rounds, "turn", stand_still)
        await begin(orders)
        service.down, service.fault = {b"closed"}, KeyError
        await orders.send(b"closed")
        assert [event.verb for event in events_of(orders, Commanded)] == ["job-start", "handler-pause"]
    service.down.clear()
    async with MemoryPartition(service, policy, transport=orders.transport) as orders:
        await orders.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME))
        await orders.to_rest()
        assert sorted(map(int, service.again)) == list(range(30))
        assert (part_of(orders).done, part_of(orders).looked) == (30, 30)


@pytest.mark.parametrize("every_ms", [100.0, 12.5])
async def test_a_rate_is_kept_from_the_first_letter_on(every_ms: float) -> None:
    """In every second; the share of a partition is its part of the letters."""
    async with with_letters(700) as (orders, service):
        before_ms = orders.clock.wall_ms()
        await begin(orders, every_ms=every_ms)
        for second in range(1, 9):
            while orders.clock.wall_ms() < before_ms + second * 1_000:
                await orders.advance(50)
            assert abs(len(service.again) - second * 1_000 / every_ms) <= 2


async def test_few_replays_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many letters there are: the handler's other records go on beside them."""
    monkeypatch.setattr("retryapp.engine.partition.jobs.MOST_UNDELIVERED", 20)
    async with with_letters(200, concurrency=1) as (orders, service):
        most = 0
        await begin(orders)
        while part_of(orders).state == "running":
            most = max(most, orders.waiting.get("replay", 0))
            await orders.advance(50)
        await orders.to_rest()
        assert len(service.again) == 200
        assert most <= 20


async def test_few_replays_of_a_paced_job_wait_while_nothing_is_delivered() -> None:
    """Ten seconds of its rate; after it the rate goes on, and nothing is caught up."""
    async with with_letters(300) as (orders, service):
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        await begin(orders, every_ms=1_000.0)
        await pass_time(orders, 40_000, 100)
        assert orders.waiting["replay"] == 10
        await orders.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME))
        await pass_time(orders, 5_000, 100)
        assert 14 <= len(service.again) <= 16


async def test_jobs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could go on all the time does not keep another from its letters."""
    monkeypatch.setattr("retryapp.engine.partition.jobs.MOST_AT_ONCE", 10)
    async with with_letters(200) as (orders, service):
        part = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), upto={DLQ: orders.records(DLQ)[-1].offset + 1})
        for number, wanted in enumerate((LetterFilter(), LetterFilter(message="no 199"))):
            told = part.model_copy(update={"filter": wanted})
            post(orders, JobCommand(id=f"s{number}", job=f"j{number}", verb=JobVerb.START, part=told))
        await orders.settle()
        while part_of(orders, "j0").state != "ended":
            await orders.advance(50)
        assert service.again.index(b"199") < 100


async def test_the_others_wait_for_the_canary() -> None:
    """Where it fails, the job pauses itself; resumed, it probes again."""
    service = Service()
    async with partition(service, "1h*1") as orders:
        await orders.send(*(b"%d" % n for n in range(50)))
        await orders.to_rest()
        await begin(orders, canary=10)
        await orders.advance(1_000)
        part = part_of(orders)
        assert (part.state, part.done, len(service.again)) == ("paused", 10, 10)
        assert part.paused == "10 of the last 10 replays failed again"
        assert [event.verb for event in events_of(orders, Commanded)][-1] == "job-pause"
        service.all_down = False
        await tell(orders, JobVerb.RESUME)
        await orders.advance(100)
        assert part_of(orders).done >= 20
        await orders.to_rest()
        assert sorted(map(int, set(service.again))) == list(range(50))
        assert part_of(orders).state == "ended"


async def test_a_job_goes_on_where_half_of_the_canary_fail() -> None:
    """More than half have it pause."""
    async with with_letters(20, "1h*1") as (orders, service):
        service.down = {b"%d" % n for n in range(5)}
        await begin(orders, canary=10)
        await orders.to_rest()
        assert (part_of(orders).state, part_of(orders).done) == ("ended", 20)


async def test_a_job_pauses_itself_later_too() -> None:
    """When more than half of the last hundred fail."""
    async with with_letters(400, "1h*1") as (orders, service):
        service.down = {b"%d" % n for n in range(100, 400)}
        await begin(orders, canary=10, every_ms=10.0)
        await orders.advance(1)
        while part_of(orders).state == "running":
            await orders.advance(50)
        assert part_of(orders).state == "paused"
        assert 140 < part_of(orders).done < 180


async def test_a_job_is_paused_and_cancelled() -> None:
    """Also over a restart; what is over takes no commands. Each answer says the state."""
    async with with_letters(50) as (orders, service):
        await begin(orders, every_ms=100.0)
        await pass_time(orders, 1_000, 50)
        told = await tell(orders, JobVerb.PAUSE, why="lunch")
        done = part_of(orders).done
        assert 8 <= done <= 12
        counts = f"{done} done; {done} letters looked at"
        assert told["text"] == f"paused: {counts}"
        assert (await begin(orders))["text"] == f"it has begun already, and is paused: {counts}"
    async with partition(service, transport=orders.transport) as orders:
        await orders.advance(5_000)
        assert (part_of(orders).state, part_of(orders).paused, part_of(orders).done) == ("paused", "lunch", done)
        assert (await tell(orders, JobVerb.CANCEL))["text"] == f"cancelled: {counts}"
        assert (await tell(orders, JobVerb.RESUME))["refused"] == "no-job"
        await orders.to_rest()
        assert len(service.again) == done


@pytest.mark.parametrize("durable", [True, False])
async def test_each_letter_that_a_job_refuses_has_its_event_over_a_crash(durable: bool) -> None:
    """With the word and the sentence, in the turn that passes it: neither twice nor never."""
    async with with_letters(3) as (orders, service):
        await orders.command("replay", 1)
        await orders.to_rest()
        part = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), canary=0, upto={DLQ: 3})
        await die_in_a_job(orders, part, 1, durable=durable)
    async with partition(service, transport=orders.transport) as orders:
        await orders.advance(100)
        await orders.to_rest()
        (told,) = [event for event in events_of(orders, Commanded) if event.refused is not None]
        assert (told.job, told.verb, told.by, told.why) == ("j1", "replay", "ann", "mended")
        assert (told.refused, told.text) == ("replayed", "this letter is recovered already")
        assert told.failure_id.endswith("/0/1")
        assert (sorted(service.again), part_of(orders).refused) == ([b"0", b"1", b"2"], {"replayed": 1})


async def test_so_many_refused_letters_have_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are counted alone: a job over a million letters that were replayed before writes no million events."""
    monkeypatch.setattr("retryapp.engine.partition.jobs.MOST_NAMED", 5)
    async with with_letters(8) as (orders, _):
        await begin(orders, "j1")
        await orders.to_rest()
        await begin(orders, "j2")
        await orders.to_rest()
        assert [event.job for event in events_of(orders, Commanded) if event.refused is not None] == ["j2"] * 5
        assert part_of(orders, "j2").refused == {"replayed": 8}


async def test_commands_come_between_the_steps_of_a_job() -> None:
    """A single replay of a letter that the job has not come to is obeyed, and the job refuses it then."""
    async with with_letters(20) as (orders, service):
        await begin(orders, every_ms=1_000.0)
        assert (await orders.command("replay", 19))["refused"] is None
        await orders.to_rest()
        await pass_time(orders, 40_000, 1_000)
        assert part_of(orders).refused == {"replayed": 1}
        assert len(service.again) == 20


async def test_so_many_jobs_go_on_at_once() -> None:
    """What is remembered of them is in every transaction."""
    async with with_letters(20) as (orders, _):
        for number in range(8):
            assert (await begin(orders, f"j{number}", every_ms=1_000.0))["refused"] is None
        assert (await begin(orders, "j8"))["refused"] == "too-many"


async def test_the_changelog_alone_knows_the_jobs() -> None:
    """As after somebody has set the group's offsets: the job goes on, and is not begun anew."""
    async with with_letters(20) as (orders, service):
        await begin(orders, every_ms=1_000.0)
        await orders.advance(3_000)
        done = part_of(orders).done
    orders.transport.broker.notes.clear()
    async with partition(service, transport=orders.transport) as orders:
        await pass_time(orders, 30_000, 1_000)
        assert part_of(orders).done == 20 > done
        assert len(service.again) == 20


async def test_a_job_of_a_newer_build_waits_for_one() -> None:
    """Its filter is not known here: no letter is taken, other jobs go on, and it may be cancelled."""
    async with with_letters(4) as (orders, service):
        newer = '{"parts":[{"job":"j1","verb":"replay","order":{"filter":{"colour":"red"},"upto":{"dlq":7}}}]}'
        turn = Turn(source=orders.engine.sources[0], next_offset=0, steering=newer)
        orders.lane.submit(orders.lane.session, turn)
        await orders.settle()
        await reopen(orders)
        await begin(orders, "j2", filter={"key": "none"})
        await pass_time(orders, 10_000, 1_000)
        assert (part_of(orders, "j2").state, service.again) == (PartState.ENDED, [])
        assert read_steering(newer).parts == [part_of(orders)], "it is written as it was read"
        assert (await tell(orders, JobVerb.CANCEL))["refused"] is None
        assert part_of(orders).state is PartState.CANCELLED


async def test_a_row_that_was_just_written_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim knows what it says; a row that a command has changed since is read."""
    service, decoded = Service(), list[bytes]()

    def counted(raw: bytes) -> PendingRow:
        decoded.append(raw)
        return decode_row(raw)

    async with partition(service) as orders:
        await letters(orders, service, 4)
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        await begin(orders)
        await orders.settle()
        assert sum(orders.waiting.values()) == 4
        now_ms = orders.clock.wall_ms()
        assert (await orders.command("reschedule", 2, due_at_ms=now_ms + 60_000))["refused"] is None
        monkeypatch.setattr(scheduler, "decode_row", counted)
        await orders.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME))
        await orders.settle()
        assert (sorted(service.again), len(decoded)) == ([b"0", b"1", b"3"], 0)
        await orders.to_rest()
        assert (service.again[-1], len(decoded)) == (b"2", 1)
        assert orders.clock.wall_ms() >= now_ms + 60_000


async def test_a_job_whose_letters_all_failed_again_ends_although_others_follow_that_were_replayed_before() -> None:
    """It passes these: to pause for them would ask for a decision about nothing."""
    async with with_letters(40, "1h*1") as (orders, service):
        for number in range(10, 40):
            await orders.command("replay", number)
        service.all_down = True
        await begin(orders, canary=10)
        await pass_time(orders, 10_000, 100)
        part = part_of(orders)
        assert (part.state, part.done, dict(part.refused)) == (PartState.ENDED, 10, {"replayed": 30})
        assert part.paused == "10 of the last 10 replays failed again"
