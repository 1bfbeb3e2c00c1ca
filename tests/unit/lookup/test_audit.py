"""Who did what, and when, read from events."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.core.lifecycle import Commanded, Held
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.lookup import audit
from retryapp.lookup.audit import read_audit
from retryapp.lookup.reading import Reading

TOPOLOGY = HandlerTopology("app", "orders", delays_ms=(1_000,))
NAME = "app/orders@kq8G0bTz/0/7"
CONNECTION: Any = None


def command(name: str, at_ms: int, partition: int = 0, **more: Any) -> Record:
    facts: Any = {"verb": "retry-now", "failure_id": NAME, "text": "due now", "by": "ann", "why": "mended", **more}
    told = Commanded(group="app", handler="h", main="orders", partition=partition, command=name, at_ms=at_ms, **facts)
    return Record(TOPOLOGY.events, partition, at_ms, at_ms, told.key, told.to_json())


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Have these records on the events topic."""
    records: list[Record] = []

    class Topic(Reading):
        def since(self, topic: str, partitions: Collection[int], instant_ms: int) -> Iterator[Record]:
            assert (topic, partitions, instant_ms) == (TOPOLOGY.events, [0, 1, 2], 1_000)
            for record in records:
                self.looked += 1
                if not self._go_on():
                    self.complete = False
                    return
                yield record

    monkeypatch.setattr(audit, "Reading", Topic)
    monkeypatch.setattr(audit, "KafkaAdmin", lambda _: SimpleNamespace(offsets=lambda _topic: dict.fromkeys(range(3))))
    return records


def test_the_commands_of_a_time_are_told_with_who_and_why_and_what_came_of_them(events: list[Record]) -> None:
    """One to many partitions once; events of records, and letters that a job has refused, are no commands."""
    held = Held(group="app", handler="h", failure_id=NAME, origin="o", at_ms=3_000)
    job: Any = {"verb": "job-pause", "failure_id": "", "job": "j1"}
    none: Any = {**job, "refused": "no-job", "text": "no such job goes on here"}
    events += [
        command("early", 999),
        Record(TOPOLOGY.events, 0, 1, 1, held.key, held.to_json()),
        Record(TOPOLOGY.events, 0, 2, 1, b"k", b'{"kind":"command","v":9}'),
        Record(TOPOLOGY.events, 0, 3, 1, b"k", None),
        command("c1", 1_000, before="r0.a1.d5", after="r0.a1.d4"),
        command("c2", 2_000, 2, **none),
        *(command("c2", 2_001 + number, number, **job) for number in (0, 1)),
        *(command("c3", 2_100, number, **none) for number in range(3)),
        command("", 2_500, 1, verb="replay", job="j1", refused="replayed"),
        *(command("", 2_600, number, **{**job, "verb": "job-end"}, text=f"{number} done") for number in (0, 1)),
        command("late", 4_000),
    ]  # fmt: skip
    found = read_audit(CONNECTION, TOPOLOGY, 1_000, 4_000, lambda: True)
    assert (found.complete, found.more, found.looked) == (True, False, len(events))
    said = [(each["at_ms"], each["verb"], each["job"], each["done"], each["refused"]) for each in found.commands]
    assert said == [
        (2_600, "job-end", "j1", 1, {}), (2_600, "job-end", "j1", 1, {}),
        (2_100, "job-pause", "j1", 0, {"no-job": 3}), (2_001, "job-pause", "j1", 2, {}),
        (1_000, "retry-now", None, 1, {}),
    ]  # fmt: skip
    assert [each["partition"] for each in found.commands] == [0, 1, None, None, None], "each part ends by itself"
    texts = [each["text"] for each in found.commands if each["verb"] == "job-pause"]
    assert texts == ["no such job goes on here", "due now"], "not of partitions that have no part of the job"
    whole = {"failure_id": NAME, "by": "ann", "why": "mended", "text": "due now", "before": "r0.a1.d5"}
    assert found.commands[-1] == found.commands[-1] | whole
    assert read_audit(CONNECTION, TOPOLOGY, 1_000, None, lambda: True).commands[0]["at_ms"] == 4_000


def test_of_many_commands_the_newest_are_told(events: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is that of so many; and what there was no time for is said to be missing."""
    monkeypatch.setattr(audit, "MOST_COMMANDS", 5)
    events += [command(f"c{number}", 1_000 + number) for number in range(40)]
    found = read_audit(CONNECTION, TOPOLOGY, 1_000, None, lambda: True)
    assert [each["at_ms"] for each in found.commands] == [1_039, 1_038, 1_037, 1_036, 1_035]
    assert (found.more, found.complete) == (True, True)
    times = iter([True, True, False])
    found = read_audit(CONNECTION, TOPOLOGY, 1_000, None, lambda: next(times))
    assert (len(found.commands), found.more, found.complete) == (2, False, False)
