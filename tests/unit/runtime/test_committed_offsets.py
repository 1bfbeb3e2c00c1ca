"""Where a lane begins: at what the group has committed, and nowhere when that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import OffsetAndMetadata
from lane_clients import CHANGELOG, MAIN, REDELIVERY, RETRY, MakeLane

from retryapp.core import marks
from retryapp.core.errors import ChangelogReplacedError, OffsetsGoneError, OffsetsMissingError
from retryapp.core.marks import Suspected
from retryapp.core.rows import ROW_KEY_BYTES
from retryapp.ports import LaneBatch, TopicPartition
from retryapp.runtime.publisher import KafkaTransport

SOURCES = (MAIN, RETRY, REDELIVERY)


OURS = "r0:this"
"""What a life writes beside the offsets that it moves."""


class Topics:
    """The broker as the lane asks it: what is committed, what the topics have."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, int] = {MAIN: 120, RETRY: 7, REDELIVERY: 7}
        self.bounds_of: dict[TopicPartition, tuple[int, int]] = {MAIN: (100, 150), RETRY: (0, 9), REDELIVERY: (7, 7)}
        self.changelog: list[Any] = []
        self.written: list[dict[TopicPartition, int]] = []
        self.notes: dict[TopicPartition, str] = {MAIN: OURS, REDELIVERY: OURS, RETRY: "rows"}
        self.noted: list[dict[TopicPartition, str]] = []

    async def in_thread(self, function: Any) -> Any:
        """See `RetryConsumer.in_thread`."""
        return await function(SimpleNamespace(_coordinator=self))

    async def fetch_committed_offsets(self, tps: Sequence[Any]) -> dict[Any, OffsetAndMetadata]:
        """Return what is committed, as the client's coordinator does: nothing for what is not."""
        return {tp: OffsetAndMetadata(self.committed[tp], self.notes.get(tp, "")) for tp in tps if tp in self.committed}

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """See `TailReader.bounds`."""
        return {tp: self.bounds_of[tp] for tp in tps}

    async def read(self, tp: TopicPartition, _start: int, sink: Any, **_: Any) -> int:
        """See `TailReader.read`."""
        assert tp == CHANGELOG
        sink(self.changelog, len(self.changelog))
        return len(self.changelog)


@pytest.fixture
def topics() -> Topics:
    """A lane's topics in good order."""
    return Topics()


@pytest.fixture
def lane(make_lane: MakeLane, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> KafkaTransport:
    """A lane whose transactions only note their offsets."""

    async def commit(_self: KafkaTransport, batch: LaneBatch) -> None:
        topics.written.append(batch.offsets)
        topics.noted.append(batch.notes)

    monkeypatch.setattr(KafkaTransport, "commit", commit)
    made = make_lane(consumer=topics, reader=topics, life="this")
    made.place.delivering, made.place.topic_id, made.place.changelog_id = (MAIN, REDELIVERY), "now", "rows"
    return made


def row(key: bytes = b"k" * ROW_KEY_BYTES) -> Any:
    """Return a record of the changelog."""
    return SimpleNamespace(key=key, value=b"v")


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
    assert topics.written == []


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
    topics.changelog = [row(b"owner")]
    starts = await lane.committed()
    assert starts == {MAIN: 100, RETRY: 0, REDELIVERY: 7}
    assert topics.written == [starts]


def progress(main_id: str, **positions: int) -> Any:
    """Return a changelog record that says how far a lane had come; `main`, `retry` and `redelivery` are its topics."""
    names = {"main": MAIN.topic, "retry": RETRY.topic, "redelivery": REDELIVERY.topic}
    told = {names[name]: offset for name, offset in positions.items()}
    return SimpleNamespace(key=marks.PROGRESS, value=marks.progress_value(told, main_id))


async def test_a_group_whose_offsets_have_expired_goes_on_where_it_was(lane: KafkaTransport, topics: Topics) -> None:
    """The broker forgets them when nobody was in the group for a week; the last record in the changelog counts."""
    topics.committed = {}
    topics.changelog = [
        row(),
        progress("now", main=110, retry=2, redelivery=7),
        row(),
        progress("now", main=130, retry=8),
    ]
    assert await lane.committed() == {MAIN: 130, RETRY: 8, REDELIVERY: 7}
    assert topics.written == [{MAIN: 130, RETRY: 8, REDELIVERY: 7}]


async def test_offsets_of_a_main_topic_that_was_made_again_do_not_count(lane: KafkaTransport, topics: Topics) -> None:
    """Its records are others."""
    topics.committed = {}
    topics.changelog = [row(), progress("before", main=500, retry=2, redelivery=7)]
    assert await lane.committed() == {MAIN: 100, RETRY: 2, REDELIVERY: 7}


async def test_a_life_marks_where_it_begins(lane: KafkaTransport, topics: Topics) -> None:
    """Before any record runs, or its end would look like that of nobody."""
    topics.notes = {RETRY: "rows"}
    await lane.committed()
    assert topics.written == [{MAIN: 120}], "nothing waits in the other"
    assert topics.noted == [{MAIN: OURS}]
    assert lane.suspicions == {}


async def test_what_two_lives_did_not_get_past_is_suspect(lane: KafkaTransport, topics: Topics) -> None:
    """Each source by itself; the count goes on."""
    topics.notes = {MAIN: "r1:other", REDELIVERY: "r0:other", RETRY: "rows"}
    topics.bounds_of[REDELIVERY] = (7, 9)
    await lane.committed()
    assert topics.noted == [{MAIN: "r2:this", REDELIVERY: "r1:this"}]
    assert lane.suspicions == {MAIN: Suspected(0, 150)}


async def test_a_record_that_was_running_alone_is_known_by_its_mark(lane: KafkaTransport, topics: Topics) -> None:
    """It is written again when the record starts once more, not before."""
    topics.notes = {MAIN: "s2:other", REDELIVERY: OURS, RETRY: "rows"}
    await lane.committed()
    assert topics.noted == []
    assert lane.suspicions == {MAIN: Suspected(2, 150)}


async def test_a_group_whose_offsets_are_gone_is_refused(lane: KafkaTransport, topics: Topics) -> None:
    """Rows in the changelog say that the lane has worked: beginning anew would deliver everything again."""
    topics.committed = {}
    topics.changelog = [row(b"owner"), row()]
    with pytest.raises(OffsetsMissingError) as raised:
        await lane.committed()
    error = raised.value
    assert (error.lane, error.rows, set(error.topics)) == ("app.orders.1", 1, {tp.topic for tp in SOURCES})
    assert "no committed offsets for orders, app.orders.retry, app.orders.redelivery" in str(error)
    assert topics.written == []


async def test_a_changelog_that_was_made_again_is_refused(lane: KafkaTransport, topics: Topics) -> None:
    """What was parked before that offset waited in another one, and nobody else would miss it."""
    topics.notes[RETRY] = "gone"
    with pytest.raises(ChangelogReplacedError, match="was deleted and made again") as raised:
        await lane.committed()
    assert RETRY.topic in str(raised.value)
    assert topics.written == []


async def test_an_offset_that_was_set_by_hand_counts_for_any_changelog(lane: KafkaTransport, topics: Topics) -> None:
    """Whoever sets it leaves nothing beside it; from then on it is said whose rows those are."""
    topics.notes[RETRY] = ""
    starts = await lane.committed()
    assert starts[RETRY] == topics.committed[RETRY]
    assert topics.written == [{RETRY: topics.committed[RETRY]}]
