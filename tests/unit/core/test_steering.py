"""What a partition remembers of commands, as text."""

from __future__ import annotations

from retryapp.core.jobs import Level, Part, PartState, Steering, read_steering


def test_a_job_in_a_state_of_a_newer_build_costs_no_pause() -> None:
    """After a way back to this build: all that was remembered was forgotten, and a paused handler delivered."""
    newer = '{"paused":{"since_ms":5,"by":"ann"},"parts":[{"job":"a","verb":"replay","state":"resting"}]}'
    steering = read_steering(newer)
    assert (steering.paused, steering.going_on) == (Level(since_ms=5, by="ann"), steering.parts)
    (part,) = steering.parts
    assert (part.state, part.over) == ("resting", False)
    assert read_steering(steering.written) == steering, "it is written as it was read"


def test_a_known_state_is_read_as_such() -> None:
    """Whatever else may be named: code compares it by identity."""
    parts = [Part(job=str(state), verb="replay", state=state) for state in PartState]
    read = read_steering(Steering(parts=parts).written).parts
    assert all(part.state is state for part, state in zip(read, PartState, strict=True))


def test_outcomes_of_a_session_are_not_written_down() -> None:
    """They would go into each transaction, and a later session adds to none that it has not seen."""
    part = Part(job="a", verb="replay", done=3, outcomes=2, failed_again=1)
    assert read_steering(Steering(parts=[part]).written).parts == [Part(job="a", verb="replay", done=3)]
