"""The tables that are made of the archive: their files, how they are replaced, and the state of the last run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Final

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from retryapp.pipeline.analysis.schemas import DERIVED_TABLES, JOURNEYS_TABLE
from retryapp.pipeline.errors import TableMissingError
from retryapp.pipeline.lake import Files, Lake
from retryapp.pipeline.session import setting
from retryapp.pipeline.tables import DERIVED, RECORDS_TABLE, quoted
from retryapp.pipeline.tables import Tables as LakeTables

SIDE_BY_SIDE: Final = 4  # tables written at a time: tasks of one fill the gaps of the others
STATE: Final = "state.json"
_BY_HASH: Final = "spark.sql.execution.useObjectHashAggregateExec"
"""Off for journeys, whose steps are sorted already: Spark would sort them again; the journeys are the same."""
_FRESH: Final = "retryapp_fresh_journeys"
_DELTA_OPTIONS: Final = {
    "overwriteSchema": "true",
    # Rows are counted, nothing else is: files are read as a whole, so least and greatest values would spare none.
    "delta.dataSkippingNumIndexedCols": "0",
}


class Derived:
    """The folder ``derived/`` of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._files = Files(spark, lake.uri)

    def _place(self, name: str) -> str:
        return self._lake.table(f"{DERIVED}/{name}")

    def read(self, name: str) -> DataFrame:
        """Return a table."""
        schema = DERIVED_TABLES[name]
        if not self._files.exists(self._place(name)):
            raise TableMissingError(self._lake.uri)
        return self._spark.read.format("delta").load(self._place(name)).select(*schema.fieldNames())

    def put(self, name: str, frame: DataFrame) -> None:
        """Replace a table."""
        schema = DERIVED_TABLES[name]
        columns = [
            F.col(field.name).cast(field.dataType).alias(field.name, metadata=dict(field.metadata)) for field in schema
        ]
        writer = frame.select(*columns).write.format("delta").mode("overwrite")
        writer.options(**_DELTA_OPTIONS).save(self._place(name))

    def put_all(self, makers: Mapping[str, Callable[[], DataFrame]]) -> None:
        """Replace tables that do not need each other, some at a time; after an error nothing new is begun."""
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="put") as pool:

            def put(name: str, make: Callable[[], DataFrame]) -> None:
                self.put(name, make())

            inherit = inheritable_thread_target(self._spark)  # copies Spark's thread-local properties, for each anew
            try:
                waiting = [pool.submit(inherit(put), name, make) for name, make in makers.items()]
                for each in as_completed(waiting):
                    each.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def put_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace a small table by rows from here."""
        schema = DERIVED_TABLES[name]
        values = [tuple(row[field] for field in schema.fieldNames()) for row in rows]
        self.put(name, self._spark.createDataFrame(values, schema).coalesce(1))

    def put_journeys(self, fresh: DataFrame, *, whole: bool) -> int | None:
        """Replace all journeys, or those that are given; return how many were, None where all."""
        with setting(self._spark, _BY_HASH, "false", required=False):
            if whole:
                self.put(JOURNEYS_TABLE, fresh)
                return None
            fresh.createOrReplaceTempView(_FRESH)
            try:
                merge = (
                    f"MERGE INTO {quoted(self._place(JOURNEYS_TABLE))} old USING {_FRESH} new "
                    "ON old.failure_id = new.failure_id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
                return int(self._spark.sql(merge).collect()[0]["num_affected_rows"])
            finally:
                self._spark.catalog.dropTempView(_FRESH)

    def state(self) -> dict[str, Any] | None:
        """Return the state of the last run that ended in order; None: everything must be derived again."""
        text = self._files.read(self._place(STATE))
        try:
            return None if text is None else dict(json.loads(text))
        except ValueError:
            return None  # half written

    def forget_state(self) -> None:
        """Note that the tables are being changed."""
        self._files.remove(self._place(STATE))

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Note the state of a finished run."""
        self._files.create(self._place(STATE), json.dumps(state))

    def records(self) -> tuple[DataFrame, int]:
        """Return the archive's records at their present version, and the version."""
        if not LakeTables(self._spark, self._lake).exists(RECORDS_TABLE):
            raise TableMissingError(self._lake.uri)
        place = self._lake.table(RECORDS_TABLE)
        version = int(LakeTables(self._spark, self._lake).history(1)[0]["version"])
        return self._spark.read.format("delta").option("versionAsOf", version).load(place), version

    def operations_between(self, former: int, version: int) -> frozenset[str] | None:
        """Return what was done to the archive's table between versions; None where its log no longer tells."""
        rows = LakeTables(self._spark, self._lake).history(version - former + 1) if version >= former else []
        if not any(row["version"] == former for row in rows):
            return None
        return frozenset(_operation(row) for row in rows if former < row["version"] <= version)


def _operation(row: Any) -> str:
    mode = (row["operationParameters"] or {}).get("mode")
    return f"WRITE {mode}" if row["operation"] == "WRITE" else str(row["operation"])
