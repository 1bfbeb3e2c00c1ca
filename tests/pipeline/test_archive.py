"""The archive on real Kafka: each record once, with its bytes and their meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta import places_of
from history import Group
from samples import dead, waiting

from retryapp.core.headers import encode_metadata
from retryapp.pipeline.analysis.reading import readings_of
from retryapp.pipeline.errors import TopicChangedError
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.lake import Lake, open_lake
from retryapp.pipeline.positions import IN_DOUBT, RECREATED, RETENTION
from retryapp.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.timeout(300)
STRANGE_FOLDER = "what failed, 100%20 ü"
"""Nothing in a path is taken for a URI's."""

Rows = Callable[..., "list[Row]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the lakes of this file lie."""
    return tmp_path / STRANGE_FOLDER


@pytest.fixture
def lake(spark: SparkSession, folder: Path) -> Lake:
    return open_lake(spark, str(folder))


@pytest.fixture
def rows(lake: Lake) -> Rows:
    return lambda *order: Tables(lake).read().orderBy(*order).collect()


def test_each_record_once_with_its_bytes(group: Group, lake: Lake, rows: Rows, folder: Path) -> None:
    """Null differs from empty, unreadable records are kept, aborted ones are not read; no rerun changes a row."""
    group.retry(0, waiting(0), key=b"\x00\xff", value=b"")
    group.dead(1, dead(1), key=None, value=None)
    group.succeeded(0, 0)
    group.send(group.topology.dlq, 0, b"k", b"v", (("retry-attempt", b"x"), ("h", None), ("h", b"2")))
    group.send(group.topology.dlq, 0, b"k", b"v")
    group.send(group.topology.events, 1, b"k", b"no json")
    group.flush()
    group.begin(group.topology.dlq, [b"aborted"] * 3, 1).abort_transaction(20)
    job = group.archive(lake)
    result = job.run_once()
    assert (result.rows, result.gaps, len(result.new_lives)) == (6, (), 3)
    found = {(row["station"], row["partition"], row["offset"]): row for row in rows("offset")}
    retried = found["retry", 0, 0]
    assert (bytes(retried["key"]), bytes(retried["value"])) == (b"\x00\xff", b"")
    assert [(h["key"], bytes(h["value"])) for h in retried["headers"]] == list(encode_metadata(waiting(0)))
    died, strange = found["dlq", 1, 0], found["dlq", 0, 0]
    assert (died["key"], died["value"]) == (None, None)
    assert [(h["key"], h["value"]) for h in strange["headers"][1:]] == [("h", None), ("h", b"2")]
    read = readings_of(Tables(lake).read()).collect()
    said = {(row["topic"], row["found_partition"], row["found_offset"]): row["said"] for row in read}
    assert said[retried["topic"], 0, 0]["failure_id"] == waiting(0).failure_id
    assert [said[died["topic"], *place]["reason"] for place in ((0, 0), (0, 1), (1, 0))] == [None, None, "exhausted"]
    assert "retry-version" in said[died["topic"], 0, 0]["unreadable"]
    assert "no retry headers" in said[died["topic"], 0, 1]["unreadable"]
    assert said[group.topology.events, 0, 0]["kind"] == "succeeded"
    assert "JSON" in said[group.topology.events, 1, 0]["unreadable"]

    again = job.run_once()
    assert (again.rows, again.gaps) == (0, ()), "the next run begins after the aborted records"
    group.dead(0, dead(2))
    result = job.run_once()
    assert (result.rows, result.cut[group.topology.dlq, 0]) == (1, 3)
    assert places_of(folder) == group.places()


def test_gaps_and_epochs(group: Group, lake: Lake, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """What retention took first is reported once; a topic made again is no continuation of the former one.

    Where it is made again while it is read, it is not known of which of the two the rows are.
    """
    job = group.archive(lake)
    group.dead(0, dead(0))
    assert job.run_once().rows == 1
    for number in range(1, 6):
        group.dead(0, dead(number))
    group.operator.delete_records(group.topology.dlq, 0, 4)
    result = job.run_once()
    assert [(gap.reason, gap.from_offset, gap.to_offset) for gap in result.gaps] == [(RETENTION, 1, 4)]
    group.make_again(group.topology.dlq, partitions=2)
    for number in range(7):
        group.dead(0, dead(100 + number))  # more than before: by offsets alone the first ones would be passed over
    result = job.run_once()
    assert result.rows == 7
    assert [(gap.reason, gap.partition, gap.from_offset, gap.to_offset) for gap in result.gaps] == [
        (RECREATED, 0, 6, None),
        (RECREATED, 1, 0, None),
    ]
    assert [(row["epoch"], row["offset"]) for row in rows("epoch", "offset")] == [
        *((1, offset) for offset in (0, 4, 5)),
        *((2, offset) for offset in range(7)),
    ]
    again = job.run_once()
    assert (again.rows, again.gaps) == (0, ())
    assert len(Gaps(lake).rows()) == 3

    def made_again(_: Tables) -> None:  # right after the commit of what was read of it
        group.make_again(group.topology.dlq, partitions=2)

    group.dead(0, dead(200))
    monkeypatch.setattr(Tables, "check_shared", made_again)
    with pytest.raises(TopicChangedError, match="Run again"):
        job.run_once()
    (doubt,) = [row for row in Gaps(lake).rows() if row["reason"] == IN_DOUBT]
    assert (doubt["partition"], doubt["from_offset"], doubt["to_offset"]) == (0, 7, 8)
