"""Where a lane begins: at what the group has committed, and nowhere when that cannot be."""

from __future__ import annotations

import asyncio

import pytest
from kafka_fakes import CHANGELOG, MAIN, Found, MakeLane, Topics
from samples import key_of, waiting_row

from retryapp.core import marks
from retryapp.core.lane_errors import (
    ChangelogReplacedError,
    CommitUndecidedError,
    MainReplacedError,
    OffsetsGoneError,
    OffsetsMissingError,
)
from retryapp.core.marks import Suspected, Tally, after, place_of
from retryapp.core.publication import TopicLook
from retryapp.core.record import Origin
from retryapp.core.settled import encode_settled
from retryapp.engine.lane import recovery
from retryapp.ports import LaneBatch
from retryapp.runtime.transport import KafkaTransport
from retryapp.testing.destinations import MemoryDestinations

OURS = "r0:this"
"""What a life writes beside the offset that it moves."""
NAMED = f"{OURS} c:rows"
"""The same with the id of the changelog, as it is written."""
COUNTED = Tally(from_offset=105, since_ms=7_000, received=14, first_try_ok=9, skipped=2)


@pytest.fixture
def lane(make_lane: MakeLane, topics: Topics, only_noted: None) -> KafkaTransport:
    """A lane of the life `this`."""
    made = make_lane(consumer=topics, reader=topics, life="this")
    made.place.topic_id, made.place.changelog_id = "now", "rows"
    topics.notes = {MAIN: NAMED}
    return made


ROW = waiting_row(7)


def put_progress(topics: Topics, main_id: str, offset: int, note: str = "", changelog_id: str = "rows") -> None:
    """Write down in the changelog how far a lane had come."""
    topics.put(CHANGELOG, marks.PROGRESS, marks.progress_value({MAIN.topic: offset}, main_id, note, changelog_id))


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
    assert (
        "kafka-consumer-groups.sh --bootstrap-server kafka:9092 --command-config FILE --group app --reset-offsets "
        "--topic orders:1 --to-earliest --execute"
    ) in str(error), "it can be run as it is printed"
    assert topics.noted == []


async def test_an_offset_past_the_end_is_refused(lane: KafkaTransport, topics: Topics) -> None:
    """The topic was cut or made again: the client would wait, or skip what comes next."""
    topics.committed[MAIN] = 151
    with pytest.raises(OffsetsGoneError, match="was cut or made again") as raised:
        await lane.committed()
    assert (raised.value.topic, raised.value.end) == (MAIN.topic, 150)


async def test_an_offset_past_what_committed_readers_see_is_not_to_be_set(lane: KafkaTransport, topics: Topics) -> None:
    """A broker has lost the end of a transaction there: set to the beginning, all records would run again."""
    topics.committed[MAIN] = topics.written = 151
    with pytest.raises(CommitUndecidedError, match=r"transaction on orders\[1\] without an end: the lane opens once"):
        await lane.committed()
    topics.bounds_of[MAIN] = 100, 151
    assert await lane.committed() == {MAIN: 151}


async def test_a_new_group_begins_at_the_start_and_writes_that_down(lane: KafkaTransport, topics: Topics) -> None:
    """Without it a crash before the first commit would decide anew. Owner marks are no rows."""
    topics.committed = {}
    topics.put(CHANGELOG, b"owner")
    assert await lane.committed() == {MAIN: 100}
    assert [batch.offsets for batch in topics.noted] == [{MAIN: 100}]


@pytest.mark.parametrize(
    ("note", "written", "suspected"),
    [
        ("", [{MAIN: OURS}], None),
        ("r1:other", [{MAIN: "r2:this<150"}], Suspected((120,), (150,))),
        ("s2:other", [], Suspected((120,), (121,), 1, 2)),
    ],
    ids=["new", "two lives did not get past it", "was running alone"],
)
async def test_a_life_marks_where_it_begins(
    lane: KafkaTransport,
    topics: Topics,
    note: str,
    written: list[dict[object, str]],
    suspected: Suspected | None,
) -> None:
    """Before any record runs, where something waits; a record that ran alone is marked again when it starts."""
    topics.notes = {MAIN: f"{note} c:rows".strip()}
    await lane.committed()
    assert [batch.notes for batch in topics.noted] == written
    assert lane.suspected == suspected


AT = place_of(key_of(ROW))


@pytest.mark.parametrize(
    ("rows", "found", "written", "suspected"),
    [
        (0, None, None, None),
        (1, "wr0:this", None, None),
        (2, f"wr1:other<{AT[0] + 1}.0", "wr2:this<{}.0", Suspected(AT, (-1, 0))),
        (2, f"ws2:other@{AT[0]}.{AT[1]}", None, Suspected(AT, after(AT), 1, 2)),
    ],
    ids=["no row", "opens again", "two lives did not get past it", "was running alone"],
)
async def test_a_life_marks_the_row_at_which_it_begins(
    lane: KafkaTransport,
    topics: Topics,
    rows: int,
    found: str | None,
    written: str | None,
    suspected: Suspected | None,
) -> None:
    """Before a row is delivered, with the offset where it is; the mark of the main topic's record stays."""
    topics.notes = {MAIN: NAMED if found is None else f"{OURS} {found} c:rows"}
    for row in (ROW, waiting_row(8, due_at_ms=2))[:rows]:
        topics.put(CHANGELOG, *row[:2])
    await lane.committed()
    await lane.recover()
    after_now = lane.clock.wall_ms() + 1
    marked = [] if written is None else [({MAIN: 120}, {}, written.format(after_now))]
    assert [(batch.offsets, batch.notes, batch.rows_note) for batch in topics.noted] == marked
    if suspected is not None and suspected.end == (-1, 0):
        suspected = suspected._replace(end=(after_now, 0))  # what is due now
    assert lane.suspected_rows == suspected
    await lane.close()


async def test_an_offset_of_a_main_topic_that_was_made_again_does_not_count(
    lane: KafkaTransport, topics: Topics
) -> None:
    """A worker that had run on has committed it for the new topic: its records up to there would be skipped unseen."""
    topics.committed[MAIN], topics.notes[MAIN] = 130, "m:before s2:other@130 c:rows"
    put_progress(topics, "before", 130)
    assert await lane.committed() == {MAIN: 100}
    assert lane.suspected is None
    assert [batch.offsets for batch in topics.noted] == [{MAIN: 100}]


@pytest.mark.parametrize("known", [True, False])
async def test_a_main_topic_that_was_made_again_is_read_from_its_beginning(
    lane: KafkaTransport, topics: Topics, known: bool
) -> None:
    """Also where a new group would begin at its end: this one is not new, and has seen none of it; its rows wait on."""
    lane.place.start_at_end = True
    topics.committed = {}
    if known:
        topics.put(CHANGELOG, *ROW[:2])
        put_progress(topics, "before", 500)
    assert await lane.committed() == {MAIN: 100 if known else 150}
    assert [batch.offsets for batch in topics.noted] == [{MAIN: 100 if known else 150}]


async def test_a_kill_at_the_question_for_the_topic_has_written_nothing(
    lane: KafkaTransport, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(_topic: str) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(lane.topics, "look", dies)
    lane.main_lost = True
    with pytest.raises(asyncio.CancelledError):
        await lane.committed()
    assert (topics.noted, lane.main_lost) == ([], True), "the next opening asks again"


@pytest.mark.parametrize("there", ["again", "now"])
async def test_a_lane_whose_position_is_gone_asks_which_topic_is_there(
    lane: KafkaTransport, topics: Topics, there: str
) -> None:
    """A transaction that began before the topic was made again has committed an offset for it, of the former one."""
    lane.topics = MemoryDestinations({MAIN.topic: TopicLook(2, topic_id=there)})
    topics.committed[MAIN] = 130
    lane.main_lost = True
    for _ in range(2):
        if there == "again":
            with pytest.raises(MainReplacedError):
                await lane.committed()
        else:
            assert (await lane.committed(), lane.main_lost) == ({MAIN: 130}, False)


@pytest.mark.parametrize(
    ("there", "known", "refused"), [("again", True, True), ("", True, False), ("again", False, False)]
)
async def test_a_worker_that_runs_on_does_not_open_a_main_topic_that_was_made_again(
    lane: KafkaTransport, topics: Topics, there: str, known: bool, refused: bool
) -> None:
    """It would name its records like the former ones, of which some may wait. A new group has none that waits."""
    lane.topics = MemoryDestinations({MAIN.topic: TopicLook(2, topic_id=there)})
    topics.committed = {}
    if known:
        put_progress(topics, "now", 130)
    if refused:
        with pytest.raises(MainReplacedError, match=r"orders\[1\]: the topic was deleted and made again"):
            await lane.committed()
        assert topics.noted == []
    else:
        assert await lane.committed() == {MAIN: 130 if known else 100}


async def test_a_group_whose_offsets_are_gone_is_refused(lane: KafkaTransport, topics: Topics) -> None:
    """Rows in the changelog say that the lane has worked: beginning anew would deliver everything again."""
    topics.committed = {}
    topics.put(CHANGELOG, b"owner")
    topics.put(CHANGELOG, *ROW[:2])
    with pytest.raises(OffsetsMissingError) as raised:
        await lane.committed()
    error = raised.value
    assert (error.lane, error.rows, tuple(error.topics)) == ("app.orders.1", 1, (MAIN.topic,))
    assert "no committed offsets for orders" in str(error)
    assert "--group app --reset-offsets" in str(error)
    assert topics.noted == []


@pytest.mark.parametrize("found", [True, False])
async def test_a_large_changelog_is_not_read_for_the_groups_offsets(
    lane: KafkaTransport, topics: Topics, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    """Its last transaction has them behind all rows: there is no size that exceeds the deadline of an opening."""
    monkeypatch.setattr(recovery, "TAIL_OFFSETS", 5)
    topics.committed, topics.stop_after = {}, 3
    for _ in range(10):
        for _ in range(100):
            topics.put(CHANGELOG, *ROW[:2])
        if found:
            put_progress(topics, "now", 130)
    if found:
        assert await lane.committed() == {MAIN: 130}
    else:
        with pytest.raises(OffsetsMissingError):
            await lane.committed()


async def test_offsets_are_found_before_what_was_rolled_back(
    lane: KafkaTransport, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aborted transactions leave a gap behind the last that was committed; nothing is read twice up to there."""
    monkeypatch.setattr(recovery, "TAIL_OFFSETS", 5)
    topics.committed = {}
    for _ in range(2):
        for _ in range(400):
            topics.put(CHANGELOG, *ROW[:2])
        put_progress(topics, "now", 130)
    topics.records[CHANGELOG].append(Found(1_000, b"clock"))
    assert await lane.committed() == {MAIN: 130}
    starts = [start for _, start, _ in topics.starts]
    assert starts == [1_001 - 5, 1_001 - 40, 1_001 - 320]


async def test_a_changelog_that_was_made_again_is_refused(lane: KafkaTransport, topics: Topics) -> None:
    """What waited was in another one; the new one has nothing."""
    topics.notes[MAIN] = f"{OURS} {COUNTED.text(120)} c:gone"
    with pytest.raises(ChangelogReplacedError, match="was deleted and made again") as raised:
        await lane.committed()
    assert (raised.value.main, topics.noted) == (MAIN.topic, [])
    assert "--group app --reset-offsets --topic orders --to-current" in str(raised.value)


async def test_a_changelog_whose_records_were_copied_from_another_is_refused(
    lane: KafkaTransport, topics: Topics
) -> None:
    """Its progress record names that one; a group whose offsets have expired has nothing else that does."""
    topics.committed = {}
    put_progress(topics, "now", 130, changelog_id="gone")
    with pytest.raises(ChangelogReplacedError):
        await lane.committed()
    assert topics.noted == []


@pytest.mark.parametrize(
    ("note", "kept"),
    [("", ""), (OURS, OURS), ("s2:other", "s2:other"), ("r0:other", "r1:this<150"), (COUNTED.text(120), "")],
    ids=["set by hand", "ours", "was running alone", "another life", "counts alone"],
)
async def test_an_offset_that_names_no_changelog_counts_for_any(
    lane: KafkaTransport, topics: Topics, note: str, kept: str
) -> None:
    """One that was set by hand, or by a version that left it out. The opening names it, and keeps the mark."""
    topics.notes[MAIN] = note
    topics.bounds_of[MAIN] = (100, 120 if not kept else 150)
    starts = await lane.committed()
    assert [(batch.offsets, batch.notes) for batch in topics.noted] == [({MAIN: starts[MAIN]}, {MAIN: kept})]


# -- what was counted before ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("note", ["", OURS, COUNTED.text(119), "r0:other p9:105-120@7000:14", "set by hand"])
async def test_what_does_not_belong_to_the_offset_is_dropped(lane: KafkaTransport, topics: Topics, note: str) -> None:
    """An offset that was set by hand, an earlier worker's, one of a version to come: counting begins anew there."""
    topics.notes[MAIN] = note
    await lane.committed()
    assert lane.counted_from(119, 7) == Tally(from_offset=119, since_ms=7)


async def test_what_was_counted_is_in_the_changelog_as_well(lane: KafkaTransport, topics: Topics) -> None:
    """For a group whose offsets have expired, as the broker forgets them after a week: the last record counts."""
    topics.committed = {}
    put_progress(topics, "now", 110)
    topics.put(CHANGELOG, *ROW[:2])
    put_progress(topics, "now", 130, COUNTED.text(130))
    assert await lane.committed() == {MAIN: 130}
    assert [batch.offsets for batch in topics.noted] == [{MAIN: 130}]
    assert lane.counted_from(130, 7) == COUNTED


# -- what was settled beyond it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["beside the offset", "in the changelog"])
async def test_what_was_settled_beyond_the_offset_is_found_and_kept(
    lane: KafkaTransport, topics: Topics, where: str
) -> None:
    """Also for a group whose offsets have expired; the mark that the opening writes goes beside it."""
    beyond = {122: True, 125: False}
    text = encode_settled(beyond, Origin(MAIN.topic, "now", MAIN.partition, 120))
    if where == "beside the offset":
        topics.committed[MAIN], topics.notes[MAIN] = 120, f"r0:other {text} c:rows"
    else:
        topics.committed = {}
        value = marks.progress_value({MAIN.topic: 120}, "now", "", "rows", text)
        topics.put(CHANGELOG, marks.PROGRESS, value)
    assert (await lane.committed())[MAIN] == 120
    assert lane.settled == beyond
    assert lane._beside().noted(LaneBatch()) == text, "a transaction of rows alone writes it down as well"
    (batch,) = topics.noted
    assert text in lane._beside().beside(batch)[MAIN].note


async def test_what_was_settled_beyond_another_offset_is_not_read(
    lane: KafkaTransport, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records run again, and the log says so."""
    text = encode_settled({122: True}, Origin(MAIN.topic, "now", MAIN.partition, 119))
    topics.committed[MAIN], topics.notes[MAIN] = 120, f"r0:other {text} c:rows"
    await lane.committed()
    assert lane.settled == {}
    assert "what was settled beyond it runs again" in caplog.text
