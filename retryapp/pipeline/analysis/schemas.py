"""The tables that the analysis makes, column by column. They lie in ``derived/`` of the lake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types as T

from retryapp.pipeline.schemas import struct, table

ANALYSIS_VERSION: Final = 15  # of these tables and of the decoder; a result of another one does not stand

READINGS_TABLE: Final = "readings"
JOURNEYS_TABLE: Final = "journeys"
ROLLUP_TABLE: Final = "rollup"
DELAYS_TABLE: Final = "delays"


SAID: Final = struct(
    "kind string, failure_id string, topic_id string, partition integer, offset long, origin_timestamp_ms long, "
    "replays long, attempt long, delivery long, started_ms long, ended_ms long, lateness_ms long, due_at_ms long, "
    "tier string, reason string, policy string, error_type string, error_message string, fingerprint string, "
    "from_offset long, to_offset long, from_ms long, to_ms long, received long, first_try_ok long, failed long, "
    "skipped long, unreadable string"
)
"""What one archived record says. ``topic_id``, ``partition`` and ``offset`` are of the first delivery; of a
``progress`` event the partition is that of its range. ``started_ms`` is null of a dead letter without a run of its own.

``kind``: retry, dlq, that of an event (succeeded, progress, ...), or ``mark-`` and what became of a dead letter, or
``moved`` where somebody gave what waits another due time; ``newer-`` and the kind of an event of a newer retryapp, of
which nothing else is read. Null where it is ``unreadable``, which says why.
"""

READINGS: Final = table(
    """
    cluster_id string Kafka's cluster id
    group string consumer group
    main string main topic of the handler
    life string topic id of the topic on which the record is
    topic string name of that topic
    epoch integer which life of that topic
    found_partition integer its partition there
    found_offset long its offset there
    timestamp_ms long when the broker took it
    key_hash string salted hash of its key; null of events and marks
    said SAID what it says
    """,
    SAID=SAID,
)
"""One row for each archived record."""

ATTEMPT: Final = struct(
    "delivery long, replays long, attempt long, started_ms long, ended_ms long, tier string, lateness_ms long, "
    "outcome string, error_type string, error_message string, fingerprint string"
)
"""``tier`` and ``lateness_ms`` are of the wait before the attempt; outcome: retried, dead, succeeded,
skipped or superseded."""

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
    fate string done, skipped, superseded, pending, held (never delivered yet), dead or discarded
    reason string why it is dead, was discarded or skipped; null otherwise
    replays long how often it was replayed
    attempts ATTEMPTS every attempt that is known, by delivery
    last_attempt long number of the last attempt of the last replay; 0: replayed and not tried yet; null: not known
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
    last_life string id of that topic, which was deleted and made again if it has another one now
    last_offset long offset there, in its partition
    last_timestamp_ms long when the broker took that
    """,
    ATTEMPTS=T.ArrayType(ATTEMPT),
)

CUT: Final = struct("cluster_id string, group string, main string, topic_id string, partition integer, cut_offset long")
"""The group's committed offsets: records before ``cut_offset`` are analysed; ``topic_id`` is the main topic's."""

PROGRESS: Final = struct(
    "cluster_id string, group string, main string, partition integer, from_offset long, to_offset long, from_ms long, "
    "to_ms long, received long, first_try_ok long, failed long, skipped long, gap_offsets long, overlap_offsets long"
)
"""What workers counted from one offset to before another; ``gap_offsets`` lie between the range before and this one,
``overlap_offsets`` in another one too. Of ``received`` are ``first_try_ok``, ``failed`` or held, and ``skipped``."""

ROLLUP: Final = table(
    """
    group string consumer group
    main string main topic of the handler
    bin_ms long beginning of the interval in which the attempts ended; its length is in the result
    fingerprint string the cause; null: succeeded
    reason string of records that are dead of the cause: why
    replayed boolean attempts after a replay, which begin at 1 again
    attempt long number of the attempt; null: none was spent, or records that were replayed and not tried yet
    tier string delay that was waited for before it; null for a first attempt
    outcome string retried, dead, succeeded, skipped or superseded
    is_first boolean first deliveries
    fate string of the records, as of journeys; null: they never failed
    next_attempt long attempt for which the records wait
    next_tier string delay for which they wait
    attempts long attempts that ended
    records long records of which no later attempt failed of the cause
    dead long of these, dead of the cause, or discarded
    pending long of these, waiting since they failed of the cause
    journeys long records of which no later attempt is known
    handler_ms long time in the handler
    first_ms long end of the first attempt
    last_ms long end of the last one
    error_type string of the last one
    example EXAMPLE the last of the records, and its message
    """,
    EXAMPLE=struct("failure_id string, message string"),
)
"""What became of all attempts, summed up. Counts can be summed, so every window and grouping of it is right."""

DELAYS: Final = table("""
    group string consumer group
    main string main topic of the handler
    bin_ms long beginning of the hour
    kind string late: from due time to begin; recovery: from the first failure to the end of the success
    tier string late: delay that was waited for
    bucket long of like lengths, see rollup.bucket_of; null: began before it was due
    attempts long attempts, or recovered records
    max_ms long the longest
""")

DERIVED_TABLES: Final[Mapping[str, T.StructType]] = {
    READINGS_TABLE: READINGS,
    JOURNEYS_TABLE: JOURNEYS,
    ROLLUP_TABLE: ROLLUP,
    DELAYS_TABLE: DELAYS,
}
