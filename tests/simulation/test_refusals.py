"""Topics that refuse some hand-offs for some seconds, beside all other faults: nothing is lost, early or twice."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import pytest

from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import HandOffRefusedError
from simulation import simulate
from simulation.broker import Broker
from simulation.faults import Fault
from simulation.history import History
from simulation.loop import BEGAN_S
from simulation.plan import Plan

QUICK, SEEDS = 40, 100
"""Histories that `make test` runs, and those of `make test-all`."""
TURN_MS = 4_000
LATE = ("I4: ", "I9: ", "I10: ")
"""What a plan without refusals bounds: how late records are, and how much a drain leaves."""


@pytest.mark.parametrize("seeds", [range(QUICK), pytest.param(range(QUICK, SEEDS), marks=pytest.mark.extended)])
def test_refused_hand_offs_are_late_and_nothing_else(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """By topic, partition, time and content, so that the others of a transaction are not refused."""
    produce, refusals = Broker.produce, 0

    def refusing(broker: Broker, name: str, epoch: int, records: Sequence[Outgoing]) -> list[int]:
        nonlocal refusals
        for out in records if broker.now_ms() < (BEGAN_S + 100) * 1000 else ():
            where = b"%s/%d/%d" % (out.topic.encode(), out.partition, broker.now_ms() // TURN_MS)
            if crc32(where) % 4 == 0 and crc32(out.value or b"") % 3 == 0:
                refusals += 1
                raise HandOffRefusedError(out.topic, "refused", 1)
        return produce(broker, name, epoch, records)

    monkeypatch.setattr(Broker, "produce", refusing)
    found = {seed: simulate(seed).violation for seed in seeds}
    assert {seed: text for seed, text in found.items() if text is not None and not text.startswith(LATE)} == {}
    assert refusals > len(seeds)


def test_a_refusal_does_not_hide_that_the_broker_took_a_commit_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may refuse before the broker looks at the epoch: the new producer would never learn of it."""
    produce, refused = Broker.produce, list[bytes | None]()

    def refusing(broker: Broker, name: str, epoch: int, records: Sequence[Outgoing]) -> list[int]:
        for out in records:
            if out.topic.endswith("dlq"):
                refused.append(out.value)
                if out.value == refused[0] and broker.now_ms() - began_ms < 40_000:
                    raise HandOffRefusedError(out.topic, "denied")
        return produce(broker, name, epoch, records)

    monkeypatch.setattr(Broker, "produce", refusing)
    plan = Plan(
        records=((0.3, 0, "FR"), (2.0, 0, "R"), (7.9, 0, "S")),
        faults=(Fault(1.9, "broker stopped", 0, 0.05),),
    )
    history = History(plan)
    began_ms = history.broker.now_ms()
    result = history.run()
    assert result.violation is None
    assert result.reached["a commit was taken back"] == 1
    assert refused.count(refused[0]) > 1
