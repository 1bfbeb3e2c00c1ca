"""The workloads: each module has a title, the fields of the plan that it reads, and `run`."""

from __future__ import annotations

from types import ModuleType

from benchmarks.workloads import burst, happy, healthy, lateness, many, memory, modes, pages, peers, recovery, replay

WORKLOADS: dict[str, ModuleType] = {
    module.__name__.rsplit(".")[-1]: module
    for module in (happy, burst, lateness, healthy, modes, recovery, replay, pages, memory, many, peers)
}
