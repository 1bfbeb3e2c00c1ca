"""What became of a command, by where it was written, and of a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import dead, waiting

from retryapp.core.control import Command, Verb
from retryapp.core.headers import encode_metadata
from retryapp.core.hops import REPLAY
from retryapp.core.lifecycle import Commanded
from retryapp.kafka.commands import send_commands
from retryapp.lookup.audit import read_audit
from retryapp.lookup.outcomes import read_outcome
from retryapp.web.journeys import read_journey

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


def test_a_journey_is_in_the_topics_of_its_handler(connection, make_topic, publish, topology):
    """Whenever the record was written, or if it is gone; nothing of other records, and nothing before it."""
    (retry, *_), facts = topology.retry_topics, {"group": topology.group, "last_failed_ms": 2}
    for topic in (retry, topology.dlq, topology.events):
        make_topic(2, topic)
    for topic, metadata in ((retry, waiting(7)), (retry, waiting(8)), (topology.dlq, dead(7))):
        publish(topic, 0, b"k", b"{}", encode_metadata(replace(metadata, **facts)))
    again = replace(waiting(7), tier=REPLAY, replays=1, edited=2, **facts)
    publish(retry, 0, b"k", b"{}", encode_metadata(again))
    replay = Commanded(group=topology.group, handler="h", main="orders", partition=0, at_ms=9, verb="replay",
                       command="c", failure_id=f"{topology.group}/{dead(7).origin.text}", text="it waits")  # fmt: skip
    publish(topology.events, 0, replay.key, replay.to_json())
    ours = dead(7).origin
    for since_ms, kinds in ((None, ["failed", "dead", "replay"]), (1_000, ["failed", "dead", "replay"]), (2**42, [])):
        found = read_journey(connection, topology, ours, since_ms, lambda: True)
        assert ([step["kind"] for step in found.steps], found.complete) == (kinds, True)
        assert found.edited == (2 if kinds else 0), "the last one may have succeeded"
    for since_ms, verbs in ((9, ["replay"]), (10, [])):
        audit = read_audit(connection, topology, since_ms, None, lambda: True)
        assert ([each["verb"] for each in audit.commands], audit.complete) == (verbs, True)
