"""docs/comparison.md: each way to retry has a section, a setting that exists, and a test on a real broker."""

from __future__ import annotations

import inspect
import re
from typing import Any

import faust
import pytest
from docs.commands import ROOT
from docs.named_tests import NamedTest, check_named, named_in

import retryapp
from retryapp import Batch, CircuitBreaker, Retries, RetryPolicy, non_retryable
from retryapp.core.errors import InvalidSettingError

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


NAMED_LETTERS = RetryPolicy("1s", on=[non_retryable(ValueError, dead_letters="invalid")])
BOUNDED = "forever(1s); max_elapsed=1d"
APART: dict[str, list[dict[str, Any]]] = {
    "`batch=`": [{"policy": RetryPolicy("1s", hot="5ms"), "batch": Batch()}, {"batch": Batch(), "order": "partition"}],
    "`circuit=`, `circuits=`": [
        {"circuit": CircuitBreaker(), "order": "partition"},
        {"circuits": {"ledger": CircuitBreaker()}, "order": "partition"},
    ],
    "`forever(...)`": [
        {"policy": "forever(1s)"},
        {"policy": "forever(1s)", "order": "latest"},
        {"policy": "forever(1s)", "order": "key", "payload": "reference"},
    ],
    '`on_dead="hold"`': [
        {"on_dead": "hold"},
        {"on_dead": "hold", "order": "latest"},
        {"on_dead": "hold", "order": "key", "dead_letters": "drop"},
        {"on_dead": "hold", "order": "key", "max_sequences": 3, "overflow": "release"},
    ],
    "`max_sequences=`, `max_sequence_size=`": [
        {"max_sequences": 3},
        {"max_sequence_size": 3, "order": "partition"},
        {"max_sequences": 3, "order": "latest"},
    ],
    '`payload="reference"`': [
        {"payload": "reference", "order": "latest"},
        {"payload": "reference", "redelivery": "main"},
    ],
    '`redelivery="main"`': [
        *({"redelivery": "main", "order": order} for order in ("key", "latest", "partition")),
        {"redelivery": "main", "circuits": {"ledger": CircuitBreaker(max_concurrent=2)}},
    ],
    '`dead_letters="drop"`': [{"policy": NAMED_LETTERS, "dead_letters": "drop"}],
}
"""What a start refuses, by the first column of the page's table."""
TOGETHER: list[dict[str, Any]] = [
    {"policy": RetryPolicy("1s", hot="5ms"), "order": "partition", "payload": "reference"},
    {"policy": BOUNDED, "order": "key", "payload": "reference", "on_dead": "hold", "max_sequences": 3},
    {"batch": Batch(), "order": "key", "circuit": CircuitBreaker(), "circuits": {"ledger": CircuitBreaker()}},
    {"batch": Batch(), "redelivery": "main", "dead_letters": "drop", "rate_limit": "5/s"},
]


def declare(settings: dict[str, Any]) -> None:
    async def handle(_value: Any) -> None: ...

    Retries(faust.App("app", broker="kafka://127.0.0.1:1")).handler("orders", **{"policy": "1s", **settings})(handle)


async def test_settings_that_do_not_combine_are_listed_and_refused() -> None:
    """Each row of the table; what it does not list combines."""
    table = TEXT.split("| setting | not with |")[1].split("\n\n")[0]
    assert re.findall(r"^\| (`.+?) \| .+ \|$", table, re.MULTILINE) == list(APART)
    for settings in (each for several in APART.values() for each in several):
        with pytest.raises(InvalidSettingError):
            declare(settings)
    for settings in TOGETHER:
        declare(settings)
