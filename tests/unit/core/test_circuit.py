"""The circuit's states, by outcomes and time alone."""

from __future__ import annotations

from typing import Any

import pytest

from retryapp.core.calls import MAX_DIFFERENT
from retryapp.core.circuit import MAX_DOUBLINGS, Circuit, CircuitBreaker, CircuitState
from retryapp.core.errors import InvalidDurationError, InvalidSettingError

CLOSED, OPEN, HALF_OPEN, RECOVERING, FORCED_OPEN = CircuitState


def make(**options: Any) -> Circuit:
    """Make a circuit that opens at half of four records."""
    return Circuit(CircuitBreaker(**{"minimum_calls": 4, "sampling": "10s", "max_open": "10m", **options}))


def opened(now_ms: float = 0.0, **options: Any) -> Circuit:
    circuit = make(**options)
    for place in range(4):
        circuit.settle(place, fine=False, now_ms=now_ms, cause="Down")
    assert circuit.state is OPEN
    return circuit


def probing(now_ms: float = 5_000.0, **options: Any) -> Circuit:
    """Return one that is half-open since `now_ms`."""
    circuit = opened(now_ms - 5_000.0, **options)
    circuit.tick(now_ms)
    assert circuit.state is HALF_OPEN
    return circuit


def probe(circuit: Circuit, now_ms: float, *outcomes: bool, first: int = 10) -> None:
    for place, fine in enumerate(outcomes, start=first):
        assert circuit.permits(now_ms) > 0
        circuit.begin(place, now_ms)
        circuit.settle(place, fine=fine, now_ms=now_ms)


@pytest.mark.parametrize(
    "wrong",
    [
        {"failure_ratio": 0},
        {"failure_ratio": 1.5},
        {"failure_ratio": "0.5"},
        {"failure_ratio": True},
        {"minimum_calls": 1},
        {"minimum_calls": 2.5},
        {"probes": 0},
        {"probes": 1.5},
        {"break_for": "5"},
    ],
)
def test_a_breaker_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """By the name of the field, or as a duration."""
    with pytest.raises((InvalidSettingError, InvalidDurationError)):
        CircuitBreaker(**wrong)


def test_a_record_that_went_well_in_the_end_has_not_failed() -> None:
    """Its last outcome counts."""
    circuit = make(minimum_calls=6)
    for place in (1, 2, 3):
        circuit.settle(place, fine=False, now_ms=0.0)
        circuit.settle(place, fine=True, now_ms=1.0)
    for place in (4, 5):
        circuit.settle(place, fine=False, now_ms=2.0)
    assert circuit.closed
    circuit.settle(6, fine=False, now_ms=3.0)
    assert circuit.state is OPEN, "three of six; nine outcomes"


def test_what_is_older_than_the_window_is_forgotten() -> None:
    """Four failures in a minute are no outage."""
    circuit = make()
    for place in range(20):
        circuit.settle(place, fine=False, now_ms=place * 4_000.0)
    assert circuit.closed


def test_what_it_remembers_is_bounded() -> None:
    """A window that is too full is shorter."""
    circuit = make(minimum_calls=10**9)
    for place in range(3 * MAX_DIFFERENT):
        circuit.settle(place, fine=False, now_ms=place * 9_000 / (3 * MAX_DIFFERENT))
    assert circuit._calls.failed <= MAX_DIFFERENT


def test_nothing_runs_in_the_break_and_probes_after_it() -> None:
    """As many as allowed, and each is another record."""
    circuit = opened()
    assert (circuit.permits(4_999.0), circuit.tick(4_999.0), circuit.next_ms(0.0)) == (0, None, 5_000.0)
    circuit.tick(5_000.0)
    for place in range(3):
        circuit.begin(place, 5_000.0)
    assert circuit.permits(5_000.0) == 0


def test_probes_that_go_well_end_it_slowly() -> None:
    """Two of three are enough; then the rate rises, and after the ramp everything runs."""
    circuit = probing()
    probe(circuit, 5_000.0, False, True, True)
    assert circuit.state is RECOVERING
    began: list[int] = []
    for second in range(30):
        count = 0
        for ms in range(0, 1_000, 10):
            now_ms = 5_000.0 + second * 1_000 + ms
            while circuit.permits(now_ms):
                circuit.begin("x", now_ms)
                count += 1
        began.append(count)
    assert began[0] <= 5
    assert began == sorted(began)
    assert 1_000 < began[-1] < 3_200
    circuit.tick(35_000.0)
    assert circuit.closed


def test_probes_that_fail_open_it_for_longer_and_longer() -> None:
    """Up to a bound."""
    circuit, now_ms, breaks = opened(), 0.0, []
    for turn in range(6):
        until_ms = circuit.next_ms(now_ms)
        assert until_ms is not None
        breaks.append(until_ms - now_ms)
        now_ms = until_ms
        circuit.tick(now_ms)
        probe(circuit, now_ms, False, False, first=100 * turn)
        assert circuit.state is OPEN
    assert breaks == [5_000 * 2 ** min(turn, MAX_DOUBLINGS) for turn in range(6)]


def test_one_record_alone_does_not_open_it_again() -> None:
    """A poison record that probes again and again counts once."""
    circuit = probing()
    for _ in range(10):
        probe(circuit, 5_000.0, False)
    assert circuit.state is HALF_OPEN
    probe(circuit, 5_000.0, True, True, first=20)
    assert circuit.state is RECOVERING


def test_a_probe_that_hangs_is_not_waited_for() -> None:
    """After a break another takes its place; its own outcome counts when it comes."""
    circuit = probing(probes=1)
    circuit.begin("hangs", 5_000.0)
    assert (circuit.permits(9_999.0), circuit.next_ms(5_000.0)) == (0, 10_000.0)
    assert circuit.permits(10_000.0) == 1
    circuit.begin("other", 10_000.0)
    circuit.settle("hangs", fine=True, now_ms=10_001.0)
    assert circuit.state is RECOVERING


def test_an_answer_that_says_nothing_decides_nothing() -> None:
    """It keeps its place for a break: else refusals would probe without a pause. One that has not called has none."""
    circuit = probing(probes=1)
    circuit.begin("cancelled", 5_000.0)
    circuit.leave("cancelled", called=False)
    assert circuit.permits(5_000.0) == 1
    circuit.begin("refused", 5_000.0)
    circuit.leave("refused", called=True)
    circuit.settle("refused", fine=False, now_ms=5_001.0)
    assert (circuit.state, circuit.permits(5_001.0), circuit.permits(10_000.0)) == (HALF_OPEN, 0, 1)
    for at in range(1, 100):
        circuit.begin(at, at * 10_000.0)
        circuit.leave(at, called=True)
    assert len(circuit._slots) == 1, "however many say nothing"


def test_runs_from_before_the_break_are_no_probes() -> None:
    """They say how the service was."""
    circuit = probing()
    for place in range(50, 60):
        circuit.settle(place, fine=place % 2 == 0, now_ms=5_000.0)
    assert circuit.state is HALF_OPEN


def test_a_relapse_opens_it_again() -> None:
    """Records that fail while it recovers are counted as always."""
    circuit = probing()
    probe(circuit, 5_000.0, True, True)
    for place in range(4):
        circuit.settle(100 + place, fine=False, now_ms=6_000.0)
    assert circuit.state is OPEN
    assert circuit.next_ms(6_000.0) == 16_000.0


def test_a_break_is_not_longer_than_failures_are_free() -> None:
    """No failure of a probe would be free."""
    assert CircuitBreaker(break_for="1m", max_open="1m").max_open_ms == 60_000
    with pytest.raises(InvalidSettingError, match="max_open='1m': expected at least break_for=1h: nothing is tried"):
        CircuitBreaker(break_for="1h", max_open="1m")


def test_failures_are_free_for_so_long_only() -> None:
    """A deploy that is bad for good is no outage: its circuit closes, and opens again after calls went well."""
    circuit = opened(max_open="1m")
    assert (circuit.free(0.0), circuit.free(59_999.0), circuit.free(60_000.0)) == (True, True, False)
    now_ms, change = 0.0, None
    while circuit.state is OPEN:
        now_ms = circuit.next_ms(now_ms) or now_ms
        circuit.tick(now_ms)
        circuit.begin(int(now_ms), now_ms)
        circuit.begin(int(now_ms) + 1, now_ms)
        circuit.settle(int(now_ms), fine=False, now_ms=now_ms)
        change = circuit.settle(int(now_ms) + 1, fine=False, now_ms=now_ms, cause="Down")
    assert circuit.closed
    assert change is not None
    assert change.cause == "not closed for max_open, and 2 of 3 probes failed: Down"
    assert 60_000 <= now_ms <= 120_000
    for place in range(100):
        circuit.settle(place, fine=False, now_ms=now_ms)
    assert circuit.closed
    for place in range(100, 300):
        circuit.settle(place, fine=True, now_ms=now_ms + 60_000)
    for place in range(300, 600):
        circuit.settle(place, fine=False, now_ms=now_ms + 60_000)
    assert circuit.state is OPEN


def test_time_elsewhere_does_not_count_towards_the_longest_time() -> None:
    """Nobody has probed meanwhile: what fails after it is the outage, and no bad deploy."""
    circuit = opened(max_open="1m")
    circuit.pause(10_000.0)
    circuit.pause(20_000.0)  # a paused partition goes
    assert circuit.free(3_600_000.0)
    circuit.resume(3_600_000.0)
    assert (circuit.free(3_600_000.0), circuit.free(3_649_999.0), circuit.free(3_650_000.0)) == (True, True, False)


def test_time_before_it_opens_does_not_count_as_a_pause_of_it() -> None:
    """What runs on in a pause may open it, or somebody forces it open."""
    circuit = Circuit(CircuitBreaker(max_open="1m"))
    circuit.pause(0.0)
    circuit.force(100_000.0, "ledger down")
    circuit.release(200_000.0)
    circuit.resume(300_000.0)
    assert (circuit.free(359_999.0), circuit.free(360_000.0)) == (True, False)


def test_it_is_idle_once_nothing_has_probed_for_the_longest_break() -> None:
    """Not while a probe goes on, nor by time elsewhere."""
    circuit = probing()
    assert (circuit.next_ms(5_000.0), circuit.is_idle(44_999.0), circuit.is_idle(45_000.0)) == (45_000.0, False, True)
    circuit.begin(10, 50_000.0)
    assert not circuit.is_idle(99_000.0)
    circuit.settle(10, fine=True, now_ms=99_000.0)
    assert (circuit.is_idle(138_999.0), circuit.is_idle(139_000.0)) == (False, True)
    circuit.pause(100_000.0)
    circuit.resume(200_000.0)
    assert (circuit.is_idle(239_000.0), circuit.is_idle(240_000.0)) == (False, True)
    change = circuit.end_idle(240_000.0)
    assert (change.before, change.after, circuit.spells(300_000.0)) == (HALF_OPEN, CLOSED, [(0.0, 240_000.0)])
    assert not circuit.is_idle(10e9)


def test_time_that_it_was_not_closed_is_told() -> None:
    """For deadlines, which do not count it."""
    circuit = opened(1_000.0)
    assert circuit.spells(3_000.0) == [(1_000.0, 3_000.0)]
    circuit.tick(6_000.0)
    probe(circuit, 6_000.0, True, True)
    circuit.tick(36_000.0)
    assert circuit.closed
    assert circuit.spells(90_000.0) == [(1_000.0, 36_000.0)]


def test_a_record_that_failed_for_free_comes_when_it_may_probe() -> None:
    """At the end of the break; when half-open, after one more."""
    circuit = opened()
    assert circuit.again_ms(1.0) == 5_000.0
    circuit.tick(5_000.0)
    assert circuit.again_ms(6_000.0) == 11_000.0
