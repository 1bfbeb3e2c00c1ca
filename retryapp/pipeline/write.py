"""Writing streams to the lake, so that a batch that comes twice is there once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retryapp.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def append_stream(rows: DataFrame, lake: Lake, table: str, *, checkpoint: str, name: str) -> StreamingQuery:
    """Start a query that appends all that is there now to a table, and ends.

    Delta notes (query id, batch number) in the commit itself, and the query id is kept in the checkpoint: a batch that
    is repeated changes nothing, and a new checkpoint is never mistaken for an old one. Parquet has no commits: there a
    batch is a folder of its own, which a repetition overwrites.
    """
    writer = rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True).queryName(name)
    if lake.format == "delta":
        return writer.format("delta").outputMode("append").start(lake.table(table))
    folder = checkpoint.rsplit("/", 1)[-1]

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{lake.table(table)}/batch={folder}-{number:09d}")

    return writer.foreachBatch(write).start()
