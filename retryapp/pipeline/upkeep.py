"""Maintenance of a lake: expire, vacuum, erase.

Every command holds the table of records (see `hold`), and its commits repeat the archive's state: the log may forget
older ones. An erasure takes these steps; each may be repeated after a crash:

1. Write the key's hash to ``erasures``: from now on no record of it that has arrived or failed until now is archived.
2. Delete its rows from ``records``, and what else is about its records, by a frame of hashes: Delta keeps the text of a
   deletion in its log. It is one commit: the rows say which events and marks are theirs.
3. Remove every file that is not the table's, whatever its age, and look whether one is left.
4. Remove ``derived``, and look whether some is left; the next analysis makes it again without the rows.
5. Write that it ended. An erasure without an end can be finished by its hash, without the key.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Final

from pyspark.sql import functions as F

from retryapp.core.headers import RETRY_ORIGIN
from retryapp.pipeline.erasures import Erasure, Erasures
from retryapp.pipeline.errors import ErasureUnfinishedError, TableMissingError
from retryapp.pipeline.hold import ANALYSIS_HOLD, RECORDS_HOLD, TURN_S, Holds, OnWait
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.schemas import struct, to_frame
from retryapp.pipeline.session import setting
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import DERIVED, RECORDS_TABLE, Tables, quoted

_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_FAILURE_ID: Final = (
    f"concat(`group`, '/', cast(try_element_at(filter(headers, h -> h.key = '{RETRY_ORIGIN}'), 1).value AS string))"
)
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_ERASED: Final = "retryapp_erased"  # view of the hashes


@dataclass(frozen=True, slots=True)
class Erased:
    """A finished erasure, and the number of rows that it deleted."""

    key_hash: str
    rows: int


class Upkeep:
    """The commands on one lake."""

    def __init__(
        self,
        lake: Lake,
        *,
        now_ms: Callable[[], int],
        wait_s: float = TURN_S,
        on_wait: OnWait | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        self._spark = lake.spark
        self._lake = lake
        self._now_ms = now_ms
        self._erasures = Erasures(lake)
        self._take = partial(Holds(lake).take, wait_s=wait_s, on_wait=on_wait, stopped=stopped)
        self._tables = Tables(lake)
        if not self._tables.exists():
            raise TableMissingError(lake.uri)
        self._records = quoted(lake.table(RECORDS_TABLE))

    def expire(self, before: date) -> int:
        """Delete the rows of days before one; return how many. Their files go with the next vacuum."""
        with self._changing("expire", RECORDS_HOLD):
            return self._changed(f"DELETE FROM {self._records} WHERE date < '{before.isoformat()}'")  # noqa: S608 - ours

    def vacuum(self, age_ms: int) -> None:
        """Remove files that left the table this long ago; readers of older versions, an analysis too, fail."""
        hours = f"{age_ms / 3_600_000:.9f}"
        holds = self._changing("vacuum", ANALYSIS_HOLD, RECORDS_HOLD)
        with holds, setting(self._spark, _CHECK, "false"):
            self._spark.sql(f"VACUUM {self._records} RETAIN {hours} HOURS").collect()

    def erase(self, key: bytes) -> Erased:
        """Erase a key's records that have arrived or failed until now; waits for an analysis, which has read them."""
        hashed = hash_key(key, self._lake.salt)

        def until_now() -> tuple[Erasure]:
            ours = self._tables.read().where(F.col("key_hash") == hashed)
            newest_ms = ours.agg(F.max("timestamp_ms")).collect()[0][0]  # by the broker's clock, which may be ahead
            return (Erasure(max(self._now_ms(), newest_ms or 0, self._erasures.reach().get(hashed, 0)), hashed),)

        return self._erase(until_now)[0]

    def resume_erasures(self) -> tuple[Erased, ...]:
        """Finish the interrupted erasures; what has arrived after they began stays."""
        return self._erase(self._erasures.open)

    def _erase(self, which: Callable[[], Sequence[Erasure]]) -> tuple[Erased, ...]:
        """Erase; ``which`` is called under the hold, because another process may have finished some meanwhile."""
        with self._changing("erase", ANALYSIS_HOLD, RECORDS_HOLD):
            erasures = which()
            for each in erasures:
                self._erasures.put(each)
            erased = tuple(Erased(each.key_hash, self._delete(each)) for each in erasures)
            if erasures:
                # where somebody lets Delta mark rows as deleted, they are still in their files
                self._spark.sql(f"REORG TABLE {self._records} APPLY (PURGE)").collect()
                self._purge()
            for each in erasures:
                self._erasures.put(each, ended_ms=self._now_ms())
        return erased

    def _delete(self, erasure: Erasure) -> int:
        """Delete the rows of a key, and events and marks of its records, whose key is the failure id; count them."""
        ours = self._tables.read().where(erasure.predicate)
        of_records = ours.select(self._lake.key_hash(F.encode(F.expr(_FAILURE_ID), "UTF-8")).alias("hash"))
        of_key = to_frame(self._spark, [(erasure.key_hash,)], struct("hash string"))
        of_key.union(of_records).distinct().createOrReplaceTempView(_ERASED)
        is_about = f"hash <> '{erasure.key_hash}'"
        rows = self._changed(
            f"MERGE INTO {self._records} USING {_ERASED} ON key_hash = hash AND ({erasure.predicate} OR {is_about}) "
            f"WHEN MATCHED THEN DELETE"
        )
        self._spark.catalog.dropTempView(_ERASED)
        return rows

    @contextmanager
    def _changing(self, job: str, *holds: str) -> Iterator[None]:
        with ExitStack() as stack:
            for name in holds:
                stack.enter_context(self._take(job, name))
            stack.enter_context(setting(self._spark, _METADATA, read_state(self._tables).text(self._lake.id)))
            yield

    def _purge(self) -> None:
        """Remove what is derived, and each file that is not the table's.

        A vacuum keeps those whose time is ahead of the driver's clock.

        Raises:
            ErasureUnfinishedError: one is still there.
        """
        place, derived = self._lake.table(RECORDS_TABLE), self._lake.table(DERIVED)
        live = {name.rsplit("/", 1)[-1] for name in self._tables.read().inputFiles()}
        files = self._tables.files

        def left() -> list[str]:
            found = (uri for uri in files.below(place) if "/_delta_log/" not in uri)
            return [*(uri for uri in found if uri.rsplit("/", 1)[-1] not in live), *filter(files.exists, (derived,))]

        for uri in left():
            files.remove(uri)
        if still := left():
            raise ErasureUnfinishedError(still[0], len(still))

    def _changed(self, statement: str) -> int:
        return int(self._spark.sql(statement).collect()[0]["num_affected_rows"])


def hash_key(key: bytes, salt: str) -> str:
    """Return a key's hash as the archive has it; see ``Lake.key_hash``."""
    return hashlib.sha256(bytes.fromhex(salt) + key).hexdigest()
