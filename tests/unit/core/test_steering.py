"""What a partition remembers of commands, as text."""

from __future__ import annotations

import json

import pytest

from retryapp.core.jobs import Level, Part, PartState, Steering, read_steering


@pytest.mark.parametrize(
    "more",
    [
        {"state": "resting"},
        {"order": {"verb": "replay", "filter": {"colour": "red"}, "upto": {"dlq": 7}, "letters": 5}},
        {"verb": "copy", "order": {"verb": "copy", "to": "another"}},
        {"order": {"verb": "copy", "letters": "many"}},
        {"order": [7]},
    ],
)
def test_a_job_of_a_newer_build_costs_no_pause(more: dict[str, object]) -> None:
    """After a way back to this build: all that was remembered was forgotten, and a paused handler delivered."""
    newer = {"v": 1, "paused": {"since_ms": 5, "by": "ann"}, "parts": [{"job": "a", "verb": "replay", **more}]}
    steering = read_steering(json.dumps(newer))
    assert (steering.paused, steering.going_on) == (Level(since_ms=5, by="ann"), steering.parts)
    (part,) = steering.parts
    assert (part.state, part.over) == (more.get("state", "running"), False)
    assert json.loads(steering.written) == {name: newer[name] for name in ("paused", "parts")}, "as it was read"


def test_a_known_state_is_read_as_such() -> None:
    """Whatever else may be named: code compares it by identity."""
    parts = [Part(job=str(state), verb="replay", state=state) for state in PartState]
    read = read_steering(Steering(parts=parts).written).parts
    assert all(part.state is state for part, state in zip(read, PartState, strict=True))


def test_outcomes_of_a_session_are_not_written_down() -> None:
    """They would go into each transaction, and a later session adds to none that it has not seen."""
    part = Part(job="a", verb="replay", done=3, outcomes=2, failed_again=1)
    assert read_steering(Steering(parts=[part]).written).parts == [Part(job="a", verb="replay", done=3)]
