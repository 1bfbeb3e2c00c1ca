"""The page of one record, waiting or dead, and its journey."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from functional.web.server import Outline, Site, ask, serving, words
from functional.web.worker import BASE, GROUP, MAIN, NOW_MS, FakeWorker, dead_metadata, job_parts, metadata, steps

from retryapp.core.control import LetterMark, MarkKind
from retryapp.core.hops import Outgoing, cancelled, to_tier
from retryapp.core.lifecycle import Commanded
from retryapp.core.metadata import DEFERRED, HistoryEntry
from retryapp.core.record import Origin, Record, failure_id, idempotency_key
from retryapp.core.topology import HandlerTopology
from retryapp.lookup.reading import Reading
from retryapp.web import journeys
from retryapp.web.journeys import Journey, _failed, read_journey

TOPOLOGY = HandlerTopology(group=GROUP, main=MAIN, delays_ms=(1_000,))


async def test_one_waiting_record_shows_key_value_and_headers(site: Site) -> None:
    """JSON is laid out with its numbers as they were sent."""
    record = (await site.facts(f"{BASE}/pending/0/10001"))["record"]
    assert (record["key"]["kind"], record["key"]["text"]) == ("text", "customer-1")
    assert record["value"]["kind"] == "json"
    assert '"amount":19.90' in record["value"]["text"]
    assert {"name": "tenant", "value": "north"} in record["headers"]
    assert {"name": "retry-attempt", "value": "2"} in record["retry_headers"]
    assert [entry["attempt"] for entry in record["metadata"]["history"]] == [1, 2]
    assert '"amount": 19.90,' in Outline((await site.get(f"{BASE}/pending/0/10001"))[2]).text


async def test_one_dead_letter_shows_its_story_and_its_value_from_the_topic(site: Site) -> None:
    """Reason, attempts, first and last failure, trace, origin and the value that is read on demand; null is null."""
    assert (await site.facts(f"{BASE}/dead/1/7"))["record"]["value"]["kind"] == "null"
    letter = await site.facts(f"{BASE}/dead/0/238")
    record = letter["record"]
    assert letter["topic"] == "billing.shop.orders.dlq"
    assert (record["reason"], record["attempt"]) == ("non-retryable", 7)
    assert record["origin"] == {"topic": "shop.orders", "topic_id": "kq8G0bTz", "partition": 0, "offset": 2119}
    assert record["value"]["text"].startswith('{"id":4711')
    assert record["read_from"] == "billing.shop.orders.dlq[0]@238"
    text = Outline((await site.get(f"{BASE}/dead/0/238"))[2]).text
    assert 'File "billing.py", line 21, in charge' in text


async def test_too_large_dead_letter_shows_the_value_of_the_main_topic(site: Site) -> None:
    """Its value was dropped from the copy; what is shown is cut and says so."""
    record = (await site.facts(f"{BASE}/dead/1/5"))["record"]
    assert record["read_from"] == "shop.orders[1]@8"
    assert (record["value"]["size_bytes"], record["value"]["shown_bytes"]) == (240_000, 65_536)
    assert record["value"]["truncated"] is True
    assert "Only the first 65,536 of 240,000 bytes are shown." in (await site.get(f"{BASE}/dead/1/5"))[2]


async def test_dead_letter_without_its_record_still_shows_why_it_died(site: Site, worker: FakeWorker) -> None:
    """A record that retention took, or a broker that is down, costs the value only."""
    worker.records.clear()
    record = (await site.facts(f"{BASE}/dead/0/238"))["record"]
    assert "no longer on the topic" in record["unread"]
    assert record["reason"] == "non-retryable"
    worker.broker_down = True
    status, _, body = await site.get(f"{BASE}/dead/0/238")
    assert status == 200
    assert "no Kafka broker answers" in body
    worker.silent = "broker kafka-1:9092 has not answered for 12 s"
    assert (await site.facts(f"{BASE}/dead/0/238"))["record"]["unread"] == worker.silent, "none is asked then"


async def test_a_journey_has_all_that_was_and_what_is_planned(site: Site) -> None:
    """Found by its failure id, wherever the record is now; times of today's policy follow the last failure."""
    name = "billing/shop.orders@kq8G0bTz/0/77"
    status, headers, _ = await site.get(f"{BASE}/find?id={name}")
    assert (status, headers["Location"]) == (303, f"{BASE}/journey?id={quote(name, safe='')}&format=json") or (
        status,
        headers["Location"],
    ) == (303, f"{BASE}/journey?id={quote(name, safe='')}")
    elsewhere = "billing/shop.orders@kq8G0bTz/2/77"
    _, headers, _ = await site.get(f"{BASE}/find?here=1&id={elsewhere}")
    assert headers["Location"] == f"{BASE}/journey?id={quote(elsewhere, safe='')}", "a form is not sent to others"
    assert (await site.facts(f"{BASE}/journey?id={elsewhere}"))["find"].startswith("http://127.0.0.1:6067/retries/")
    page = await site.facts(f"{BASE}/journey?id={name}")
    assert page["idempotency_key"] == f"{idempotency_key(name)}-e1", "it was edited for its replay"
    assert [step["kind"] for step in page["steps"]] == ["failed", "dead", "replay", "replayed", "failed"]
    dues = [(each["attempt"], each["due_at_ms"] - NOW_MS) for each in page["planned"]]
    assert dues == [(2, 220_000), (3, 520_000), (4, 2_320_000), (5, 4_120_000), (6, 5_920_000), (7, 9_520_000)]
    text = Outline((await site.get(f"{BASE}/journey?id={name}"))[2]).text
    for shown in ("2.3 s", "by ann", "ledger is back", "1 of 7", "exhausted", name, "on pod-7/worker-2"):
        assert shown in text, shown
    read = words(await site.page(f"{BASE}/journey?id={name}"))
    for number in (1, 2, 7):
        assert f"replay 1, attempt {number} of 7" in read, "what failed, and what is planned"
    assert page["first_failed_ms"] == NOW_MS - 900_000, "not that of the replay"
    links = Outline((await site.get(f"{BASE}/journey?id={name}"))[2]).links
    assert f"{BASE}/jobs/3f9ca81b02" in links, "the job that has replayed it"
    site.worker.remembered.clear()
    assert f"{BASE}/jobs/3f9ca81b02" not in (await site.page(f"{BASE}/journey?id={name}")), "it has no page any more"


def test_the_mark_of_a_letter_says_why() -> None:
    """A job replays without a command of each record: its reason was nowhere in their journeys."""
    origin = Origin(MAIN, "kq8G0bTz", 0, 77)
    facts: Any = {"delivery": 1, "replays": 1, "command": "3f9ca81b02", "by": "ann", "why": "the bank is back"}
    mark = LetterMark(mark=MarkKind.REPLAYED, failure_id=failure_id(GROUP, origin), letter=1, **facts)
    sent = mark.to_record("dlq", 0)
    (step,) = _failed(Record("dlq", 0, 2, NOW_MS, sent.key, sent.value, sent.headers), TOPOLOGY, origin)
    assert (step["kind"], step["by"], step["message"]) == ("replayed", "ann", "the bank is back")
    assert step["job"] == "3f9ca81b02"


def test_a_deferral_is_a_step_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was "failed", with the error Defer; and a command about the record alone is no job."""
    md = metadata(77)
    deferred = replace(md, attempt=0, delivery=1, tier=DEFERRED, error_type="retryapp.Defer", history=(
        HistoryEntry(0, NOW_MS - 48_000, "retryapp.Defer"),))  # fmt: skip
    letter: Any = {"failure_id": md.failure_id, "letter": 1, "delivery": 1, "replays": 1}
    alone, many = (LetterMark(mark=MarkKind.REPLAYED, command=name, **letter).to_record("dlq", 0) for name in "cj")
    done: Any = {"group": GROUP, "handler": "h", "main": MAIN, "partition": 0, "text": "it waits", "at_ms": NOW_MS}
    obeyed = Commanded(command="c", verb="replay", failure_id=md.failure_id, **done)
    copy = to_tier(Record(MAIN, 0, 77, 1, b"k", b"v"), topology=TOPOLOGY, metadata=deferred)
    topics = {
        copy.topic: [copy],
        TOPOLOGY.dlq: [alone, many],
        TOPOLOGY.events: [Outgoing(TOPOLOGY.events, 0, obeyed.key, obeyed.to_json(), ())],
    }

    class Topics(Reading):
        def since(self, topic: str, _partitions: object, _instant_ms: int) -> Iterator[Record]:
            for at, out in enumerate(topics[topic]):
                yield Record(topic, 0, at, NOW_MS + at, out.key, out.value, out.headers)

    monkeypatch.setattr(journeys, "Reading", Topics)
    monkeypatch.setattr(journeys, "KafkaAdmin", lambda _: SimpleNamespace(topic_names=lambda: [*topics]))
    found = read_journey(None, TOPOLOGY, Origin(MAIN, "kq8G0bTz", 0, 77), 0, lambda: True)  # type: ignore[arg-type]
    assert [(step["kind"], step.get("attempt"), step["job"]) for step in found.steps] == [
        ("deferred", 1, None), ("replayed", None, None), ("replay", None, None), ("replayed", None, "j"),
    ]  # fmt: skip
    assert found.steps[0]["first_failed_ms"] is None


async def test_the_page_of_a_replayed_record_tells_its_lives_apart(site: Site, worker: FakeWorker) -> None:
    """Two attempts were the first, and the first failure was that of the replay."""
    history = tuple(HistoryEntry(attempt, NOW_MS - ago, "app.Down") for attempt, ago in ((1, 9_000_000), (1, 48_000)))
    again: Any = {"history": history, "replays": 1, "replay_id": "3f9ca81b02", "delivery": 3, "attempt": 1}
    worker.bury(700, dead_metadata(700, **again, first_failed_ms=NOW_MS - 48_000))
    worker.wait(metadata(701, **again, first_failed_ms=NOW_MS - 48_000), key=b"k", value=b"{}")
    for page in ("dead/0/700", "pending/0/701"):
        failures = (await site.facts(f"{BASE}/{page}"))["record"]["failures"]
        assert (failures["first_ms"], failures["is_first"]) == (NOW_MS - 9_000_000, True)
        body = await site.page(f"{BASE}/{page}")
        text = words(body)
        assert "First failed 2 h 30 min ago" in text
        assert "Failed first in replay 1 48 s ago" in text
        assert text.count("replay 1, attempt 1") == (2 if page.startswith("dead") else 1)
        assert f"{BASE}/jobs/3f9ca81b02" in Outline(body).links
        assert "last by job 3f9ca81b02" in text
        worker.remembered.clear()
        assert "last by command or job 3f9ca81b02" in words(await site.page(f"{BASE}/{page}")), "an id is no name"
        worker.remembered[MAIN] = job_parts()
    assert "replay 1, attempt 2 of 7" not in text, "of a fake worker, which knows no policy"
    assert "replay 1, attempt 2" in text, "the one that comes next"


async def test_a_page_says_no_more_than_is_known_of_a_replay(site: Site, worker: FakeWorker) -> None:
    """A record may be cancelled before it runs again: its deferral was said to be of the replay."""
    facts: Any = {"attempt": 0, "delivery": 3, "replays": 1, "reason": "cancelled", "first_failed_ms": NOW_MS - 48_000}
    worker.bury(700, dead_metadata(700, **facts, history=(HistoryEntry(0, NOW_MS - 48_000, "retryapp.Defer"),)))
    assert "replay 1 or before, attempt 1" in words(await site.page(f"{BASE}/dead/0/700"))


@pytest.mark.parametrize("dead", [False, True])
async def test_a_record_that_was_deferred_has_not_failed(site: Site, worker: FakeWorker, dead: bool) -> None:
    """It waits for its event, or was cancelled then: its page said when it had failed first, with an error."""
    history = (HistoryEntry(0, NOW_MS - 48_000, "retryapp.Defer"),)
    waits: Any = {"attempt": 0, "delivery": 1, "error_type": "retryapp.Defer", "error_message": "the bank's answer"}
    if dead:
        worker.bury(700, dead_metadata(700, **waits, history=history, reason="cancelled"))
    else:
        worker.wait(metadata(700, **waits, history=history, tier=DEFERRED), key=b"k", value=b"{}")
    page = f"{BASE}/{'dead' if dead else 'pending'}/0/700"
    record = (await site.facts(page))["record"]
    assert (record["first_failed_ms"], record["last_failed_ms"]) == (None, None)
    text = words(await site.page(page))
    assert "Deferred 48 s ago" in text
    assert f"{'Waited' if dead else 'Waits'} for the bank's answer" in text
    assert "Attempts that have ended" in text
    assert not any(word in text.lower() for word in ("first failed", "last failed", "last failure"))
    assert ("dead since" in text) == dead


async def test_a_letter_that_cannot_be_read_has_no_known_headers(site: Site, worker: FakeWorker) -> None:
    """They are on the topic alone, and the page said that it has none; nor is it known when it failed first of all."""
    worker.bury(700, dead_metadata(700, replays=1))
    worker.silent = "broker kafka-1:9092 has not answered for 12 s"
    record = (await site.facts(f"{BASE}/dead/0/700"))["record"]
    assert (record["headers"], record["retry_headers"], record["failures"]) == (None, None, None)
    text = words(await site.page(f"{BASE}/dead/0/700"))
    assert "Headers of the record unknown Retry headers unknown" in text
    assert "first failed" not in text


@pytest.mark.parametrize(("mark", "said"), [("recovered", "was dead"), ("discarded", "is dead"), (None, "is dead")])
async def test_a_letter_that_was_replayed_is_not_called_dead(
    site: Site, worker: FakeWorker, mark: str | None, said: str
) -> None:
    """Its page leads to where the record is now."""
    worker.bury(700, dead_metadata(700))
    worker.letters[0][-1] = replace(worker.letters[0][-1], mark=mark)
    page = await site.page(f"{BASE}/dead/0/700")
    assert f"{MAIN}[0]@700 {said}" in words(page)
    assert ("Where it is now" in page) == (said == "was dead")


async def test_a_record_that_was_cancelled_did_not_fail_then(site: Site, worker: FakeWorker) -> None:
    """The list said so, of one that was held for days, and its own page did in JSON."""
    worker.bury(700, cancelled(metadata(700), "", NOW_MS - 1_000))
    record = (await site.facts(f"{BASE}/dead/0/700"))["record"]
    assert (record["last_failed_ms"], record["append_ms"]) == (NOW_MS - 48_000, NOW_MS - 1_000)
    (line,) = (await site.facts(f"{BASE}/dead?reason=cancelled"))["records"]
    assert (line["last_failed_ms"], line["append_ms"]) == (None, NOW_MS - 1_000), "its history is not in the index"
    assert "Dead since" in (text := words(await site.page(f"{BASE}/dead?reason=cancelled")))
    assert "1 s ago" in text


@pytest.mark.parametrize(
    ("verb", "text", "plans"),
    [("reschedule", "due later", 0), ("hold", "held", 0), ("cancel", "ends", 0), ("cancel", "refused, changed", 6)],
)
async def test_a_plan_is_that_of_the_last_failure_only(
    site: Site, monkeypatch: pytest.MonkeyPatch, verb: str, text: str, plans: int
) -> None:
    """A command that was obeyed has changed the time; one that was refused changes nothing."""
    last = {"kind": verb, "at_ms": NOW_MS - 1_000, "by": "ann", "text": text, "message": "later"}
    monkeypatch.setattr(site.worker, "read_journey", lambda *_: Journey([*steps(), last], 12, complete=True, edited=0))
    page = await site.facts(f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/77")
    assert len(page["planned"]) == plans
    row = (await site.facts(f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/10001"))["planned"][0]
    assert row == {"attempt": 3, "replays": 0, "due_at_ms": NOW_MS + 5_200}, "what its row says"


@pytest.mark.parametrize(
    ("changes", "offset", "attempts"),
    [
        ({"rule_schedules": ("1s*20",), "max_attempts": 21}, 77, [2]),
        ({"max_elapsed_ms": 2_500_000}, 77, [2, 3, 4]),
        ({"max_elapsed_ms": 1}, 77, [2]),
        ({"rule_schedules": ("1s*20",), "max_attempts": 21}, 10_001, [3]),
        ({"max_elapsed_ms": 4_000_000}, 900, [3, 4, 5]),
        ({"max_elapsed_ms": 4_000_000}, 901, [3, 4]),
        ({"max_elapsed_ms": 4_000_000}, 902, [1, 2, 3, 4]),
    ],
)
async def test_a_plan_is_what_the_policy_does(
    site: Site, worker: FakeWorker, changes: dict[str, Any], offset: int, attempts: list[int]
) -> None:
    """None after `max_elapsed`, which counts from when the record's metadata says; which rule decides is not known."""
    told: list[dict[str, Any]] = [
        {"first_failed_ms": NOW_MS - 48_000},
        {"first_failed_ms": NOW_MS - 48_000, "counted_from_ms": NOW_MS - 2_100_000},
        {"attempt": 0},  # it has failed for free only
    ]
    for number, facts in enumerate(told, 900):
        worker.wait(metadata(number, due_at_ms=NOW_MS + 5_200, **facts), key=None, value=b"")
    site.worker.infos = [replace(info, **changes) for info in site.worker.infos]
    page = await site.facts(f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/{offset}")
    assert [each["attempt"] for each in page["planned"]] == attempts


async def test_a_journey_is_read_from_before_its_record_whatever_the_producers_clock(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be an hour ahead of the brokers'; a record of a topic that was made again says nothing of a former one."""
    asked = list[int | None]()

    def read_journey(_main: str, _origin: Origin, since_ms: int | None, _go_on: object) -> Journey:
        asked.append(since_ms)
        return Journey(steps(), 12, complete=True, edited=0)

    monkeypatch.setattr(worker, "read_journey", read_journey)
    worker.records[MAIN, 0, 77] = Record(MAIN, 0, 77, NOW_MS + 600_000, None, b"")
    for topic_id in ("kq8G0bTz", "oLdTopic"):
        await site.facts(f"{BASE}/journey?id=billing/shop.orders@{topic_id}/0/77")
    assert asked == [NOW_MS - 3_000_000, None]


async def test_a_journey_of_which_nothing_was_found_in_time_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lie in what was not read."""
    monkeypatch.setattr(site.worker, "read_journey", lambda *_: Journey([], 40_000, complete=False, edited=0))
    status, _, body = await site.get(f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/77", accept="text/html")
    assert (status, "Read so far: 40,000 records" in body, "Where it is now" in body) == (200, True, True)


async def test_a_dead_letter_leads_to_those_beside_it(site: Site) -> None:
    """On its partition, also where marks of jobs lie between; the newest has no newer one."""
    links = Outline((await site.get(f"{BASE}/dead/0/236"))[2]).links
    assert {f"{BASE}/dead/0/238", f"{BASE}/dead/0/234"} <= set(links)
    newest = await site.facts(f"{BASE}/dead/0/238")
    assert (newest["newer"], newest["older"]) == (None, 236)
    site.worker.bury(90, dead_metadata(90, 1))
    assert (await site.facts(f"{BASE}/dead/1/12"))["newer"] == 90


@pytest.mark.parametrize(
    ("mark", "verbs"),
    [
        (None, ["replay", "discard", "replay"]),  # the last one sends an edit
        ("restored", ["replay", "discard", "replay"]),
        ("handled", ["replay"]),
        ("discarded", ["restore"]),
        ("replayed", None),
        ("recovered", None),
    ],
)
async def test_a_dead_letter_has_the_buttons_of_what_became_of_it(
    site: Site, worker: FakeWorker, mark: str | None, verbs: list[str] | None
) -> None:
    """One that was replayed has none: it had a form with a reason, and nothing to send it with."""
    worker.letters[0] = [replace(row, mark=mark) for row in worker.letters[0]]
    page = await site.page(f"{BASE}/dead/0/238")
    assert re.findall('name="verb" value="([a-z]+)"', page) == (verbs or [])
    assert ("Put it right" in page, 'method="post"' in page) == (bool(verbs), bool(verbs))


async def test_damaged_metadata_is_shown_as_damaged(site: Site) -> None:
    """A dead letter whose headers cannot be read has a line in the list and a page."""
    listed = (await site.facts(f"{BASE}/dead?partition=1"))["records"]
    damaged = next(record for record in listed if record["offset"] == 12)
    assert damaged["failure_id"] is None
    assert "retry-attempt" in damaged["damaged"] or "retry-" in damaged["damaged"]
    assert "cannot be trusted" in (await site.get(f"{BASE}/dead/1/12"))[2]


async def test_damaged_row_of_the_table_is_shown_as_damaged(site: Site, worker: FakeWorker) -> None:
    """A row that cannot be decoded does not take the page with it."""
    worker.waiting[0] = replace(worker.waiting[0], value=b"\xff\x00")
    offset = 10_000
    assert "damaged row" in (await site.facts(f"{BASE}/pending/0/{offset}"))["record"]["damaged"]
    assert "damaged row" in (await site.get(f"{BASE}/pending"))[2]
    assert (await site.get(f"{BASE}/pending/0/{offset}"))[0] == 200


async def test_failure_id_leads_to_its_record(site: Site) -> None:
    """Waiting and dead records are found by the id that logs and headers have."""
    for name, target in (
        ("billing/shop.orders@kq8G0bTz/0/10001", f"{BASE}/pending/0/10001?topic_id=kq8G0bTz"),
        ("billing/shop.orders@kq8G0bTz/0/2119", f"{BASE}/dead/0/238"),
    ):
        status, headers, _ = await site.get(f"{BASE}/find?id={name}")
        assert (status, headers["Location"]) == (303, target)
        assert (await site.get(target))[0] == 200
    _, headers, _ = await site.get(f"{BASE}/find?id=billing/shop.orders@kq8G0bTz/0/2119&format=json")
    assert headers["Location"] == f"{BASE}/dead/0/238?format=json"


async def test_records_of_a_former_main_topic_have_pages_of_their_own(site: Site, worker: FakeWorker) -> None:
    """The topic was deleted and made again: list and failure id lead to the record of the old one, not of the new."""
    md = metadata(10_001)
    former = replace(md, origin=replace(md.origin, topic_id="oLdTopic"))
    worker.wait(former, key=None, value=b'"of the former topic"')
    target = f"{BASE}/pending/0/10001?topic_id=oLdTopic"
    assert f'href="{target}"' in (await site.get(f"{BASE}/pending?limit=500"))[2]
    assert (await site.facts(target))["record"]["value"]["text"] == '"of the former topic"'
    assert (await site.facts(f"{BASE}/pending/0/10001"))["record"]["failure_id"] == md.failure_id
    for record in (md, former):
        _, headers, _ = await site.get(f"{BASE}/find?id={quote(record.failure_id)}")
        assert headers["Location"].endswith(f"?topic_id={record.origin.topic_id}")


async def test_a_too_large_letter_of_a_former_main_topic_has_no_value(site: Site, worker: FakeWorker) -> None:
    """What the new topic has at that offset is another record."""
    letter = dead_metadata(8, 1, reason="too-large")
    worker.bury(900, replace(letter, origin=replace(letter.origin, topic_id="oLdTopic")), value=b"")
    record = (await site.facts(f"{BASE}/dead/1/900"))["record"]
    assert "no longer on the topic" in record["unread"]
    assert record["value"] is None


async def test_the_page_of_an_edited_record_has_its_own_idempotency_key(worker: FakeWorker) -> None:
    """That which its handler sends now."""
    worker.bury(500, replace(dead_metadata(600), edited=2))
    async with serving(worker) as url:
        _, body = await ask(url, f"{BASE}/dead/0/500?format=html")
        assert f"{idempotency_key(dead_metadata(600).failure_id)}-e2</code>" in body
