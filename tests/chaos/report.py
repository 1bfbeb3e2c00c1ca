"""The figures of a run, by fault: for the terminal, for `results.json`, and for the page of the documentation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from benchmarks.machine import describe
from chaos.act import POLICY, SESSION_S
from chaos.campaign import LOG, Result
from chaos.eyes import lines
from chaos.ground import SETTINGS
from chaos.matrix import FAULTS
from chaos.mixed import BAR_S
from retryapp.jvm import kafka_jars

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
TEMPLATE = Path(__file__).with_name("page.md")
COUNTS = ("records", "lost", "wrong", "early", "over_policy", "altered", "leftover", "runs", "repeated", "unexplained")


def by_fault(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Add the rounds of each fault up, in the order of the matrix."""
    found: dict[str, dict[str, Any]] = {}
    for fault in FAULTS:
        mine = [result for result in results if result["fault"] == fault.id]
        if mine:
            found[fault.id] = {"title": fault.title, "how": fault.how, "known": fault.known, **_sum(mine)}
    return found


def _sum(mine: Sequence[Result]) -> dict[str, Any]:
    verdicts = [verdict for result in mine for verdict in result.get("verdicts", ())]
    kinds: Counter[str] = Counter()
    for result in mine:
        kinds.update(result.get("injections", {}))
    outcomes = Counter(result["outcome"] for result in mine)
    notes: dict[str, list[Any]] = {}
    for verdict in verdicts:
        for name, note in verdict["notes"].items():
            notes.setdefault(name, []).append(note)
    return {
        "rounds": len(mine),
        **{name: outcomes[name] for name in ("passed", "failed", "skipped")},
        "seconds": round(sum(result.get("took_s", 0.0) for result in mine)),
        "injections": sum(kinds.values()),
        "kinds": dict(sorted(kinds.items())),
        **{name: sum(verdict[name] for verdict in verdicts) for name in COUNTS},
        "ledger": sum(len(verdict["ledger"]) for verdict in verdicts),
        "repeats": _repeated(verdicts),
        "late_ms_max": max((verdict["late_ms"].get("max", 0) for verdict in verdicts), default=0),
        "notes": notes,
        "failures": [_failure(result) for result in mine if result["outcome"] == "failed"],
        "reasons": sorted({result["reason"] for result in mine if "reason" in result}),
    }


def _failure(result: Result) -> str:
    if "error" in result:
        return f"{result['key']}: {result['error'].strip().splitlines()[-1]}"
    broken = ("lost", "wrong", "early", "over_policy", "altered", "leftover")
    counts: Counter[str] = Counter()
    for verdict in result["verdicts"]:
        counts.update({name: verdict[name] for name in broken})
        counts["copied"] += verdict["copied"] * verdict["single"]
        counts["problems in the ledger"] += len(verdict["ledger"])
    return f"{result['key']}: {', '.join(f'{count} {name}' for name, count in counts.items() if count)}"


def _repeated(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count copied hand-offs and repeated runs over all faults."""
    faults = [each for verdict in verdicts for each in verdict["faults"]]
    repeated = [each["repeated"] for each in faults]
    return {
        "faults": len(faults),
        "copied": sum(verdict["copied"] * verdict["single"] for verdict in verdicts),
        "repeated": sum(verdict["repeated"] for verdict in verdicts),
        "repeated_most": max(repeated, default=0),
        "in_flight": sum(each["in_flight"] for each in faults),
        "in_flight_most": max((each["in_flight"] for each in faults), default=0),
        "over_in_flight": sum(each["attempts"] > each["in_flight"] for each in faults),
    }


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return what a script, or a person at a terminal, wants to know."""
    faults = by_fault(results)
    outcomes = Counter(result["outcome"] for result in results)
    shown = [
        f"{name:9} {each['injections']:5} injections, {each['records']:6} records: {each['lost']} lost, "
        f"{each['early']} early, {each['over_policy']} over policy, {each['wrong']} wrong, {each['altered']} altered, "
        f"{each['repeats']['copied']} copied, {each['repeated']} runs repeated  {each['title']}"
        for name, each in faults.items()
    ]
    return {
        "injections": sum(each["injections"] for each in faults.values()),
        **{name: outcomes[name] for name in ("passed", "failed", "skipped")},
        "faults": faults,
        "lines": shown,
    }


def publish(folder: Path) -> None:
    """Write the figures of a run, and the page that shows them."""
    results = list({line["key"]: line for line in lines(folder / LOG)}.values())
    total = summary(results)
    del total["lines"]
    conditions = {
        **describe(),
        "Kafka": kafka_jars().version,
        "commit of the code": ", ".join(sorted({result["code"] for result in results})),
        "seed": json.loads((folder / "run.json").read_text())["seed"],
        "finished": datetime.fromtimestamp((folder / LOG).stat().st_mtime, UTC).strftime("%Y-%m-%d"),
        "session time-out of the workers": f"{SESSION_S:g} s",
        "group.min.session.timeout.ms": SETTINGS["group.min.session.timeout.ms"],
        "policy, unless the fault needs another": POLICY,
    }
    RESULTS.write_text(json.dumps({"conditions": conditions, **total}, indent=1) + "\n")
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


def page(total: Mapping[str, Any]) -> str:
    faults = total["faults"].values()
    beyond = total["faults"].get("bar", {}).get("notes", {}).get("beyond_session_s", ())
    template = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True).from_string(  # noqa: S701 - Markdown, of our own figures
        TEMPLATE.read_text()
    )
    return template.render(
        **total,
        sums={name: sum(fault[name] for fault in faults) for name in COUNTS},
        copied=sum(fault["repeats"]["copied"] for fault in faults),
        beyond=[second for kills in beyond for second in kills],
        bar_s=BAR_S,
    )
