"""How far the archive has come: each of its commits to the table of records carries that in its metadata.

Rows and state are one commit, so no crash can part them, and their order is Delta's, not a clock's. A restored table
has the state of the version that it was restored to. Where the log does not tell (a lake of an earlier version, a table
that somebody overwrote) the rows themselves say how far they reach.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from retryapp.pipeline.errors import NewerLakeError, TableReplacedError
from retryapp.pipeline.sources import Life
from retryapp.pipeline.tables import MADE_MARK, RECORDS_TABLE, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATE_VERSION: Final = 2  # 1: a life that was over had no `next`
WRITER: Final = "retryapp archive"  # Delta's name for the writer: of two commits with one sequence the later one fails
_KEEPING: Final = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "DELETE", "UPDATE", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES",
     "ADD COLUMNS", "CHANGE COLUMN", "REORG", "UPGRADE PROTOCOL"}
)  # fmt: skip
"""Operations after which what was archived still is, or was deleted on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far the archive has come, for all groups of a lake."""

    cluster_id: str | None = None  # None: nothing was archived yet
    sequence: int = 0  # greater with each commit of the archive
    run_id: str = ""  # of the run that made it
    lives: tuple[Life, ...] = ()  # the last one of each topic
    rows: int = 0  # that its commit added

    def life(self, topic: str) -> Life | None:
        return next((life for life in self.lives if life.topic == topic), None)

    def of_group(self, group: str) -> tuple[Life, ...]:
        """Return the lives of a group's topics that have not ended."""
        return tuple(life for life in self.lives if life.group == group and life.next and not life.over)

    def after(self, group: str, present: Sequence[Life], cluster_id: str, run_id: str) -> State:
        """Return the state that a commit makes of this one: the group has these lives, its others are over."""
        names = {life.topic for life in present}
        over = (replace(life, over=True) if life.group == group else life for life in self.lives)
        lives = (*(life for life in over if life.topic not in names), *present)
        return State(cluster_id=cluster_id, sequence=self.sequence + 1, run_id=run_id, lives=lives)

    def text(self, lake_id: str) -> str:
        """Return it as a commit's metadata."""
        facts = asdict(self) | {"retryapp": STATE_VERSION, "lake": lake_id}
        return json.dumps({name: value for name, value in facts.items() if name != "rows"}, ensure_ascii=False)


def read_state(tables: Tables) -> State:
    """Return how far the archive has come."""
    if not tables.exists():
        mark = tables.lake.table(MADE_MARK)
        if tables.files.exists(mark):  # an empty one in its place would hide what was lost
            raise TableReplacedError(tables.lake.table(RECORDS_TABLE), "it is gone", mark)
        return State()
    head = upto = None
    for commit in tables.commits():
        head = commit["version"] if head is None else head
        if upto is not None and commit["version"] > upto:
            continue  # undone by a RESTORE
        state = _state_of(commit, tables)
        if state is not None:
            return state if upto is None else replace(state, sequence=head + 1)
        restored = _restored_to(commit)
        if restored is not None:
            upto = restored
        elif commit.get("operation") not in _KEEPING:
            break
    return _state_of_rows(tables.read(), (head or 0) + 1)


def _state_of(commit: Mapping[str, Any], tables: Tables) -> State | None:
    try:
        facts = json.loads(commit.get("userMetadata") or "{}")
    except ValueError:
        return None
    if not isinstance(facts, dict) or "retryapp" not in facts:
        return None
    if facts["retryapp"] > STATE_VERSION:
        raise NewerLakeError(f"the state of the lake {tables.lake.uri}", facts["retryapp"], STATE_VERSION)
    if facts["lake"] != tables.lake.id:
        raise TableReplacedError(tables.lake.table(RECORDS_TABLE), "it is of another lake")
    lives = tuple(Life(**{**life, "next": tuple(life["next"])}) for life in facts["lives"])
    rows = int(commit.get("operationMetrics", {}).get("numOutputRows", 0))
    return State(
        cluster_id=facts["cluster_id"], sequence=facts["sequence"], run_id=facts["run_id"], lives=lives, rows=rows
    )


def _restored_to(commit: Mapping[str, Any]) -> int | None:
    """Return the version that a RESTORE names; None for one to a time."""
    version = commit["operationParameters"].get("version") if commit.get("operation") == "RESTORE" else None
    return None if version is None else int(version)


def _state_of_rows(records: DataFrame, sequence: int) -> State:
    """Return what the rows say; no commit has had a sequence beyond the table's version and one."""
    identity = ("cluster_id", "topic", "topic_id", "epoch", "group", "main", "station")
    ends = records.groupBy(*identity, "partition").agg((F.max("offset") + 1).alias("next"))
    by_partition = F.map_from_entries(F.collect_list(F.struct("partition", "next"))).alias("next")
    found = ends.groupBy(*identity).agg(by_partition).collect()
    last = {row["topic"]: row for row in sorted(found, key=lambda row: row["epoch"])}
    lives = []
    for row in last.values():
        nexts = (row["next"].get(number) for number in range(max(row["next"]) + 1))
        lives.append(Life(**{name: row[name] for name in identity[1:]}, next=tuple(nexts)))
    cluster_id = max((row["cluster_id"] for row in found), default=None)
    return State(cluster_id=cluster_id, sequence=sequence, lives=tuple(lives))
