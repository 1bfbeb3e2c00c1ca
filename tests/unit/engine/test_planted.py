"""Planted faults that no history meets have the tests fail that prove their rules."""

from __future__ import annotations

import inspect
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from simulation.mutants import Mutant
from simulation.planted_units import UNITS

TESTS = Path(__file__).resolve().parents[2]


async def run(named: str) -> None:
    """Run a test that takes no fixtures."""
    path, _, function = named.partition("::")
    spec = spec_from_file_location("planted", TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    result = getattr(module, function)()
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize(("name", "patches", "named"), UNITS, ids=[name for name, *_ in UNITS])
async def test_a_planted_fault_fails_its_test(name: str, patches: Any, named: str) -> None:
    """And without it that test passes."""
    await run(named)
    with Mutant(name, patches).planted(), pytest.raises(AssertionError):
        await run(named)
