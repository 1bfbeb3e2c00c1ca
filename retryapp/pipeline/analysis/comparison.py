"""Compares the ledger of the analysis with ``retryapp ledger``: two counts that share no code but core's codecs.

What they say of records that failed must be equal at rest. First-try successes are compared where workers' counts reach
up to the cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OF_FAILED: Final = ("recovered", "superseded", "pending", "held", "dead", "discarded", "lost")
OF_ALL: Final = ("received", "done")

Row = Mapping[str, Any]


def is_covered(row: Row) -> bool:
    """Tell whether workers' counts cover a partition from offset 0 to the cut."""
    if row["cut_offset"] == 0:
        return True
    return row["from_offset"] == 0 and row["to_offset"] == row["cut_offset"] and not row["gaps"] and not row["overlaps"]


def compare(row: Row, counted: Mapping[str, int]) -> list[Row]:
    """Return the numbers of one partition that differ: ``main``, ``partition``, ``name``, ``analysis``, ``ledger``.

    >>> row = dict.fromkeys(OF_FAILED, 0) | dict(main="m", partition=0, cut_offset=0, pending=2, received=5, done=3)
    >>> compare(row, dict(row, done=1, skipped=2))
    []
    >>> [each["name"] for each in compare(row, dict(row, skipped=0, dead=1))]
    ['dead']
    """
    theirs = {**counted, "done": counted["done"] + counted["skipped"]}
    names = OF_FAILED + (OF_ALL if is_covered(row) else ())
    return [
        {
            "main": row["main"],
            "partition": row["partition"],
            "name": name,
            "analysis": row[name],
            "ledger": theirs[name],
        }
        for name in names
        if row[name] != theirs[name]
    ]
