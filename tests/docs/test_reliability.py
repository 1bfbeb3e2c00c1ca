"""docs/reliability.md: it is what the run's own data say, and the data hold what it claims."""

from __future__ import annotations

import json
from typing import Any

from chaos.matrix import FAULTS
from chaos.report import PAGE, RESULTS, page

LEAST = 1_000


TOLD: dict[str, Any] = json.loads(RESULTS.read_text())


def test_the_page_is_made_of_the_data() -> None:
    """Nobody has typed a figure. Again: make chaos ARGS="--publish"."""
    assert PAGE.read_text() == page(TOLD)


def test_the_run_was_large_enough() -> None:
    """A thousand faults, some of every kind that this machine could make."""
    assert TOLD["injections"] >= LEAST
    assert TOLD["injections"] == sum(sum(each["kinds"].values()) for each in TOLD["faults"].values())
    assert set(TOLD["faults"]) == {fault.id for fault in FAULTS}
    for name, each in TOLD["faults"].items():
        assert each["injections"] > 0 or each["skipped"], name
        assert each["reasons"] or not each["skipped"], name


def test_no_promise_was_broken() -> None:
    """Nothing lost, early, over policy, altered, or handed on twice with transactions; and the ledger agrees.

    But for what the broker itself does wrong: those rounds are on the page, each with what it came to, and why.
    """
    text = PAGE.read_text()
    for name, each in TOLD["faults"].items():
        for count in ("lost", "wrong", "early", "altered", "leftover"):
            assert each[count] == 0, (name, count)
        if each["failures"] and each["known"]:
            assert all(each["known"] in text and failure in text for failure in each["failures"])
            continue
        assert each["over_policy"] == each["ledger"] == 0, name
        assert each["repeats"]["copied"] == 0, name
        assert each["failed"] == 0, name
