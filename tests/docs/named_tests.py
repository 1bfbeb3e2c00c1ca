"""Tests that documents name, as `folder/test_file.py::test_function` below ``tests/``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LATER = {"pytest.mark.extended", "pytest.mark.soak"}

NamedTest = tuple[str, str, bool]
"""File, function, and whether the page takes it for quick."""


def named_in(cell: str) -> list[NamedTest]:
    """Return the tests that a cell of a table names; `::name` is in the file before it."""
    tests, file = [], ""
    for path, function, later in re.findall(r"`([\w/]+\.py)?::(\w+)`( \(all\))?", cell):
        file = path or file
        tests.append((file, function, not later))
    assert len(tests) == cell.count("`") // 2, f"unreadable tests: {cell}"
    return tests


def check_named(tests: list[NamedTest]) -> None:
    """Check that these tests exist, and that the page says which are for `make test-all`."""
    assert [is_quick(file, function) for file, function, _ in tests] == [quick for *_, quick in tests]


def is_quick(file: str, function: str) -> bool:
    """Tell whether a test runs in `make test`, by its marks and its module's; fail if there is no such test."""
    module = ast.parse((TESTS / file).read_text())
    (test,) = (
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    )
    marks = {ast.unparse(decorator) for decorator in test.decorator_list}
    for node in module.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
            listed = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            marks |= {ast.unparse(mark) for mark in listed}
    return not marks & LATER
