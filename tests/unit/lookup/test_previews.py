"""What a job would do, counted while letters and marks are read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from samples import dead

from retryapp.core.causes import MAX_CAUSES, OTHER_CAUSE
from retryapp.core.control import LetterMark, MarkKind, Verb, mark_of
from retryapp.core.headers import encode_metadata
from retryapp.core.jobs import LetterFilter
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.lookup import previews
from retryapp.lookup.previews import Preview, preview

TOPOLOGY = HandlerTopology("app", "orders", delays_ms=(1_000,))
DLQ = TOPOLOGY.dlq
LETTERS, PARTITIONS = 40, 2
REFUSED = {"crashed": "crashed", "damaged": "damaged", "gone": "damaged", "too-large": "too-large"}
"""Reasons of letters that no job replays, and the words of that."""


def letter(offset: int, partition: int, error_type: str, reason: str = "exhausted") -> Record:
    found = dead(offset)
    found = replace(found, origin=replace(found.origin, partition=partition), error_type=error_type, reason=reason)
    return Record(DLQ, partition, offset, 1, b"key-%d" % (offset % 7), b"v", encode_metadata(found))


def mark(offset: int, partition: int, at: int, kind: MarkKind) -> Record:
    facts: Any = {"delivery": 1, "replays": 1, "command": "c"}
    out = LetterMark(mark=kind, failure_id=f"app/orders@kq8G0bTz/{partition}/{at}", letter=at, **facts)
    sent = out.to_record(DLQ, partition)
    return Record(DLQ, partition, offset, 1, sent.key, sent.value, sent.headers)


def history(seed: int) -> list[Record]:
    """Return letters of two causes, and marks of some of them that come later, one after the other."""
    chance, records = random.Random(seed), list[Record]()
    for number in range(PARTITIONS):
        for offset in range(200):
            if offset < LETTERS:
                kinds = chance.choice(("app.A", "app.B")), chance.choice(("exhausted", "exhausted", *REFUSED))
                records.append(letter(offset, number, *kinds))
            elif chance.random() < 0.3:
                records.append(mark(offset, number, chance.randrange(LETTERS), chance.choice(list(MarkKind))))
    return records


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Have these records on the topic."""
    records: list[Record] = []

    class Admin:
        def __init__(self, _connection: object) -> None:
            """Need none."""

        def topic_names(self) -> list[str]:
            return [DLQ]

        def offsets(self, _topic: str) -> dict[int, range]:
            return dict.fromkeys(range(PARTITIONS), range(200))

    def read_topic(_connection: object, _topic: str, **_bounds: object) -> Iterator[Record]:
        yield from records

    def read_record(_connection: object, topic: str, partition: int, offset: int) -> Record:
        return next(each for each in records if (each.topic, each.partition, each.offset) == (topic, partition, offset))

    monkeypatch.setattr(previews, "KafkaAdmin", Admin)
    monkeypatch.setattr(previews, "read_record", read_record)
    monkeypatch.setattr(previews, "read_topic", read_topic)
    return records


def expected(records: list[Record], verb: Verb) -> tuple[Counter[int], Counter[str], set[str]]:
    """Count the same from the whole."""
    last: dict[tuple[int, int], str] = {}
    for record in records:
        if record.headers[0][0] == "retry-mark":
            found = mark_of(record.headers, record.value)
            assert found is not None
            last[record.partition, found.letter] = str(found.mark)
    fitting, done, names = Counter[int](), Counter[str](), set[str]()
    for record in records:
        if record.headers[0][0] == "retry-mark" or ("retry-error-type", b"app.A") not in record.headers:
            continue
        state = last.get((record.partition, record.offset), "restored")
        state = "restored" if state in ("skipped", "failed") else state
        reason = dict(record.headers)["retry-reason"].decode()
        if verb is Verb.REPLAY and state == "restored" and reason in REFUSED:
            done[REFUSED[reason]] += 1
        elif state == ("discarded" if verb is Verb.RESTORE else "restored"):
            fitting[record.partition] += 1
            names.add(f"app/orders@kq8G0bTz/{record.partition}/{record.offset}")
        else:
            done["not-discarded" if state == "restored" else state] += 1
    return fitting, done, names


@pytest.mark.parametrize("verb", [Verb.REPLAY, Verb.RESTORE])
@pytest.mark.parametrize("seed", range(5))
def test_a_preview_counts_letters_by_what_became_of_them_last(read: list[Record], verb: Verb, seed: int) -> None:
    """As if all were known at once; not those of another type, and apart those that no job replays."""
    read.extend(history(seed))
    fitting, done, names = expected(read, verb)
    connection: Any = None
    found = preview(connection, TOPOLOGY, verb, LetterFilter(error_type="app.A"))
    assert (+found.fitting, +found.done, found.complete) == (fitting, done, True)
    assert found.letters == fitting.total()
    assert found.scope.letters == fitting
    assert set(found.examples) <= names
    assert found.facts["causes"] == [{"cause_id": each, "cause": found.names[each], "letters": found.letters}
                                     for each in found.causes if found.letters]  # fmt: skip


@pytest.mark.parametrize("open_letters", [3, 30])
def test_a_preview_has_samples_although_the_first_letters_are_done_with(read: list[Record], open_letters: int) -> None:
    """The oldest letters are often those that were replayed: others fit, and some of them are named."""
    count = 150 + open_letters
    read.extend(letter(offset, 0, "app.A") for offset in range(count))
    read.extend(mark(count + at, 0, at, MarkKind.RECOVERED) for at in range(150))
    connection: Any = None
    found = preview(connection, TOPOLOGY, Verb.REPLAY, LetterFilter(error_type="app.A"))
    assert found.letters == open_letters
    assert found.examples == [f"app/orders@kq8G0bTz/0/{150 + at}" for at in range(min(open_letters, 5))]


def test_a_preview_counts_causes_beyond_some_together(read: list[Record]) -> None:
    """Messages with something unique in them have no end of causes; what becomes of a letter later counts as well."""
    read.extend(letter(offset, 0, f"app.E{offset}") for offset in range(MAX_CAUSES + 50))
    read.extend(mark(1_000 + at, 0, at, MarkKind.REPLAYED) for at in (3, MAX_CAUSES + 3))
    connection: Any = None
    causes = preview(connection, TOPOLOGY, Verb.REPLAY, LetterFilter()).facts["causes"]
    assert (len(causes), sum(each["letters"] for each in causes)) == (MAX_CAUSES, MAX_CAUSES + 48)
    assert causes[0] == {"cause_id": OTHER_CAUSE, "cause": OTHER_CAUSE, "letters": 49}


def test_a_preview_that_is_ended_says_what_it_has_seen(read: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shares go by offsets; a copy stays as it was."""
    monkeypatch.setattr(previews, "_TELL_EVERY", 10)
    read.extend(history(1))
    seen: list[Preview] = []

    def go_on(found: Preview) -> bool:
        seen.append(found.copy())
        return len(seen) < 3

    connection: Any = None
    found = preview(connection, TOPOLOGY, Verb.DISCARD, LetterFilter(), go_on=go_on)
    assert [(each.looked, each.letters, each.complete) for each in seen] == [
        (10, 10, False), (20, 20, False), (30, 30, False)
    ]  # fmt: skip
    assert (found.whole, found.scope.letters) == (400, {0: 200, 1: 200})
