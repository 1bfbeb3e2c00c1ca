"""Planted faults of verdicts and rules; see `simulation.mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from retryapp.core import hops
from retryapp.core.rules import Rule
from retryapp.core.topology import HandlerTopology
from retryapp.engine.delivery import deliver, judge
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane.turn import Turn


def _always_first(_previous: Any, _rule: Any) -> int:
    """Failures in a row are not carried."""
    return 1


def _as_attempts(previous: Any, _rule: Any) -> int:
    """All failures count, whatever the rule."""
    return 1 if previous is None else previous.attempt + 1


def _left(run: Run, failure: Any, ended_ms: int) -> Turn:
    turn = _skipped(run, failure, ended_ms)
    turn.rows = ()
    return turn


def _uncounted(run: Run, failure: Any, ended_ms: int) -> Turn:
    """A skip at the first delivery is counted as a failure."""
    return replace(_skipped(run, failure, ended_ms), skipped=False)


_skipped = deliver._skipped


def _outermost(self: Rule, error: BaseException, delivery: Any = None, on_fault: Any = None) -> BaseException | None:
    """Rules do not look at causes."""
    return _find(replace(self, anywhere=False), error, delivery, on_fault)


_find = Rule.find


VERDICTS: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("failures under a rule are not carried",
     ((judge, "failures_in_a_row", _always_first), (hops, "failures_in_a_row", _always_first)), 2),
    ("a rule's schedule goes by all attempts", ((judge, "failures_in_a_row", _as_attempts),), 6),
    ("a skip leaves its row", ((deliver, "_skipped", _left),), 26),
    ("a skip counts as a failure", ((deliver, "_skipped", _uncounted),), 52),
    ("dead letters of a rule go to the usual topic",
     ((HandlerTopology, "dlq_named", lambda self, _name: self.dlq),), 6),
    ("rules do not look at causes", ((Rule, "find", _outermost),), 6),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""
