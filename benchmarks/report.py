"""The page: what was run, on what, with which settings, and what came out. Written from `results.json` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PAGE = "README.md"

_INTRODUCTION = """\
# Benchmarks

What retryapp costs, beside what a competent user would write instead. This page is written by the benchmarks; do not
edit it. One command runs all and writes it again:

```sh
make bench
```

Each workload also runs alone, with its sizes as options: `python -m benchmarks happy --pairs 3`. `--quick` takes small
sizes, to see that things work; its figures mean nothing, and no page is written unless `--out` names a folder.

## How

* **Sides.** `benchmarks/peers` has one whole program for each: ours, the bare Faust agent (stock settings), retries by
  Faust's own means (a RocksDB table and a timer that looks through it, from Faust's user guide), and the plain aiokafka
  loop that pauses a partition until its head is due. Workers are real `faust worker` processes; the loop is a Python
  process.
* **Same for all.** One single-node Kafka, started by the run, data on disk, no fsync by the broker, one copy. The same
  bytes on the same partitions; a handler with the same body; `acks=all`. Ours runs with transactions, the peers at
  least once.
* **Counting.** The handler of every side writes each delivery, with wall time, into memory that it shares with the
  benchmark. No framework's own counter is used. That nothing is left is told by committed offsets and topic ends; when
  lanes opened is told by the worker's log.
* **Ratios** are taken pair by pair within one run, the side that begins alternates, warm-ups are not counted. Shown is
  the median with its interval: between the k-th smallest and the k-th largest sample, for the largest k that holds the
  true median with 95 % probability (with fewer than six samples: smallest to largest, which is less).
* **Void and unfinished.** Lost, early and repeated deliveries are counted in every run and shown; a side that did not
  finish in time or whose worker ended is shown as such, and its pair has no ratio.
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page for what `results.json` holds: workload name to its result."""
    return "\n".join([_INTRODUCTION, *(line for result in results.values() for line in _section(result))])


def summary(result: Mapping[str, Any]) -> str:
    """Return a result as plain lines for a terminal."""
    lines = [f"{result['title']}:"]
    if result["unfinished"]:
        lines.append(f"  did not finish: {result['unfinished']}")
    for figure in result["figures"]:
        verdict = {True: ", met", False: ", MISSED", None: ""}[figure["met"]]
        target = f"  (target {figure['target']}{verdict})" if figure["target"] else ""
        lines.append(f"  {figure['name']}: {_value(figure)} {figure['unit']}{target}")
    lines += [f"  {' | '.join(row)}" for table in result["tables"] for row in (table["columns"], *table["rows"])]
    return "\n".join(lines)


def _section(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {result['title']}\n"
    if result["unfinished"]:
        yield f"**Did not finish.** {result['unfinished']}\n"
    yield from (f"* {note}" for note in result["notes"])
    yield ""
    if result["figures"]:
        yield "| figure | median (interval) | unit | samples | target | |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for figure in result["figures"]:
            samples = figure["value"]["n"] if figure["value"] else 0
            verdict = {True: "met", False: "**missed**", None: ""}[figure["met"]]
            cells = (figure["name"], _value(figure), figure["unit"], str(samples), figure["target"] or "", verdict)
            yield f"| {' | '.join(cells)} |"
        yield ""
    for table in result["tables"]:
        yield f"| {' | '.join(table['columns'])} |"
        yield f"| {' | '.join('---' for _ in table['columns'])} |"
        yield from (f"| {' | '.join(row)} |" for row in table["rows"])
        yield ""
    if result["picture"]:
        yield f"![lateness over time under a burst]({result['picture']})\n"
    yield from _ran(result["ran"])


def _ran(ran: Mapping[str, Any]) -> Iterator[str]:
    before, after = ran["before"], ran["after"]
    yield (
        f"Run {ran['began']}, {ran['minutes']:.0f} min, version {ran['version']}: `{ran['command']}`. "
        f"Machine before and after: {before['busy_percent']:.0f} % and {after['busy_percent']:.0f} % of its processors "
        f"busy, load average {before['load_average']:.1f} and {after['load_average']:.1f}."
    )
    if not ran["idle"]:
        yield "\n**The machine was not idle: these figures are not to be trusted.**"
    yield "\n" + "; ".join(f"{name} {value}" for name, value in ran["machine"].items()) + f"; {ran['cores']}."
    yield "\nSizes: " + ", ".join(f"{name} {value}" for name, value in ran["sizes"].items()) + ".\n"


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
