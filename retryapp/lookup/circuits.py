"""What holds records back: somebody, or, of those that are due, a pause, a circuit that is not closed, or a rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from retryapp.core.circuit import CircuitState
from retryapp.core.errors import DamagedEventError
from retryapp.core.lifecycle import CircuitChanged, decode_event
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_topic
from retryapp.kafka.positions import Positions
from retryapp.kafka.remembered import remembered
from retryapp.lookup.records import Facts
from retryapp.ports import PartitionInfo

CLOSED: Final = CircuitState.CLOSED
LOOK_BACK_MS: Final = 3_600_000
"""How far back events are read: while records are due, a circuit changes its state far more often."""


Holding = Mapping[int, Mapping[str, str]]
"""By partition: what holds due records back that wait for a circuit with a name; under an empty one: all."""


def what_holds(infos: Iterable[PartitionInfo]) -> Holding:
    """Return what holds due records of partitions back, as far as their worker has said it."""
    return {
        info.partition: {name: _word(name) for name, each in info.circuits.items() if each.state != CLOSED}
        | ({"": info.holds_due} if info.holds_due else {})
        for info in infos
    }


def mark_held_back(record: Facts, holding: Holding, now_ms: int) -> None:
    """Add `held_back_by` to a waiting record: who holds it, or what holds due records as this back."""
    words = holding.get(record["partition"], {}) if _is_due(record, now_ms) else {}
    due = words.get("") or words.get(record["circuit"] or "")
    record["held_back_by"] = due if record["held_by"] in (None, "sequence") else record["held_by"]


def mark_circuits(
    connection: KafkaConnection, topology: HandlerTopology, records: Sequence[Facts], now_ms: int
) -> None:
    """Add `held_back_by` to waiting records, by the events of the last hour and what partitions remember: not rates."""
    due = {record["partition"] for record in records if _is_due(record, now_ms)}
    holding = _circuits(connection, topology.events, due, now_ms) if due else {}
    for partition, steering in remembered(connection, topology).items() if due else ():
        words = holding.setdefault(partition, {})
        words.update((name, _word(name)) for name in steering.forced_open)
        if steering.paused is not None:
            words[""] = "pause"
    for record in records:
        mark_held_back(record, holding, now_ms)


def _is_due(record: Facts, now_ms: int) -> bool:
    return record["due_at_ms"] is not None and record["due_at_ms"] <= now_ms


def _word(circuit: str) -> str:
    return f"circuit {circuit}".rstrip()


def _circuits(
    connection: KafkaConnection, events: str, partitions: Iterable[int], now_ms: int
) -> dict[int, dict[str, str]]:
    admin = Positions(connection)
    if events not in admin.topic_names():
        return {}
    begin = admin.at_time([(events, partition) for partition in partitions], now_ms - LOOK_BACK_MS)
    start = {partition: offset for (_, partition), offset in begin.items() if offset is not None}
    holding: dict[int, dict[str, str]] = {}
    for record in read_topic(connection, events, partitions=[*start], start=start) if start else ():
        with suppress(DamagedEventError):
            event = decode_event(record.value or b"")
            if isinstance(event, CircuitChanged):
                words = holding.setdefault(event.partition, {})
                words.pop(event.circuit, None)
                if event.to_state != CLOSED:
                    words[event.circuit] = _word(event.circuit)
    return holding
