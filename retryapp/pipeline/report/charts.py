"""The report's charts as SVG text: Vega-Lite made static, colours replaced by the page's own variables.

Vega writes colours as they stand in its theme. The theme here has marker colours, one for each role, and each marker
becomes ``var(--…)`` afterwards: one picture serves light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

WIDTH: Final = 640
BAR: Final = 30
_ROLES: Final = (
    "ink", "soft", "line", "good", "wait", "bad", "c1", "c2", "c3", "c4", "c5", "other", "again",
)  # fmt: skip
MARKERS: Final = {role: f"#fe01{number:02x}" for number, role in enumerate(_ROLES, 16)}
"""Role → a colour that nobody would choose."""
_NAME_LENGTH: Final = 44
_FONT: Final = "sans-serif"

Rows = Sequence[Mapping[str, Any]]


def _svg(chart: Any) -> str:
    """Return a chart as SVG that takes the page's colours and width."""
    import vl_convert

    raw = vl_convert.vegalite_to_svg(_themed(chart).to_json(), vl_version="6.1")
    for role, marker in MARKERS.items():
        raw = raw.replace(marker, f"var(--{role})")
    raw = re.sub(r'font-family="[^"]*"', "", raw)
    return re.sub(r'<svg([^>]*?) width="([\d.]+)" height="([\d.]+)"', r"<svg\1", raw, count=1)


def _themed(chart: Any) -> Any:
    ink, soft, line = (MARKERS[role] for role in ("ink", "soft", "line"))
    axis = {
        "domain": False,
        "ticks": False,
        "gridColor": line,
        "labelColor": soft,
        "labelFontSize": 12,
        "titleColor": soft,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelPadding": 6,
    }
    legend = {"orient": "top", "title": None, "labelColor": ink, "labelFontSize": 12, "symbolType": "square", "offset": 4}
    return chart.configure(
        background="transparent",
        font=_FONT,
        axis=axis,
        axisY={"grid": False},
        legend=legend,
        view={"stroke": None},
    )


def _short(text: str) -> str:
    """Return text that fits beside a chart; the table has all of it."""
    name = text.rsplit(".", 1)[-1] if len(text) > _NAME_LENGTH else text
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def stacked(rows: Rows, parts: Mapping[str, str], *, title: str) -> str:
    """Return horizontal bars of parts.

    Args:
        rows: ``name`` and a number for each part.
        parts: part → role of its colour, in order.
        title: of the axis.
    """
    import altair as alt

    values = [
        {"name": _short(str(row["name"])), "part": part, "n": row[part], "order": number}
        for row in rows
        for number, part in enumerate(parts)
    ]
    names = list(dict.fromkeys(value["name"] for value in values))
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_bar(height={"band": 0.62}, cornerRadius=1)
        .encode(
            x=alt.X("sum(n):Q", title=title, axis=alt.Axis(tickMinStep=1, tickCount=5, format=",d")),
            y=alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=260)),
            color=alt.Color(
                "part:N", scale=alt.Scale(domain=list(parts), range=[MARKERS[role] for role in parts.values()])
            ),
            order="order:Q",
        )
        .properties(width=WIDTH - 260, height=alt.Step(BAR))
    )
    return _svg(chart)


def over_time(rows: Rows, names: Mapping[str, str]) -> str:
    """Return failures by cause over time.

    Args:
        rows: ``fingerprint`` (null for all others), ``from_ms``, ``length_ms``, ``failures``.
        names: fingerprint → name, the most important first; at most five.
    """
    import altair as alt

    order = [*names.values(), "other"]
    values = [
        {
            "from": row["from_ms"],
            "to": row["from_ms"] + row["length_ms"],
            "cause": _short(names.get(row["fingerprint"] or "", "other")),
            "n": row["failures"],
        }
        for row in rows
    ]
    shown = [name for name in dict.fromkeys(map(_short, order)) if any(value["cause"] == name for value in values)]
    roles = [MARKERS["other" if name == "other" else f"c{number}"] for number, name in enumerate(shown, 1)]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_bar()
        .encode(
            x=alt.X("from:T", title=None, scale=alt.Scale(type="utc"), axis=alt.Axis(grid=False, tickCount=6, labelFlush=True)),
            x2="to:T",
            y=alt.Y("sum(n):Q", title="failed attempts", stack=True, axis=alt.Axis(grid=True, tickMinStep=1, tickCount=4)),
            color=alt.Color("cause:N", scale=alt.Scale(domain=shown, range=roles), legend=alt.Legend(columns=2, labelLimit=300)),
        )
        .properties(width=WIDTH - 60, height=170)
    )
    return _svg(chart)


def ranges(rows: Rows) -> str:
    """Return lateness by tier: a line from half of the attempts to 99 in 100, on a logarithmic scale.

    Args:
        rows: ``name``, ``p50_ms``, ``p90_ms``, ``p99_ms``.
    """
    import altair as alt

    quantiles = (("p50_ms", "1 in 2"), ("p90_ms", "9 in 10"), ("p99_ms", "99 in 100"))
    points = [
        {"name": _short(str(row["name"])), "q": text, "s": max(row[key], 1) / 1_000} for row in rows for key, text in quantiles
    ]
    spans = [
        {"name": _short(str(row["name"])), "s": max(row["p50_ms"], 1) / 1_000, "to": max(row["p99_ms"], 1) / 1_000}
        for row in rows
    ]
    names = list(dict.fromkeys(point["name"] for point in points))
    y = alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=260))
    x = alt.X("s:Q", title="seconds after due (logarithmic)", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=4, format="~g"))
    lines = alt.Chart(alt.Data(values=spans)).mark_rule(color=MARKERS["line"], strokeWidth=4).encode(x=x, x2="to:Q", y=y)
    scale = alt.Scale(domain=[text for _, text in quantiles], range=[MARKERS[role] for role in ("good", "wait", "bad")])
    dots = (
        alt.Chart(alt.Data(values=points)).mark_circle(size=90, opacity=1).encode(x=x, y=y, color=alt.Color("q:N", scale=scale))
    )
    return _svg((lines + dots).properties(width=WIDTH - 260, height=alt.Step(BAR)))
