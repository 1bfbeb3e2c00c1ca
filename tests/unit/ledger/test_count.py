"""One partition's count: what it adds up to, and what it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from samples import WAITING

from retryapp.core.lifecycle import Progress
from retryapp.ledger.count import Balance, PartitionCount, station_text, total
from retryapp.ledger.journey import WHOLE, Fault
from retryapp.ledger.traces import Station, Told, Topics, Trace

ID = WAITING.origin.topic_id
RETRY, DLQ, EVENTS = 1, 2, 3


@pytest.fixture
def counted(topics, way, make_cut) -> Callable[..., PartitionCount]:
    """Count records by their offsets and ways, up to the group's offset 100, and close."""

    def count(
        ways, *, offsets=range(10), cut=None, progress=(), told=(), start=0, first_kept=0, compacted=False,
        timestamp_ms=1,
    ) -> PartitionCount:  # fmt: skip
        made = PartitionCount(partition=3, topics=topics, topic_id=ID, start=start)
        for offset, text in ways.items():
            for trace in way(text):
                made.tell(Told(trace, ID, offset))
        for each in told:
            made.tell(each)
        for event in progress:
            made.note(event, "app.orders.events[3]@1")
        made.judge(cut or make_cut())
        for offset in offsets:
            made.see(offset, timestamp_ms)
        made.close(first_kept=first_kept, compacted=compacted)
        return made

    return count


def progress(start: int, stop: int, *, received: int, failed: int, skipped: int = 0, held: int = 0) -> Progress:
    """Return what a worker says of a range of offsets."""
    fine = received - failed - skipped - held
    counts = {"received": received, "first_try_ok": fine, "failed": failed, "skipped": skipped, "held": held}
    place = {"main": "orders", "partition": 3, "from_offset": start, "to_offset": stop}
    return Progress(group="app", handler="h", **place, from_ms=200_000, to_ms=200_001, **counts)


def fates(balance: Balance) -> dict[str, int]:
    """Return what is not zero."""
    names = ("received", "done", "pending", "dead", "discarded", "skipped", "unknown", "lost", "recovered")
    return {name: getattr(balance, name) for name in names if getattr(balance, name)}


def test_every_received_record_has_one_fate(counted):
    """Those without a trace are done at the first try."""
    made = counted({1: "T1 S2", 2: "D1", 3: "T1 W1", 4: "T1 T2 W2", 6: "T1 D2"})
    assert fates(made.balance) == {"received": 10, "done": 6, "recovered": 1, "pending": 2, "dead": 2}
    assert made.problems == []


@pytest.mark.parametrize("start", [0, 2])
def test_counts_of_a_former_life_of_the_main_topic_do_not_count(counted, start):
    """They begin at offset 0 again: held against the records of now they would be losses."""
    told = (
        progress(0, 4, received=4, failed=3), progress(4, 9, received=5, failed=5),
        progress(0, 2, received=2, failed=0), progress(2, 10, received=8, failed=1),
    )  # fmt: skip
    made = counted({3: "T1 W1"}, progress=told, start=start, offsets=range(start, 10))
    assert (fates(made.balance)["done"], made.balance.lost, made.problems) == (9 - start, 0, [])


def test_a_record_that_is_tried_without_an_end_takes_no_minutes(counted, make_cut):
    """Each of its tries is a trace, six a minute; retry topics keep a week of them."""
    tries = 100_000
    told = [Told(Trace(n, Station.RETRY, RETRY, n, 0, n, n), ID, 3) for n in range(1, tries + 1)]
    row = Told(Trace(tries, Station.ROW, 4, tries, 0, 0, tries), ID, 3)
    made = counted({}, told=[*told, row], cut=make_cut(floor=[0, tries + 1, tries + 1, tries + 1, 0]))
    assert (fates(made.balance), made.problems) == ({"received": 10, "done": 9, "pending": 1}, [])


def test_copies_on_the_main_topic_are_no_records(topics, way, make_cut):
    """They are counted apart; one that a worker has taken for a record is a stranger, and its range is off."""
    made = PartitionCount(partition=3, topics=topics, topic_id=ID)
    for trace in way("T1 W1"):
        made.tell(Told(trace, ID, 2))
    made.note(progress(0, 4, received=3, failed=1), "app.orders.events[3]@1")
    made.judge(make_cut())
    for offset in range(4):
        made.see(offset, 1, copy=offset in (2, 3))
    made.close(first_kept=0)
    assert (made.balance.copies, made.balance.done, made.balance.pending) == (2, 2, 1)
    assert {problem.fault for problem in made.problems} == {Fault.STRANGER, Fault.COUNTS}


def test_a_lost_record_is_named_with_its_last_station(counted):
    """Failure id, place on the main topic, station, and where that copy lies."""
    made = counted({2: "T1 T2"})
    assert fates(made.balance) == {"received": 10, "done": 9, "lost": 1}
    (problem,) = made.problems
    assert (problem.fault, problem.failure_id) == (Fault.LOST, f"app/orders@{ID}/3/2")
    assert (problem.record, problem.offset) == ("orders[3]@2", 2)
    assert (problem.station, problem.where) == ("retry topic, attempt 2 failed", ("app.orders.retry[3]@1",))


def test_what_failed_in_an_outage_only_has_failed_too(counted):
    """Its attempt is the first one, its delivery is not; a record that was held has had one delivery."""
    made = counted({1: "T0+1 S1+1", 2: "T0+1", 3: "H0 S1"})
    assert fates(made.balance) == {"received": 10, "done": 9, "recovered": 1, "lost": 1}
    assert [problem.station for problem in made.problems] == ["retry topic, no attempt spent"]


def test_records_that_the_group_has_not_passed_are_not_received(counted, make_cut):
    """Their traces are of later; what was handed over before the cut contradicts the offset."""
    cut = make_cut(received=5)
    later = counted({7: "T1? W1"}, offsets=range(5), cut=cut)
    assert (fates(later.balance), later.problems) == ({"received": 5, "done": 5}, [])
    before = counted({7: "T1 S2"}, offsets=range(5), cut=cut)
    assert fates(before.balance) == {"received": 5, "done": 5}
    assert [(p.fault, p.offset) for p in before.problems] == [(Fault.AHEAD, 7)]


def test_records_that_are_settled_beyond_the_offset_contradict_nothing(counted, make_cut):
    """They are counted once the offset has passed them; others are still named."""
    made = counted({7: "T1 W1", 8: "D1"}, offsets=range(5), cut=make_cut(received=5, settled={7}))
    assert fates(made.balance) == {"received": 5, "done": 5}
    assert [(p.fault, p.offset) for p in made.problems] == [(Fault.AHEAD, 8)]


def test_a_group_without_offsets_is_one_finding(counted, make_cut):
    made = counted({7: "T1 W1", 8: "T1"}, offsets=(), cut=make_cut(received=0))
    assert [problem.fault for problem in made.problems] == [Fault.OFFSETS]
    assert "2 records" in made.problems[0].text


def test_a_record_that_the_main_topic_does_not_have_is_a_stranger(counted):
    """Unless the topic has deleted or compacted it, or it lies in a damaged batch."""
    ways = {4: "D1"}
    offsets = [0, 1, 2, 3, 5]
    assert [(p.fault, p.offset) for p in counted(ways, offsets=offsets).problems] == [(Fault.STRANGER, 4)]
    assert counted(ways, offsets=offsets, compacted=True).problems == []
    made = counted(ways, offsets=[5], first_kept=5)
    assert made.problems == []
    assert fates(made.balance) == {"received": 2, "done": 1, "dead": 1}
    assert made.balance.expired_offsets == 4


def test_a_failed_record_of_a_former_topic_keeps_its_fate(counted, way):
    """The main topic was made anew: same offsets, another id."""
    told = [Told(trace, "former", 1) for trace in way("T1 W1")]
    made = counted({1: "D1"}, told=told)
    assert fates(made.balance) == {"received": 11, "done": 9, "dead": 1, "pending": 1}
    assert made.problems == []


@pytest.mark.parametrize(
    ("expired", "fate"),
    [
        ({DLQ: 140_000}, "unknown"),
        ({DLQ: 139_999}, "done"),
        ({RETRY: 140_000}, "done"),
        ({EVENTS: 140_000}, "done"),
        ({RETRY: 140_000, EVENTS: 140_000}, "unknown"),
    ],
)
def test_a_record_may_have_failed_where_all_that_would_show_it_is_gone(counted, make_cut, expired, fate):
    """Without a trace: the letter, or the first copy and what followed it."""
    made = counted({}, cut=make_cut(expired), timestamp_ms=200_000)
    assert (fates(made.balance), made.problems) == ({"received": 10, fate: 10}, [])


def test_since_leaves_out_what_was_received_before(counted):
    """Their traces, their problems and the workers' counts of them."""
    made = counted(
        {1: "T1", 6: "T1 S2"},
        offsets=range(5, 10),
        start=5,
        progress=[progress(0, 10, received=99, failed=9)],
        told=[Told(Trace(1, Station.RETRY, RETRY, 1, 0, 5, 9), "former", 7)],
    )
    assert (fates(made.balance), made.problems) == ({"received": 5, "done": 5, "recovered": 1}, [])
    assert made.balance.expired_offsets == 0


def test_workers_counts_are_held_against_the_topics(counted):
    """Ranges side by side; one beyond the cut or the beginning is left alone."""
    fits = [progress(0, 4, received=4, failed=1), progress(4, 10, received=6, failed=1)]
    assert counted({1: "D1", 9: "T1 W1"}, progress=fits).problems == []
    beyond = [progress(0, 101, received=1, failed=0)]
    assert counted({}, progress=beyond).problems == []
    assert (
        counted({}, offsets=range(5, 10), first_kept=5, progress=[progress(0, 10, received=1, failed=0)]).problems == []
    )
    wrong = counted({}, progress=[progress(0, 4, received=5, failed=0), progress(4, 10, received=6, failed=0)])
    assert [problem.fault for problem in wrong.problems] == [Fault.COUNTS]
    assert "received 5 records in orders[3]@0 to 3, the topic has 4" in wrong.problems[0].text


def test_records_that_were_held_are_found_again_whatever_they_have_come_to(counted):
    """Also one that its handler has skipped: workers have counted it as held, not as skipped."""
    ways = {1: "H0 W0", 2: "H0 S1", 3: "H0 D1", 4: "H0 T1 W1", 5: "H0 T1 S2", 6: "H0 K1", 7: "K1"}
    made = counted(ways, progress=[progress(0, 10, received=10, failed=0, skipped=1, held=6)])
    assert made.problems == []
    assert fates(made.balance) | {"held": made.balance.held} == {
        "received": 10, "done": 5, "recovered": 1, "held": 1, "dead": 1, "pending": 1, "skipped": 2,
    }  # fmt: skip


def test_a_record_lost_with_all_its_traces_shows_in_the_workers_counts(counted, make_cut):
    """It is not done, although it has left nothing: lost, or unknown where traces may be deleted."""
    told = [progress(0, 10, received=10, failed=2)]

    def count(**expired: float) -> tuple[dict[str, int], list[Fault]]:
        cut = make_cut({topic: expired[name] for name, topic in (("retry", RETRY), ("dlq", DLQ), ("events", EVENTS))
                        if name in expired})  # fmt: skip
        made = counted({1: "D1"}, progress=told, cut=cut, timestamp_ms=300_000)
        return fates(made.balance), [problem.fault for problem in made.problems]

    lost = {"received": 10, "done": 8, "dead": 1, "lost": 1}, [Fault.LOST]
    unknown = {"received": 10, "done": 8, "dead": 1, "unknown": 1}, list[Fault]()
    assert count() == count(retry=150_000) == count(dlq=139_999) == lost
    assert count(dlq=140_000) == count(retry=140_000, events=140_000) == unknown
    (problem,) = counted({1: "D1"}, progress=told).problems
    assert problem.where == ("app.orders.events[3]@1",)
    assert "2 records failed in orders[3]@0 to 9, 1 left a trace" in problem.text
    more = counted({1: "D1", 2: "D1", 3: "D1"}, progress=told)
    assert [problem.fault for problem in more.problems] == [Fault.COUNTS]


@pytest.mark.parametrize("counts", [{"failed": 2}, {"failed": 0, "held": 2}], ids=["superseded", "held"])
def test_what_only_events_show_is_unknown_once_they_are_deleted(counted, make_cut, counts):
    """Records superseded before their delivery, and held ones that then succeed, leave no other trace."""
    told = [progress(0, 10, received=10, **counts)]
    made = counted({}, progress=told, cut=make_cut({EVENTS: 140_000}), timestamp_ms=300_000)
    assert (fates(made.balance), made.problems) == ({"received": 10, "done": 8, "unknown": 2}, [])
    kept = counted({}, progress=told, cut=make_cut({EVENTS: 139_999}), timestamp_ms=300_000)
    assert [problem.fault for problem in kept.problems] == [Fault.LOST]


def test_a_damaged_batch_of_the_main_topic_is_dead_as_a_whole(counted):
    """One letter names its range; for the workers it was one record."""
    letter = Told(Trace(1, Station.DEAD, DLQ, 1, 0, 5, 9, loose=True), ID, 3, 6)
    made = counted({}, told=[letter], progress=[progress(0, 10, received=7, failed=1)])
    assert fates(made.balance) == {"received": 10, "done": 6, "dead": 4}
    assert made.problems == []
    unread = counted({}, offsets=[0, 1, 2, 7, 8, 9], told=[letter])
    assert (fates(unread.balance), unread.problems) == ({"received": 7, "done": 6, "dead": 1}, [])


def test_headers_that_name_nobody_are_named_by_place(counted):
    torn = Told(Trace(0, Station.RETRY, RETRY, 0, 0, 12, 9, loose=True), nobody="no origin")
    made = counted({}, told=[torn])
    assert [(p.fault, p.where, p.text) for p in made.problems] == [
        (Fault.NOBODY, ("app.orders.retry[3]@12",), "no origin")
    ]
    assert fates(made.balance) == {"received": 10, "done": 10}


@pytest.mark.parametrize(
    ("committed", "fault", "text"),
    [
        (4, Fault.DELETED, "deleted unread from committed offset 4 of orders[0] on: 1 offset"),
        (5, None, ""),
        (10, None, ""),
        (1_000, Fault.OFFSETS, "committed offset 1000 of orders[0] is past its end offset 10"),
    ],
)
def test_offsets_outside_of_the_main_topic_are_named(topics, committed, fault, text):
    """Records were deleted before they were read, or the topic has lost its end."""
    count = PartitionCount(partition=0, topics=topics, topic_id=ID)
    count.check_offset(committed, begin=5, end=10)
    assert [problem.fault for problem in count.problems] == ([fault] if fault else [])
    assert all(problem.text.startswith(text) for problem in count.problems)


def test_partitions_add_up():
    assert total([Balance(received=3, done=2, dead=1), Balance(received=1, lost=1)]) == Balance(
        received=4, done=2, dead=1, lost=1
    )


def test_skipped_duplicates_have_a_fate_of_their_own(counted):
    """They are neither done nor failed, and workers count them apart."""
    told = [progress(0, 10, received=10, failed=1, skipped=2)]
    made = counted({2: "K0", 3: "T1 S2", 7: "K0"}, progress=told)
    assert fates(made.balance) == {"received": 10, "done": 8, "recovered": 1, "skipped": 2}
    assert made.problems == []
    fewer = counted({2: "K0"}, progress=[progress(0, 10, received=10, failed=0, skipped=2)])
    assert [(p.fault, p.text.split(" in ")[0]) for p in fewer.problems] == [(Fault.COUNTS, "2 records skipped")]


def test_a_record_that_is_skipped_after_a_failure_was_counted_as_failed(counted):
    """It has one fate, skipped; workers count it where it failed, and those that are skipped at once apart."""
    told = [progress(0, 10, received=10, failed=2, skipped=1)]
    made = counted({2: "K1", 3: "T1 K2", 7: "T1 T2 K3"}, progress=told)
    assert fates(made.balance) == {"received": 10, "done": 7, "skipped": 3}
    assert made.problems == []
    wrong = counted({3: "T1 K2"}, progress=[progress(0, 10, received=10, failed=0, skipped=1)])
    assert {problem.fault for problem in wrong.problems} == {Fault.COUNTS}


def test_letters_on_several_topics_are_dead_letters(topics, make_cut):
    """Those of rules, too; the letters of one record on two topics are one too many."""
    names = (*topics.names[:2], "app.orders.dlq", "app.orders.dlq.invalid", *topics.names[3:])
    several = Topics("app", names, 2)
    assert (several.retry, several.dlqs, several.events, several.changelog) == (range(1, 2), range(2, 4), 4, 5)
    cut = replace(make_cut(), topics=several, floor=[0, *[1_000] * 4, 0], kept_from_ms=[WHOLE] * 6)

    def count(*topics_of_letters: int) -> PartitionCount:
        made = PartitionCount(partition=3, topics=several, topic_id=ID)
        for topic in topics_of_letters:
            made.tell(Told(Trace(1, Station.DEAD, topic, 1, 0, 5, 9), ID, 1))
        made.judge(cut)
        return made

    assert (count(3).balance.dead, count(3).problems) == (1, [])
    (problem,) = count(2, 3).problems
    assert (problem.fault, problem.where) == (Fault.TWICE, ("app.orders.dlq[3]@5", "app.orders.dlq.invalid[3]@5"))


def test_what_is_discarded_has_a_fate_of_its_own_and_a_letter_that_failed_is_dead(counted):
    """At the first delivery, and after others; workers have counted both as failed."""
    counts = progress(0, 10, received=10, failed=4)
    made = counted({1: "X1", 2: "T1 X2", 3: "F1", 4: "T1 T2 F3"}, progress=[counts])
    assert fates(made.balance) == {"received": 10, "done": 6, "discarded": 2, "dead": 2}
    assert made.problems == []
    assert station_text(Trace(2, Station.DISCARDED, EVENTS, 2, 0, 1, 1)) == "events topic, discarded at attempt 2"


def test_a_damaged_batch_may_be_discarded_as_a_whole(counted):
    """As the dead letter of one is dead as a whole."""
    trace = Trace(1, Station.DISCARDED, EVENTS, 1, 0, 5, 1, loose=True)
    made = counted({}, told=[Told(trace, ID, 3, last_offset=6)], progress=[progress(0, 10, received=7, failed=1)])
    assert fates(made.balance) == {"received": 10, "done": 6, "discarded": 4}
    assert made.problems == []


def test_without_dead_letters_events_must_be_kept(topics, make_cut):
    """What ends there shows nowhere else."""
    own = Topics("app", tuple(name for name in topics.names if not name.endswith(".dlq")), 0)
    cut = replace(make_cut(), topics=own, floor=[0, 0, 0, 0], kept_from_ms=[WHOLE, WHOLE, 5.0, WHOLE])
    assert (own.dlqs, own.names[own.events], cut.shown_from_ms) == (range(2, 2), "app.orders.events", 5.0)


def test_superseded_records_have_a_fate_of_their_own(counted):
    """Workers count them as failed, whether they were delivered or not: each has a trace."""
    made = counted({2: "U0", 3: "U1", 4: "T1 U1"}, progress=[progress(0, 10, received=10, failed=3)])
    assert (made.balance.superseded, made.balance.done, made.problems) == (3, 7, [])
    more = counted({2: "U0"}, progress=[progress(0, 10, received=10, failed=2)])
    assert [problem.fault for problem in more.problems] == [Fault.LOST]
