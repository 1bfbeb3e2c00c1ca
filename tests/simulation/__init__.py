"""Deterministic simulation: the engine's own code over a simulated broker, disk, network and clock.

One thread, virtual time, and one number says everything that happens: `simulate(seed)` runs a history of some records,
some workers and some faults, and judges it. The same seed takes the same course, so a failure is replayed by its
number::

    result = simulate(27)
    assert result.violation is None, result.plan

`make simulate SEEDS=100000` runs fresh ones on all processors, `make mutants` shows that planted faults of the
protocol are found.
"""

from __future__ import annotations

from simulation.history import History, simulate
from simulation.mutants import MUTANTS, Mutant, hunt
from simulation.plan import Plan
from simulation.story import Result

__all__ = ["MUTANTS", "History", "Mutant", "Plan", "Result", "hunt", "simulate"]
