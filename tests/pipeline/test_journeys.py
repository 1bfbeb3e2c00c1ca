"""Journeys of small hand-made histories: order, tiers, lateness, fates, the cut."""

from __future__ import annotations

from lives import MAIN, MINUTE_MS, NOON_MS, TOPIC_ID, Archive
from stories import Story, story

from retryapp.pipeline.analysis import checks, figures
from retryapp.pipeline.analysis.counts import retention
from retryapp.pipeline.analysis.outages import by_interval


@story(50)
def test_a_recovered_record_with_all_its_attempts(archive: Archive) -> Story:
    """Start, end, tier and lateness of each; the wait is told by the record before it."""
    archive.succeeded(5, 3, started_ms=NOON_MS + 500_000, lateness_ms=42)  # arrives in the table before its failures
    archive.failed(5, 2, started_ms=NOON_MS + 60_010, tier="5m", due_at_ms=NOON_MS + 400_000, key="k")
    archive.failed(5, 1, key="k")
    tables = yield
    assert tables.ways == {5: "done: 1 retried, 2 1m +10 retried, 3 5m +42 succeeded"}
    (journey,) = tables.rows
    columns = ("topic_id", "partition", "key_hash", "origin_timestamp_ms", "policy", "error_type", "fingerprint")
    assert [journey[name] for name in columns] == [TOPIC_ID, 0, "k", NOON_MS - 5, "p1", "ValueError", "f1"]
    assert [journey[name] for name in ("last_attempt", "due_at_ms", "tier")] == [3, None, None]
    assert (journey["first_failed_ms"], journey["ended_ms"]) == (NOON_MS + 100, NOON_MS + 500_050)
    assert [(attempt["started_ms"], attempt["ended_ms"]) for attempt in journey["attempts"]] == [
        (NOON_MS, NOON_MS + 100),
        (NOON_MS + 60_010, NOON_MS + 60_110),
        (NOON_MS + 500_000, NOON_MS + 500_050),
    ]


@story(50)
def test_fates_and_what_is_missing(archive: Archive) -> Story:
    """Pending with its due time, dead with its reason; attempts that are not archived are counted, and copies.

    A record that ends its workers dies with the number of the attempt that had failed before: it is no further one. The
    dead letter of a cancelled one takes a delivery's number; held, it was never tried, and has a cause. One that was
    cancelled while it ran has a worker.
    """
    archive.failed(1, 1)
    archive.failed(2, 1)
    archive.failed(2, 4, reason="exhausted", error_type="TimeoutError")
    archive.failed(3, 1)
    archive.failed(3, 1)
    archive.failed(4, 1, reason="non-retryable")
    archive.failed(5, 1)
    archive.failed(5, 1, reason="crashed", error_type="Crashed")
    archive.failed(6, 2)
    archive.failed(6, 2, delivery=3, reason="cancelled")
    archive.held(7)
    archive.failed(7, 0, delivery=1, reason="cancelled", error_type="cancelled", error_message="", fingerprint="-")
    archive.failed(8, 2, delivery=3, reason="cancelled", fingerprint="f8")
    archive.failed(9, 2, reason="overflow", worker="h/w1", fingerprint="f9")
    tables = yield
    assert tables.ways == {
        1: "pending: 1 retried",
        2: "dead exhausted, 2 missing: 1 retried, 4 dead",
        3: "pending, 1 copies: 1 retried",
        4: "dead non-retryable: 1 dead",
        5: "dead crashed: 1 retried",
        6: "dead cancelled, 1 missing: 2 retried",
        7: "dead cancelled",
        8: "dead cancelled, 2 missing",
        9: "dead overflow, 1 missing: 2 dead",
    }
    pending, dead, crashed = (tables.by_offset[offset] for offset in (1, 2, 5))
    assert (pending["due_at_ms"], pending["tier"]) == (NOON_MS + MINUTE_MS, "1m")
    assert (dead["error_type"], crashed["error_type"]) == ("TimeoutError", "Crashed")
    assert crashed["attempts"][0]["error_type"] == "ValueError"
    names = ("fingerprint", "error_type", "failures", "records", "dead", "last_seen_ms")
    failed, held, copy = (row for row in tables.causes if row["reason"] == "cancelled")
    assert [failed[name] for name in names] == ["f1", "ValueError", 1, 1, 1, NOON_MS + 100]
    assert [held[name] for name in names] == ["-", "cancelled", 0, 1, 1, NOON_MS + 100]
    assert held["examples"][0]["failure_id"].endswith("/0/7")
    assert [copy[name] for name in names[:-1]] == ["f8", "ValueError", 0, 1, 1]


@story(10)
def test_a_held_record_waits_and_its_way_begins_with_its_first_delivery(archive: Archive) -> Story:
    """Then it is done or skipped at its first delivery, or retried like any other. Nothing is missing.

    Who was done then has not recovered: it never failed, though workers counted it with those that left a trace.
    """
    for offset in (1, 2, 3, 4):
        archive.held(offset)
    archive.succeeded(2, 1, lateness_ms=0)
    archive.failed(3, 1)
    archive.skipped(4, 1, why="old")
    archive.counted(0, 10, ok=5, failed=1, held=4, received=10)
    tables = yield
    assert tables.ways == {
        1: "held",
        2: "done: 1 +0 succeeded",
        3: "pending: 1 retried",
        4: "skipped old: 1 skipped",
    }
    assert tables.counted == ["received 10, failed 5, done 7, first_try_ok 6, skipped 1, pending 1, held 1, lost 1"]
    (cost,) = figures.cost(tables.sums, ())
    assert (cost["records"], cost["recovered"]) == (1, 0)


@story(12)
def test_what_became_of_dead_letters_is_in_their_marks(archive: Archive) -> Story:
    """Replayed and done again, or dead again; set aside, or taken back; the last mark of a letter counts. None is one.

    Where retention took a letter, or what followed it, before it was archived, its marks say what they can.
    """
    for offset in (1, 2, 3, 4, 5):
        archive.failed(offset, 1, reason="exhausted")
    for offset in (1, 2):
        archive.marked(offset, 1, "replayed", replays=1)
        archive.failed(offset, 0, delivery=2, replays=1, replay_id="r", tier="replay", due_at_ms=NOON_MS + 10)
    archive.succeeded(1, 1, delivery=3, replays=1, started_ms=NOON_MS + 10)
    archive.marked(1, 3, "recovered", replays=1)
    archive.failed(2, 1, delivery=3, replays=1, reason="exhausted", started_ms=NOON_MS + 10)
    for kind in ("discarded", "restored", "discarded"):
        archive.marked(3, 1, kind)
    for kind in ("discarded", "restored"):
        archive.marked(4, 1, kind)
    archive.marked(5, 1, "replayed", replays=1)
    archive.marked(5, 3, "recovered", replays=1)
    archive.marked(6, 2, "replayed", replays=1)
    archive.marked(7, 1, "restored")
    archive.failed(8, 2, delivery=3, reason="exhausted")
    archive.marked(8, 3, "replayed", replays=1)
    for offset, kind in enumerate(("handled", "failed", "skipped"), 9):
        archive.failed(offset, 1, reason="exhausted")
        archive.marked(offset, 1, kind)
    archive.counted(0, 12, ok=1, failed=11)
    tables = yield
    assert tables.ways == {
        1: "done, 1 replays: 1 dead, r1.1/3 replay +7 succeeded",
        2: "dead exhausted, 1 replays: 1 dead, r1.1/3 replay +0 dead",
        3: "discarded exhausted: 1 dead",
        4: "dead exhausted: 1 dead",
        5: "done, 1 replays, 1 missing: 1 dead",
        6: "pending, 1 replays, 1 missing",
        7: "dead",
        8: "pending, 1 replays, 2 missing: 2/3 dead",
        **dict.fromkeys((9, 10, 11), "dead exhausted: 1 dead"),
    }
    assert tables.counted == [
        "received 12, failed 11, done 3, first_try_ok 1, recovered 2, pending 2, dead 6, discarded 1"
    ]
    assert [tables.by_offset[offset]["last_attempt"] for offset in (5, 6, 8)] == [None, 0, 0]
    assert {row["key_hash"] for row in tables.rows} == {None}, "the key of a mark is no record's"
    funnel = figures.funnel(tables.sums)
    assert [(row["replayed"], row["attempt"], row["waiting"]) for row in funnel if row["waiting"]] == [(True, 1, 2)]
    dlq = f"{tables.group}.{MAIN}.dlq"
    letters = retention(tables.journeys, {dlq: 10**12}, {dlq: "id-dlq"}, now_ms=NOON_MS)
    assert [row["dead"] for row in letters] == [6]
    assert [each.name for each in checks.of_journeys(tables.journeys)[0] if each.is_error and each.failures] == []


@story(9)
def test_what_could_not_be_read_is_dead_behind_all_that_failed(archive: Archive) -> Story:
    """The numbers of its letter are a guess, and it spent no attempt; marks of an earlier letter are not this one's."""
    damaged = {"reason": "damaged", "error_type": "DamagedRowError", "fingerprint": "damaged"}
    archive.failed(4, 3, reason="exhausted")
    archive.marked(4, 3, "replayed", replays=1)
    archive.failed(4, 0, delivery=4, replays=1, replay_id="r", tier="replay", due_at_ms=NOON_MS + 10)
    archive.held(6)
    for offset in (1, 2, 3):
        archive.failed(offset, 1, tier="1m")
        archive.failed(offset, 2, tier="5m", started_ms=NOON_MS + 60_002)
    for offset in (1, 2, 3, 4, 5, 6):
        archive.failed(offset, 1, **damaged)
    archive.failed(7, 3)
    archive.discarded(7, 1, reason="damaged")
    for offset, kinds in (2, ("discarded",)), (3, ("discarded", "restored")):
        for kind in kinds:
            archive.marked(offset, 1, kind)
    tables = yield
    twice = "1 retried, 2 1m +2 retried, -/3 dead"
    assert tables.ways == {
        1: f"dead damaged: {twice}",
        2: f"discarded damaged: {twice}",
        3: f"dead damaged: {twice}",
        4: "dead damaged, 2 missing: 3 dead, -/5 dead",
        5: "dead damaged: 1 dead",
        6: "dead damaged: -/1 dead",
        7: "discarded damaged, 2 missing: 3 retried, -/4 dead",
    }
    assert {(row["due_at_ms"], row["tier"]) for row in tables.rows} == {(None, None)}
    assert [attempt["fingerprint"] for attempt in tables.by_offset[1]["attempts"]] == ["f1", "f1", "damaged"]
    assert tables.rollup.where("fingerprint = 'damaged'").agg({"dead": "sum", "attempts": "sum"}).first() == (6, 6)


@story(50)
def test_a_replay_starts_attempts_anew(archive: Archive) -> Story:
    """Its record on the retry topic is no attempt; clocks that went back change no order.

    One that waits is not among those that wait for a first delivery.
    """
    archive.failed(1, 1, reason="exhausted", started_ms=NOON_MS + 900_000)
    archive.failed(1, 0, delivery=2, replays=1, replay_id="r", due_at_ms=NOON_MS + 10, tier="replay")
    archive.failed(1, 1, delivery=3, replays=1, replay_id="r", started_ms=NOON_MS + 30)
    archive.succeeded(1, 2, delivery=4, replays=1, started_ms=NOON_MS + 70_000)
    archive.failed(2, 1, reason="exhausted")
    archive.failed(2, 0, delivery=2, replays=1, replay_id="r", due_at_ms=NOON_MS + 10, tier="replay")
    tables = yield
    assert tables.ways == {
        1: "done, 1 replays: 1 dead, r1.1/3 replay +20 retried, r1.2/4 1m +7 succeeded",
        2: "pending, 1 replays: 1 dead",
    }
    assert tables.by_offset[2]["last_attempt"] == 0
    names = ("replayed", "attempt", "tier", "succeeded", "retried", "dead", "waiting")
    assert [tuple(row[name] for name in names) for row in figures.funnel(tables.sums)] == [
        (False, 1, None, 0, 0, 2, 0),
        (True, 1, "replay", 0, 1, 0, 1),
        (True, 2, "1m", 1, 0, 0, 0),
    ]


@story(3)
def test_deliveries_that_spend_no_attempt_are_in_order(archive: Archive) -> Story:
    """Their own number orders them. A missing one is counted, and so is one that is there twice.

    None of them is its attempt once more; a first delivery that failed so is one that failed.
    """
    archive.failed(2, 0, delivery=1, tier="1s")
    archive.succeeded(2, 1, delivery=2)
    archive.succeeded(1, 2, delivery=5, lateness_ms=9)
    archive.failed(1, 1, delivery=3, started_ms=NOON_MS + 60_003, due_at_ms=NOON_MS + 60_500, tier="1s")
    archive.failed(1, 1, delivery=2, started_ms=NOON_MS + 60_002)
    archive.failed(1, 1, delivery=2, started_ms=NOON_MS + 60_002)
    archive.failed(1, 1)
    tables = yield
    assert tables.ways == {
        1: "done, 1 missing, 1 copies: 1 retried, -/2 1m +2 retried, -/3 1m +3 retried, 2/5 +9 succeeded",
        2: "done: -/1 retried, 1/2 1s +7 succeeded",
    }
    shown = [(row["attempt"], row["entered"], row["retried"]) for row in figures.funnel(tables.sums)]
    assert shown == [(1, 1, 1), (1, 1, 0), (2, 1, 0)]
    first = {row["fingerprint"]: row["records"] for row in by_interval(tables.rollup, ["f1"]) if row["is_first"]}
    assert first == {"f1": 2}


@story(10, 11)
def test_the_cut_leaves_out_what_lies_behind_it(archive: Archive) -> Story:
    """By partition; of a former life of the main topic all stays; of partitions that had no offset nothing."""
    for partition in (0, 1, 2):
        archive.failed(9, 1, partition=partition)
        archive.failed(10, 1, partition=partition)
    archive.failed(99, 1, topic_id="earlier1")
    rows = (yield).rows
    places = sorted((row["topic_id"], row["partition"], row["offset"]) for row in rows)
    assert places == [("earlier1", 0, 99), (TOPIC_ID, 0, 9), (TOPIC_ID, 1, 9), (TOPIC_ID, 1, 10)]


@story(14)
def test_what_is_superseded_skipped_or_discarded_has_a_fate_of_its_own(archive: Archive) -> Story:
    """While it waits, as it fails, or undelivered; a letter that failed is dead. Workers count them where they failed.

    What is skipped at once, or as a duplicate, is in the counts only. That a record had failed its delivery says as
    well, where retention took the record of that.
    """
    archive.failed(1, 1)
    archive.superseded(1, 1)
    archive.failed(2, 1)
    archive.superseded(2, 2)
    archive.superseded(3, 0)
    archive.failed(4, 1)
    archive.skipped(4, 2, why="old")
    archive.skipped(5, 1, why="old")
    archive.skipped(6, 0, first_offset=1)
    archive.skipped(7, 2, why="old")
    archive.failed(8, 1)
    archive.discarded(8, 2)
    archive.discarded(9, 1)
    archive.discarded(10, 1, kind="failed")
    archive.counted(0, 14, ok=4, failed=8, skipped=2, received=14)
    tables = yield
    assert tables.ways == {
        1: "superseded: 1 retried",
        2: "superseded: 1 retried, 2 1m superseded",
        3: "superseded",
        4: "skipped old: 1 retried, 2 1m skipped",
        7: "skipped old, 1 missing: 2 skipped",
        8: "discarded exhausted: 1 retried, 2 1m +10000 dead",
        9: "discarded exhausted: 1 dead",
        10: "dead exhausted: 1 dead",
    }
    assert tables.counted == [
        "received 14, failed 8, done 8, first_try_ok 4, skipped 4, superseded 3, dead 1, discarded 2"
    ]
    assert {row["due_at_ms"] for row in tables.rows} == {None}
    assert tables.by_offset[4]["ended_ms"] == NOON_MS + 70_000
    names = ("error_type", "fingerprint", "policy", "origin_timestamp_ms")
    discarded = [tables.by_offset[offset] for offset in (8, 9, 10)]
    assert {tuple(row[name] for name in names) for row in discarded} == {("OSError", "f2", "p2", NOON_MS - 5)}
    assert [attempt["error_message"] for attempt in discarded[0]["attempts"]] == ["no", "away"]
    assert discarded[0]["first_failed_ms"] == NOON_MS + 100
    assert tables.rollup.where("fingerprint = 'f2'").agg({"dead": "sum", "records": "sum"}).first() == (3, 3)
    dlq = f"{tables.group}.{MAIN}.dlq"
    letters = retention(tables.journeys, {dlq: 1}, {dlq: "id-dlq"}, now_ms=NOON_MS)
    assert letters == [], "no letter of these will be forgotten"
