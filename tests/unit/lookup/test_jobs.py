"""Which letters a job has refused, read from events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from retryapp.core.control import Verb
from retryapp.core.jobs import JOB_AGE_MS, JobCommand, JobPart, JobVerb, LetterFilter, Level, Part, Steering
from retryapp.core.lifecycle import Commanded
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.remembered import Known, Queued
from retryapp.lookup import jobs, reading
from retryapp.lookup.previews import Scope

TOPOLOGY = HandlerTopology("app", "orders", delays_ms=(1_000,))
NAME = "app/orders@kq8G0bTz/{}/{}"


def event(partition: int, offset: int, job: str = "j1", refused: str | None = "replayed", **more: Any) -> Record:
    """Return the event of a letter; with a `command`, that of one about the job."""
    facts: Any = {"command": "", "verb": "discard", "failure_id": NAME.format(partition, offset), "text": "a sentence"}
    known: Any = {"group": "app", "handler": "h", "main": "orders", "partition": partition, "at_ms": 1}
    told = Commanded(**known, **{**facts, "job": job, "refused": refused, **more})
    return Record(TOPOLOGY.events, partition, offset, 1, told.key, told.model_dump_json().encode(), ())


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Have these records on the events topic; each is taken off as it is read."""
    records: list[Record] = []

    class Topics:
        def __init__(self, _connection: object) -> None:
            """Need none."""

        def at_time(self, places: list[tuple[str, int]], instant_ms: int) -> Mapping[tuple[str, int], int | None]:
            assert instant_ms == 940_000, "a minute before it has begun: clocks differ"
            return {place: None if place[1] == 2 else 7 for place in places}

    def read_topic(_connection: object, topic: str, **bounds: Any) -> Iterator[Record]:
        assert (topic, bounds) == (TOPOLOGY.events, {"partitions": [0, 1], "start": {0: 7, 1: 7}})
        while records:
            yield records.pop(0)

    monkeypatch.setattr(reading, "Positions", Topics)
    monkeypatch.setattr(reading, "read_topic", read_topic)
    return records


@pytest.mark.parametrize(("order", "letters"), [({"letters": 5}, 5), ({"letters": "many"}, None), ([7], None)])
def test_what_a_newer_build_has_a_part_do_may_be_anything(order: Any, letters: int | None) -> None:
    """It silenced its worker, or left the job without a page."""
    part = Part.model_validate({"job": "j1", "verb": "copy", "order": order})
    assert jobs.job_facts("j1", {0: part})["letters"] == letters


def parts(**refused: int) -> dict[int, Part]:
    """Return parts that have refused so many; the fourth has refused none."""
    counts = [*(Counter(replayed=number) for number in refused.values()), Counter[str]()]
    return {number: Part(job="j1", verb="discard", since_ms=1_000_000 + number, refused=count)
            for number, count in enumerate(counts)}  # fmt: skip


CONNECTION: Any = None


def test_letters_that_a_job_has_refused_are_read_until_all_are_known(events: list[Record]) -> None:
    """Not those of other jobs, nor commands about this one; no further, as events are many."""
    events += [event(1, 1), event(0, 2, "j2"), event(0, 3, refused=None), event(0, 4, command="c", failure_id="")]
    events += [event(1, 5, failure_id="", text="dlq[1]@9: torn"), event(0, 6), event(0, 7, "j3")]
    found = jobs.read_refused(CONNECTION, TOPOLOGY, "j1", parts(a=1, b=2, c=5000))
    assert (found.complete, len(events)) == (True, 0), "those of the third are gone, so all are looked at"
    word = {"refused": "replayed", "text": "a sentence"}
    assert found.letters == [
        {"partition": 0, "failure_id": NAME.format(0, 6), **word},
        {"partition": 1, "failure_id": NAME.format(1, 1), **word},
        {"partition": 1, "failure_id": None, "refused": "replayed", "text": "dlq[1]@9: torn"},
    ]


@pytest.mark.parametrize(("bounds", "letters"), [({"most": 3}, 3), ({"go_on": lambda: False}, 499)])
def test_a_page_reads_so_many_for_so_long(events: list[Record], bounds: Any, letters: int) -> None:
    """And says that there are more."""
    events += [event(0, number) for number in range(600)]
    found = jobs.read_refused(CONNECTION, TOPOLOGY, "j1", parts(a=600, b=1), **bounds)
    assert (len(found.letters), found.complete) == (letters, False)


def test_a_job_that_has_refused_none_reads_nothing(events: list[Record]) -> None:
    """All partitions would be read else."""
    events.append(event(0, 1))
    assert jobs.read_refused(CONNECTION, TOPOLOGY, "j1", {0: Part(job="j1", verb="discard", since_ms=1_000_000)}) == (
        [],
        True,
    )
    assert len(events) == 1


@pytest.mark.parametrize(("complete", "letters"), [(True, [300, 100]), (False, [None, None])])
def test_a_job_says_of_how_many_letters_it_is_if_they_were_counted(
    monkeypatch: pytest.MonkeyPatch, complete: bool, letters: list[int | None]
) -> None:
    """Its rate is shared in proportion to what they have all the same."""
    sent: dict[int, Any] = {}

    def send_to_all(_connection: object, _topology: object, commands: Mapping[int, Any], **_: object) -> dict[int, Any]:
        sent.update(commands)
        return {}

    monkeypatch.setattr(jobs, "send_to_all", send_to_all)
    scope = Scope(letters={0: 300, 1: 100}, complete=complete, upto={0: {}, 1: {}})
    jobs.begin(CONNECTION, TOPOLOGY, jobs.Order(Verb.DISCARD, LetterFilter(), rate="1/s"), scope, wait_s=0)
    assert [each.part.letters for each in sent.values()] == letters
    assert [each.part.share for each in sent.values()] == [(0, 300, 400), (300, 400, 400)]


def test_a_start_that_waits_is_of_a_job_that_has_not_begun_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is sent again is refused where the job has begun; one that is too old would be, and the job ran on."""
    begun = Steering(parts=[Part(job="j1", verb="discard")])
    sent = {"j1": {3: 1_001, 0: 1_001, 2: 1_000, 1: 2_000}, "j2": {1: 2_000}, "j3": {1: 1_000}}
    order = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), upto={})
    words: Any = {"verb": JobVerb.START, "part": order, "by": "ann", "why": "ledger is back"}
    starts = {
        job: {number: Queued(JobCommand(id=job, job=job, **words), at_ms) for number, at_ms in each.items()}
        for job, each in sent.items()
    }
    paused = Steering(paused=Level(since_ms=1, by="bob"))
    monkeypatch.setattr(jobs, "remembered_and_queued", lambda *_: Known({0: begun, 1: paused}, {}, starts))
    found = jobs.progress_of(CONNECTION, TOPOLOGY, 1_001 + JOB_AGE_MS)
    assert {job: ([*each.parts], each.not_begun, each.pauses) for job, each in found.items()} == {
        "j1": ([0], [1, 3], {}), "j2": ([], [1], {1: "paused by bob"}),
    }, "a discard needs no deliveries"  # fmt: skip
    waits = found["j2"].details("j2")
    assert {name: waits[name] for name in ("state", "verb", "by", "why", "done", "letters", "partitions")} == {
        "state": "running", "verb": "replay", "by": "ann", "why": "ledger is back", "done": 0, "letters": None,
        "partitions": {},
    }  # fmt: skip


def test_the_oldest_job_comes_first_whichever_partitions_it_has() -> None:
    def part(job: str, since_ms: int) -> Part:
        return Part(job=job, verb="discard", since_ms=since_ms)

    some = [(0, part("new", 300)), (1, part("old", 100)), (2, part("new", 290)), (2, part("between", 200))]
    assert {name: [*each] for name, each in jobs.by_job(some).items()} == {"old": [1], "between": [2], "new": [0, 2]}
    assert [*jobs.by_job(some)] == ["old", "between", "new"]
