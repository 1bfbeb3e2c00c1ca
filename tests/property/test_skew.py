"""Whatever two clocks do, the correction stays within what acknowledgements allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.skew import AGREEING, DOUBT_MS, DRIFT, BrokerSkew

Exchange = tuple[float, float, float, float]
"""Seconds since the last one, milliseconds to the broker, at the broker, and back."""

exchanges = st.lists(
    st.tuples(st.floats(0, 3_600), st.floats(0, 500), st.floats(0, 50), st.floats(0, 500)), min_size=1, max_size=40
)


def run(skew: BrokerSkew, ahead_ms: float, drift: float, exchanges: list[Exchange]) -> float:
    """Exchange records with a broker whose clock is ahead and drifts; return how far it is ahead at the end."""
    now_s = 1_000.0
    for pause_s, there_ms, kept_ms, back_ms in exchanges:
        now_s += pause_s
        sent_ms = now_s * 1000
        appended_ms = sent_ms + there_ms + kept_ms
        acked_ms = appended_ms + back_ms
        now_s = acked_ms / 1000
        ahead_now_ms = ahead_ms + (now_s - 1_000.0) * 1000 * drift
        skew.observe(
            sent_ms=sent_ms,
            acked_ms=acked_ms,
            appended_ms=int(appended_ms + ahead_ms + (appended_ms / 1000 - 1_000.0) * 1000 * drift),
            at_s=now_s,
        )
    return ahead_now_ms


@given(st.floats(-1e10, 1e10), st.floats(-DRIFT / 2, DRIFT / 2), exchanges)
def test_the_error_is_what_it_says(ahead_ms: float, drift: float, exchanges: list[Exchange]) -> None:
    """The true difference lies within the error that is told, a millisecond of rounding aside."""
    skew = BrokerSkew()
    truth_ms = run(skew, ahead_ms, drift, exchanges)
    assert skew.trusted
    assert abs(skew.correction_ms - truth_ms) <= skew.error_ms + 2
    assert skew.error_ms <= max(there + kept + back for _, there, kept, back in exchanges) + 3_600 * 1000 * DRIFT + 3


@given(st.one_of(st.floats(-1e10, -2_000), st.floats(2_000, 1e10)), exchanges)
def test_a_machine_that_is_off_takes_the_brokers_time_for_no_later_than_it_is(
    ahead_ms: float, exchanges: list[Exchange]
) -> None:
    """What it fires is due by the broker's clock, whichever way its own is off; a millisecond of rounding aside."""
    skew = BrokerSkew()
    truth_ms = run(skew, ahead_ms, 0.0, exchanges)
    assert skew.correction_ms <= truth_ms + 1


@given(
    st.floats(-1e6, 1e6),
    st.floats(2 * DOUBT_MS + 2_000, 1e8),
    st.booleans(),
    st.lists(st.tuples(st.just(0.1), st.floats(0, 500), st.floats(0, 50), st.floats(0, 400)), min_size=AGREEING + 1),
)
def test_a_jump_is_doubted_and_then_believed(ahead_ms: float, by_ms: float, back: bool, after: list[Exchange]) -> None:
    """Not by the first that says so: it may be the last one that does."""
    skew = BrokerSkew()
    run(skew, ahead_ms, 0.0, [(0.0, 1.0, 0.0, 1.0)])
    known_ms = skew.correction_ms
    jumped_ms = ahead_ms + (-by_ms if back else by_ms)
    run(skew, jumped_ms, 0.0, after[:1])
    assert not skew.trusted
    assert skew.correction_ms == known_ms
    truth_ms = run(skew, jumped_ms, 0.0, after[1 : AGREEING + 1])
    assert skew.trusted
    assert abs(skew.correction_ms - truth_ms) <= skew.error_ms + 2


def test_an_outlier_is_forgotten() -> None:
    """One that agrees with what was known ends the doubt."""
    skew = BrokerSkew()
    run(skew, 50.0, 0.0, [(0.0, 1.0, 0.0, 1.0)])
    run(skew, 7_200_050.0, 0.0, [(0.0, 1.0, 0.0, 1.0)] * (AGREEING - 1))
    assert not skew.trusted
    run(skew, 50.0, 0.0, [(0.0, 1.0, 0.0, 1.0)])
    assert skew.trusted
    run(skew, 7_200_050.0, 0.0, [(0.0, 1.0, 0.0, 1.0)] * (AGREEING - 1))
    assert not skew.trusted
    assert abs(skew.correction_ms - 50) <= 3


@given(st.floats(-1e6, 1e6), st.floats(10, DOUBT_MS - 10), st.booleans())
def test_a_lone_contradiction_moves_nothing(ahead_ms: float, by_ms: float, back: bool) -> None:
    """Of another broker, or wrong: records would begin early by it. The next one says whether it stays so."""
    skew, here = BrokerSkew(), [(0.0, 1.0, 0.0, 1.0)]
    run(skew, ahead_ms, 0.0, here)
    known_ms, other_ms = skew.correction_ms, ahead_ms + (-by_ms if back else by_ms)
    run(skew, other_ms, 0.0, here)
    assert (skew.trusted, skew.correction_ms) == (True, known_ms)
    assert skew.error_ms >= by_ms - 3, "both are possible"
    run(skew, ahead_ms, 0.0, here)
    assert skew.correction_ms == known_ms
    assert skew.error_ms <= 5
    run(skew, other_ms, 0.0, here * 2)
    assert abs(skew.correction_ms - other_ms) <= 5


@given(st.integers(20, DOUBT_MS - 10), st.booleans())
def test_a_clock_that_is_set_bit_by_bit_is_followed(by_ms: int, back: bool) -> None:
    """Chrony slews by up to 83 ms a second, for minutes: each acknowledgement contradicts all before."""
    skew = BrokerSkew()
    for step in range(100):
        ahead_ms = float(-step * by_ms if back else step * by_ms)
        run(skew, ahead_ms, 0.0, [(0.0, 1.0, 0.0, 1.0)])
        assert abs(skew.correction_ms - ahead_ms) <= 2 * DOUBT_MS + 10
