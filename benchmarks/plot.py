"""The picture of lateness over time under a burst. Needs matplotlib (extra `bench`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Okabe and Ito's, which readers with any colour vision can tell apart."""


def draw(file: Path, series: Mapping[str, Sequence[tuple[float, float]]], title: str) -> None:
    """Draw each side's redeliveries: when, and how late.

    Args:
        file: the PNG to write.
        series: side to (seconds since its first due time, lateness in milliseconds).
        title: above the picture.
    """
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for (name, points), colour in zip(series.items(), _COLOURS, strict=False):
        axes.plot([x for x, _ in points], [max(y, 1.0) for _, y in points], ".", ms=2, color=colour, label=name)
    axes.set_yscale("log")
    axes.set_title(title)
    axes.set_xlabel("seconds since the first record was due")
    axes.set_ylabel("lateness, ms")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(markerscale=6, frameon=False)
    figure.savefig(file, dpi=110)
