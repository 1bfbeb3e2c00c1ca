"""A dead letter is replayed or handled, not both: the lane of the records and that of their letters in one worker."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from doubles import events_of, pass_time, post, reopen
from two_lanes import LETTERS, ORDERS, Bad, Tickets, Worker, half_open, with_letter, worker

from retryapp import Reject, Skip
from retryapp.core.control import Command, Verb, is_mark, mark_of
from retryapp.core.errors import DiskFullError
from retryapp.core.holding import Holding
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.lifecycle import Discarded, Handled, Progress, Skipped
from retryapp.core.record import Origin, failure_id
from retryapp.engine.handler.handler import Order
from retryapp.engine.partition.letter_commands import LETTERS_S
from retryapp.ports import Event, Sink, TopicPartition
from retryapp.testing import Step
from retryapp.testing.lane import MemoryReader
from retryapp.testing.tables import MemoryDeadLetterTable


async def test_a_handled_letter_is_replayed_by_force_alone() -> None:
    """It is marked in the turn that settles it; nor is it discarded or restored. The handler has it once."""
    async with with_letter() as (both, bad, tickets):
        assert (tickets.seen, both.marks, len(events_of(both.letters, Handled))) == ([b"1"], ["handled"], 1)
        (mark,) = [r for r in both.orders.records(ORDERS.dlq) if is_mark(r.headers)]
        (batch,) = [b for b in both.letters.transport.batches if any(out.topic == ORDERS.dlq for out in b.publishes)]
        assert both.letters.engine.sources[0] in batch.offsets
        told = mark_of(mark.headers, mark.value)
        assert told is not None
        assert (told.failure_id, told.letter, told.delivery) == (both.orders.dead_letters[0].failure_id, 0, 1)
        said = (await both.orders.command("replay", 0))["text"]
        assert all(way in said for way in ("--force", "'replay all the same' on its page"))
        refused = [await both.command(verb) for verb in ("replay", "discard", "restore")]
        assert refused == ["handled", "handled", "not-discarded"]
        bad.mended = True
        assert await both.command("replay", force=True) is None
        assert (bad.seen, tickets.seen) == ([b"1", b"1"], [b"1"])
        assert both.marks == ["handled", "replayed", "recovered"]
        assert await both.command("replay", force=True) == "replayed"


async def test_a_sequence_that_a_handled_letter_has_stopped_is_released() -> None:
    """A discard is refused, and says so: it said nothing of the release, and pages offered the discard alone."""
    bad, holding = Bad(), Holding(on_dead="hold")
    async with worker(bad, Tickets(), order=Order.PARTITION, holding=holding) as both:
        await both.die(b"1")
        bad.mended = True
        await both.die(b"2")
        assert (both.marks, bad.seen) == (["handled"], [b"1"])
        refused = await both.orders.command("discard", 0)
        assert (refused["refused"], "; release it" in refused["text"]) == ("handled", True)
        assert await both.command("release") is None
        assert (both.marks, bad.seen) == (["handled"], [b"1", b"2"])
        refused = await both.orders.command("discard", 0)
        assert (refused["refused"], "release" in refused["text"]) == ("handled", False)


@pytest.mark.parametrize(
    ("error", "mark"), [(Skip("not ours"), "skipped"), (Reject("no"), "failed"), (OSError("away"), "failed")]
)
async def test_a_letter_that_its_handler_has_left_is_open(error: Exception, mark: str) -> None:
    """Skipped, or given up: it is replayed as others are, once."""
    async with with_letter(*[error] * 3) as (both, bad, _):
        await both.letters.to_rest()
        assert both.marks == [mark]
        bad.mended = True
        assert [await both.command("replay"), await both.command("replay")] == [None, "replayed"]
        assert both.marks == [mark, "replayed", "recovered"]


@pytest.mark.parametrize("verb", ["replay", "discard"])
async def test_what_was_replayed_or_discarded_before_is_passed(verb: str) -> None:
    """Before its first attempt, and between two; counted and told, with a restored one given as others are."""
    async with with_letter(OSError("away")) as (both, bad, tickets):
        await both.pause(HandlerVerb.PAUSE)
        await both.die(b"2", b"3")
        assert (tickets.seen, both.letters.waiting) == ([b"1"], {"1m": 1})
        bad.mended = True
        assert [await both.command(verb, offset) for offset in (0, 1)] == [None, None]
        assert [await both.command("discard", 2), await both.command("restore", 2)] == [None, None]
        await both.pause(HandlerVerb.RESUME)
        await both.letters.to_rest()
        await both.settle()
        assert tickets.seen == [b"1", b"3"]
        why = f"the letter is {'recovered' if verb == 'replay' else 'discarded'}"
        assert [(event.why, event.delivery) for event in events_of(both.letters, Skipped)] == [(why, 0), (why, 2)]
        told = [seen for seen in both.letters.observer.seen if seen.event is Event.SKIPPED]
        assert [seen.reason for seen in told] == [why, why]
        assert sorted(both.marks) == sorted(
            [
                *(["replayed", "recovered"] if verb == "replay" else ["discarded"]) * 2,
                "discarded",
                "restored",
                "handled",
            ]
        )
        both.letters.engine.session.note_progress()  # type: ignore[union-attr]
        await both.settle()
        (counted,) = events_of(both.letters, Progress)
        assert (counted.received, counted.skipped, counted.failed) == (3, 1, 1), "marks are no records"


async def test_a_letter_that_is_being_handled_is_not_replayed() -> None:
    """From the begin of its run to the commit of its outcome."""
    async with with_letter(shut=True) as (both, _, tickets):
        assert (tickets.seen, await both.command("replay")) == ([b"1"], "running")
        commit = both.letters.transport.pause(Step.COMMIT)
        tickets.open.set()
        await both.settle()
        assert (commit.reached, await both.command("replay", force=True)) == (True, "running")
        commit.set()
        await both.settle()
        assert (both.marks, await both.command("replay")) == (["handled"], "handled")


async def test_a_letter_that_is_being_replayed_is_not_handled() -> None:
    """Until the replay is committed: then the letter is passed."""
    async with with_letter(OSError("away")) as (both, bad, tickets):
        await both.almost_due()
        bad.mended = True
        commit = both.orders.transport.pause(Step.COMMIT)
        with pytest.raises(AssertionError, match="no outcome"):
            await both.command("replay")
        await both.letters.advance(200)
        assert (commit.reached, tickets.seen, both.letters.waiting) == (True, [b"1"], {"1m": 1})
        commit.set()
        await both.orders.advance(200)  # the table reads on each minute, past transactions that are open
        await both.settle()
        assert (tickets.seen, both.letters.waiting, bad.seen) == ([b"1"], {}, [b"1", b"1"])
        assert [event.why[:13] for event in events_of(both.letters, Skipped)] == ["the letter is"]


@pytest.mark.parametrize("durable", [True, False])
async def test_a_commit_without_an_answer_is_known_before_a_replay(durable: bool) -> None:
    """The letters' lane opens again, and only then commands about letters are obeyed."""
    async with with_letter(shut=True) as (both, bad, tickets):
        both.letters.transport.fail(Step.COMMIT, ConnectionError("lost"), durable=durable)
        opening = both.letters.transport.pause(Step.RECOVER)
        tickets.open.set()
        await both.settle()
        with pytest.raises(AssertionError, match="no outcome"):
            await both.command("replay")
        for _ in range(5):
            await both.orders.advance(1_000)
            await both.settle()
        assert opening.reached
        opening.set()
        await both.settle()
        assert (both.marks, len(tickets.seen)) == (["handled"], 1 if durable else 2)
        assert await both.command("replay") == "handled"
        assert bad.seen == [b"1"]


async def test_letters_wait_for_the_lane_that_writes_them() -> None:
    """Its table has what became of them."""
    async with with_letter(OSError("away")) as (both, _, tickets):
        await both.almost_due()
        opening = both.orders.transport.pause(Step.RECOVER)
        await reopen(both.orders)
        await both.letters.advance(200)
        assert (opening.reached, tickets.seen) == (True, [b"1"])
        opening.set()
        await both.settle()
        assert (tickets.seen, both.marks) == ([b"1", b"1"], ["handled"])


def take_back(both: Worker) -> None:
    """Have the broker take back the transaction that marked a letter, and all of that lane since."""
    logs = both.orders.transport.broker.logs
    marking = next(e.txn for e in logs[TopicPartition(ORDERS.dlq, 0)].entries if is_mark(e.record.headers))
    written = [entry.txn for entry in logs[TopicPartition(LETTERS.pending_changelog, 0)].entries]
    for lost in written[written.index(marking) :]:
        assert lost is not None
        lost.committed = False


@pytest.mark.parametrize("late", [False, True])
async def test_a_mark_that_the_broker_has_taken_back_is_forgotten(late: bool) -> None:
    """Its letter is handled again, and has one mark; the lane of the records may open only then."""
    async with with_letter(OSError("away")) as (both, _, tickets):
        await both.almost_due()
        await both.letters.advance(200)
        await both.settle()
        assert (both.marks, both.letters.waiting) == (["handled"], {})
        take_back(both)
        if late:
            opening = both.orders.transport.pause(Step.RECOVER)
            await reopen(both.orders)
        await reopen(both.letters)
        if late:
            await both.letters.advance(1_000)
            assert (opening.reached, both.marks) == (True, [])
            opening.set()
        await both.settle()
        await both.letters.advance(1_000)
        await both.settle()
        assert (tickets.seen, both.marks, both.letters.waiting) == ([b"1"] * 3, ["handled"], {})
        assert events_of(both.letters, Skipped) == []


async def test_a_kill_while_the_table_is_waited_for_leaves_the_next_worker_to_find_it() -> None:
    """The letters' lane drops its store last: only that shows what the broker has taken back."""
    async with with_letter(OSError("away")) as (both, bad, tickets):
        before = both
        await both.almost_due()
        await both.letters.advance(200)
        await both.settle()
        take_back(both)
    async with half_open(bad, tickets, before) as (both, opening):
        assert (opening.reached, both.letters.engine.lane.state) == (True, "opening")
        before = both
    async with worker(bad, tickets, before) as both:
        await both.letters.advance(1_000)
        await both.settle()
        assert (tickets.seen, both.marks, both.letters.waiting) == ([b"1"] * 3, ["handled"], {})


async def test_a_table_that_does_not_open_is_not_taken_for_dropped() -> None:
    """It opens later, with the mark that the broker has taken back: the letters' lane must ask again."""
    async with worker(Bad(), Tickets()) as both:
        transport = both.orders.transport
        (shared,), keeper = transport.shared.values(), transport.dead_keepers[ORDERS.dlq]
        table = Mock(wraps=keeper.table)
        keeper.table, keeper._open_table = None, Mock(side_effect=[DiskFullError("dead/0", "no space"), table])
        with pytest.raises(DiskFullError):
            await shared.rolled_back()
        await shared.rolled_back()
        table.drop.assert_called_once()
        keeper._open_table = MemoryDeadLetterTable


async def test_no_mark_is_missed_by_a_table_that_was_read_further() -> None:
    """The records' lane publishes a letter behind a mark of which it has not heard yet, and the worker dies."""
    bad, tickets = Bad(), Tickets()
    async with worker(bad, tickets) as both:
        before = both
        commit = both.letters.transport.pause(Step.COMMIT, after=1, durable=True)
        await both.die(b"1", b"2")
        await both.die(b"3")
        assert commit.reached
    async with worker(bad, tickets, before) as both:
        assert [await both.command("replay", offset) for offset in range(3)] == ["handled"] * 3


async def test_a_topic_that_cannot_be_read_is_tried_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times a second it is looked whether a transaction has ended, not whether the broker is back."""
    tries, read = list[int](), MemoryReader.read

    async def away(reader: MemoryReader, tp: TopicPartition, start: int, sink: Sink, **how: Any) -> int:
        if tp.topic == ORDERS.dlq and len(tries) < 5:
            tries.append(both.orders.clock.wall_ms())
            raise ConnectionError("the leader is away")
        return await read(reader, tp, start, sink, **how)

    async with with_letter() as (both, _, tickets):
        monkeypatch.setattr(MemoryReader, "read", away)
        await pass_time(both.orders, 90_000, 1_000)
        assert [(later - at) // 1_000 for at, later in pairwise(tries)] == [5] * 4
        await both.die(b"2")
        assert tickets.seen == [b"1", b"2"], "letters go on once it is read"


async def test_a_kill_at_each_commit_leaves_one_mark_of_each_letter() -> None:
    """Of the handler's lane, and of the records': each letter has one end, and a replay never follows a handling."""
    for killed in ("letters", "orders"):
        for at in range(40):
            for durable in (True, False):
                bad, tickets = Bad(), Tickets(None, OSError("away"), Skip("no"), OSError("away"), OSError("away"))
                async with worker(bad, tickets) as both:
                    before = both
                    dying = getattr(both, killed).transport.pause(Step.COMMIT, after=at, durable=durable)
                    await _live(both)
                async with worker(bad, tickets, before) as both:
                    await _live(both)
                    kinds: dict[int, list[str]] = {}
                    for record in both.orders.records(ORDERS.dlq):
                        if (mark := mark_of(record.headers, record.value)) is not None:
                            kinds.setdefault(mark.letter, []).append(mark.mark.value)
                    assert len(both.orders.dead_letters) == len(kinds)
                    for found in kinds.values():
                        once = [kind for kind in found if kind not in ("failed", "skipped")]
                        assert once in (["handled"], ["replayed", "recovered"], []), (killed, at, durable, kinds)
                        assert found.count("failed") + found.count("skipped") <= 1, (killed, at, durable, kinds)
                    assert both.letters.waiting == both.orders.waiting == {}
            if not dying.reached:
                break
        assert at > 5, "the case is there"


async def _live(both: Worker) -> None:
    """Have four orders die, their letters go to the handler, and try to replay all of them, as far as it lives."""
    if not both.bad.seen:
        await both.die(b"1", b"2", b"3", b"4")
    for _ in range(3):
        await both.orders.advance(60_000)
        await both.settle()
        both.bad.mended = True
        for offset in range(4):
            try:
                await both.command("replay", offset)
            except AssertionError:  # the worker is dying
                continue


async def test_a_session_that_ends_lets_its_letters_go() -> None:
    """They are handled again, and commands about them are obeyed."""
    async with with_letter(shut=True) as (both, _, tickets):
        tickets.errors = [Skip("no")]
        await reopen(both.letters)
        tickets.open.set()
        await both.settle()
        assert (both.marks, await both.command("discard")) == (["skipped"], None)


async def test_a_suspect_that_waits_for_the_lane_of_the_records_is_not_blamed() -> None:
    """No mark counts against it over deaths of workers in which it did not begin, and no other handler waits."""
    async with with_letter(shut=True) as (both, bad, tickets):
        before = both
    for _ in range(5):
        async with (
            half_open(bad, tickets, before) as (made, _),
            asyncio.timeout(1),
            made.letters.engine.context.alone.held(alone=False),
        ):
            before = made
    tickets.open.set()
    async with worker(bad, tickets, before) as both:
        await both.letters.advance(1_000)
        await both.settle()
        assert (tickets.seen, both.marks) == ([b"1", b"1"], ["handled"])


async def test_a_suspect_that_waits_for_the_lane_of_the_records_does_not_begin_once_its_handler_is_paused() -> None:
    """Nor is there a mark against it, by which a death of its worker meanwhile would count."""
    async with with_letter(shut=True) as (both, bad, tickets):
        before = both
    suspected, seen = False, len(tickets.seen)
    while not suspected:
        async with half_open(bad, tickets, before) as (made, opening):
            before, suspected = made, made.letters.transport.suspected is not None
            if suspected:
                await made.letters.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
                opening.set()
                await made.settle()
                await made.letters.advance(1_000)
                await made.settle()
                assert len(tickets.seen) == seen
                tickets.open.set()
                await made.pause(HandlerVerb.RESUME)
                assert (len(tickets.seen), made.marks) == (seen + 1, ["handled"])


async def test_a_letter_that_has_ended_its_workers_is_marked() -> None:
    """Also where the lane of the records opens after that of its handler, which gives it up once no command changes it.

    It was told as failed, without a mark, where a command that replays it was not committed yet.
    """
    async with with_letter(shut=True) as (both, bad, tickets):
        before, seen = both, 0
    while seen < len(tickets.seen):
        seen = len(tickets.seen)
        async with half_open(bad, tickets, before) as (made, opening):
            shared = made.orders.transport.shared[ORDERS.dlq]
            shared.change(0)
            opening.set()
            await made.settle()
            await made.letters.advance(1_000)
            assert events_of(made.letters, Discarded) == []
            shared.let_go((0,))
            await made.settle()
            before = made
    assert [(event.kind, event.reason) for event in events_of(before.letters, Discarded)] == [("failed", "crashed")]
    assert before.marks == ["failed"]


async def test_a_letter_that_waits_and_is_cancelled_is_marked() -> None:
    """Also before the lane of the records has opened."""
    async with with_letter(OSError("away")) as (both, bad, tickets):
        before = both
    made = Worker(bad, tickets, before)
    opening = made.orders.transport.pause(Step.RECOVER)
    async with made.orders, made.letters:
        place = Origin(ORDERS.dlq, made.letters.engine.context.topic_id, 0, 0)
        post(made.letters, Command(id="c", verb=Verb.CANCEL, failure_id=failure_id("app", place)))
        await made.letters.settle()
        assert (made.marks, events_of(made.letters, Discarded)) == ([], [])
        opening.set()
        await made.settle()
        assert [(event.kind, event.reason) for event in events_of(made.letters, Discarded)] == [("failed", "cancelled")]
        assert (made.marks, tickets.seen) == (["failed"], [b"1"])


async def test_a_cancel_of_a_letter_is_refused_once_it_has_waited_long() -> None:
    """Commands behind it waited for as long as the lane of the records was not open, a pause too."""
    async with with_letter(OSError("away")) as (both, bad, tickets):
        before = both
    made = Worker(bad, tickets, before)
    async with made.letters:
        place = Origin(ORDERS.dlq, made.letters.engine.context.topic_id, 0, 0)
        post(made.letters, Command(id="c", verb=Verb.CANCEL, failure_id=failure_id("app", place)))
        await made.letters.settle()
        await made.letters.advance(int(LETTERS_S * 1_000) - 1)
        assert made.told == []
        await made.letters.advance(60)
        await made.letters.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        assert made.told == [("c", "not-ready"), ("p", None)]
        assert made.marks == []
