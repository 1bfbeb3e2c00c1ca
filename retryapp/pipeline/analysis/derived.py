"""What the analysis makes of the archive, below ``derived/``: tables, and the result of the last run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from retryapp.pipeline.analysis.schemas import ANALYSIS_VERSION, DERIVED_TABLES, READINGS_TABLE
from retryapp.pipeline.errors import OtherRunError, TableMissingError
from retryapp.pipeline.lake import Lake, literal
from retryapp.pipeline.tables import DERIVED

_RESULT: Final = "analysis"  # of several files the last one counts


class Derived:
    """The folder ``derived/`` of one lake.

    Each run writes Parquet tables to folders of its own, which the result names once all of them are there. So readers
    see one moment, and what a run that died has left is removed by the next one. ``readings`` are in one folder for
    each run that had new records, which the result lists.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._files = lake.files

    def _place(self, *names: str) -> str:
        return self._lake.table("/".join((DERIVED, *names)))

    def read(self, name: str, *run_ids: str) -> DataFrame:
        """Return a table of these runs; of none: as the last run left it that ended in order."""
        run_ids = run_ids or _runs_of(self.last_result(), name)
        places = (literal(self._place(each, name)) for each in run_ids)
        return self._lake.spark.read.schema(DERIVED_TABLES[name]).parquet(*places)

    def put(self, name: str, frame: DataFrame, run_id: str) -> DataFrame:
        """Write a table of a run; return it as it was written."""
        columns = [F.col(field.name).cast(field.dataType).alias(field.name) for field in DERIVED_TABLES[name]]
        frame.select(*columns).write.parquet(self._place(run_id, name))
        return self.read(name, run_id)

    def result(self) -> dict[str, Any] | None:
        """Return the result of the last run that ended in order; None: there is none, or of another version."""
        names = self._results()
        for name in reversed(names):
            try:
                facts = dict(json.loads(self._files.read(self._place(name)) or ""))
            except ValueError:
                continue  # half written: the one before is removed after it
            return facts if facts.get("version") == ANALYSIS_VERSION else None
        return None if names == self._results() else self.result()  # replaced meanwhile

    def last_result(self) -> dict[str, Any]:
        """Return the result of the last run that ended in order, which must be there."""
        result = self.result()
        if result is None:
            raise TableMissingError(self._lake.uri, job="analyse")
        return result

    def whole_result(self) -> dict[str, Any] | None:
        """Return the result if all its tables are there: somebody may have removed some, an erasure may have died."""
        result = self.result()
        if result is None:
            return None
        places = (self._place(each, name) for name in DERIVED_TABLES for each in _runs_of(result, name))
        return result if all(map(self._files.exists, places)) else None

    def put_result(self, facts: Mapping[str, Any]) -> None:
        """Note the result of a finished run; remove the tables of all but it and the run before it.

        Raises:
            OtherRunError: another run has noted one meanwhile; its tables stay.
        """
        former, names = self.result() or {}, self._results()
        number = int(names[-1].split(".")[1]) + 1 if names else 1
        # a result may be noted again for the same run: then the one before that is still the one before
        before = former.get("before" if former.get("run_id") == facts["run_id"] else "run_id")
        text = json.dumps({"version": ANALYSIS_VERSION, **facts, "before": before})
        name = f"{_RESULT}.{number:09d}.json"
        if not self._files.create(self._place(name), text) and self._files.read(self._place(name)) != text:
            raise OtherRunError("analyse", f"another run has written {name}")
        for each in self._files.names(self._lake.table(DERIVED)):
            if each not in {facts["run_id"], before, name, *facts["readings"]}:
                self._files.remove(self._place(each))

    def _results(self) -> list[str]:
        names = self._files.names(self._lake.table(DERIVED))
        return sorted(name for name in names if name.startswith(f"{_RESULT}."))


def _runs_of(result: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(result["readings"]) if name == READINGS_TABLE else (result["run_id"],)
