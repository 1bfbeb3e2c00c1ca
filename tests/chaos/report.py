"""What a run came to, by fault: for the terminal, and for the page of the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.campaign import Result
from chaos.matrix import FAULTS

COUNTS = ("records", "lost", "wrong", "early", "over_policy", "altered", "leftover", "runs", "repeated", "unexplained")


def by_fault(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Add the rounds of each fault up."""
    found: dict[str, dict[str, Any]] = {}
    for fault in FAULTS:
        mine = [result for result in results if result["fault"] == fault.id]
        if mine:
            found[fault.id] = {"title": fault.title, "how": fault.how, **_sum(mine)}
    return found


def _sum(mine: Sequence[Result]) -> dict[str, Any]:
    verdicts = [verdict for result in mine for verdict in result.get("verdicts", ())]
    kinds: Counter[str] = Counter()
    for result in mine:
        kinds.update(result.get("injections", {}))
    faults = [each for verdict in verdicts for each in verdict["faults"]]
    outcomes = Counter(result["outcome"] for result in mine)
    return {
        "rounds": len(mine),
        **{name: outcomes[name] for name in ("passed", "failed", "skipped")},
        "injections": sum(kinds.values()),
        "kinds": dict(sorted(kinds.items())),
        **{name: sum(verdict[name] for verdict in verdicts) for name in COUNTS},
        "copied_exactly_once": sum(verdict["copied"] for verdict in verdicts if verdict["exactly_once"]),
        "copied_at_least_once": sum(verdict["copied"] for verdict in verdicts if not verdict["exactly_once"]),
        "repeated_most": max((each["repeated"] for each in faults), default=0),
        "in_flight_most": max((each["in_flight"] for each in faults), default=0),
        "repeated_over_in_flight": sum(each["repeated"] > each["in_flight"] for each in faults),
        "late_ms_max": max((verdict["late_ms"].get("max", 0) for verdict in verdicts), default=0),
        "reasons": sorted({result["reason"] for result in mine if "reason" in result}),
    }


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return what a script, or a person at a terminal, wants to know."""
    faults = by_fault(results)
    outcomes = Counter(result["outcome"] for result in results)
    lines = [
        f"{name:4} {told['injections']:5} injections, {told['records']:6} records: {told['lost']} lost, "
        f"{told['early']} early, {told['over_policy']} over policy, {told['wrong']} wrong, {told['altered']} altered, "
        f"{told['copied_exactly_once']} copied, {told['repeated']} runs repeated  {told['title']}"
        for name, told in faults.items()
    ]
    return {
        "injections": sum(told["injections"] for told in faults.values()),
        "faults": faults,
        "lines": lines,
        **{name: outcomes[name] for name in ("passed", "failed", "skipped")},
    }


def publish(folder: Path) -> None:
    """Write the page."""
    raise NotImplementedError(folder)
