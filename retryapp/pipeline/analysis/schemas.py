"""The tables that the analysis makes, column by column. All lie in ``derived/`` of the lake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types as T

from retryapp.pipeline.schemas import struct, table

ANALYSIS_VERSION: Final = 2  # version of these tables; a lake with another version is derived again as a whole

JOURNEYS_TABLE: Final = "journeys"


def of_handlers(text: str, **nested: T.DataType) -> T.StructType:
    """Return the schema of a table with rows for each handler; see ``table``."""
    return table(f"group string consumer group\nmain string main topic of the handler\n{text.strip()}", **nested)


ATTEMPT: Final = struct(
    "delivery long, replays long, attempt long, started_ms long, ended_ms long, tier string, lateness_ms long, "
    "outcome string, error_type string, error_message string, fingerprint string"
)
"""``tier`` and ``lateness_ms`` are of the wait before the attempt; outcome: retried, dead or succeeded."""

JOURNEYS: Final = table(
    """
    cluster_id string Kafka's cluster id
    group string consumer group
    main string main topic of the handler
    failure_id string group/topic@id/partition/offset of the first delivery; unique
    topic_id string of the main topic, first 8 characters
    partition integer of the first delivery
    offset long of the first delivery
    origin_timestamp_ms long the original record's timestamp
    key_hash string salted hash of the record's key
    policy string digest of the policy that decided last
    fate string done, pending or dead
    reason string why it is dead; null otherwise
    replays long how often it was replayed
    attempts ATTEMPTS every attempt that is known, by delivery
    last_attempt long number of the last attempt of the last replay; 0: replayed and not tried yet
    missing long deliveries, and replays, before the last one of which nothing is archived
    copies long hand-offs beyond the first of each
    first_failed_ms long when the first known attempt ended
    ended_ms long when the last known attempt ended
    due_at_ms long pending: earliest start of the next attempt
    tier string pending: the delay that is waited for
    error_type string of the last failure
    error_message string of the last failure
    fingerprint string of the last failure
    last_topic string topic on which it was seen last
    last_offset long offset there, in its partition
    last_timestamp_ms long when the broker took that
    """,
    ATTEMPTS=T.ArrayType(ATTEMPT),
)

CUT: Final = struct("cluster_id string, group string, main string, topic_id string, partition integer, cut_offset long")
"""The group's committed offsets: records before ``cut_offset`` are analysed; ``topic_id`` is the main topic's."""

PROGRESS: Final = table("""
    cluster_id string Kafka's cluster id
    group string consumer group
    main string main topic of the handler
    partition integer partition number
    from_offset long first offset of the range
    to_offset long offset behind it
    from_ms long when the range began
    to_ms long when it ended
    received long records that workers counted in it
    first_try_ok long of these, done at their first delivery
    failed long of these, failed at their first delivery
    skipped long of these, passed over without a delivery
    gap_offsets long offsets between the range before and this one; not a count of records
    overlap_offsets long offsets that the range before had as well
""")

FUNNEL: Final = of_handlers("""
    replayed boolean attempts after a replay, which begin at 1 again
    attempt long number of the attempt
    tier string delay that was waited for before it; null for a first attempt
    entered long attempts that ended
    succeeded long of these; attempt 1: first-try successes as workers counted them
    retried long of these, failed and sent to wait
    dead long of these, failed and dead
    waiting long records that wait for this attempt
    share double succeeded / entered
    cumulative double records done up to this attempt / records that entered attempt 1
""")

LATENESS: Final = of_handlers("""
    tier string delay that was waited for; null: all of them
    attempts long attempts whose lateness is known
    p50_ms long half of them were not later
    p90_ms long 9 in 10
    p99_ms long 99 in 100
    max_ms long the latest
    early long attempts that began before they were due
""")

CAUSES: Final = of_handlers(
    """
    fingerprint string hash of error types, the frames of the user's code and the template
    reason string why its records are dead; null for those that are not, or died of something else later
    template string the newest message without what differs from record to record: the cause's name
    error_type string of the newest failure
    failures long attempts that failed so
    records long records of which an attempt failed so
    dead long of these, dead with this as their last failure
    pending long of these, waiting with this as their last failure
    recovered long of these, done
    first_seen_ms long end of the first attempt that failed so
    last_seen_ms long end of the last one
    examples EXAMPLES up to three records, the newest first
    """,
    EXAMPLES=T.ArrayType(struct("failure_id string, message string")),
)

OUTAGES: Final = of_handlers("""
    fingerprint string the cause
    error_type string its exception type
    from_ms long first failure
    to_ms long last failure
    failures long attempts that failed
    peak_per_minute long in the worst minute
    usual_per_minute double median over the minutes in which the cause was seen at all
""")

TIMELINE: Final = of_handlers("""
    fingerprint string the cause
    from_ms long beginning of the interval
    length_ms long its length, the same in all rows
    failures long attempts that failed so and ended in it
""")

OFFENDERS: Final = of_handlers("""
    key_hash string salted hash of the key
    records long records of the key that failed
    failures long attempts that failed
    dead long records that are dead
    pending long records that wait
    last_seen_ms long end of the last failed attempt
    example string failure id of the newest: its record has the key
""")

COST: Final = of_handlers("""
    records long records that failed at least once
    recovered long of these, done
    dead long of these, dead
    attempts long attempts at them, at least: repeated runs of one attempt are not seen here
    handler_ms long time in the handler, at least
    attempts_on_dead long attempts at records that are dead
    handler_ms_on_dead long time in the handler on them
    attempts_per_recovered double all attempts / recovered records, at least
    minutes_per_recovered double all handler minutes / recovered records, at least
    wait_p50_ms long first failure to recovery, median
    wait_p90_ms long the same, 9 in 10
""")

RETENTION: Final = of_handlers("""
    topic string dead-letter topic
    retention_ms long how long it keeps records; null: unlimited, or unknown
    dead long records that lie on it as dead
    gone long of these, past their retention: the archive may be all that is left
    within_day long of these, past it within 24 hours
    within_week long of these, past it within 7 days
    next_loss_ms long when the next one is
""")

LEDGER: Final = of_handlers("""
    partition integer partition number
    from_offset long first offset that workers counted
    to_offset long offset behind the last one
    cut_offset long up to where outcomes are looked at
    received long records, as workers counted them
    done long first-try successes, skipped, and recovered
    first_try_ok long of these, done at their first delivery
    skipped long of these, passed over
    recovered long of these, done after a failure
    pending long wait
    dead long dead
    failed long failed at their first delivery, as workers counted them
    lost long failed as workers counted, and nothing tells of them
    extra long records with a trace of a failure that workers did not count
    uncounted long records with a trace, of offsets before the cut that no progress event covers
    gaps long holes between the ranges that workers counted
    overlaps long ranges that workers counted twice
""")

CHECKS: Final = table(
    """
    name string what was checked
    severity string error: exit code 1; warn: told only
    failures long rows that fail; 0: passed
    text string what is wrong, or what holds
    examples EXAMPLES up to five of the rows that fail
    """,
    EXAMPLES=T.ArrayType(T.StringType()),
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
