"""Journeys of small hand-made histories: order, tiers, lateness, fates, the cut."""

from __future__ import annotations

import json
from typing import Any

from lives import MAIN, MINUTE_MS, NOON_MS, TOPIC_ID, Archive
from stories import Story, story

from retryapp.pipeline.analysis import checks, figures
from retryapp.pipeline.analysis.counts import retention
from retryapp.pipeline.analysis.outages import by_interval


def tried(journey: Any, *names: str) -> list[tuple[Any, ...]]:
    """Return columns of all attempts."""
    return [tuple(attempt[name] for name in names) for attempt in journey["attempts"]]


@story(50)
def test_a_recovered_record_with_all_its_attempts(archive: Archive) -> Story:
    """Start, end, tier and lateness of each; the wait is told by the record before it."""
    archive.succeeded(5, 3, started_ms=NOON_MS + 500_000, lateness_ms=42)  # arrives in the table before its failures
    archive.failed(5, 2, started_ms=NOON_MS + 60_010, tier="5m", due_at_ms=NOON_MS + 400_000, key="k")
    archive.failed(5, 1, key="k")
    (journey,) = (yield).rows
    assert (journey["fate"], journey["reason"], journey["due_at_ms"], journey["tier"]) == ("done", None, None, None)
    assert (journey["partition"], journey["offset"], journey["topic_id"]) == (0, 5, TOPIC_ID)
    assert (journey["key_hash"], journey["origin_timestamp_ms"], journey["policy"]) == ("k", NOON_MS - 5, "p1")
    assert tried(journey, "attempt", "started_ms", "ended_ms", "tier", "lateness_ms", "outcome") == [
        (1, NOON_MS, NOON_MS + 100, None, None, "retried"),
        (2, NOON_MS + 60_010, NOON_MS + 60_110, "1m", 10, "retried"),
        (3, NOON_MS + 500_000, NOON_MS + 500_050, "5m", 42, "succeeded"),
    ]
    assert (journey["missing"], journey["copies"], journey["last_attempt"]) == (0, 0, 3)
    assert (journey["first_failed_ms"], journey["ended_ms"]) == (NOON_MS + 100, NOON_MS + 500_050)
    assert (journey["error_type"], journey["fingerprint"]) == ("ValueError", "f1")


@story(50)
def test_fates_and_what_is_missing(archive: Archive) -> Story:
    """Pending with its due time, dead with its reason; attempts that nobody archived are counted, copies too."""
    archive.failed(1, 1)
    archive.failed(2, 1)
    archive.failed(2, 4, reason="exhausted", error_type="TimeoutError")
    archive.failed(3, 1)
    archive.failed(3, 1)
    archive.failed(4, 1, reason="non-retryable")
    journeys = (yield).by_offset
    pending, dead, twice, at_once = (journeys[offset] for offset in (1, 2, 3, 4))
    assert (pending["fate"], pending["due_at_ms"], pending["tier"]) == ("pending", NOON_MS + MINUTE_MS, "1m")
    assert (dead["fate"], dead["reason"], dead["missing"], dead["error_type"]) == (
        "dead",
        "exhausted",
        2,
        "TimeoutError",
    )
    assert tried(dead, "attempt", "tier", "lateness_ms") == [(1, None, None), (4, None, None)]
    assert (twice["copies"], len(twice["attempts"])) == (1, 1)
    assert (at_once["fate"], at_once["last_attempt"], at_once["missing"]) == ("dead", 1, 0)
    assert pending["copies"] == 0


@story(10)
def test_a_held_record_waits_and_its_way_begins_with_its_first_delivery(archive: Archive) -> Story:
    """Then it is done or skipped at its first delivery, or retried like any other. Nothing is missing.

    Who was done then has not recovered: it never failed, though workers counted it with those that left a trace.
    """
    for offset in (1, 2, 3, 4):
        archive.held(offset)
    archive.succeeded(2, 1, lateness_ms=0)
    archive.failed(3, 1)
    archive.skipped(4, 1)
    archive.counted(0, 10, ok=5, failed=1, held=4, received=10)
    tables = yield
    journeys = [tables.by_offset[offset] for offset in (1, 2, 3, 4)]
    assert [each["fate"] for each in journeys] == ["held", "done", "pending", "skipped"]
    assert [tried(each, "attempt", "tier", "outcome") for each in journeys] == [
        [],
        [(1, None, "succeeded")],
        [(1, None, "retried")],
        [(1, None, "skipped")],
    ]
    assert [each["missing"] for each in journeys] == [0, 0, 0, 0]
    sums = ("received", "done", "first_try_ok", "recovered", "skipped", "held", "pending", "lost", "extra")
    assert tables.counted(*sums) == [10, 7, 6, 0, 1, 1, 1, 1, 0]
    (cost,) = figures.cost(tables.ways, ())
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
    journeys = tables.by_offset
    assert {offset: row["fate"] for offset, row in journeys.items()} == {
        1: "done", 2: "dead", 3: "discarded", 4: "dead", 5: "done", 6: "pending", 7: "dead",
        8: "pending", 9: "dead", 10: "dead", 11: "dead",
    }  # fmt: skip
    assert [(journeys[n]["reason"], journeys[n]["replays"], journeys[n]["copies"]) for n in (1, 2, 3)] == [
        (None, 1, 0),
        ("exhausted", 1, 0),
        ("exhausted", 0, 0),
    ]
    assert tried(journeys[1], "delivery", "replays", "attempt", "outcome") == [
        (1, 0, 1, "dead"),
        (3, 1, 1, "succeeded"),
    ]
    sums = ("received", "first_try_ok", "recovered", "pending", "dead", "discarded", "lost", "extra")
    assert tables.counted(*sums) == [12, 1, 2, 2, 6, 1, 0, 0]
    names = ("replays", "last_attempt", "reason")
    assert [[journeys[offset][name] for name in names] for offset in (6, 8)] == [[1, 0, None]] * 2
    assert [journeys[5][name] for name in names] == [1, None, None]
    assert {row["key_hash"] for row in journeys.values()} == {None}, "the key of a mark is no record's"
    funnel = figures.funnel(tables.ways)
    assert [(row["replayed"], row["attempt"], row["waiting"]) for row in funnel if row["waiting"]] == [(True, 1, 2)]
    dlq = f"{tables.group}.{MAIN}.dlq"
    letters = retention(tables.journeys, {dlq: 10**12}, {dlq: "id-dlq"}, now_ms=NOON_MS)
    assert [row["dead"] for row in letters] == [6]
    assert [each.name for each in checks.of_journeys(tables.journeys)[0] if each.is_error and each.failures] == []


@story(50)
def test_a_cancelled_record_was_not_tried_again(archive: Archive) -> Story:
    """Its dead letter takes a delivery's number, and none of an attempt; held, it was never tried, and has a cause."""
    archive.failed(1, 2)
    archive.failed(1, 2, delivery=3, reason="cancelled")
    archive.held(2)
    archive.failed(2, 0, delivery=1, reason="cancelled", error_type="cancelled", error_message="", fingerprint="-")
    tables = yield
    journeys = [tables.by_offset[offset] for offset in (1, 2)]
    assert [(each["fate"], each["reason"], len(each["attempts"])) for each in journeys] == [
        ("dead", "cancelled", 1),
        ("dead", "cancelled", 0),
    ]
    names = ("fingerprint", "reason", "error_type", "failures", "records", "dead", "letters", "last_seen_ms")
    assert [tuple(row[name] for name in names) for row in tables.causes] == [
        ("f1", "cancelled", "ValueError", 1, 1, 1, 1, NOON_MS + 100),
        ("-", "cancelled", "cancelled", 0, 1, 1, 1, NOON_MS + 100),
    ]
    assert tables.causes[1]["examples"][0]["failure_id"].endswith("/0/2")


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
    journeys = tables.by_offset
    assert {offset: row["fate"] for offset, row in journeys.items()} == {
        1: "dead", 2: "discarded", 3: "dead", 4: "dead", 5: "dead", 6: "dead", 7: "discarded",
    }  # fmt: skip
    assert {row["reason"] for row in journeys.values()} == {"damaged"}
    assert {(row["due_at_ms"], row["tier"], row["copies"]) for row in journeys.values()} == {(None, None, 0)}
    assert [journeys[n]["missing"] for n in (1, 2, 3, 5, 6)] == [0, 0, 0, 0, 0]
    for offset in (1, 2):
        assert tried(journeys[offset], "delivery", "attempt", "tier", "lateness_ms", "outcome", "fingerprint") == [
            (1, 1, None, None, "retried", "f1"),
            (2, 2, "1m", 2, "retried", "f1"),
            (3, None, None, None, "dead", "damaged"),
        ]
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
    done, again = (tables.by_offset[offset] for offset in (1, 2))
    assert tried(done, "delivery", "replays", "attempt", "lateness_ms", "outcome") == [
        (1, 0, 1, None, "dead"),
        (3, 1, 1, 20, "retried"),
        (4, 1, 2, 7, "succeeded"),
    ]
    assert (done["fate"], done["replays"], done["missing"]) == ("done", 1, 0)
    assert (again["fate"], again["last_attempt"], len(again["attempts"])) == ("pending", 0, 1)
    names = ("replayed", "attempt", "tier", "succeeded", "retried", "dead", "waiting")
    assert [tuple(row[name] for name in names) for row in figures.funnel(tables.ways)] == [
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
    journey, at_once = (tables.by_offset[offset] for offset in (1, 2))
    assert tried(at_once, "delivery", "attempt", "outcome") == [(1, None, "retried"), (2, 1, "succeeded")]
    assert tried(journey, "delivery", "attempt", "tier", "lateness_ms", "outcome") == [
        (1, 1, None, None, "retried"),
        (2, None, "1m", 2, "retried"),
        (3, None, "1m", 3, "retried"),
        (5, 2, None, 9, "succeeded"),
    ]
    assert (journey["fate"], journey["last_attempt"], journey["missing"], journey["copies"]) == ("done", 2, 1, 1)
    shown = [(row["attempt"], row["entered"], row["retried"]) for row in figures.funnel(tables.ways)]
    assert shown == [(1, 1, 1), (1, 1, 0), (2, 1, 0)]
    first = {row["fingerprint"]: row["records"] for row in by_interval(tables.rollup, ["f1"]) if row["is_first"]}
    assert first == {"f1": 2}


@story(50)
def test_a_dead_letter_for_an_attempt_that_was_told_is_no_further_attempt(archive: Archive) -> Story:
    """A record that ends its workers dies with the number of the attempt that had failed before."""
    archive.failed(1, 1)
    archive.failed(1, 1, reason="crashed", error_type="Crashed")
    (journey,) = (yield).rows
    assert (journey["fate"], journey["reason"], journey["error_type"]) == ("dead", "crashed", "Crashed")
    assert tried(journey, "attempt", "outcome", "error_type") == [(1, "retried", "ValueError")]


@story(10, 11)
def test_the_cut_leaves_out_what_lies_behind_it(archive: Archive) -> Story:
    """By partition; of a former life of the main topic all stays; of partitions that had no offset nothing."""
    for partition in (0, 1, 2):
        archive.failed(9, 1, partition=partition)
        archive.failed(10, 1, partition=partition)
    archive.failed(99, 1, topic_id="earlier1")
    assert (yield).names == [
        "earlier1/0/99",
        f"{TOPIC_ID}/0/9",
        f"{TOPIC_ID}/1/10",
        f"{TOPIC_ID}/1/9",
    ]


@story(50)
def test_what_cannot_be_read_is_no_journey(archive: Archive) -> Story:
    """It is in the quarantine column, and counted by a check; an event may name an origin that is none."""
    for origin in ("nonsense", "orders@id/1", "orders@id/one/2", "orders@id/99999999999/2", "", "@//"):
        archive.succeeded(7, 2)
        event = json.loads(archive.rows[-1]["value"])
        archive.rows[-1]["value"] = json.dumps(event | {"origin": origin}).encode()
    archive.add("dlq", 0)
    archive.counted(0, 5, ok=5, failed=0)
    archive.failed(1, 1)
    assert len((yield).rows) == 1


@story(6)
def test_superseded_records_have_a_fate_of_their_own(archive: Archive) -> Story:
    """While they waited, as they failed, or undelivered; workers count all of them as failed."""
    archive.failed(1, 1)
    archive.superseded(1, 1)
    archive.failed(2, 1)
    archive.superseded(2, 2)
    archive.superseded(3, 0)
    archive.counted(0, 6, ok=3, failed=3)
    tables = yield
    journeys = [tables.by_offset[offset] for offset in (1, 2, 3)]
    assert [(journey["fate"], journey["missing"], journey["due_at_ms"]) for journey in journeys] == [
        ("superseded", 0, None)
    ] * 3
    assert [tried(journey, "outcome") for journey in journeys] == [[("retried",)], [("retried",), ("superseded",)], []]
    sums = ("received", "done", "failed", "superseded", "pending", "dead", "lost", "extra")
    assert tables.counted(*sums) == [6, 3, 3, 3, 0, 0, 0, 0]


@story(7)
def test_a_record_may_be_skipped_after_a_failure(archive: Archive) -> Story:
    """It has a fate of its own, and is counted where it failed; one that was skipped at once is in the counts only.

    That it had failed its delivery says as well, where retention took the record of that.
    """
    archive.failed(1, 1, tier="1m")
    archive.skipped(1, 2, why="old")
    archive.skipped(2, 1, why="old")
    archive.skipped(3, 0, first_offset=1)
    archive.skipped(4, 2, why="old")
    archive.counted(0, 7, ok=3, failed=2, skipped=2, received=7)
    tables = yield
    journey, late = (tables.by_offset[offset] for offset in (1, 4))
    assert (journey["fate"], journey["reason"], journey["missing"]) == ("skipped", "old", 0)
    assert (late["fate"], late["missing"]) == ("skipped", 1)
    assert tried(journey, "attempt", "outcome", "ended_ms", "tier") == [
        (1, "retried", NOON_MS + 100, None),
        (2, "skipped", NOON_MS + 70_000, "1m"),
    ]
    sums = ("received", "done", "first_try_ok", "skipped", "recovered", "pending", "dead", "lost", "extra")
    assert tables.counted(*sums) == [7, 7, 3, 4, 0, 0, 0, 0, 0]


@story(6)
def test_what_is_discarded_has_a_fate_of_its_own_and_a_letter_that_failed_is_dead(archive: Archive) -> Story:
    """Both have a reason and a cause; at the first delivery as after others."""
    archive.failed(1, 1, tier="1m")
    archive.discarded(1, 2)
    archive.discarded(2, 1)
    archive.discarded(3, 1, kind="failed")
    archive.counted(0, 6, ok=3, failed=3)
    tables = yield
    journeys = tables.by_offset
    assert {offset: row["fate"] for offset, row in journeys.items()} == {1: "discarded", 2: "discarded", 3: "dead"}
    assert {(row["reason"], row["error_type"], row["fingerprint"], row["policy"]) for row in tables.rows} == {
        ("exhausted", "OSError", "f2", "p2")
    }
    twice = journeys[1]
    assert tried(twice, "attempt", "outcome", "tier", "error_message") == [
        (1, "retried", None, "no"),
        (2, "dead", "1m", "away"),
    ]
    assert (twice["missing"], twice["origin_timestamp_ms"], twice["first_failed_ms"]) == (
        0, NOON_MS - 5, NOON_MS + 100,
    )  # fmt: skip
    sums = ("received", "done", "first_try_ok", "recovered", "pending", "dead", "discarded", "lost", "extra")
    assert tables.counted(*sums) == [6, 3, 3, 0, 0, 1, 2, 0, 0]
    summed = tables.rollup.where("fingerprint = 'f2'").agg({"dead": "sum", "records": "sum"})
    assert summed.first() == (3, 3)
    dlq = f"{tables.group}.{MAIN}.dlq"
    letters = retention(tables.journeys, {dlq: 1}, {dlq: "id-dlq"}, now_ms=NOON_MS)
    assert letters == [], "no letter of these will be forgotten"
