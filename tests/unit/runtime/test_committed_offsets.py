"""Where a lane begins: at what the group has committed, and nowhere when that cannot be."""

from __future__ import annotations

import pytest
from kafka_fakes import CHANGELOG, MAIN, REDELIVERY, RETRY, MakeLane, Topics

from retryapp.core import marks
from retryapp.core.errors import ChangelogReplacedError, OffsetsGoneError, OffsetsMissingError
from retryapp.core.marks import Suspected, Tally
from retryapp.core.rows import ROW_KEY_BYTES
from retryapp.ports import LaneBatch, TopicPartition
from retryapp.runtime.transport import KafkaTransport

SOURCES = (MAIN, RETRY, REDELIVERY)


OURS = "r0:this"
"""What a life writes beside the offsets that it moves."""


@pytest.fixture
def lane(make_lane: MakeLane, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> KafkaTransport:
    """A lane of the life `this` whose transactions only note what they got."""

    async def commit(_self: KafkaTransport, batch: LaneBatch) -> None:
        topics.batches.append(batch)

    monkeypatch.setattr(KafkaTransport, "commit", commit)
    made = make_lane(consumer=topics, reader=topics, life="this")
    made.place.delivering, made.place.topic_id, made.place.changelog_id = (MAIN, REDELIVERY), "now", "rows"
    topics.notes = {MAIN: OURS, REDELIVERY: OURS, RETRY: "rows"}
    return made


ROW = b"k" * ROW_KEY_BYTES


def put_progress(topics: Topics, main_id: str, note: str = "", **positions: int) -> None:
    """Write down in the changelog how far a lane had come: `main`, `retry` and `redelivery` are its topics."""
    names = {"main": MAIN.topic, "retry": RETRY.topic, "redelivery": REDELIVERY.topic}
    offsets = {names[name]: offset for name, offset in positions.items()}
    topics.put(CHANGELOG, marks.PROGRESS, marks.progress_value(offsets, main_id, note))


async def test_records_that_were_deleted_unread_are_refused_with_their_number(
    lane: KafkaTransport, topics: Topics
) -> None:
    """Going on at the first that is left would lose them in silence."""
    topics.committed[MAIN] = 90
    with pytest.raises(OffsetsGoneError) as raised:
        await lane.committed()
    error = raised.value
    assert (error.topic, error.partition, error.committed, error.first, error.end) == ("orders", 1, 90, 100, 150)
    assert "orders[1]: the group is at offset 90, but the topic has 100 to 150" in str(error)
    assert "up to 10 records were deleted unread" in str(error)
    assert topics.batches == []


@pytest.mark.parametrize("tp", SOURCES)
async def test_an_offset_behind_the_end_is_refused(lane: KafkaTransport, topics: Topics, tp: TopicPartition) -> None:
    """The topic was cut or made again: the client would wait, or skip what comes next."""
    topics.committed[tp] = topics.bounds_of[tp][1] + 1
    with pytest.raises(OffsetsGoneError, match="was cut or made again") as raised:
        await lane.committed()
    assert (raised.value.topic, raised.value.end) == (tp.topic, topics.bounds_of[tp][1])


async def test_a_new_group_begins_at_the_start_and_writes_that_down(lane: KafkaTransport, topics: Topics) -> None:
    """Without it a crash before the first commit would decide anew. Owner marks are no rows."""
    topics.committed = {}
    topics.put(CHANGELOG, b"owner")
    starts = await lane.committed()
    assert starts == {MAIN: 100, RETRY: 0, REDELIVERY: 7}
    assert [batch.offsets for batch in topics.batches] == [starts]


async def test_a_group_whose_offsets_have_expired_goes_on_where_it_was(lane: KafkaTransport, topics: Topics) -> None:
    """The broker forgets them when nobody was in the group for a week; the last record in the changelog counts."""
    topics.committed = {}
    topics.put(CHANGELOG, ROW)
    put_progress(topics, "now", main=110, retry=2, redelivery=7)
    topics.put(CHANGELOG, ROW)
    put_progress(topics, "now", main=130, retry=8)
    assert await lane.committed() == {MAIN: 130, RETRY: 8, REDELIVERY: 7}
    assert [batch.offsets for batch in topics.batches] == [{MAIN: 130, RETRY: 8, REDELIVERY: 7}]


async def test_offsets_of_a_main_topic_that_was_made_again_do_not_count(lane: KafkaTransport, topics: Topics) -> None:
    """Its records are others."""
    topics.committed = {}
    topics.put(CHANGELOG, ROW)
    put_progress(topics, "before", main=500, retry=2, redelivery=7)
    assert await lane.committed() == {MAIN: 100, RETRY: 2, REDELIVERY: 7}


@pytest.mark.parametrize(
    ("notes", "waiting", "noted", "suspicions"),
    [
        ({}, 0, [{MAIN: OURS}], {}),
        (
            {MAIN: "r1:other", REDELIVERY: "r0:other"},
            2,
            [{MAIN: "r2:this", REDELIVERY: "r1:this"}],
            {MAIN: Suspected(0, 150)},
        ),
        ({MAIN: "s2:other", REDELIVERY: OURS}, 0, [], {MAIN: Suspected(2, 150)}),
    ],
    ids=["new", "two lives did not get past it", "was running alone"],
)
async def test_a_life_marks_where_it_begins(
    lane: KafkaTransport,
    topics: Topics,
    notes: dict[TopicPartition, str],
    waiting: int,
    noted: list[dict[TopicPartition, str]],
    suspicions: dict[TopicPartition, Suspected],
) -> None:
    """Before any record runs, where something waits; a record that ran alone is marked again when it starts."""
    topics.notes = {RETRY: "rows", **notes}
    topics.bounds_of[REDELIVERY] = (7, 7 + waiting)
    await lane.committed()
    assert [batch.notes for batch in topics.batches] == noted
    assert lane.suspicions == suspicions


async def test_a_group_whose_offsets_are_gone_is_refused(lane: KafkaTransport, topics: Topics) -> None:
    """Rows in the changelog say that the lane has worked: beginning anew would deliver everything again."""
    topics.committed = {}
    topics.put(CHANGELOG, b"owner")
    topics.put(CHANGELOG, ROW)
    with pytest.raises(OffsetsMissingError) as raised:
        await lane.committed()
    error = raised.value
    assert (error.lane, error.rows, set(error.topics)) == ("app.orders.1", 1, {tp.topic for tp in SOURCES})
    assert "no committed offsets for orders, app.orders.retry, app.orders.redelivery" in str(error)
    assert topics.batches == []


async def test_a_changelog_that_was_made_again_is_refused(lane: KafkaTransport, topics: Topics) -> None:
    """What was parked before that offset waited in another one, and nobody else would miss it."""
    topics.notes[RETRY] = "gone"
    with pytest.raises(ChangelogReplacedError, match="was deleted and made again") as raised:
        await lane.committed()
    assert RETRY.topic in str(raised.value)
    assert topics.batches == []


async def test_an_offset_that_was_set_by_hand_counts_for_any_changelog(lane: KafkaTransport, topics: Topics) -> None:
    """Whoever sets it leaves nothing beside it; from then on it is said whose rows those are."""
    topics.notes[RETRY] = ""
    starts = await lane.committed()
    assert starts[RETRY] == topics.committed[RETRY]
    assert [batch.offsets for batch in topics.batches] == [{RETRY: topics.committed[RETRY]}]


# -- what was counted before ------------------------------------------------------------------------------------------

COUNTED = Tally(from_offset=105, since_ms=7_000, received=14, first_try_ok=9, skipped=2)


@pytest.mark.parametrize("note", ["", OURS, COUNTED.text(119), "r0:other p9:105-120@7000:14", "set by hand"])
async def test_what_does_not_belong_to_the_offset_is_dropped(lane: KafkaTransport, topics: Topics, note: str) -> None:
    """An offset that was set by hand, an earlier worker's, one of a version to come: counting begins anew there."""
    topics.notes[MAIN] = note
    await lane.committed()
    assert lane.tally is None


async def test_what_was_counted_is_in_the_changelog_as_well(lane: KafkaTransport, topics: Topics) -> None:
    """For a group whose offsets have expired."""
    topics.committed = {}
    put_progress(topics, "now", COUNTED.text(130), main=130, retry=8, redelivery=7)
    assert (await lane.committed())[MAIN] == 130
    assert lane.tally == COUNTED
