"""What small histories come to: funnel, lateness, cost, causes, outages, offenders, ledger, retention, checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lives import GROUP, MAIN, MINUTE_MS, NOON_MS, TOPIC_ID, Archive, cut

from retryapp.pipeline.analysis import causes, checks, counts, figures, schemas
from retryapp.pipeline.analysis.journeys import before_cut, journeys_of, traces_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables:
    """The tables of one history."""

    def __init__(self, spark: SparkSession, archive: Archive, *ends: int) -> None:
        """Make journeys and progress once."""
        self.spark = spark
        self.records = archive.frame(spark)
        self.cut = cut(spark, *ends)
        self.journeys = journeys_of(before_cut(traces_of(self.records), self.cut)).cache()
        self.progress = counts.progress_of(self.records, self.cut).cache()

    def ledger(self) -> DataFrame:
        """Return the ledger."""
        return counts.ledger(self.journeys, self.progress, self.cut)

    def verdicts(self) -> dict[str, checks.Verdict]:
        """Run all checks."""
        from retryapp.pipeline.schemas import GAPS

        gaps = self.spark.createDataFrame([], GAPS)
        ledger = self.ledger().cache()  # as the job, which reads a table
        found = checks.judge(checks.all_checks(self.records, self.journeys, self.progress, ledger, gaps))
        return {verdict.name: verdict for verdict in found}


def rows(frame: DataFrame, schema: Any, *names: str) -> list[tuple[Any, ...]]:
    """Return columns, after a look at all of them."""
    assert frame.schema.simpleString() == schema.simpleString()
    return [tuple(row[name] for name in names) for row in frame.collect()]


def mixed_history() -> Archive:
    """Ten records received, six fine at once; one recovers at 2, one at 3, one is dead, one waits for 3."""
    archive = Archive()
    archive.counted(0, 14, ok=6, failed=4)
    archive.failed(1, 1, key="a", fingerprint="f1")
    archive.succeeded(1, 2, lateness_ms=100, started_ms=NOON_MS + 61_000)
    archive.failed(2, 1, key="a", fingerprint="f2", error_type="TimeoutError")
    archive.failed(2, 2, key="a", fingerprint="f1", started_ms=NOON_MS + MINUTE_MS + 50, tier="5m")
    archive.succeeded(2, 3, lateness_ms=300, started_ms=NOON_MS + 361_000)
    archive.failed(3, 1, key="b", reason="non-retryable", fingerprint="f3", error_message="bad order")
    archive.failed(4, 1, key="c")
    archive.failed(4, 2, key="c", tier="5m", started_ms=NOON_MS + MINUTE_MS + 70, error_message="still no")
    return archive


@pytest.fixture
def mixed() -> Archive:
    """A copy of that history, to be gone on with."""
    return mixed_history()


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    """Its tables as it is, made once."""
    return Tables(spark, mixed_history(), 20)


def test_the_funnel_has_first_tries_as_its_base(tables: Tables) -> None:
    """From the workers' counts, not from offsets: 14 offsets, 10 records."""
    found = figures.funnel(tables.journeys, tables.progress)
    names = ("attempt", "tier", "entered", "succeeded", "retried", "dead", "waiting", "share", "cumulative")
    assert rows(found, schemas.FUNNEL, *names) == [
        (1, None, 10, 6, 3, 1, 0, 0.6, 0.6),
        (2, "1m", 3, 1, 2, 0, 0, pytest.approx(1 / 3), 0.7),
        (3, "5m", 1, 1, 0, 0, 1, 1.0, 0.8),
    ]


def test_lateness_by_tier_and_in_all(tables: Tables) -> None:
    """Of every attempt whose due time is known."""
    names = ("tier", "attempts", "p50_ms", "p99_ms", "max_ms", "early")
    assert rows(figures.lateness(tables.journeys), schemas.LATENESS, *names) == [
        (None, 4, 70, 300, 300, 0),
        ("1m", 3, 70, 100, 100, 0),
        ("5m", 1, 300, 300, 300, 0),
    ]


def test_cost_is_a_lower_bound_by_recovered_record(tables: Tables) -> None:
    """Attempts and handler time of all, divided by those that recovered."""
    names = ("records", "recovered", "dead", "attempts", "handler_ms", "attempts_on_dead", "attempts_per_recovered")
    assert rows(figures.cost(tables.journeys), schemas.COST, *names, "wait_p50_ms", "wait_p90_ms") == [
        (4, 2, 1, 8, 700, 1, 4.0, 60_950, 360_950)
    ]


def test_causes_with_examples(tables: Tables) -> None:
    """A record counts for each cause it met; dead and pending go to its last one."""
    found = causes.causes(tables.journeys)
    names = ("fingerprint", "error_type", "failures", "records", "dead", "pending", "recovered")
    assert rows(found, schemas.CAUSES, *names) == [
        ("f3", "ValueError", 1, 1, 1, 0, 0),
        ("f1", "ValueError", 4, 3, 0, 1, 2),
        ("f2", "TimeoutError", 1, 1, 0, 0, 1),
    ]
    first, second, _ = found.collect()
    assert second["examples"][0]["message"] == "still no", "of its last delivery"
    assert (first["first_seen_ms"], first["last_seen_ms"]) == (NOON_MS + 100, NOON_MS + 100)
    assert [tuple(e) for e in first["examples"]] == [(f"{GROUP}/{MAIN}@{TOPIC_ID}/0/3", "bad order")]


def test_dead_letters_of_one_failure_are_causes_by_reason(spark: SparkSession) -> None:
    """Apart from each other and from what is not dead; the name is the template, the examples are of that reason."""
    archive = Archive()
    answer = '503: {"error": "busy"} after %d s'
    for offset, reason in enumerate(("exhausted", "expired", "exhausted", None)):
        archive.failed(offset, 1, fingerprint="down", error_message=answer % offset)
        archive.failed(offset, 2, fingerprint="down", reason=reason, error_message=answer % (10 * offset))
    archive.succeeded(3, 3)
    archive.failed(4, 1, fingerprint="down", error_message="503: gone")
    archive.failed(4, 2, fingerprint="other", reason="rejected", error_message="")
    found = causes.causes(Tables(spark, archive, 20).journeys)
    names = ("fingerprint", "reason", "template", "failures", "records", "dead", "pending", "recovered")
    name = "503: <text> after <number> s"
    assert rows(found, schemas.CAUSES, *names) == [
        ("down", "exhausted", name, 4, 2, 2, 0, 0),
        ("down", "expired", name, 2, 1, 1, 0, 0),
        ("other", "rejected", "", 1, 1, 1, 0, 0),
        ("down", None, "503: gone", 3, 2, 0, 0, 1),  # as of the newest, where one fingerprint has several
    ]
    examples = [[e["failure_id"][-1] for e in row["examples"]] for row in found.collect()]
    assert examples == [["2", "0"], ["1"], ["4"], ["4", "3"]]


def test_keys_that_fail_again(tables: Tables) -> None:
    """From two records on; the key itself is not there."""
    names = ("key_hash", "records", "failures", "dead", "pending", "example")
    assert rows(causes.offenders(tables.journeys), schemas.OFFENDERS, *names) == [
        ("a", 2, 3, 0, 0, f"{GROUP}/{MAIN}@{TOPIC_ID}/0/2")
    ]


def test_bursts_of_like_failures_are_outages(spark: SparkSession) -> None:
    """Two bursts an hour apart; a steady trickle of another cause is none."""
    archive = Archive()
    for number in range(24):
        minute = 60 if number >= 12 else number % 2
        archive.failed(number, 1, fingerprint="down", started_ms=NOON_MS + minute * MINUTE_MS + number)
    for number in range(120):
        archive.failed(100 + number, 1, fingerprint="trickle", started_ms=NOON_MS + (number // 6) * MINUTE_MS)
    found = causes.outages(Tables(spark, archive, 500).journeys)
    names = ("fingerprint", "failures", "peak_per_minute", "from_ms", "to_ms")
    later = NOON_MS + 60 * MINUTE_MS
    assert rows(found, schemas.OUTAGES, *names) == [
        ("down", 12, 12, later + 112, later + 123),
        ("down", 12, 6, NOON_MS + 100, NOON_MS + MINUTE_MS + 111),
    ]


def test_the_ledger_balances(spark: SparkSession, mixed: Archive) -> None:
    """Received = done + pending + dead; a range that ends behind the cut is left out, and so is what lies there."""
    mixed.counted(14, 40, ok=3, failed=1)
    mixed.failed(15, 1)
    mixed.failed(25, 1)
    tables = Tables(spark, mixed, 20, 7)
    names = (
        "partition", "from_offset", "to_offset", "cut_offset", "received", "done", "first_try_ok", "recovered",
        "pending", "dead", "lost", "extra", "uncounted",
    )  # fmt: skip
    assert rows(tables.ledger(), schemas.LEDGER, *names) == [
        (0, 0, 14, 20, 10, 8, 6, 2, 1 + 1, 1, 0, 0, 1),
        (1, None, None, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    ]


def test_what_the_checks_find(spark: SparkSession, mixed: Archive) -> None:
    """Each finding with its rows; lost and early ones are errors, holes and copies warnings."""
    mixed.counted(16, 18, ok=1, failed=1)  # a hole before it, and of its failed record no trace
    mixed.counted(17, 19, ok=2, failed=0, received=3)  # overlaps, and does not add up
    mixed.failed(30, 1)
    mixed.failed(30, 2, started_ms=NOON_MS + MINUTE_MS - 1)
    mixed.failed(31, 1, reason="unheard-of")
    mixed.failed(32, 3)
    mixed.failed(33, 1)
    mixed.failed(33, 1)
    mixed.rows.append({**mixed.rows[1]})
    mixed.add("dlq", 0, unreadable="no retry headers")
    found = Tables(spark, mixed, 40).verdicts()
    failing = {name: (verdict.failures, verdict.is_error) for name, verdict in found.items() if verdict.failures}
    assert failing == {
        "records are there once": (1, True),
        "records can be read": (1, False),
        "journeys.reason is known": (1, True),
        "no attempt was early": (1, True),
        "no hand-off is there twice": (2, False),
        "every attempt is archived": (1, False),
        "ledger: what workers received adds up": (1, True),
        "ledger: what failed has left a trace": (1, True),
        "ledger: workers counted without holes": (1, False),
        "ledger: workers counted nothing twice": (1, False),
    }
    (early,) = found["no attempt was early"].examples
    assert early.endswith("/0/30 2 -1")


def test_dead_letters_at_risk(spark: SparkSession) -> None:
    """By topic: what is gone already, within a day, within a week."""
    day_ms = 86_400_000
    archive = Archive()
    for offset, age_days in enumerate((31.0, 29.5, 25.0, 1.0)):
        archive.failed(offset, 1, reason="exhausted", arrived_ms=NOON_MS - int(age_days * day_ms))
    archive.failed(9, 1)
    topics = spark.createDataFrame([(f"{GROUP}.{MAIN}.dlq", 30 * day_ms)], "topic string, retention_ms bigint")
    found = counts.retention(Tables(spark, archive, 50).journeys, topics, now_ms=NOON_MS)
    names = ("dead", "gone", "within_day", "within_week", "next_loss_ms")
    assert rows(found, schemas.RETENTION, *names) == [(4, 1, 1, 2, NOON_MS + day_ms // 2)]


def test_a_main_topic_made_anew_is_counted_from_its_beginning(spark: SparkSession) -> None:
    """Counts of the former life would be held against the wrong records."""
    archive = Archive()
    archive.counted(0, 50, ok=49, failed=1)
    archive.failed(7, 1, topic_id="earlier1")
    archive.counted(0, 5, ok=4, failed=1)
    archive.failed(2, 1)
    names = ("received", "first_try_ok", "pending", "lost", "extra", "gaps", "overlaps")
    assert rows(Tables(spark, archive, 5).ledger(), schemas.LEDGER, *names) == [(5, 4, 1, 0, 0, 0, 0)]
