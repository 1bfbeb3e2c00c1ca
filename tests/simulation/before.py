"""What an older build has left behind when a history begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from retryapp.core import marks
from retryapp.core.classify import classify
from retryapp.core.decide import RetryAt
from retryapp.core.hops import Outgoing, after_failure, to_row, to_tier
from retryapp.core.marks import Note, Tally
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import encode_row
from retryapp.ports import TopicPartition
from simulation.broker import Broker
from simulation.judge import Judge
from simulation.worker import TOPIC_ID

DELIVERIES = 4


def leave_replayed(broker: Broker, judge: Judge, send: Callable[[], None]) -> None:
    """Send a first record and leave its row: dead and replayed, so its attempts count anew."""
    send()
    main, topology, now_ms = TopicPartition(judge.topology.main, 0), judge.topology, broker.now_ms()
    record = broker.logs[main].entries[-1].record
    failed = after_failure(
        None,
        group=topology.group,
        handler="handler",
        origin=Origin(main.topic, TOPIC_ID, 0, record.offset),
        origin_timestamp_ms=record.timestamp_ms,
        attempt=DELIVERIES,
        started_ms=now_ms,
        failed_ms=now_ms,
        policy_digest="0" * 12,
        failure=classify(ConnectionError("service answered 503")),
        decision=RetryAt(now_ms + 100, 100, "300ms"),
    )
    metadata = replace(failed, attempt=0, replays=1, replay_id="replay")
    row = encode_row(to_row(to_tier(record, topology=topology, metadata=metadata), metadata))
    story = judge.oracle.stories[0, record.offset]
    story.copies.update(range(1, DELIVERIES + 1))
    story.dues[1].add(now_ms + 100)
    story.replays = metadata.replays
    changelog = topology.pending_changelog
    tally = Tally(from_offset=0, since_ms=now_ms, received=1).text(record.next_offset)
    progress = marks.progress_value({main.topic: record.next_offset}, TOPIC_ID, tally, TOPIC_ID, "")
    for key, value in ((identity_of(metadata.origin), row), (marks.PROGRESS, progress)):
        broker.append(TopicPartition(changelog, 0), Outgoing(changelog, 0, key, value, ()))
    broker.committed[main], broker.notes[main] = record.next_offset, Note("", tally).text
