"""The program whose classes Java keeps; `classes` runs it in a process of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from retryapp.pipeline.classes import ARCHIVE_NAME
from retryapp.pipeline.session import SessionOptions, start_session


def train(cache_dir: Path, folder: Path) -> None:
    """Use what every command uses: a table of Delta that is made, changed and read, and small files.

    Args:
        cache_dir: where the jars are.
        folder: an empty one; Java leaves its archive there as ``ARCHIVE_NAME``.
    """
    writes = {"spark.driver.defaultJavaOptions": shlex.quote(f"-XX:ArchiveClassesAtExit={folder / ARCHIVE_NAME}")}
    spark = start_session(SessionOptions(cache_dir=cache_dir, memory="512m", conf=writes, brief=True, scratch=folder))
    rows = spark.range(100).select((F.col("id") % 5).alias("key"), F.col("id").cast("string").alias("text"))
    place = str(folder / "table")
    for _ in range(2):
        counted = rows.groupBy("key").agg(F.count(F.lit(1)).alias("times"), F.max_by("text", "text").alias("text"))
        counted.write.format("delta").mode("overwrite").save(place)
    counted.createOrReplaceTempView("fresh")
    spark.sql(
        f"MERGE INTO delta.`{place}` old USING fresh new ON old.key = new.key "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    spark.read.format("delta").load(place).write.json(str(folder / "facts"))
    known = spark.read.schema("key long, times long, text string").json(str(folder / "facts"))
    known.join(F.broadcast(counted), on="key").orderBy("key").cache().collect()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - nothing public tells when its JVM has ended
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it writes the archive as it ends


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]))
