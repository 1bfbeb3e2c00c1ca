"""The report as one page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from retryapp.lookup.instants import length_text, utc_text
from retryapp.pipeline.report import charts
from retryapp.pipeline.report.facts import by_name

_FATES: Final = {"dead": "bad", "discarded": "other", "pending": "wait", "recovered": "good"}
_ENDS: Final = {"succeeded": "good", "retried": "again", "dead": "bad", "waiting": "wait"}
_END_NAMES: Final = {"retried": "failed, sent to wait", "dead": "failed, dead", "waiting": "still waiting for it"}


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


def _charts(facts: Mapping[str, Any]) -> dict[str, charts.Chart]:
    found = {}
    causes = facts["causes"]
    names: dict[str, str] = {}
    for row in causes:  # a cause has a row for each reason
        names.setdefault(row["fingerprint"], _cause(row))
    if facts["timeline"]:
        drawn = {row["fingerprint"] for row in facts["timeline"]}  # the facts say which have a colour of their own
        coloured = {fingerprint: name for fingerprint, name in names.items() if fingerprint in drawn}
        found["timeline"] = charts.over_time(facts["timeline"], coloured)
    if causes:
        shown = set(islice(names, 8))
        bars = [{**row, "name": names[row["fingerprint"]]} for row in causes if row["fingerprint"] in shown]
        found["causes"] = charts.stacked(bars, _FATES, {"pending": "waiting"})
    retries = [row for row in facts["funnel"] if row["attempt"] > 1 or row["replayed"]]
    if retries:
        several = len({row["main"] for row in retries}) > 1
        bars = [{"name": attempt_name(row, with_main=several), **row} for row in retries[:16]]
        found["funnel"] = charts.stacked(bars, _ENDS, _END_NAMES)
    return found


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
