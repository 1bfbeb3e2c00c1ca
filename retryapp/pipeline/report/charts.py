"""The report's charts as static SVG; each marker colour becomes a variable of the page, for light and for dark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import vl_convert
from markupsafe import Markup

WIDTH: Final = 640
BAR: Final = 30
_ROLES: Final = (
    "ink", "soft", "line", "good", "wait", "bad", "c1", "c2", "c3", "c4", "c5", "other", "again",
)  # fmt: skip
MARKERS: Final = {role: f"#fe01{number:02x}" for number, role in enumerate(_ROLES, 16)}
"""Role → a colour that no theme has."""
HOUR_MS: Final = 3_600_000
_LETTER: Final = 7.6
"""Width of a letter of a label at most, in pixels: Vega measures with a font that the reader may not have."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture and what its colours mean; the legend is text of the page, which every font fits."""

    svg: Markup
    legend: tuple[tuple[str, str], ...]  # name and role of its colour


def _svg(chart: Any) -> Markup:
    soft = MARKERS["soft"]
    axis = {
        "domain": False, "ticks": False, "gridColor": MARKERS["line"], "labelColor": soft, "labelFontSize": 12,
        "titleColor": soft, "titleFontSize": 12, "titleFontWeight": "normal", "labelPadding": 6,
    }  # fmt: skip
    themed = chart.configure(
        background="transparent",
        font="sans-serif",
        axis=axis,
        axisY={"grid": False},
        legend={"disable": True},
        view={"stroke": None},
        autosize={"type": "fit-x", "contains": "padding"},
        padding={"left": 2, "right": 12, "top": 6, "bottom": 4},
    )
    raw = vl_convert.vegalite_to_svg(themed.to_json(), vl_version="6.1")
    for role, marker in MARKERS.items():
        raw = raw.replace(marker, f"var(--{role})")
    raw = re.sub(r'font-family="[^"]*"', "", raw)
    raw = re.sub(r'<svg([^>]*?) width="([\d.]+)" height="([\d.]+)"', r"<svg\1", raw, count=1)
    return Markup(raw)  # noqa: S704 - Vega escapes all text in it


def _names(values: Rows) -> Any:
    names = list(dict.fromkeys(value["name"] for value in values))
    room = max(len(name) for name in names) * _LETTER
    axis = alt.Axis(labelLimit=WIDTH / 2, minExtent=min(room, WIDTH / 2))
    return alt.Y("name:N", title=None, sort=names, axis=axis)


def stacked(rows: Rows, parts: Mapping[str, str], names: Mapping[str, str]) -> Chart:
    values = [
        {"name": row["name"], "part": part, "n": row[part], "order": number}
        for row in rows
        for number, part in enumerate(parts)
    ]
    scale = alt.Scale(domain=list(parts), range=[MARKERS[role] for role in parts.values()])
    chart = (
        alt.Chart(alt.InlineData(values))
        .mark_bar(height={"band": 0.62}, cornerRadius=1)
        .encode(
            x=alt.X("sum(n):Q", title="records", axis=alt.Axis(tickMinStep=1, tickCount=5, format=",d")),
            y=_names(values),
            color=alt.Color("part:N", scale=scale),
            order="order:Q",
        )
        .properties(width=WIDTH, height=alt.Step(BAR))
    )
    return Chart(_svg(chart), tuple((names.get(part, part), role) for part, role in parts.items()))


def over_time(rows: Rows, names: Mapping[str, str]) -> Chart:
    roles = {fingerprint: f"c{number}" for number, fingerprint in enumerate(names, 1)}
    values = []
    for row in rows:
        begin_ms, role = row["from_ms"], roles.get(row["fingerprint"], "other")
        values.append({"from": begin_ms, "to": begin_ms + row["length_ms"], "role": role, "n": row["failures"]})
    seen = {value["role"] for value in values}
    legend = [(name, roles[fingerprint]) for fingerprint, name in names.items() if roles[fingerprint] in seen]
    legend += [("all others", "other")] if "other" in seen else []
    shown = [role for _, role in legend]
    span_ms = max(value["to"] for value in values) - min(value["from"] for value in values)
    text = "%H:%M:%S" if span_ms < HOUR_MS / 6 else "%H:%M" if span_ms < 36 * HOUR_MS else "%d %b"
    time = alt.Axis(
        grid=False, tickCount=6, format=text, labelFlush=False, labelOverlap="parity", labelSeparation=2 * _LETTER
    )
    counts = alt.Axis(grid=True, tickMinStep=1, tickCount=4)
    chart = (
        alt.Chart(alt.InlineData(values))
        .mark_bar(binSpacing=0)
        .encode(
            x=alt.X("from:T", title=None, scale=alt.Scale(type="utc"), axis=time),
            x2="to:T",
            y=alt.Y("sum(n):Q", title="failed attempts", stack=True, axis=counts),
            color=alt.Color("role:N", scale=alt.Scale(domain=shown, range=[MARKERS[role] for role in shown])),
        )
        .properties(width=WIDTH, height=170)
    )
    return Chart(_svg(chart), tuple(legend))
