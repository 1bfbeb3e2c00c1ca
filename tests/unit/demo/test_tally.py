"""The running count."""

from retryapp.demo.balance import HandOff, Station
from retryapp.demo.tally import Tally
from retryapp.demo.visits import Outcome, Visit

NOW_MS = 50


def visit(flight_id: int, outcome: Outcome, *, attempt: int = 1, at: int = 100, due: int | None = None) -> Visit:
    """Make a visit without length."""
    return Visit(
        flight_id=flight_id,
        attempt=attempt,
        failure_id=None,
        due_at_ms=due,
        started_ms=at,
        ended_ms=at,
        outcome=outcome,
    )


def handoff(station: Station, flight_id: int, *, attempt: int = 1, due: int | None = None) -> HandOff:
    """Make a hand-off."""
    return HandOff(
        station=station,
        flight_id=flight_id,
        failure_id=f"demo/flights@id/0/{flight_id}",
        attempt=attempt,
        due_at_ms=due,
        reason="rejected" if station is Station.DLQ else None,
    )


def test_done_and_dead_are_counted_once() -> None:
    """Repeated runs and repeated letters change nothing."""
    tally = Tally()
    tally.add_visits(
        [
            visit(1, Outcome.DONE),
            visit(1, Outcome.DONE),
            visit(2, Outcome.RESET),
            visit(2, Outcome.DONE, attempt=2, at=300, due=290),
            visit(3, Outcome.NOT_FOUND),
        ],
        {1: 90, 2: 80},
    )
    tally.add_handoffs([handoff(Station.DLQ, 3), handoff(Station.DLQ, 3)])
    now = tally.snapshot(NOW_MS)
    assert (now.done_at_first_try, now.done_after_retry, now.dead, now.settled) == (1, 1, 1, 3)
    assert (now.dead_by_reason, now.rejected_by_status) == ({"rejected": 1}, {"404": 1})
    assert (now.lateness.max, now.healthy.max, now.requests) == (10, 20, 5)


def test_a_dead_flight_is_not_done() -> None:
    """Whichever is seen first, the dead letter counts."""
    for steps in (("letter", "visit"), ("visit", "letter")):
        tally = Tally()
        for step in steps:
            if step == "visit":
                tally.add_visits([visit(1, Outcome.DONE)], {})
            else:
                tally.add_handoffs([handoff(Station.DLQ, 1)])
        assert (tally.snapshot(NOW_MS).done, tally.snapshot(NOW_MS).dead) == (0, 1)


def test_pending_is_parked_less_fired_in_any_order() -> None:
    """A redelivery that is seen before its parking cancels it all the same; attempts are told apart."""
    tally = Tally()
    tally.add_handoffs([handoff(Station.REDELIVERY, 1), handoff(Station.RETRY, 1, due=5)])
    assert tally.snapshot(NOW_MS).pending == 0
    tally.add_handoffs([handoff(Station.RETRY, 1, attempt=2, due=70), handoff(Station.RETRY, 2, due=60)])
    assert (tally.snapshot(NOW_MS).pending, tally.snapshot(NOW_MS).next_due_ms) == (2, 60)
    tally.add_handoffs([handoff(Station.REDELIVERY, 2), handoff(Station.RETRY, 3, due=40)])
    assert tally.snapshot(NOW_MS).next_due_ms == 70
    tally.add_handoffs([handoff(Station.REDELIVERY, 3)])
    now = tally.snapshot(NOW_MS)
    assert (now.pending, now.most_pending, now.next_due_ms) == (1, 2, 70)


def test_early_deliveries_are_shown_at_once() -> None:
    """A delivery before its due time counts while the run goes on."""
    tally = Tally()
    tally.add_visits([visit(1, Outcome.DONE, attempt=2, at=99, due=100)], {})
    tally.add_visits([visit(2, Outcome.DONE, attempt=2, at=100, due=100)], {})
    assert tally.snapshot(NOW_MS).early == 1
