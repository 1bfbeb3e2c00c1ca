"""Lakes that are new, newer, wrong or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retryapp.pipeline.errors import LakeUnusableError, NewerLakeError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.lake import open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_lake_is_opened_as_it_was_made(spark: SparkSession, tmp_path: Path) -> None:
    """Its salt stays."""
    assert open_lake(spark, str(tmp_path)) == open_lake(spark, str(tmp_path))


def test_a_lake_that_is_not_delta_is_refused_and_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    """Earlier versions made lakes of Parquet files."""
    mark = tmp_path / "lake.json"
    mark.write_text(json.dumps({"format": 1, "tables": "parquet", "salt": "00"}))
    with pytest.raises(LakeUnusableError, match="its tables are parquet, and only Delta"):
        open_lake(spark, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["lake.json"]


def test_a_newer_lake_is_refused_and_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    """An older retryapp must not write into it."""
    mark = tmp_path / "lake.json"
    mark.write_text(json.dumps({"format": 99, "tables": "delta", "salt": "00"}))
    with pytest.raises(NewerLakeError, match="99"):
        open_lake(spark, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["lake.json"]


def test_a_fact_that_is_half_written_is_written_again(spark: SparkSession, tmp_path: Path) -> None:
    """A full disk, or kill -9 between opening and closing its file, leaves it empty or cut off."""
    facts = Facts(spark, open_lake(spark, str(tmp_path)))
    facts.put("runs", "one", {"state": "started"})
    for left in ("", '{"state": "fin'):
        place = tmp_path / "runs" / "two.json"
        place.write_text(left)
        (tmp_path / "runs" / ".two.json.crc").unlink(missing_ok=True)
        assert facts.rows("runs") == [{"state": "started"}]
        facts.put("runs", "two", {"state": "finished"})
        facts.put("runs", "two", {"state": "failed"})
        assert facts.rows("runs") == [{"state": "started"}, {"state": "finished"}]


@pytest.mark.parametrize("place", ["nosuch://host/lake", "/proc/lake"])
def test_a_wrong_place_is_named(spark: SparkSession, place: str) -> None:
    """With what a right one looks like."""
    with pytest.raises(LakeUnusableError, match="s3a:"):
        open_lake(spark, place)
