"""What a lane learns from acknowledgements, and what it leaves beside offsets: the broker's time, the life at work."""

from __future__ import annotations

import asyncio

import pytest
from kafka_fakes import BATCH, CHANGELOG, MAIN, Kafka, MakeLane, Topics

from retryapp.core import marks
from retryapp.ports import LaneBatch
from retryapp.runtime.transport import KafkaTransport
from retryapp.testing import VirtualClock

# -- the broker's time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [BATCH, LaneBatch(rows=BATCH.rows)])
async def test_acknowledgements_tell_the_brokers_time(lane: KafkaTransport, kafka: Kafka, batch: LaneBatch) -> None:
    """The first of each hand-off, between what our own clock said before it was sent and when it was there."""
    clock = the_clock(lane)
    began_ms = clock.counted_ms()
    kafka.acknowledged.clear()
    await lane.fence()
    committing = asyncio.create_task(lane.commit(batch))
    await asyncio.sleep(0)
    clock.advance(30)
    kafka.acknowledged.set()
    await committing
    (sent_ms, acked_ms, appended_ms), *_ = clock.anchors
    assert (sent_ms, acked_ms) == (began_ms, began_ms + 30)
    assert appended_ms == 7_040


async def test_a_time_that_we_sent_ourselves_tells_nothing(lane: KafkaTransport, kafka: Kafka) -> None:
    """A topic that keeps the producer's time gives it back."""
    kafka.timestamp_type = 0
    await lane.fence()
    await lane.commit(BATCH)
    assert the_clock(lane).anchors == []


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_lane_asks_for_the_time_before_records_flow(
    make_lane: MakeLane, kafka: Kafka, topics: Topics, trusted: bool
) -> None:
    """Due times begin with it; once a worker knows it, its other lanes do not ask."""
    lane = make_lane(reader=topics)
    clock = the_clock(lane)
    clock.trusted = trusted
    await lane.fence()
    await lane.recover()
    assert kafka.asked == ([] if trusted else ["begin", (CHANGELOG.topic, b"clock", b""), "commit"])
    assert len(clock.anchors) == (not trusted)
    await lane.release({MAIN: 4})
    assert (kafka.asked[-1:], kafka.placed) == (["flow"], [{MAIN: 4}])
    await lane.close()


def the_clock(lane: KafkaTransport) -> VirtualClock:
    assert isinstance(lane.clock, VirtualClock)
    return lane.clock


# -- what stands beside offsets ---------------------------------------------------------------------------------------


@pytest.fixture
def marking(lane: KafkaTransport) -> KafkaTransport:
    """A lane of the life `this`."""
    lane.life = "this"
    return lane


async def test_offsets_say_whose_life_moved_them(marking: KafkaTransport, kafka: Kafka) -> None:
    """A record that starts alone is marked before it does; what is said of rows stays until another is said."""
    await marking.fence()
    await marking.commit(LaneBatch(offsets={MAIN: 8}, rows_note="wr0:this"))
    await marking.commit(LaneBatch(offsets={MAIN: 9}, notes={MAIN: "s1:this"}))
    await marking.commit(LaneBatch(offsets={MAIN: 9}, rows_note=""))
    notes = ["r0:this wr0:this", "s1:this wr0:this", "s1:this"]
    assert kafka.notes == [{MAIN.topic: note} for note in notes]


async def test_the_main_topics_offset_and_the_progress_record_name_the_changelog(
    marking: KafkaTransport, kafka: Kafka
) -> None:
    """A changelog that is made again has no record that could say that it is another; no other offset needs to."""
    marking.place.changelog_id = "kq2"
    await marking.fence()
    await marking.commit(LaneBatch(offsets={MAIN: 8}))
    assert kafka.notes == [{MAIN.topic: "r0:this c:kq2"}]
    (value,) = [each[2] for each in kafka.asked if each[:2] == (CHANGELOG.topic, marks.PROGRESS)]
    assert marks.read_progress(value).changelog == "kq2"


async def test_a_lane_that_is_let_go_says_so_in_the_marks_that_count_against_records(
    marking: KafkaTransport, kafka: Kafka
) -> None:
    """In one transaction; none without such a mark: a worker has hundreds of lanes, and a rebalance waits for all."""
    await marking.fence()
    for note, rows, left in (
        ("s1:this", None, "s1:-"),
        ("r0:this", "ws2:this@5.7", "r0:this ws2:-@5.7"),
        ("g3:this@8-12", "wr1:this<5.0", "g3:-@8-12 wr1:-<5.0"),
    ):
        await marking.commit(LaneBatch(offsets={MAIN: 8}, notes={MAIN: note}, rows_note=rows))
        await marking.rest()
        assert kafka.notes[-1] == {MAIN.topic: left}
        assert kafka.asked[-2:] == [("app", {MAIN: 8}), "commit"]
        asked = len(kafka.asked)
        await marking.rest()
        assert len(kafka.asked) == asked, "those of others are theirs"
    await marking.commit(LaneBatch(offsets={MAIN: 9}, notes={MAIN: "s1:this"}))
    await marking.commit(LaneBatch(offsets={MAIN: 10}, rows_note="wr0:this"))
    asked = len(kafka.asked)
    await marking.rest()
    assert len(kafka.asked) == asked
