"""What holds records back: somebody, or, of those that are due, a pause, a rate, a circuit that is shut or full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from retryapp.core.circuit import CircuitState
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection
from retryapp.kafka.remembered import remembered
from retryapp.lookup.records import Facts
from retryapp.ports import PartitionInfo

Holding = Mapping[int, Mapping[str, str]]
"""By partition: what holds due records back that wait for a circuit with a name; under an empty one: all."""


def what_holds(infos: Iterable[PartitionInfo]) -> Holding:
    """Return what holds due records of partitions back, as far as their worker has said it."""
    return {
        info.partition: {name: f"limit of {_word(name)}" for name, each in info.circuits.items() if each.full}
        | {name: _word(name) for name, each in info.circuits.items() if each.state != CircuitState.CLOSED}
        | ({"": info.holds_due} if info.holds_due else {})
        for info in infos
    }


def mark_held_back(record: Facts, holding: Holding, now_ms: int) -> None:
    """Add `held_back_by` to a waiting record: who holds it, or what holds due records as this back."""
    words = holding.get(record["partition"], {}) if _is_due(record, now_ms) else {}
    due = words.get("") or words.get(record["circuit"] or "")
    record["held_back_by"] = record["held_by"] or due


def mark_circuits(
    connection: KafkaConnection, topology: HandlerTopology, records: Sequence[Facts], now_ms: int
) -> None:
    """Add `held_back_by` to waiting records, by what their partitions have written down: not rates."""
    holding: dict[int, dict[str, str]] = {}
    is_any_due = any(_is_due(record, now_ms) for record in records)
    for partition, steering in remembered(connection, topology).items() if is_any_due else ():
        shut = [*steering.forced_open, *(name for name, kept in steering.circuits.items() if not kept.closed)]
        paused = {"": "pause"} if steering.paused is not None else {}
        holding[partition] = {name: _word(name) for name in shut} | paused
    for record in records:
        mark_held_back(record, holding, now_ms)


def _is_due(record: Facts, now_ms: int) -> bool:
    return record["due_at_ms"] is not None and record["due_at_ms"] <= now_ms


def _word(circuit: str) -> str:
    return f"circuit {circuit}".rstrip()
