"""What became of a command, by where it was written."""

from __future__ import annotations

import pytest

from retryapp.core.control import Command, Verb
from retryapp.core.lifecycle import Commanded
from retryapp.kafka.commands import send_commands
from retryapp.lookup.outcomes import read_outcome

pytestmark = pytest.mark.broker


def test_the_outcome_of_a_command_is_found_by_its_coordinates(connection, make_topic, publish, topology):
    """Of each of several; nothing yet, then what a worker says; where there is none, nothing is known."""
    make_topic(2, topology.control)
    make_topic(2, topology.events)
    names = [f"{topology.group}/orders@x/1/{offset}" for offset in range(3)]
    commands = [Command(id=f"c{at}", verb=Verb.REPLAY, failure_id=name) for at, name in enumerate(names)]
    places: dict[str, tuple[int, int]] = {}
    assert send_commands(connection, topology, commands, wait_s=0, places=places) == {}
    assert places == {"c0": (1, 0), "c1": (1, 1), "c2": (1, 2)}

    def found(offset: int):
        return read_outcome(connection, topology, 1, offset, lambda: True)

    for at, name in enumerate(names):
        waits = found(at)
        assert (waits.sent.id, waits.sent.verb, waits.sent.failure_id) == (f"c{at}", "replay", name)
        assert (waits.told, waits.complete) == (None, True)
    facts = {"group": topology.group, "handler": "h", "main": "orders", "partition": 1, "at_ms": 1, "verb": "replay"}
    for at, refused in ((1, "replayed"), (0, None)):
        asked = {"command": f"c{at}", "failure_id": names[at], "offset": at}
        event = Commanded(**facts, **asked, refused=refused, text="a sentence")
        publish(topology.events, 1, event.key, event.model_dump_json().encode())
    assert [found(at).told and (found(at).told.command, found(at).told.refused) for at in range(3)] == [
        ("c0", None), ("c1", "replayed"), None,
    ]  # fmt: skip
    assert found(3) is None
    publish(topology.control, 1, b"x", b"no command")
    assert found(3).sent.verb == "unknown"
