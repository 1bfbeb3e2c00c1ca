"""Rows in order: what a table of figures is shown and stored in."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame


def sorted_rows(frame: DataFrame, *by: Column | str) -> DataFrame:
    """Return a small frame sorted, in one partition: a sort of Spark's own would compute the frame twice, to sample it.

    Args:
        frame: figures, some millions of rows at most.
        by: columns.
    """
    return frame.repartition(1).sortWithinPartitions(*by)
