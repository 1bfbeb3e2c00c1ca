"""Planted faults of the protocol are found: a simulation that finds none of them proves nothing."""

from __future__ import annotations

import pytest

from simulation import MUTANTS, Mutant, hunt, simulate

SEEDS = 2_000
QUICK = {
    "offsets outside of the transaction",
    "an unknown commit is taken for done",
    "no fresh producer",
    "uncommitted records are read",
    "offsets pass what is running",
    "a note is durable without its turn",
    "what is settled beyond the offset is lost at opening",
    "the store is not brought up to date",
    "fires early",
    "nobody counts crashes",
    "a settled neighbour clears the crash mark",
    "group mark written after its first start",
    "the next group starts before the outcomes of the former are durable",
    "halving drops the second half",
    "a record runs beside a run of itself",
    "deliveries are counted as attempts",
    "two handlers share transactional ids",
    "a bucket is full at opening",
    "attempts are spent while the circuit is open",
    "the position of commands is not written down",
    "a row is claimed while a command changes it",
    "a cancelled run is tried again",
    "a letter is replayed twice",
    "a stopped row is forgotten",
    "a copy is taken for a record",
    "what was sent is never due",
}
"""Those that `make test` plants, each found within 100 histories; `make test-all` plants all."""
PLANTED = [
    pytest.param(mutant, marks=[] if mutant.name in QUICK else [pytest.mark.extended], id=mutant.name)
    for mutant in MUTANTS
]


@pytest.mark.parametrize("mutant", PLANTED)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    """Within as many histories as this."""
    assert hunt(mutant, range(SEEDS), simulate) is not None


def test_a_fault_is_gone_with_its_hunt() -> None:
    """What is patched is put back."""
    names = {mutant.name for mutant in MUTANTS}
    assert len(names) == len(MUTANTS) >= 15
    assert names >= QUICK
    for seed in range(5):
        assert simulate(seed).violation is None
