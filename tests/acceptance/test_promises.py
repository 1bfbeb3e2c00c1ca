"""The table of promises names tests that exist, and for each promise one that `make test` runs."""

from __future__ import annotations

import re

import pytest
from docs.named_tests import TESTS, NamedTest, check_named, named_in

PAGE = TESTS.parent / "docs" / "testing.md"


def promises() -> dict[str, list[NamedTest]]:
    found = re.findall(r"^\| ([^|`]+) \| (`[^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    return {promise: named_in(tests) for promise, tests in found}


def test_the_table_was_read() -> None:
    """As many promises as it has rows."""
    table = PAGE.read_text().split("| promise | tests |")[1].split("\n\n")[0]
    assert len(promises()) == table.count("\n| ") - 1 > 10


@pytest.mark.parametrize("promise", promises())
def test_a_promise_has_a_test_that_runs_always(promise: str) -> None:
    """Its first one; and the page says which of the others are for `make test-all`."""
    named = promises()[promise]
    assert named[0][2], "the first test of a promise is quick"
    check_named(named)
