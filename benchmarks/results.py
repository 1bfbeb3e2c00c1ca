"""What a workload measured: figures with intervals and targets, as plain data that JSON keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stats import estimate

RESULTS = "results.json"
FORMAT = 1
"""Raised when a field comes or goes; files of another format are not read."""

Figure = dict[str, Any]


def figure(
    name: str, unit: str, samples: Sequence[float | None], *, least: float | None = None, most: float | None = None
) -> Figure:
    """Return the median of the runs that finished (None: did not), and whether it is within its target."""
    finished = [sample for sample in samples if sample is not None]
    value = estimate(finished) if finished else None
    target = None if least is most is None else f">= {least:,g}" if least is not None else f"<= {most:,g}"
    met = None
    if target is not None:
        met = value is not None and (least is None or value.median >= least) and (most is None or value.median <= most)
    return {"name": name, "unit": unit, "value": value and asdict(value), "target": target, "met": met}


@dataclass(slots=True, kw_only=True)
class Result:
    """One workload's outcome."""

    figures: list[Figure] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    """`columns` and `rows` of text."""
    notes: list[str] = field(default_factory=list)
    samples: dict[str, list[float | None]] = field(default_factory=dict)
    """Every run's figure, in order."""
    unfinished: str | None = None
    """Why the whole workload did not finish."""
    picture: str | None = None
    """File name."""


def save(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    partial = folder / f"{RESULTS}.new"
    partial.write_text(json.dumps({"format": FORMAT, "workloads": results}, indent=1) + "\n")
    partial.replace(folder / RESULTS)


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Read saved results; nothing if there are none, or only in another format."""
    file = folder / RESULTS
    content = json.loads(file.read_text()) if file.exists() else {}
    return dict(content["workloads"]) if content.get("format") == FORMAT else {}
