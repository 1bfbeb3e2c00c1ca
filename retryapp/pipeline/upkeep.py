"""Keeping a lake in shape: fewer files, fewer days, no broken columns, and nobody's data longer than they want.

Whatever changes the table waits until nobody else does (see `hold`).

Erasing the records of a key, in steps that may be repeated, in this order, so that a crash forgets none:

1. The key's hash is written down (``erasures``): the archive keeps no record of that key that arrived until now, also
   not one that is still to be read from a topic.
2. Its rows are deleted from ``records``, by the hash: Delta keeps the words of a deletion in its log.
3. Files that no longer belong to the table go, whatever their age, and with them the change data of the deletion.
4. What was made of the rows (``derived``) goes; the next analysis makes it again without them.
5. That it ended is written down: of one that did not the hash is known, by which anybody can end it without the key.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from retryapp.pipeline.erasures import Erasure, Erasures
from retryapp.pipeline.errors import LakeUnusableError, TableMissingError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.hold import ANALYSIS_HOLD, RECORDS_HOLD, TURN_S, Held, Holds, OnWait
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.session import setting
from retryapp.pipeline.tables import DERIVED, RECORDS_TABLE, TABLES, Tables, quoted
from retryapp.pipeline.transform import reread_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_VACUUM_HOURS: Final = 168
"""Delta's own default: a reader that began before a change may go on for so long."""

_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure did."""

    key_hash: str
    rows: int
    """Rows deleted."""


class Upkeep:
    """The commands on one lake with Delta tables."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        *,
        now_ms: Callable[[], int],
        wait_s: float = TURN_S,
        on_wait: OnWait | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        """Take the parts.

        Args:
            spark: the session.
            lake: whose tables.
            now_ms: the time, epoch milliseconds.
            wait_s: how long to wait for others who write to the same table, in seconds; then a ``HeldError``.
            on_wait: told who is waited for.
            stopped: set by somebody who wants the waiting to end, with that error.

        Raises:
            TableMissingError: there is no archive yet.
            LakeUnusableError: its tables are not Delta's.
        """
        self._spark = spark
        self._lake = lake
        self._now_ms = now_ms
        self._holds = Holds(spark, lake, now_ms)
        self._erasures = Erasures(Facts(spark, lake))
        self._wait_s = wait_s
        self._on_wait = on_wait
        self._stopped = stopped
        self._tables = Tables(spark, lake)
        if lake.format != "delta":
            raise LakeUnusableError(lake.uri, f"this command needs Delta tables, and these are {lake.format}")
        if not self._tables.exists(RECORDS_TABLE):
            raise TableMissingError(lake.uri)
        self._records = quoted(lake.table(RECORDS_TABLE))

    def compact(self, since: date | None = None) -> dict[str, int]:
        """Join small files, those of days from ``since`` on or all; readers see the same rows.

        Returns:
            ``removed`` and ``added`` files.
        """
        where = "" if since is None else f" WHERE date >= '{since.isoformat()}'"
        with self._turn("compact"):
            metrics = self._spark.sql(f"OPTIMIZE {self._records}{where}").collect()[0]["metrics"]
        return {"removed": int(metrics["numFilesRemoved"]), "added": int(metrics["numFilesAdded"])}

    def expire(self, before: date) -> int:
        """Delete the rows of days before one; return how many. Their files go with the next vacuum."""
        with self._turn("expire"):
            return self._delete(f"date < '{before.isoformat()}'")

    def vacuum(self, hours: int = DEFAULT_VACUUM_HOURS) -> None:
        """Remove files that have not belonged to the table for so many hours; readers of older versions then fail."""
        with self._turn("vacuum") as alone:
            self._vacuum(hours, "vacuum", alone)

    def erase(self, key: bytes) -> Erased:
        """Erase all records of a key that have arrived until now.

        An analysis that is at work is waited for too: it would write down what it has read before.

        Args:
            key: the key's bytes, as on the topics.
        """
        hashed = hash_key(key, self._lake.salt)

        def until_now() -> tuple[Erasure]:
            last = self._erasures.last(hashed)  # where clocks differ, it may reach farther
            return (Erasure(max(self._now_ms(), 0 if last is None else last.erased_ms), hashed),)

        return self._erase(until_now)[0]

    def resume_erasures(self) -> tuple[Erased, ...]:
        """End the erasures that died in the middle; what has arrived after they began stays."""
        return self._erase(self._erasures.open)

    def _erase(self, which: Callable[[], Sequence[Erasure]]) -> tuple[Erased, ...]:
        """Do erasures side by side; ``which`` is asked once nobody else is at work, who may have done some."""
        with self._turn("erase", ANALYSIS_HOLD) as no_analysis, self._turn("erase") as alone:
            erasures = which()
            for each in erasures:
                self._erasures.begin(each)
            erased = tuple(
                Erased(
                    each.key_hash, self._delete(f"key_hash = '{each.key_hash}' AND timestamp_ms <= {each.erased_ms}")
                )
                for each in erasures
            )
            if erasures:
                self._vacuum(0, "erase", alone)
                no_analysis.check_turn("erase", self._lake.uri)
                self._tables.files.remove(self._lake.table(DERIVED))
            for each in erasures:
                self._erasures.end(each, self._now_ms())
        return erased

    def rebuild(self, since: date) -> int:
        """Read the rows of days from ``since`` on anew, from their own bytes; return how many.

        For after an upgrade: what an older retryapp could not read (``unreadable``) may be readable now.
        """
        with self._turn("rebuild"):
            rows = self._tables.read(RECORDS_TABLE).where(F.col("date") >= F.lit(since))
            count = rows.count()
            (
                reread_rows(rows)
                .write.format("delta")
                .mode("overwrite")
                .option("replaceWhere", f"date >= '{since.isoformat()}'")
                .option("mergeSchema", "true")
                .save(self._lake.table(RECORDS_TABLE))
            )
        return count

    def register(self, database: str) -> tuple[str, ...]:
        """Make the tables known to the session's catalog, so that SQL finds them by name; return the names."""
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        names = []
        for table in (name for name in TABLES if self._tables.exists(name)):
            name = f"`{database}`.`{table}`"
            place = self._lake.table(table).replace("'", "\\'")
            if table == RECORDS_TABLE:
                self._spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{place}'")
            else:
                columns = ", ".join(
                    f"`{field.name}` {field.dataType.simpleString()} COMMENT '{field.metadata['comment']}'".replace(
                        "Kafka's", "Kafka"
                    )
                    for field in TABLES[table]
                )
                self._spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING json LOCATION '{place}'")
            names.append(f"{database}.{table}")
        return tuple(names)

    def _turn(self, job: str, name: str = RECORDS_HOLD) -> AbstractContextManager[Held]:
        """Wait until nobody else is at work on the table, and keep them off.

        Raises:
            HeldError: somebody was for too long.
        """
        return self._holds.take(job, name, wait_s=self._wait_s, on_wait=self._on_wait, stopped=self._stopped)

    def _vacuum(self, hours: int, job: str, alone: Held) -> None:
        alone.check_turn(job, self._lake.uri)  # it would remove what another one writes
        with setting(self._spark, _CHECK, "false"):
            self._spark.sql(f"VACUUM {self._records} RETAIN {hours} HOURS").collect()

    def _delete(self, predicate: str) -> int:
        statement = f"DELETE FROM {self._records} WHERE {predicate}"  # noqa: S608 - dates, numbers and hashes of ours
        return int(self._spark.sql(statement).collect()[0]["num_affected_rows"])


def hash_key(key: bytes, salt: str) -> str:
    """Return a key's hash as the archive has it; see ``transform.key_hash``."""
    return hashlib.sha256(bytes.fromhex(salt) + key).hexdigest()
