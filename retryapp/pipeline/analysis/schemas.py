"""The tables that the analysis makes, column by column. All lie in ``derived/`` of the lake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types as T

ANALYSIS_VERSION: Final = 1
"""Version of these tables; with another one they are made anew as a whole."""

JOURNEYS_TABLE: Final = "journeys"

_TEXT, _LONG, _INT, _TRUTH = T.StringType(), T.LongType(), T.IntegerType(), T.BooleanType()
_SHARE = T.DoubleType()


def _column(name: str, kind: T.DataType, comment: str) -> T.StructField:
    return T.StructField(name, kind, nullable=True, metadata={"comment": comment})


def _table(*columns: T.StructField) -> T.StructType:
    return T.StructType(list(columns))


_GROUP = _column("group", _TEXT, "consumer group")
_MAIN = _column("main", _TEXT, "main topic of the handler")

TRACES: Final = _table(
    _column("cluster_id", _TEXT, "Kafka's cluster id"),
    _GROUP,
    _MAIN,
    _column("failure_id", _TEXT, "group/topic@id/partition/offset of the first delivery"),
    _column("topic_id", _TEXT, "of the main topic, first 8 characters"),
    _column("partition", _INT, "of the first delivery"),
    _column("offset", _LONG, "of the first delivery"),
    _column("origin_timestamp_ms", _LONG, "the original record's timestamp; null where not told"),
    _column("key_hash", _TEXT, "salted hash of the record's key; null where it has none or was not told"),
    _column("replays", _LONG, "how often the record had been replayed"),
    _column("attempt", _LONG, "the attempt that failed last; of station succeeded the one that succeeded"),
    _column("rank", _INT, "order within an attempt: 0 retry, 1 dlq, 2 succeeded"),
    _column("station", _TEXT, "retry, dlq or succeeded"),
    _column("topic", _TEXT, "topic on which it was said"),
    _column("epoch", _INT, "life of that topic's name"),
    _column("found_offset", _LONG, "offset there"),
    _column("timestamp_ms", _LONG, "when the broker took it"),
    _column("started_ms", _LONG, "when the attempt began"),
    _column("ended_ms", _LONG, "when it ended"),
    _column("lateness_ms", _LONG, "begin minus due time, where the record itself says so"),
    _column("due_at_ms", _LONG, "earliest start of the next attempt"),
    _column("tier", _TEXT, "delay that is waited for, as text"),
    _column("reason", _TEXT, "why it is dead"),
    _column("error_type", _TEXT, "qualified name of the exception"),
    _column("error_message", _TEXT, "its message"),
    _column("fingerprint", _TEXT, "hash of the cause"),
    _column("policy", _TEXT, "digest of the policy that decided"),
)

ATTEMPT: Final = T.StructType(
    [
        T.StructField("replays", _LONG),
        T.StructField("attempt", _LONG),
        T.StructField("started_ms", _LONG),
        T.StructField("ended_ms", _LONG),
        T.StructField("tier", _TEXT),
        T.StructField("lateness_ms", _LONG),
        T.StructField("outcome", _TEXT),
        T.StructField("error_type", _TEXT),
        T.StructField("error_message", _TEXT),
        T.StructField("fingerprint", _TEXT),
    ]
)
"""One attempt of a journey. ``tier`` and ``lateness_ms`` tell of the wait before it; outcome: retried, dead or
succeeded."""

JOURNEYS: Final = _table(
    _column("cluster_id", _TEXT, "Kafka's cluster id"),
    _GROUP,
    _MAIN,
    _column("failure_id", _TEXT, "group/topic@id/partition/offset of the first delivery; unique"),
    _column("topic_id", _TEXT, "of the main topic, first 8 characters"),
    _column("partition", _INT, "of the first delivery"),
    _column("offset", _LONG, "of the first delivery"),
    _column("origin_timestamp_ms", _LONG, "the original record's timestamp"),
    _column("key_hash", _TEXT, "salted hash of the record's key"),
    _column("policy", _TEXT, "digest of the policy that decided last"),
    _column("fate", _TEXT, "done, pending or dead"),
    _column("reason", _TEXT, "why it is dead; null otherwise"),
    _column("replays", _LONG, "how often it was replayed"),
    _column("attempts", T.ArrayType(ATTEMPT), "every attempt that is known, by replays and attempt"),
    _column("last_attempt", _LONG, "number of the last attempt of the last replay; 0: replayed and not tried yet"),
    _column("missing", _LONG, "attempts before the last one of which nothing is archived"),
    _column("copies", _LONG, "hand-offs beyond the first of each"),
    _column("first_failed_ms", _LONG, "when the first known attempt ended"),
    _column("ended_ms", _LONG, "when the last known attempt ended"),
    _column("due_at_ms", _LONG, "pending: earliest start of the next attempt"),
    _column("tier", _TEXT, "pending: the delay that is waited for"),
    _column("error_type", _TEXT, "of the last failure"),
    _column("error_message", _TEXT, "of the last failure"),
    _column("fingerprint", _TEXT, "of the last failure"),
    _column("last_topic", _TEXT, "topic on which it was seen last"),
    _column("last_offset", _LONG, "offset there, in its partition"),
    _column("last_timestamp_ms", _LONG, "when the broker took that"),
)

CUT: Final = _table(
    _column("cluster_id", _TEXT, "Kafka's cluster id"),
    _GROUP,
    _MAIN,
    _column("topic_id", _TEXT, "of the main topic as it was when the cut was taken"),
    _column("partition", _INT, "partition number"),
    _column("cut_offset", _LONG, "the group's committed offset: what lies before it is looked at"),
)

PROGRESS: Final = _table(
    _column("cluster_id", _TEXT, "Kafka's cluster id"),
    _GROUP,
    _MAIN,
    _column("partition", _INT, "partition number"),
    _column("from_offset", _LONG, "first offset of the range"),
    _column("to_offset", _LONG, "offset behind it"),
    _column("from_ms", _LONG, "when the range began"),
    _column("to_ms", _LONG, "when it ended"),
    _column("received", _LONG, "records that workers counted in it"),
    _column("first_try_ok", _LONG, "of these, done at their first delivery"),
    _column("failed", _LONG, "of these, failed at their first delivery"),
    _column("skipped", _LONG, "of these, passed over without a delivery"),
    _column("gap_offsets", _LONG, "offsets between the range before and this one; not a count of records"),
    _column("overlap_offsets", _LONG, "offsets that the range before had as well"),
)

FUNNEL: Final = _table(
    _GROUP,
    _MAIN,
    _column("replayed", _TRUTH, "attempts after a replay, which begin at 1 again"),
    _column("attempt", _LONG, "number of the attempt"),
    _column("tier", _TEXT, "delay that was waited for before it; null for a first attempt"),
    _column("entered", _LONG, "attempts that ended"),
    _column("succeeded", _LONG, "of these; attempt 1: first-try successes as workers counted them"),
    _column("retried", _LONG, "of these, failed and sent to wait"),
    _column("dead", _LONG, "of these, failed and dead"),
    _column("waiting", _LONG, "records that wait for this attempt"),
    _column("share", _SHARE, "succeeded / entered"),
    _column("cumulative", _SHARE, "records done up to this attempt / records that entered attempt 1"),
)

LATENESS: Final = _table(
    _GROUP,
    _MAIN,
    _column("tier", _TEXT, "delay that was waited for; null: all of them"),
    _column("attempts", _LONG, "attempts whose lateness is known"),
    _column("p50_ms", _LONG, "half of them were not later"),
    _column("p90_ms", _LONG, "9 in 10"),
    _column("p99_ms", _LONG, "99 in 100"),
    _column("max_ms", _LONG, "the latest"),
    _column("early", _LONG, "attempts that began before they were due"),
)

CAUSES: Final = _table(
    _GROUP,
    _MAIN,
    _column("fingerprint", _TEXT, "hash of error type and the frames of the user's code"),
    _column("error_type", _TEXT, "of the newest failure"),
    _column("failures", _LONG, "attempts that failed so"),
    _column("records", _LONG, "records of which an attempt failed so"),
    _column("dead", _LONG, "of these, dead with this as their last failure"),
    _column("pending", _LONG, "of these, waiting with this as their last failure"),
    _column("recovered", _LONG, "of these, done"),
    _column("first_seen_ms", _LONG, "end of the first attempt that failed so"),
    _column("last_seen_ms", _LONG, "end of the last one"),
    _column(
        "examples",
        T.ArrayType(T.StructType([T.StructField("failure_id", _TEXT), T.StructField("message", _TEXT)])),
        "up to three records, the newest first",
    ),
)

OUTAGES: Final = _table(
    _GROUP,
    _MAIN,
    _column("fingerprint", _TEXT, "the cause"),
    _column("error_type", _TEXT, "its exception type"),
    _column("from_ms", _LONG, "first failure"),
    _column("to_ms", _LONG, "last failure"),
    _column("failures", _LONG, "attempts that failed"),
    _column("peak_per_minute", _LONG, "in the worst minute"),
    _column("usual_per_minute", _SHARE, "median over the minutes in which the cause was seen at all"),
)

TIMELINE: Final = _table(
    _GROUP,
    _MAIN,
    _column("fingerprint", _TEXT, "the cause"),
    _column("from_ms", _LONG, "beginning of the interval"),
    _column("length_ms", _LONG, "its length, the same in all rows"),
    _column("failures", _LONG, "attempts that failed so and ended in it"),
)

OFFENDERS: Final = _table(
    _GROUP,
    _MAIN,
    _column("key_hash", _TEXT, "salted hash of the key"),
    _column("records", _LONG, "records of the key that failed"),
    _column("failures", _LONG, "attempts that failed"),
    _column("dead", _LONG, "records that are dead"),
    _column("pending", _LONG, "records that wait"),
    _column("last_seen_ms", _LONG, "end of the last failed attempt"),
    _column("example", _TEXT, "failure id of the newest: its record has the key"),
)

COST: Final = _table(
    _GROUP,
    _MAIN,
    _column("records", _LONG, "records that failed at least once"),
    _column("recovered", _LONG, "of these, done"),
    _column("dead", _LONG, "of these, dead"),
    _column("attempts", _LONG, "attempts at them, at least: repeated runs of one attempt are not seen here"),
    _column("handler_ms", _LONG, "time in the handler, at least"),
    _column("attempts_on_dead", _LONG, "attempts at records that are dead"),
    _column("handler_ms_on_dead", _LONG, "time in the handler on them"),
    _column("attempts_per_recovered", _SHARE, "all attempts / recovered records, at least"),
    _column("minutes_per_recovered", _SHARE, "all handler minutes / recovered records, at least"),
    _column("wait_p50_ms", _LONG, "first failure to recovery, median"),
    _column("wait_p90_ms", _LONG, "the same, 9 in 10"),
)

RETENTION: Final = _table(
    _GROUP,
    _MAIN,
    _column("topic", _TEXT, "dead-letter topic"),
    _column("retention_ms", _LONG, "how long it keeps records; null: for ever, or not known"),
    _column("dead", _LONG, "records that lie on it as dead"),
    _column("gone", _LONG, "of these, past their retention: the archive may be all that is left"),
    _column("within_day", _LONG, "of these, past it within 24 hours"),
    _column("within_week", _LONG, "of these, past it within 7 days"),
    _column("next_loss_ms", _LONG, "when the next one is"),
)

LEDGER: Final = _table(
    _GROUP,
    _MAIN,
    _column("partition", _INT, "partition number"),
    _column("from_offset", _LONG, "first offset that workers counted"),
    _column("to_offset", _LONG, "offset behind the last one"),
    _column("cut_offset", _LONG, "up to where outcomes are looked at"),
    _column("received", _LONG, "records, as workers counted them"),
    _column("done", _LONG, "first-try successes, skipped, and recovered"),
    _column("first_try_ok", _LONG, "of these, done at their first delivery"),
    _column("skipped", _LONG, "of these, passed over"),
    _column("recovered", _LONG, "of these, done after a failure"),
    _column("pending", _LONG, "wait"),
    _column("dead", _LONG, "dead"),
    _column("failed", _LONG, "failed at their first delivery, as workers counted them"),
    _column("lost", _LONG, "failed as workers counted, and nothing tells of them"),
    _column("extra", _LONG, "records with a trace of a failure that workers did not count"),
    _column("uncounted", _LONG, "records with a trace, of offsets before the cut that no progress event covers"),
    _column("gaps", _LONG, "holes between the ranges that workers counted"),
    _column("overlaps", _LONG, "ranges that workers counted twice"),
)

CHECKS: Final = _table(
    _column("name", _TEXT, "what was checked"),
    _column("severity", _TEXT, "error: exit code 1; warn: told only"),
    _column("failures", _LONG, "rows that fail; 0: passed"),
    _column("text", _TEXT, "what is wrong, or what holds"),
    _column("examples", T.ArrayType(_TEXT), "up to five of the rows that fail"),
)

DERIVED_TABLES: Final[Mapping[str, T.StructType]] = {
    JOURNEYS_TABLE: JOURNEYS,
    "progress": PROGRESS,
    "funnel": FUNNEL,
    "lateness": LATENESS,
    "causes": CAUSES,
    "outages": OUTAGES,
    "timeline": TIMELINE,
    "offenders": OFFENDERS,
    "cost": COST,
    "retention": RETENTION,
    "ledger": LEDGER,
    "checks": CHECKS,
}
