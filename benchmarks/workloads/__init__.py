"""The workloads: what each runs, and what it reports. One function a workload, `(stage, say) -> Result`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import Result
from benchmarks.runs import Say
from benchmarks.stage import Stage
from benchmarks.workloads import burst, happy, healthy, lateness, many, memory, peers, recovery


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload by name."""

    name: str
    title: str
    run: Callable[[Stage, Say], Result]
    options: tuple[str, ...]
    """Fields of the plan that it reads, beside those that all share."""


WORKLOADS = tuple(
    Workload(module.NAME, module.TITLE, module.run, module.OPTIONS)
    for module in (happy, burst, lateness, healthy, recovery, memory, many, peers)
)
