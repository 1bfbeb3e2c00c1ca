"""The lake's tables: ``records`` in Delta, small facts in JSON.

The Delta table keeps statistics of numbers only: text in the statistics of a log would outlive the erasure of its row.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import DataFrame

from retryapp.pipeline.errors import LakeNotSharedError, LakeUnusableError
from retryapp.pipeline.lake import Lake, literal
from retryapp.pipeline.schemas import RECORDS

RECORDS_TABLE: Final = "records"
MADE_MARK: Final = "records.json"  # file that is there once that table was made
ERASURES_TABLE: Final = "erasures"
DERIVED: Final = "derived"  # folder of everything that is made of `records` and can be made again

_PROPERTIES: Final = {
    "delta.dataSkippingStatsColumns": "epoch,partition,offset,timestamp_ms",
    "delta.enableDeletionVectors": "false",  # what is deleted has to leave its file
    "delta.autoOptimize.optimizeWrite": "true",  # a file for each day of a batch, however many tasks read it
    "delta.logRetentionDuration": "interval 7 days",  # a round a minute is 1,440 commits a day
}
MOST_COMMITS: Final = 100  # from which a table is read by Delta, not by the files in its log


class Tables:
    """The table of records of one lake, and the files beside it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.files = lake.files
        self._log = f"{lake.table(RECORDS_TABLE)}/_delta_log"

    def append(self, rows: DataFrame, **options: str) -> None:
        """Add rows in one commit. The first one makes the table; one of a former version gets the columns it lacks."""
        writer = rows.write.format("delta").mode("append").partitionBy("date")
        writer.options(mergeSchema="true", **_PROPERTIES, **options).save(self.lake.table(RECORDS_TABLE))
        self.files.create(self.lake.table(MADE_MARK), "{}")

    def join_small_files(self) -> None:
        """Rewrite the small files of each day as one.

        Delta's own ``autoCompact`` counts files in memory: in a process that found some, it rewrites after each commit.
        """
        self.lake.spark.sql(f"OPTIMIZE {quoted(self.lake.table(RECORDS_TABLE))}").collect()

    def check_shared(self) -> None:
        """Raise if the last rows are not on this machine: each worker of a cluster then wrote to a disk of its own."""
        is_local = str(self.lake.spark.sparkContext.master).partition("[")[0] == "local"
        if is_local or self.files.local_folder(self.lake.uri) is None:
            return
        last = next(commit for commit in self.commits() if commit["operation"] == "WRITE")
        if not self._are_there(last["added"]):
            raise LakeNotSharedError(self.lake.uri, quoted(self.lake.table(RECORDS_TABLE)), last["version"])

    def commits(self) -> Iterator[Mapping[str, Any]]:
        """Yield what the log says of each commit: the newest first, as far as it is asked for.

        Each has its ``version``, the URIs of the files with rows that it ``added``, and how many ``removed`` rows.
        File by file: a query of the history lists all of the log, and is a job of Spark's.
        """
        version, place = self._last_version(), self.lake.table(RECORDS_TABLE)
        while (text := self.files.read(self._commit(version))) is not None:
            actions = [next(iter(json.loads(line).items())) for line in filter(None, text.split("\n"))]
            changes = [(kind, action) for kind, action in actions if action.get("dataChange")]
            yield {
                **dict(actions).get("commitInfo", {}),
                "version": version,
                "added": [f"{place}/{unquote(action['path'])}" for kind, action in changes if kind == "add"],
                "removed": sum(kind == "remove" for kind, _ in changes),
            }
            version -= 1

    def added_between(self, since: Sequence[int] | None, until: Sequence[int]) -> list[str] | None:
        """Return the URIs of the files with the rows that came after one commit and up to another (see ``place_of``).

        ``since`` None: all rows. None where files do not tell: rows were changed or removed meanwhile, a file or a part
        of the log is gone, or all of a log of more than ``MOST_COMMITS`` would have to be read.
        """
        if since is None and until[0] > MOST_COMMITS:
            return None
        added: list[str] = []
        for commit in self.commits():
            if place_of(commit) == since:
                return added if self._are_there(added) else None
            if commit["version"] <= until[0]:
                if commit["removed"]:
                    return None
                added += commit["added"]
            if since is None and commit["version"] == 0:
                return added if self._are_there(added) else None
        return None

    def _are_there(self, files: Sequence[str]) -> bool:
        """Tell whether all of these files are there: elsewhere each question is slow, and so is a listing of thousands.

        So a folder is listed where several of its files are asked for.
        """
        folders: dict[str, list[str]] = defaultdict(list)
        for uri in files:
            folders[uri.rpartition("/")[0]].append(uri)
        return all(
            self.files.exists(uris[0])
            if len(uris) == 1
            else {f"{folder}/{name}" for name in self.files.names(folder)}.issuperset(uris)
            for folder, uris in folders.items()
        )

    def _commit(self, version: int) -> str:
        return f"{self._log}/{version:020}.json"

    def _last_version(self) -> int:
        version = 0
        with suppress(ValueError, LakeUnusableError):  # it is being written: no rename makes it appear as a whole
            version = int(json.loads(self.files.read(f"{self._log}/_last_checkpoint") or "{}").get("version", 0))
        if not self.files.exists(self._commit(version)):
            return max((int(name[:20]) for name in self.files.names(self._log) if name[20:] == ".json"), default=0)
        while self.files.exists(self._commit(version + 1)):
            version += 1
        return version

    def exists(self) -> bool:
        """Tell whether the table of records is there: a first batch that was cancelled leaves the folder of a log."""
        begin = self._commit(0), f"{self._log}/_last_checkpoint"
        return any(map(self.files.exists, begin)) or any(name[20:] == ".json" for name in self.files.names(self._log))

    def read(self, place: Sequence[int] = ()) -> DataFrame:
        """Return the records as of a commit; of none: now. An earlier retryapp may have archived them."""
        options = {"versionAsOf": place[0]} if place else {}
        return self.lake.spark.read.format("delta").options(**options).load(self.lake.table(RECORDS_TABLE))

    def read_files(self, files: Sequence[str]) -> DataFrame:
        """Return the records in some files of the table, without their ``date``, by which the table is partitioned."""
        return self.lake.spark.read.schema(RECORDS).parquet(*map(literal, files))


def place_of(commit: Mapping[str, Any]) -> list[int]:
    """Return a commit's version and time: a table that was made anew has the same versions."""
    return [commit["version"], commit["timestamp"]]


def quoted(place: str) -> str:
    """Return a Delta table's place as SQL names it."""
    escaped = place.replace("`", "``")
    return f"delta.`{escaped}`"
