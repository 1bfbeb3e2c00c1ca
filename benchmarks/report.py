"""The page: what was run, on what, with which settings, and the figures. Written from `results.json` alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

PAGE = "README.md"
TEMPLATE = Path(__file__).with_name("page.md")


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page for what `results.json` holds: workload name to its result."""
    pages = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)  # noqa: S701 - Markdown
    pages.filters["value"] = _value
    return pages.from_string(TEMPLATE.read_text()).render(results=results.values())


def summary(result: Mapping[str, Any]) -> str:
    lines = [f"{result['title']}:"]
    if result["unfinished"]:
        lines.append(f"  did not finish: {result['unfinished']}")
    for figure in result["figures"]:
        verdict = {True: ", met", False: ", MISSED", None: ""}[figure["met"]]
        target = f"  (target {figure['target']}{verdict})" if figure["target"] else ""
        lines.append(f"  {figure['name']}: {_value(figure)} {figure['unit']}{target}")
    lines += [f"  {' | '.join(row)}" for table in result["tables"] for row in (table["columns"], *table["rows"])]
    return "\n".join(lines)


def _value(figure: Mapping[str, Any]) -> str:
    value = figure["value"]
    if value is None:
        return "did not finish"
    shown = [_number(value[name]) for name in ("median", "low", "high")]
    return shown[0] if value["n"] == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
