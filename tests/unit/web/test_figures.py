"""Handlers and partitions as facts."""

from __future__ import annotations

from dataclasses import asdict

from retryapp.ports import CircuitInfo, PartitionInfo
from retryapp.web.figures import partition_part


def test_what_other_workers_are_told_of_a_partition_is_all_of_it() -> None:
    """As `asdict` gives it, which takes ten times as long."""
    circuits = {"ledger": CircuitInfo(state="open", since_ms=7, cause="HTTP 503", full=True)}
    info = PartitionInfo(partition=3, state="open", pending=2, pending_by_tier={"5m": 2}, circuits=circuits, session=9)
    assert partition_part(info) == asdict(info)
