"""docs/comparison.md: each way to retry has a section, a setting that exists, and a test on a real broker."""

from __future__ import annotations

import inspect
import re

import pytest
from docs.commands import ROOT
from docs.named_tests import NamedTest, check_named, named_in

import retryapp
from retryapp import Retries, RetryPolicy

TEXT = (ROOT / "docs" / "comparison.md").read_text()
COMPARED = ("Spring", "Uber", "Confluent", "Wolverine", "Karafka", "KafkaFlow", "Axon", "RabbitMQ", "Sidekiq", "Celery",
            "Temporal", "stamina", "KIP-932")  # fmt: skip


def rows() -> dict[str, tuple[str, str, list[NamedTest]]]:
    """Return the first table: way → address of its section, setting, tests."""
    table = TEXT.split("| way | setting | test |")[1].split("\n\n")[0]
    found = re.findall(r"^\| \[(.+)\]\(#(.+)\) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert len(found) == table.count("\n| ") - 1, "every row is read"
    return {way: (address, setting, named_in(named)) for way, address, setting, named in found}


def test_all_are_compared() -> None:
    """Those that a reader may come from; and every section is in the table."""
    assert all(name in TEXT for name in COMPARED)
    assert list(rows()) == re.findall(r"^### (.+)$", TEXT, re.MULTILINE)
    assert len(rows()) >= 20


@pytest.mark.parametrize("way", rows())
def test_a_way_is_explained_and_runs(way: str) -> None:
    """Its section says what others do and what it is here; its test exists and needs a real broker."""
    address, _, tests = rows()[way]
    assert address == re.sub(r"[^a-z -]", "", way.lower()).replace(" ", "-")
    section = TEXT.split(f"\n### {way}\n")[1].split("\n#")[0]
    assert all(part in section for part in ("*Others:*", "*Here:*"))
    assert tests
    check_named(tests)
    assert all(file.startswith("acceptance/") for file, *_ in tests)


@pytest.mark.parametrize("way", rows())
def test_a_setting_exists(way: str) -> None:
    """Its names are public, its arguments are known, its schedules parse."""
    setting = rows()[way][1]
    names = set(re.findall(r"\b([A-Za-z_]+)\(", setting)) - {"exp", "forever"}
    assert all(hasattr(retryapp, name) or hasattr(Retries, name) for name in names), names
    arguments = set(re.findall(r"(\w+)=(?!\d+m|0\.)", re.sub(r"\w+\(.*\)", "", setting)))
    assert arguments <= set(inspect.signature(Retries.handler).parameters), arguments
    for text in re.findall(r'RetryPolicy\("([^"]+)"', setting):
        attempts = RetryPolicy(text).max_attempts
        assert attempts is None or attempts > 1
    assert names or arguments or setting == "the default"
