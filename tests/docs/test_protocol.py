"""docs/protocol.md: each rule names its code and a proof; these exist, and so does every rule that is cited."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from docs.commands import ROOT
from docs.named_tests import TESTS, NamedTest, check_named, named_in
from simulation import MUTANTS
from simulation.planted_units import UNITS

TEXT = (ROOT / "docs" / "protocol.md").read_text()
RULES = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", TEXT, re.MULTILINE)]


@dataclass(frozen=True)
class Row:
    """A row of the table: modules, tests, planted faults."""

    modules: list[str]
    tests: list[NamedTest]
    faults: list[str]


def rows() -> dict[int, Row]:
    """Return the table of code and proof by rule."""
    found = {}
    for number, code, named, planted in re.findall(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", TEXT, re.MULTILINE):
        assert int(number) not in found, f"rule {number} has two rows"
        found[int(number)] = Row(re.findall(r"`([^`]+)`", code), named_in(named), re.findall(r"`([^`]+)`", planted))
    return found


def test_rules_are_numbered_and_in_the_table() -> None:
    """From 1 on, without a gap; each says what goes wrong without it."""
    assert list(range(1, len(RULES) + 1)) == RULES == list(rows())
    assert TEXT.count("*Without it:*") == len(RULES) > 20


@pytest.mark.parametrize("number", RULES)
def test_a_rule_has_code_and_a_proof(number: int) -> None:
    """Its modules and tests exist, and the page says which tests are for `make test-all`."""
    row = rows()[number]
    assert row.modules
    assert all((ROOT / "retryapp" / module).is_file() for module in row.modules), row.modules
    assert row.tests
    check_named(row.tests)


def test_every_planted_fault_breaks_a_rule() -> None:
    """The page and the simulation have the same ones; the page says which of them a unit test finds."""
    named = [fault for row in rows().values() for fault in row.faults]
    by_units = [name for name, *_ in UNITS]
    assert sorted(named) == sorted([*by_units, *(mutant.name for mutant in MUTANTS)])
    assert sorted(re.findall(r"`([^`]+)` \(unit test\)", TEXT)) == sorted(by_units)


def test_cited_rules_exist() -> None:
    """In code, tests and other documents."""
    paths = [*(ROOT / "retryapp").rglob("*.py"), *TESTS.rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    lists = [numbers for path in paths for numbers in re.findall(r"\brules? ((?:\d+(?:, | and )?)+)", path.read_text())]
    cited = {int(number) for numbers in lists for number in re.findall(r"\d+", numbers)}
    assert {12, 30} <= cited <= set(RULES)
