"""The report as one page. Its charts are bars of HTML and SVG, whose colours are variables of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from retryapp.lookup.instants import length_text, utc_text
from retryapp.pipeline.report.facts import by_name

Row = Mapping[str, Any]
Parts = Mapping[str, tuple[str, str]]  # column of a row → what its colour means, and that colour's variable

_FATES: Final[Parts] = {"dead": ("dead", "bad"), "pending": ("waiting", "wait"), "recovered": ("recovered", "good")}
_ENDS: Final[Parts] = {
    "succeeded": ("succeeded", "good"),
    "retried": ("failed, sent to wait", "again"),
    "dead": ("failed, dead", "bad"),
    "waiting": ("still waiting for it", "wait"),
}


def to_page(facts: Mapping[str, Any]) -> str:
    """Return the page: HTML with everything in it."""
    loader = PackageLoader("retryapp.pipeline.report", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = {
        "span": lambda length_ms: "-" if length_ms is None else length_text(length_ms),
        "utc": lambda epoch_ms: utc_text(epoch_ms)[:19],  # to the second
        "count": count_text,
        "share": share_text,
        "attempt": attempt_name,
    }
    environment.filters.update(filters)
    groups = facts["groups"]
    tables = {name: rows for name, rows in facts.items() if name != "groups" and isinstance(rows, list)}
    shown = {**facts, **{name: by_name(rows, groups) for name, rows in tables.items()}}
    page = environment.get_template("report.html").render(**shown, charts=_charts(shown))
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _charts(facts: Mapping[str, Any]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    causes = facts["causes"]
    names: dict[str, str] = {}
    for row in causes:  # a cause has a row for each reason
        names.setdefault(row["fingerprint"], _cause(row))
    if facts["timeline"]:
        drawn = {row["fingerprint"] for row in facts["timeline"]}  # the facts say which have a colour of their own
        coloured = {fingerprint: name for fingerprint, name in names.items() if fingerprint in drawn}
        found["timeline"] = _over_time(facts["timeline"], coloured)
    if causes:
        shown = set(islice(names, 8))
        bars = [{**row, "name": names[row["fingerprint"]]} for row in causes if row["fingerprint"] in shown]
        found["causes"] = _stacked(bars, _FATES)
    retries = [row for row in facts["funnel"] if row["attempt"] > 1 or row["replayed"]]
    if retries:
        several = len({row["main"] for row in retries}) > 1
        bars = [{"name": attempt_name(row, with_main=several), **row} for row in retries[:16]]
        found["funnel"] = _stacked(bars, _ENDS)
    return found


def _stacked(rows: Sequence[Row], parts: Parts) -> Row:
    """Return a bar for each name: how much of it each part is."""
    sums: dict[str, Counter[str]] = {}
    for row in rows:
        sums.setdefault(row["name"], Counter()).update({part: row[part] for part in parts})
    bars = [
        {"name": name, "total": count.total(), "parts": [(role, count[part]) for part, (_, role) in parts.items()]}
        for name, count in sums.items()
    ]
    longest = max(1, *(count.total() for count in sums.values()))
    return {"bars": bars, "longest": longest, "legend": list(parts.values())}


def _over_time(rows: Sequence[Row], names: Mapping[str, str]) -> Row:
    """Return the parts of the bar of each interval, one above the other: where its ``top`` is, and its ``height``."""
    roles = {fingerprint: f"c{number}" for number, fingerprint in enumerate(names, 1)}
    begin_ms, length_ms = min(row["from_ms"] for row in rows), rows[0]["length_ms"]
    sums, bars = Counter[int](), []
    for row in rows:
        number, role = (row["from_ms"] - begin_ms) // length_ms, roles.get(row["fingerprint"], "other")
        sums[number] += row["failures"]
        bars.append({"number": number, "top": sums[number], "height": row["failures"], "role": role})
    legend = [(name, roles[fingerprint]) for fingerprint, name in names.items()]
    legend += [("all others", "other")] if any(bar["role"] == "other" for bar in bars) else []
    count = max(sums) + 1
    times_ms = [begin_ms + count * length_ms * part // 2 for part in range(3)]
    size = {"count": count, "highest": max(1, *sums.values()), "length_ms": length_ms}
    return {"bars": bars, "legend": legend, "times_ms": times_ms, **size}


def _cause(row: Mapping[str, Any]) -> str:
    """Return a cause's name for charts: two may have one template."""
    return f"{(row['template'] or str(row['error_type']).rsplit('.', 1)[-1])[:29]} {row['cause_id'][-6:]}"


def attempt_name(row: Mapping[str, Any], *, with_main: bool = False) -> str:
    """Return an attempt for people: its number and the wait before it."""
    again = ", replayed" if row["replayed"] else ""
    waited = f" after {row['tier']}" if row["tier"] else ""
    main = f"{row['main']}: " if with_main else ""
    return f"{main}attempt {row['attempt']}{waited}{again}"


def count_text(number: float | None) -> str:
    """Return a count with separators; a dash for none.

    >>> [count_text(n) for n in (None, 0, 12_345, 2.5)]
    ['-', '0', '12,345', '2.5']
    """
    if number is None:
        return "-"
    return f"{number:,}" if number == int(number) else f"{number:,.1f}"


def share_text(share: float | None) -> str:
    """Return a share in per cent; never 100 % where something is missing.

    >>> [share_text(n) for n in (None, 0.5, 0.99999, 1.0)]
    ['-', '50.0 %', '99.9 %', '100 %']
    """
    if share is None:
        return "-"
    return "100 %" if share == 1 else f"{min(share * 100, 99.9):.1f} %"
