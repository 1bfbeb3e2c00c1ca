"""Records between the fetcher and the engine: none from before a hold, never more than a bound."""

from __future__ import annotations

from typing import Any

import pytest
from faust.types import TP
from kafka_fakes import stuck

from retryapp.engine.worker import intake as module
from retryapp.engine.worker.intake import Intake
from retryapp.ports import TopicPartition

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
PLENTY = 10**9


class _Flow:
    """Stands for the consumer: which partitions may be fetched."""

    def __init__(self) -> None:
        self.full: set[TP] = set()

    def on_buffer_full(self, tp: TP) -> None:
        self.full.add(tp)

    def on_buffer_drop(self, tp: TP) -> None:
        self.full.discard(tp)


@pytest.fixture
def flow() -> _Flow:
    return _Flow()


@pytest.fixture
def intake(flow: _Flow) -> Intake:
    made = Intake()
    made.topics = frozenset({"orders"})
    made.attach(flow)
    return made


def offsets(found: list[Any]) -> list[int]:
    return [record.offset for record in found]


def test_records_of_an_older_epoch_are_thrown_away(intake: Intake, records: Any) -> None:
    """What was fetched before a hold is read again after the seek; taken in it would be there twice."""
    intake.epoch[ORDERS] += 1
    stamp = dict(intake.epoch)
    intake.epoch[ORDERS] += 1
    told: list[TopicPartition] = []
    intake.on_records = told.append
    intake.put({ORDERS: records(ORDERS, 3), OTHER: records(OTHER, 2)}, stamp)
    assert (intake.waiting(ORDERS), intake.waiting(OTHER)) == (0, 2)
    assert told == [OTHER]


def test_fetching_stops_at_so_many_records_and_goes_on_below_the_low_water(
    intake: Intake, flow: _Flow, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is bounded in number."""
    monkeypatch.setattr(module, "HIGH_WATER", 10)
    monkeypatch.setattr(module, "LOW_WATER", 3)
    intake.put({ORDERS: records(ORDERS, 9)}, {})
    assert not flow.full
    intake.put({ORDERS: records(ORDERS, 1, start=9)}, {})
    assert flow.full == {ORDERS}
    intake.take(ORDERS, 6, PLENTY)
    assert flow.full == {ORDERS}
    intake.take(ORDERS, 1, PLENTY)
    assert not flow.full


def test_fetching_stops_at_so_many_bytes_and_goes_on_below_a_quarter(intake: Intake, flow: _Flow, records: Any) -> None:
    """A few large records fill the buffer as well as many small ones."""
    each = module.HIGH_WATER_BYTES // 8
    intake.put({ORDERS: records(ORDERS, 7, size=each)}, {})
    assert not flow.full
    intake.put({ORDERS: records(ORDERS, 1, start=7, size=each)}, {})
    assert flow.full == {ORDERS}
    intake.take(ORDERS, 5, PLENTY)
    assert flow.full == {ORDERS}, "three eighths are left"
    intake.take(ORDERS, 1, PLENTY)
    assert not flow.full


def test_one_stuck_record_is_kept_and_fetching_stops(intake: Intake, flow: _Flow, records: Any) -> None:
    """The position stays before it, so that every fetch would bring it again."""
    intake.put({ORDERS: [*records(ORDERS, 2), stuck(2)]}, {})
    assert flow.full == {ORDERS}
    intake.put({ORDERS: [stuck(2)]}, {})
    assert intake.waiting(ORDERS) == 3
    assert intake.stuck(ORDERS) is None
    assert offsets(intake.take(ORDERS, 10, PLENTY)) == [0, 1]
    assert flow.full == {ORDERS}, "what comes would be the same"
    assert offsets(intake.take(ORDERS, 10, PLENTY)) == []
    found = intake.stuck(ORDERS)
    assert found is not None
    assert found.offset == 2


def test_a_stuck_record_gives_way_to_what_can_be_read_by_now(intake: Intake, records: Any) -> None:
    """A fetch from the same position begins with the same offset."""
    intake.put({ORDERS: [*records(ORDERS, 2), stuck(2)]}, {})
    intake.put({ORDERS: records(ORDERS, 2, start=2)}, {})
    assert offsets(intake.take(ORDERS, 10, PLENTY)) == [0, 1, 2, 3]


def test_records_are_taken_until_the_bytes_are_passed(intake: Intake, records: Any) -> None:
    """The engine's windows are bounded in bytes: what a take may pass them by is its last record."""
    intake.put({ORDERS: records(ORDERS, 10, size=100)}, {})
    assert offsets(intake.take(ORDERS, 10, 250)) == [0, 1, 2]
    assert offsets(intake.take(ORDERS, 10, 0)) == []
    assert offsets(intake.take(ORDERS, 10, 1)) == [3]
