"""A benchmark from end to end, as small as it can be: real workers on a real broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.plan import quick_plan
from benchmarks.stage import Stage
from benchmarks.workloads import happy


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stage(bootstrap: str, said: list[str]) -> Iterator[Stage]:
    """The tests' broker, in place of one that the benchmark starts; its processor time is not looked at."""
    plan = replace(quick_plan(), partitions=2, happy_records=500, value_bytes=100, pin=False, timeout_s=40)
    with Stage(plan, said.append, broker=(bootstrap, os.getpid())) as made:
        yield made


@pytest.mark.extended
@pytest.mark.timeout(90)
def test_a_pair_of_the_happy_path_is_run_and_counted(stage: Stage, said: list[str]) -> None:
    """Both sides finish, every record is counted once on each, and there is a ratio."""
    result = happy.run(stage)
    assert [value and value > 0 for values in result.samples.values() for value in values] == [True, True], said
    assert result.figures[0]["value"] is not None
    assert "lost or came twice: 0." in result.notes[-1]
    assert not any("VOID" in line or "NOT FINISH" in line for line in said)
