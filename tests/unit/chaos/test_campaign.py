"""The campaign of real faults: which rounds it has, how it goes on, what it tells; without a broker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from chaos.__main__ import main
from chaos.campaign import Campaign, Result, Round, rounds
from chaos.matrix import FAULTS, Fault
from chaos.report import summary
from click.testing import CliRunner

from benchmarks.machine import code_version

SEED = 7
NO: Any = None


def fault(name: str, count: int, reason: str = "") -> Fault:
    return Fault(name, name, "not at all", run=lambda *_: None, rounds=count, needs=lambda: reason)


def test_rounds_are_the_same_for_a_seed_and_take_turns() -> None:
    """So that a campaign which is cut short has some of each fault, and each can be done again."""
    planned = list(rounds([fault("A", 3), fault("B", 1)], SEED, 1.0))
    assert [each.key for each in planned] == ["A#0", "B#0", "A#1", "A#2"]
    assert [each.seed for each in planned] == [each.seed for each in rounds([fault("A", 3), fault("B", 1)], SEED, 1.0)]
    seeds = [each.seed for each in (*planned, *rounds([fault("A", 3)], SEED + 1, 1.0))]
    assert len(set(seeds)) == 7
    assert [each.key for each in rounds([fault("A", 40)], SEED, 0.05)] == ["A#0", "A#1"]


def test_the_matrix_has_every_fault() -> None:
    """F1 to F25, and the bar."""
    known = {each.id.split("-")[0] for each in FAULTS}
    assert known == {f"F{n}" for n in range(1, 26)} | {"bar"}
    assert all((each.run is None) != (each.crowd is None) for each in FAULTS)


class Recorded(Campaign):
    """A campaign whose rounds only say that they were run."""

    ran: list[str]

    def play(self, each: Round, _folder: Path) -> list[dict[str, Any]]:
        self.ran.append(each.key)
        if each.key == "A#1":
            raise RuntimeError("it did not settle")
        return [{"passed": True, "ledger": []}]


def run(folder: Path, *faults: Fault, until_s: float = 60.0) -> tuple[list[str], dict[str, Result]]:
    """Run what is left of a campaign; return what was run, sorted, and all results that there are."""
    campaign = Recorded(folder, folder, NO)
    campaign.ran = []
    left = [each for each in rounds(faults, SEED, 1.0) if each.key not in campaign.finished()]
    list(campaign.run(left, 2, time.monotonic() + until_s, lambda _: None))
    return sorted(campaign.ran), campaign.finished()


def test_a_campaign_goes_on_where_it_was_skips_and_fails(tmp_path: Path) -> None:
    """Rounds that are over are not run again; what cannot be done or raises never passes."""
    assert run(tmp_path, fault("A", 2))[0] == ["A#0", "A#1"]
    ran, results = run(tmp_path, fault("A", 3), fault("B", 1, "no right to mount"))
    assert ran == ["A#2"]
    outcomes = {key: result["outcome"] for key, result in results.items()}
    assert outcomes == {"A#0": "passed", "A#1": "failed", "A#2": "passed", "B#0": "skipped"}
    assert results["B#0"]["reason"] == "no right to mount"
    assert "it did not settle" in results["A#1"]["error"]
    assert {result["code"] for result in results.values()} == {code_version()}
    assert run(tmp_path, fault("C", 2), until_s=-1.0)[0] == [], "no round begins after its time"


def test_the_sum_of_a_run() -> None:
    """Injections and broken promises are added up by fault."""
    verdict = {
        **dict.fromkeys(("records", "lost", "wrong", "early", "over_policy", "altered", "leftover"), 1),
        "runs": 9, "repeated": 5, "unexplained": 0, "copied": 2, "single": True, "late_ms": {"max": 30},
        "faults": [{"kind": "k", "in_flight": 4, "repeated": 6, "attempts": 5}],
        "ledger": ["a problem"], "notes": {"rss_mb": 90},
    }  # fmt: skip
    total = summary(
        [
            {"key": "F1#0", "fault": "F1", "outcome": "failed", "injections": {"k": 1}, "verdicts": [verdict] * 2},
            {"key": "F6-loss#0", "fault": "F6-loss", "outcome": "skipped", "reason": "no iptables"},
        ]
    )
    assert (total["injections"], total["passed"], total["failed"], total["skipped"]) == (1, 0, 1, 1)
    one = total["faults"]["F1"]
    assert (one["lost"], one["ledger"], one["notes"]) == (2, 2, {"rss_mb": [90, 90]})
    assert (one["repeats"]["copied"], one["repeats"]["over_in_flight"], one["repeats"]["faults"]) == (4, 2, 2)
    assert total["faults"]["F6-loss"]["reasons"] == ["no iptables"]


@pytest.mark.parametrize("arguments", [["--faults", "F99"], ["--jobs", "many"]])
def test_a_wrong_option_is_usage(arguments: list[str]) -> None:
    """Exit code 2, before anything is started."""
    assert CliRunner().invoke(main, arguments).exit_code == 2
