"""Wall time that is the broker's, and that no jump of the system clock moves."""

from __future__ import annotations

import logging
import re
import time

import pytest

from retryapp.runtime.machine import clock as module
from retryapp.runtime.machine.clock import ANCHOR_HOLDS_S, SystemClock

BEGAN_MS = 1_700_000_000_000


class _Machine:
    """The machine's own clocks."""

    def __init__(self) -> None:
        self.counted_s = 500.0
        self.system_ms = float(BEGAN_MS)

    def pass_s(self, seconds: float, *, slewed_ms: float = 0.0) -> None:
        self.counted_s += seconds
        self.system_ms += seconds * 1000 + slewed_ms


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    """A machine whose clocks the test moves."""
    made = _Machine()
    monkeypatch.setattr(module, "counted_s", lambda: made.counted_s)
    monkeypatch.setattr(time, "time_ns", lambda: int(made.system_ms * 1_000_000))
    return made


def acknowledge(clock: SystemClock, machine: _Machine, ahead_ms: int) -> None:
    """Exchange a record with a broker that is ahead by so much."""
    sent_ms = clock.counted_ms()
    machine.pass_s(0.002)
    appended_ms = int(clock.counted_ms()) + ahead_ms
    machine.pass_s(0.002)
    clock.anchor(sent_ms=sent_ms, acked_ms=clock.counted_ms(), appended_ms=appended_ms)


@pytest.mark.parametrize("hours", [2, -2])
def test_a_jump_of_the_system_clock_moves_nothing(
    machine: _Machine, caplog: pytest.LogCaptureFixture, hours: int
) -> None:
    """And is said once."""
    clock = SystemClock()
    machine.pass_s(10, slewed_ms=hours * 3_600_000)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert clock.wall_ms() == pytest.approx(BEGAN_MS + (machine.counted_s - 500) * 1000, abs=1)
            machine.pass_s(10)
    assert [record.message.count("jumped") for record in caplog.records] == [1]


def test_small_corrections_are_followed_as_long_as_no_broker_leads(machine: _Machine) -> None:
    """NTP makes such, also after a jump."""
    clock = SystemClock()
    machine.pass_s(10, slewed_ms=3_600_000)
    clock.wall_ms()
    for _ in range(10):
        machine.pass_s(10, slewed_ms=50)
        clock.wall_ms()
    assert clock.wall_ms() == pytest.approx(BEGAN_MS + 110_000 + 500, abs=1)


@pytest.mark.parametrize(
    ("ahead_ms", "warning"),
    [(7_200_000, "is 1h59m59s[0-9]+ms behind"), (300, ""), (0, ""), (-300, ""), (-7_200_000, "is 2h[0-9]ms ahead of")],
)
def test_the_brokers_time_leads(
    machine: _Machine, caplog: pytest.LogCaptureFixture, ahead_ms: int, warning: str
) -> None:
    """To within the time that an acknowledgement takes; nothing is trusted before the first."""
    clock = SystemClock()
    assert not clock.trusted
    with caplog.at_level(logging.WARNING):
        acknowledge(clock, machine, ahead_ms)
    assert re.search(warning, caplog.text)
    assert bool(caplog.records) == bool(warning)
    assert clock.trusted
    machine.pass_s(60)
    assert clock.wall_ms() == pytest.approx(BEGAN_MS + 60_004 + ahead_ms, abs=5)


def test_corrections_of_the_system_clock_do_not_count_while_the_broker_leads(machine: _Machine) -> None:
    """Two leaders would pull to and fro. After an hour without an acknowledgement the system clock knows better."""
    clock = SystemClock()
    acknowledge(clock, machine, 0)
    for _ in range(10):
        machine.pass_s(10, slewed_ms=100)
        clock.wall_ms()
    began_ms = clock.wall_ms()
    assert began_ms == pytest.approx(BEGAN_MS + 100_000, abs=5)
    machine.pass_s(ANCHOR_HOLDS_S)
    clock.wall_ms()
    for _ in range(10):
        machine.pass_s(10, slewed_ms=100)
        clock.wall_ms()
    assert clock.wall_ms() - began_ms == pytest.approx(ANCHOR_HOLDS_S * 1000 + 100_000 + 1_000, abs=5)


def test_doubt_and_its_end_are_told(machine: _Machine, caplog: pytest.LogCaptureFixture) -> None:
    """While it lasts nothing fires, and somebody will ask why."""
    clock = SystemClock()
    acknowledge(clock, machine, 0)
    with caplog.at_level(logging.WARNING):
        acknowledge(clock, machine, 60_000)
        assert not clock.trusted
        acknowledge(clock, machine, 60_000)
        acknowledge(clock, machine, 60_000)
    assert clock.trusted
    assert ["no due row is delivered" in record.message for record in caplog.records] == [True, False]
    assert clock.wall_ms() - BEGAN_MS == pytest.approx(60_016, abs=5)
