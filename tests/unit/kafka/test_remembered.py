"""Commands that no worker has obeyed yet, read from the control topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.core.control import Verb
from retryapp.core.jobs import (
    HandlerCommand,
    HandlerVerb,
    JobCommand,
    JobPart,
    JobVerb,
    LetterFilter,
    Steering,
)
from retryapp.core.marks import control_text
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import remembered

TOPOLOGY = HandlerTopology("app", "orders", delays_ms=(1_000,))
START = JobCommand(
    id="j1", job="j1", verb=JobVerb.START, part=JobPart(verb=Verb.DISCARD, filter=LetterFilter(), upto={})
)
CANCEL = JobCommand(id="c1", job="j1", verb=JobVerb.CANCEL)
PAUSE = HandlerCommand(id="p1", verb=HandlerVerb.PAUSE)


def known(
    monkeypatch: pytest.MonkeyPatch,
    sent: list[list[Any]],
    steerings: Mapping[int, Steering],
    obeyed: Mapping[int, str],
) -> remembered.Known:
    """Return what is known where this was sent to each partition; None is no command."""

    def read_topic(_connection: object, _topic: str, *, start: Mapping[int, int]) -> Iterator[Record]:
        for number, commands in enumerate(sent):
            for offset, command in enumerate(commands):
                if offset >= start[number]:
                    value = b"{" if command is None else command.to_record("", number).value
                    yield Record(TOPOLOGY.control, number, offset, 7 + offset, b"k", value, ())

    class Admin:
        def __init__(self, _connection: object) -> None: ...

        def describe_topics(self, topics: list[str]) -> dict[str, Any]:
            return {topics[0]: SimpleNamespace(topic_id="t")}

    noted = {n: SimpleNamespace(control=obeyed[n], steering=steerings[n].written) for n in obeyed}
    monkeypatch.setattr(remembered, "progress_records", lambda *_: noted)
    monkeypatch.setattr(remembered, "KafkaAdmin", Admin)
    monkeypatch.setattr(remembered, "read_topic", read_topic)
    connection: Any = None
    return remembered.remembered_and_queued(connection, TOPOLOGY)


def test_what_waits_for_a_worker_is_told_by_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and starts of jobs; neither what was obeyed, in its turn or ahead of it, nor what is no command."""
    sent: list[list[Any]] = [[START, PAUSE], [START], [PAUSE, START, None]]
    obeyed = {0: control_text("t", 1), 1: control_text("t", 0), 2: control_text("t", 0)}
    steerings = {0: Steering(), 1: Steering(ahead={"t": [0]}), 2: Steering()}
    found = known(monkeypatch, sent, steerings, obeyed)
    assert found.steerings == steerings
    assert {number: [each.command for each in some] for number, some in found.queued.items()} == {
        0: [PAUSE],
        2: [PAUSE],
    }
    assert found.starts == {"j1": {2: (START, 8)}}


@pytest.mark.parametrize(
    ("sent", "starts"),
    [([START], {0: 7}), ([START, CANCEL], {}), ([START, CANCEL, START], {0: 9}), ([CANCEL, PAUSE, START], {0: 9})],
)
def test_a_start_that_is_cancelled_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], starts: dict[int, int]
) -> None:
    """Its job went on for ever, for all who watched it."""
    found = known(monkeypatch, [sent], {0: Steering()}, {0: control_text("t", 0)}).starts.get("j1", {})
    assert {number: start.sent_ms for number, start in found.items()} == starts
