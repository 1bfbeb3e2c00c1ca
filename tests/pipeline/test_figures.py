"""What small histories come to: funnel, lateness, cost, causes, outages, offenders, ledger, retention, checks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from lives import MAIN, MINUTE_MS, NOON_MS, TOPIC_ID, Archive
from pages import facts
from pyspark.sql import functions as F
from stories import Story, story

from retryapp.pipeline.analysis import causes, checks, counts, figures
from retryapp.pipeline.analysis.outages import by_interval, outages
from retryapp.pipeline.analysis.rollup import HOUR_MS


def told(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def mixed(archive: Archive) -> None:
    """Ten records received, six fine at once; one recovers at 2, one at 3, one is dead, one waits for 3."""
    archive.counted(0, 14, ok=6, failed=4)
    archive.failed(1, 1, key="a", fingerprint="f1")
    archive.succeeded(1, 2, lateness_ms=100, started_ms=NOON_MS + 61_000)
    archive.failed(2, 1, key="a", fingerprint="f2", error_type="TimeoutError")
    archive.failed(2, 2, key="a", fingerprint="f1", started_ms=NOON_MS + MINUTE_MS + 50, tier="5m")
    archive.succeeded(2, 3, lateness_ms=300, started_ms=NOON_MS + 361_000)
    archive.failed(3, 1, key="b", reason="non-retryable", fingerprint="f3", error_message="bad order")
    archive.failed(4, 1, key="c")
    archive.failed(4, 2, key="c", tier="5m", started_ms=NOON_MS + MINUTE_MS + 70, error_message="still no")


@story(20)
def test_funnel_lateness_and_cost(archive: Archive) -> Story:
    """First tries are the funnel's base, from the workers' counts: 14 offsets, 10 records. The cost is a lower bound.

    A window has no share of what began before it: 500 % of what began since would be nonsense.
    """
    mixed(archive)
    tables = yield
    names = ("attempt", "tier", "entered", "succeeded", "retried", "dead", "waiting", "share", "cumulative")
    assert told(figures.funnel(tables.sums), *names) == [
        (1, None, 10, 6, 3, 1, 0, 0.6, 0.6),
        (2, "1m", 3, 1, 2, 0, 0, pytest.approx(1 / 3), 0.7),
        (3, "5m", 1, 1, 0, 0, 1, 1.0, 0.8),
    ]
    later = figures.ways(tables.rollup.where(F.col("bin_ms") > NOON_MS))
    found = figures.funnel(later, is_window=True)
    assert {row["cumulative"] for row in found} == {None}
    assert [row["share"] for row in found if row["attempt"] == 3] == [1.0]
    names = ("tier", "attempts", "p50_ms", "p99_ms", "max_ms", "early")
    assert told(figures.lateness(tables.delays), *names) == [
        (None, 4, 70, 300, 300, 0),
        ("1m", 3, 70, 100, 100, 0),
        ("5m", 1, 300, 300, 300, 0),
    ]
    names = ("records", "recovered", "dead", "attempts", "handler_ms", "attempts_on_dead", "attempts_per_recovered")
    assert told(figures.cost(tables.sums, tables.delays), *names, "wait_p50_ms", "wait_p90_ms") == [
        (4, 2, 1, 8, 700, 1, 4.0, pytest.approx(60_950, rel=0.01), pytest.approx(360_950, rel=0.01))
    ]


@story(20)
def test_causes_their_course_and_keys_that_fail_again(archive: Archive) -> Story:
    """A record counts for each cause it met; dead and pending go to its last one. Of keys two records are needed.

    In the course, what is not named is together, and a window leaves out what ended before it.
    """
    mixed(archive)
    tables = yield
    names = ("fingerprint", "error_type", "failures", "records", "dead", "pending", "recovered")
    assert told(tables.causes, *names) == [
        ("f3", "ValueError", 1, 1, 1, 0, 0),
        ("f1", "ValueError", 4, 3, 0, 1, 2),
        ("f2", "TimeoutError", 1, 1, 0, 0, 1),
    ]
    first, second, _ = tables.causes
    assert second["examples"][0]["message"] == "still no", "of its last delivery"
    assert (first["first_seen_ms"], first["last_seen_ms"]) == (NOON_MS + 100, NOON_MS + 100)
    assert [tuple(e.values()) for e in first["examples"]] == [(f"{tables.group}/{MAIN}@{TOPIC_ID}/0/3", "bad order")]
    again, names = causes.offenders(tables.journeys), ("key_hash", "records", "failures", "dead", "pending", "example")
    assert told(again["rows"], *names) == [("a", 2, 3, 0, 0, f"{tables.group}/{MAIN}@{TOPIC_ID}/0/2")]
    assert (again["keys"], again["deadly"]) == (1, 0)
    attempts, names = by_interval(tables.rollup, ["f1", "f2"]), ("from_ms", "length_ms", "fingerprint", "failures")
    assert told(causes.timeline(attempts, ["f1"], bin_ms=1_000), *names) == [
        (NOON_MS, 1_000, None, 2),
        (NOON_MS, 1_000, "f1", 2),
        (NOON_MS + MINUTE_MS, 1_000, "f1", 2),
    ]
    later = causes.timeline(attempts, [], bin_ms=1_000, begin_ms=NOON_MS + MINUTE_MS)
    assert told(later, *names) == [(NOON_MS + MINUTE_MS, 1_000, None, 2)]
    firsts = Counter[str | None]()
    for row in attempts:
        firsts[row["fingerprint"]] += row["records"] if row["is_first"] else 0
    assert firsts == {None: 6, "f1": 2, "f2": 1, "others": 1}


@story(1_200)
def test_a_backlog_is_no_outage(archive: Archive) -> Story:
    """What failed in it is close together, and so are its successes: offsets say so, as counts of a minute do not.

    So a short outage has its edges. A failure that was held before, or is of another clock, moves no success.
    """
    begins_ms = [
        *(100 * number for number in range(300)),  # ten a second, of which a fifth fails
        *(40_000 + 20 * number for number in range(150)),  # after a silence of ten seconds: those of 15 seconds at once
        *(43_000 + 100 * number for number in range(750)),
    ]
    down = range(720, 819)  # and ten seconds of an outage
    for offset, begin_ms in enumerate(begins_ms):
        if offset % 5 == 0 or offset in down:
            odd_ms = {50: 55_000, 100: -HOUR_MS}.get(offset, begin_ms)
            archive.failed(offset, 1, started_ms=NOON_MS + odd_ms)
    for first, end in pairwise((0, 470, 1_070, 1_200)):
        failed = sum(offset % 5 == 0 or offset in down for offset in range(first, end))
        times = {"from_ms": NOON_MS + begins_ms[first], "to_ms": NOON_MS + begins_ms[end - 1]}
        archive.counted(first, end, ok=end - first - failed, failed=failed, **times)
    tables = yield
    firsts = [row for row in by_interval(tables.rollup, []) if row["bin_ms"] >= NOON_MS]
    assert sum(row["records"] for row in firsts if row["fingerprint"] is None) == 1_200 - 240 - 79
    (found,) = outages(firsts, bin_ms=1_000, until_ms=NOON_MS + 2 * MINUTE_MS)
    assert (found["from_ms"] - NOON_MS, found["to_ms"] - NOON_MS) == (begins_ms[720] + 100, begins_ms[818] + 100)
    assert (found["records"], found["share"]) == (99, pytest.approx(1.0, abs=0.05))


@story(40)
def test_successes_at_first_try_are_those_of_the_ranges(archive: Archive) -> Story:
    """All of them once, whatever the ranges are: equal, overlapping, without a length in time, backwards."""
    for offset in (2, 7, 14, 22, 25, 31):
        archive.failed(offset, 1, started_ms=NOON_MS + 100 * offset)
    ranges = [(0, 5, 4), (1, 10, 7), (1, 10, 7), (5, 20, 11), (5, 12, 6), (20, 30, 8), (30, 31, 1), (30, 40, 9)]
    for first, end, ok in ranges:
        times = {"from_ms": NOON_MS + 100 * first, "to_ms": NOON_MS + (-5 if first == 30 else 100 * end)}
        archive.counted(first, end, ok=ok, failed=end - first - ok, **times)
    tables = yield
    firsts = by_interval(tables.rollup, [])
    assert sum(row["records"] for row in firsts if row["fingerprint"] is None) == sum(ok for *_, ok in ranges)


def test_a_policy_without_an_end_takes_no_hours() -> None:
    """One record may be tried thousands of times."""
    way = {"group": "billing", "main": MAIN, "replayed": False, "tier": "10s", "outcome": "retried", "attempts": 1}
    found = figures.funnel({**way, "attempt": number, "next_attempt": None} for number in range(1, 30_001))
    assert [(row["attempt"], row["retried"], row["cumulative"]) for row in (found[0], found[-1])] == [
        (1, 1, 0.0),
        (30_000, 1, 0.0),
    ]


@story(20)
def test_dead_letters_of_one_failure_are_causes_by_reason(archive: Archive) -> Story:
    """Apart from each other and from what is not dead; the name is the template, the examples are of that reason.

    The example of their key is dead, as the page shows its dead letter: what failed last may have been settled since.
    """
    answer = '503: {"error": "busy"} after %d s'
    for offset, reason in enumerate(("exhausted", "expired", "exhausted", None)):
        archive.failed(offset, 1, fingerprint="down", error_message=answer % offset)
        later_ms = NOON_MS + 2_000 * offset
        facts = {"reason": reason, "error_message": answer % (10 * offset), "started_ms": later_ms}
        archive.failed(offset, 2, fingerprint="down", key="d", **facts)
    archive.succeeded(3, 3)
    archive.failed(4, 1, fingerprint="down", error_message="503: gone", started_ms=NOON_MS + 9_000)
    archive.failed(4, 2, fingerprint="other", reason="rejected", error_message="")
    archive.marked(2, 2, "discarded")
    tables = yield
    found = tables.causes
    names = ("fingerprint", "reason", "template", "failures", "records", "dead", "discarded", "pending", "recovered")
    name = "503: <text> after <number> s"
    assert told(found, *names) == [
        ("down", "exhausted", name, 4, 2, 1, 1, 0, 0),
        ("down", "expired", name, 2, 1, 1, 0, 0, 0),
        ("other", "rejected", "", 1, 1, 1, 0, 0, 0),
        ("down", None, "503: gone", 3, 2, 0, 0, 0, 1),  # as of the newest, where one fingerprint has several
    ]
    examples = [[e["failure_id"][-1] for e in row["examples"]] for row in found]
    assert examples == [["0", "2"], ["1"], ["4"], ["4", "3"]], "the discarded one comes last: nothing is there to show"
    (key,) = causes.offenders(tables.journeys)["rows"]
    assert (key["dead"], key["example"][-1], key["last_seen_ms"]) == (2, "1", NOON_MS + 4_100)


@story(20, 7)
def test_the_ledger_balances(archive: Archive) -> Story:
    """Received = done + pending + dead; a range that ends behind the cut is left out, and so is what lies there."""
    mixed(archive)
    archive.counted(14, 40, ok=3, failed=1)
    archive.failed(15, 1)
    archive.failed(25, 1)
    tables = yield
    names = (
        "partition", "from_offset", "to_offset", "from_ms", "to_ms", "cut_offset", "received", "done", "first_try_ok",
        "recovered", "pending", "dead", "lost", "extra", "uncounted",
    )  # fmt: skip
    assert told(tables.ledger, *names) == [
        (0, 0, 14, NOON_MS, NOON_MS + MINUTE_MS, 20, 10, 8, 6, 2, 1 + 1, 1, 0, 0, 1),
        (1, None, None, None, None, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    ]


@story(200, 100, 5)
def test_ranges_that_prove_nothing_are_held_against_no_journey(archive: Archive) -> Story:
    """Of three partitions: what lies beside such a range is judged.

    The first range that is left: its event came after midnight, or was kept by the topic, when copies of what failed in
    it were gone. One that was counted twice: somebody has set the group's offset back, and what failed twice has one
    journey. Ranges of a former life of the main topic.
    """
    archive.counted(100, 150, ok=45, failed=5)
    archive.failed(149, 1)
    archive.counted(150, 200, ok=48, failed=3)
    archive.failed(151, 1)
    archive.failed(152, 1)
    archive.counted(0, 40, ok=39, failed=1, partition=1)
    archive.counted(40, 80, ok=30, failed=10, partition=1)
    for offset in range(55, 65):
        archive.failed(offset, 1, partition=1)
    archive.counted(60, 90, ok=26, failed=4, partition=1)
    archive.counted(0, 50, ok=49, failed=1, partition=2)
    archive.failed(7, 1, topic_id="earlier1", partition=2)
    archive.counted(0, 5, ok=4, failed=1, partition=2)
    archive.failed(2, 1, partition=2)
    assert (yield).counted == [
        "received 51, failed 3, done 48, first_try_ok 48, pending 3, lost 1, uncounted 1",
        "received 110, failed 15, done 95, first_try_ok 95, pending 10, lost 1, overlaps 2",
        "received 5, failed 1, done 4, first_try_ok 4, pending 1",
    ]


def test_what_is_missing_where_offsets_were_lost_is_a_warning() -> None:
    """The loss is an error of its own until it is acknowledged, which would end no other."""
    nothing = {"group": "billing", "main": MAIN, "lost": 0, "extra": 0, "gaps": 0, "overlaps": 0, "partition": 0}
    rows = [{**nothing, "lost": 2}, {**nothing, "partition": 1}]
    for main, partition, is_error in ((MAIN, 0, False), (MAIN, 1, True), (f"{MAIN}.eu", 0, True)):
        loss = {"group": "billing", "main": main, "topic": f"billing.{main}.dlq", "partition": partition}
        verdict, *_ = checks.of_ledger(rows, [loss])
        assert (verdict.failures, verdict.is_error) == (1, is_error)


@story(40)
def test_what_the_checks_find(archive: Archive) -> Story:
    """Each finding with its rows; lost and early ones are errors, holes and copies warnings."""
    mixed(archive)
    archive.counted(16, 18, ok=1, failed=1)  # a hole before it, and of its failed record no trace
    archive.counted(18, 20, ok=2, failed=0)
    archive.counted(19, 21, ok=2, failed=0)  # overlaps
    archive.failed(30, 1)
    archive.failed(30, 2, started_ms=NOON_MS + MINUTE_MS - 1)
    archive.failed(31, 1, reason="unheard-of")
    archive.failed(32, 3)
    archive.failed(33, 1)
    archive.failed(33, 1)
    archive.rows.append({**archive.rows[1]})
    archive.add("dlq", 0)
    for kind in ("succeeded", "progress", "command", "unheard"):
        archive.add("events", 0, value=b'{"v":2,"kind":"%s"}' % kind.encode())
    tables = yield
    assert None not in [row["failure_id"] for row in tables.rows]
    of_readings, of_journeys = checks.of_readings(tables.readings)[0], checks.of_journeys(tables.journeys)[0]
    every = [*of_readings, *of_journeys, *checks.of_ledger(tables.ledger)]
    found = {verdict.name: verdict for verdict in every}
    failing = {name: (verdict.failures, verdict.is_error) for name, verdict in found.items() if verdict.failures}
    assert failing == {
        "records are there once": (1, True),
        "records can be read": (1, False),
        "events are of a known version": (4, False),
        "journeys.reason is known": (1, True),
        "no attempt was early": (1, True),
        "no hand-off is there twice": (2, False),
        "every attempt is archived": (1, False),
        "ledger: what failed has left a trace": (1, True),
        "ledger: workers counted without holes": (1, False),
        "ledger: workers counted nothing twice": (1, False),
    }
    (early,) = found["no attempt was early"].examples
    assert early.endswith("/0/30 2 -1")


@story(50)
def test_dead_letters_at_risk(archive: Archive) -> Story:
    """By topic: what is gone already, within a day, within a week; a topic of this name that is new has none of it."""
    day_ms = 86_400_000
    for offset, age_days in enumerate((31.0, 29.5, 25.0, 1.0)):
        archive.failed(offset, 1, reason="exhausted", arrived_ms=NOON_MS - int(age_days * day_ms))
    archive.failed(9, 1)
    archive.failed(5, 1, reason="exhausted")
    archive.rows[-1]["topic_id"] = "former"  # the topic was deleted and made again since
    tables = yield
    kept_ms = {f"{tables.group}.{MAIN}.dlq": 30 * day_ms, "other": None}
    lives = {f"{tables.group}.{MAIN}.dlq": "id-dlq"}
    found = counts.retention(tables.journeys, kept_ms, lives, now_ms=NOON_MS)
    names = ("was_deleted", "dead", "gone", "within_day", "within_week", "next_loss_ms")
    assert told(found, *names) == [(False, 4, 1, 1, 2, NOON_MS + day_ms // 2), (True, 1, 1, 0, 0, None)]
    found = counts.retention(tables.journeys, {"other": None}, lives, now_ms=NOON_MS)
    assert told(found, *names) == [(True, 5, 5, 0, 0, None)]


@story(7)
def test_the_headline_adds_up(archive: Archive) -> Story:
    """Every record that failed has one fate in it, also of a former life of the main topic, which no ledger counts."""
    for offset in range(4):
        archive.failed(offset, 1, topic_id="earlier1")
        archive.failed(offset, 1)
    archive.failed(4, 1, reason="exhausted", topic_id="earlier1")
    archive.discarded(5, 1)
    archive.superseded(1, 1)
    archive.skipped(2, 2, why="old")
    archive.succeeded(3, 2)
    archive.held(6)
    tables = yield
    shown = facts(cost=figures.cost(tables.sums, ()), ledger=tables.ledger)
    assert shown["headline"] == (
        "10 records failed: 1 recovered, 5 waiting, 1 dead, 1 discarded, 1 superseded, 1 skipped; 1 held"
    )
