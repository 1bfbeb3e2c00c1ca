"""What a workload found: figures with their intervals and targets, in a form that JSON keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stats import Estimate, estimate

RESULTS = "results.json"
FORMAT = 1
"""Raised when a field comes or goes: what an older version kept is measured again, not guessed at."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure has to reach."""

    least: float | None = None
    most: float | None = None

    def met_by(self, value: float) -> bool:
        """Tell whether a value reaches it."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def text(self) -> str:
        """Say it."""
        return f">= {self.least:,g}" if self.least is not None else f"<= {self.most:,g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure."""

    name: str
    unit: str
    value: Estimate | None
    """None: no run finished."""
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None: there is none."""
        if self.target is None:
            return None
        return self.value is not None and self.target.met_by(self.value.median)


def figure(name: str, unit: str, samples: Sequence[float | None], target: Target | None = None) -> Figure:
    """Return the median of those runs that finished."""
    finished = [sample for sample in samples if sample is not None]
    return Figure(name, unit, estimate(finished) if finished else None, target)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for the page, beside the figures."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(slots=True, kw_only=True)
class Result:
    """One workload's outcome."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: dict[str, list[float | None]] = field(default_factory=dict)
    """Every run's figure, in order."""
    unfinished: str | None = None
    """Why the whole workload did not finish, when ours did not."""
    picture: str | None = None
    """File name of its plot."""
    ran: dict[str, Any] = field(default_factory=dict)
    """When, on what, how: set by the one who runs it."""

    def find(self, name: str) -> Figure:
        """Return the figure of this name."""
        return next(figure for figure in self.figures if figure.name == name)


def save(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write results, each as :func:`as_json` returns it, into a folder."""
    partial = folder / f"{RESULTS}.new"
    partial.write_text(json.dumps({"format": FORMAT, "workloads": results}, indent=1) + "\n")
    partial.replace(folder / RESULTS)


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what was saved; nothing when there is nothing, or only another format."""
    file = folder / RESULTS
    found = json.loads(file.read_text()) if file.exists() else {}
    return dict(found["workloads"]) if found.get("format") == FORMAT else {}


def as_json(result: Result) -> dict[str, Any]:
    """Return a result as JSON keeps it, with each figure's verdict."""
    plain = asdict(result)
    for shown, made in zip(plain["figures"], result.figures, strict=True):
        shown["met"] = made.met
        shown["target"] = None if made.target is None else made.target.text
    return plain
