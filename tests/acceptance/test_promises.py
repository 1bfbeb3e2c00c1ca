"""The table of promises names tests that exist, and for each promise one that `make test` runs."""

from __future__ import annotations

import re

import pytest
from docs.named_tests import TESTS, is_quick

PAGE = TESTS.parent / "docs" / "testing.md"


def promises() -> dict[str, list[tuple[str, str, bool]]]:
    """Return by promise the tests that are named: file, function, and whether the page says that it is quick."""
    found = {}
    for promise, tests in re.findall(r"^\| ([^|`]+) \| (`[^|]+) \|$", PAGE.read_text(), re.MULTILINE):
        named = re.findall(r"`([\w/]+\.py)::(\w+)`( \(all\))?", tests)
        assert len(named) == tests.count("`") // 2, f"{promise}: unreadable tests: {tests}"
        found[promise] = [(file, function, not later) for file, function, later in named]
    return found


def test_the_table_was_read() -> None:
    """As many promises as it has rows."""
    table = PAGE.read_text().split("| promise | tests |")[1].split("\n\n")[0]
    assert len(promises()) == table.count("\n| ") - 1 > 10


@pytest.mark.parametrize("promise", promises())
def test_a_promise_has_a_test_that_runs_always(promise: str) -> None:
    """Its first one; and the page says which of the others are for `make test-all`."""
    named = promises()[promise]
    assert named[0][2], "the first test of a promise is quick"
    assert {(file, function): is_quick(file, function) for file, function, _ in named} == {
        (file, function): quick for file, function, quick in named
    }
