"""Histories that are analysed together, each as a group of its own: a plan for each would cost seconds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest
from lives import GROUP, Archive, cut
from pyspark.sql import functions as F

from retryapp.pipeline.analysis import causes, counts, figures
from retryapp.pipeline.analysis.journeys import before_cut, journeys_of, traces_of
from retryapp.pipeline.analysis.reading import readings_of
from retryapp.pipeline.analysis.rollup import delays, rollup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


Story = Generator[None, "Tables", None]
WRITERS: list[tuple[Callable[[Archive], Story], tuple[int, ...]]] = []
COUNTS = (
    "received", "failed", "done", "first_try_ok", "skipped", "recovered", "superseded", "pending", "held", "dead",
    "discarded", "lost", "extra", "uncounted", "gaps", "overlaps",
)  # fmt: skip


def story(*ends: int) -> Callable[[Callable[[Archive], Story]], Any]:
    """Make a test of a generator: it writes a history, yields, and is sent the tables up to a cut of these offsets."""

    def made(tell: Callable[[Archive], Story]) -> Any:
        number = len(WRITERS)
        WRITERS.append((tell, ends))

        def test(stories: Stories) -> None:
            with pytest.raises(StopIteration):  # its end
                stories.told.pop(number).send(stories.tables(number))

        test.__name__, test.__doc__ = tell.__name__, tell.__doc__
        return test

    return made


class Stories:
    """All histories of the modules that were collected."""

    def __init__(self, spark: SparkSession) -> None:
        """Have them written, and make the tables once."""
        self._groups = [f"{GROUP}-{number}" for number in range(len(WRITERS))]
        archives = [Archive(group=group) for group in self._groups]
        self.told = {number: tell(archives[number]) for number, (tell, _) in enumerate(WRITERS)}
        for each in self.told.values():
            next(each)
        ends = zip(self._groups, WRITERS, strict=True)
        self._cut = [row for group, (_, offsets) in ends for row in cut(*offsets, group=group)]
        every = Archive([row for archive in archives for row in archive.rows])
        self.readings = readings_of(every.frame(spark)).cache()
        self.journeys = journeys_of(before_cut(traces_of(self.readings), self._cut)).cache()
        self.progress = counts.progress_of(self.readings, self._cut).cache()
        self.rollup = rollup(self.journeys, self.progress, length_ms=1_000).cache()
        self._rows: dict[str, list[Any]] = {
            "rows": self.journeys.collect(),
            "ledger": counts.ledger(self.journeys, self.progress, self._cut),
            "sums": figures.ways(self.rollup),
            "delays": figures.delays_of(delays(self.journeys)),
            "causes": causes.causes(self.rollup),
        }

    def tables(self, number: int) -> Tables:
        group = self._groups[number]
        rows = {name: [row for row in found if row["group"] == group] for name, found in self._rows.items()}
        names = ("readings", "journeys", "progress", "rollup")
        return Tables(group, **rows, **{name: getattr(self, name).where(F.col("group") == group) for name in names})


@dataclass
class Tables:
    """The tables of one history."""

    group: str
    readings: DataFrame
    journeys: DataFrame
    progress: DataFrame
    rollup: DataFrame
    rows: list[Row]  # of journeys
    ledger: list[dict[str, Any]]
    sums: list[dict[str, Any]]  # of the rollup, without causes and time
    delays: list[dict[str, Any]]
    causes: list[dict[str, Any]]

    @cached_property
    def by_offset(self) -> dict[int, Row]:
        """Journeys by the offset of the first delivery, where all are of partition 0 and of one life."""
        found = {row["offset"]: row for row in self.rows}
        assert len(found) == len(self.rows)
        return found

    @property
    def ways(self) -> dict[int, str]:
        """The same as texts, see ``way_of``."""
        return {offset: way_of(row) for offset, row in self.by_offset.items()}

    @property
    def counted(self) -> list[str]:
        """What the ledger counts of each partition, zeros left out."""
        return [", ".join(f"{name} {row[name]}" for name in COUNTS if row[name]) for row in self.ledger]


def way_of(journey: Row) -> str:
    """Return a journey as text: fate, reason, what is odd about it, its attempts.

    ``r1.2/4 5m +7 succeeded``: attempt 2 after replay 1, delivery 4, waited in tier 5m, began 7 ms late, succeeded. A
    delivery that spent no attempt has ``-`` for its number.
    """
    odd = (f"{journey[name]} {name}" for name in ("replays", "missing", "copies") if journey[name])
    head = ", ".join([" ".join(filter(None, (journey["fate"], journey["reason"]))), *odd])
    return ": ".join([head, *filter(None, [", ".join(map(_attempt_of, journey["attempts"]))])])


def _attempt_of(attempt: Row) -> str:
    number, delivery, late_ms = attempt["attempt"] or "-", attempt["delivery"], attempt["lateness_ms"]
    replay = f"r{attempt['replays']}." if attempt["replays"] else ""
    words = (
        f"{replay}{number}" if number == delivery else f"{replay}{number}/{delivery}",
        attempt["tier"],
        None if late_ms is None else f"{late_ms:+}",
        attempt["outcome"],
    )
    return " ".join(filter(None, words))
