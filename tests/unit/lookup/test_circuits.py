"""What holds due records back, as their workers say it."""

from __future__ import annotations

from typing import Any

from samples import partition

from retryapp.lookup.circuits import mark_held_back, what_holds
from retryapp.ports import CircuitInfo


def test_a_due_record_is_held_back_by_its_circuit_if_that_is_shut_or_full() -> None:
    def circuit(state: str, *, full: bool) -> CircuitInfo:
        return CircuitInfo(state=state, since_ms=0, cause="", full=full)

    circuits = {
        "ledger": circuit("closed", full=True),
        "mail": circuit("open", full=True),
        "tax": circuit("closed", full=False),
    }
    holding = what_holds([partition(0, circuits=circuits)])
    waiting: dict[str, Any] = {"partition": 0, "held_by": None, "due_at_ms": 1}
    records = [{**waiting, "circuit": name} for name in (*circuits, "")]
    for record in records:
        mark_held_back(record, holding, now_ms=1)
    assert [each["held_back_by"] for each in records] == ["limit of circuit ledger", "circuit mail", None, None]
