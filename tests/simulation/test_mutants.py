"""Planted faults of the protocol are found: a simulation that finds none of them proves nothing."""

from __future__ import annotations

import pytest

from simulation import MUTANTS, Mutant, hunt, simulate

SEEDS = 2_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    """Within as many histories as this."""
    assert hunt(mutant, range(SEEDS), simulate) is not None


def test_a_fault_is_gone_with_its_hunt() -> None:
    """What is patched is put back."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
    for seed in range(5):
        assert simulate(seed).violation is None
