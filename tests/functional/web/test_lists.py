"""The lists of waiting records and dead letters: their order, what is in them, and how they are searched."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast
from urllib.parse import quote

import pytest
from functional.web.server import Outline, Site
from functional.web.worker import BASE, MAIN, NOW_MS, FakeWorker, dead_metadata, metadata
from jinja2.runtime import Macro
from samples import partition

from retryapp.core.causes import OTHER_CAUSE, summed
from retryapp.core.jobs import LetterFilter
from retryapp.core.row_keys import ROW_KEY_BYTES
from retryapp.ports import PendingEntry
from retryapp.web import lists
from retryapp.web.errors import PageError
from retryapp.web.query import Question

PEER = "http://127.0.0.1:6067"


async def walk(site: Site, path: str | None) -> list[dict[str, Any]]:
    """Return the records of a list, from page to page."""
    records: list[dict[str, Any]] = []
    while path:
        page = json.loads(await site.page(path))
        records += page["records"]
        assert len(page["records"]) <= page["limit"]
        path = page["next"]
    return records


async def test_paging_gives_every_record_once_in_order(site: Site) -> None:
    """Waiting ones by due time; dead letters, newest first, merged over partitions, also with a filter by reason."""
    waiting = await walk(site, f"{BASE}/pending?limit=7&format=json")
    assert len(waiting) == len({record["failure_id"] for record in waiting}) == 62
    dues = [record["due_at_ms"] for record in waiting]
    assert dues == sorted(dues)
    assert (await site.facts(f"{BASE}/pending?limit=62"))["next"] is None, "a full last page has no next one"
    records = await walk(site, f"{BASE}/dead?limit=9&format=json")
    places = [(record["partition"], record["offset"]) for record in records]
    times = [record["last_failed_ms"] for record in records if record["last_failed_ms"]]
    assert len(places) == len(set(places)) == 124
    assert times == sorted(times, reverse=True)
    assert places[0] == (1, 12), "by the time when it was appended"
    rejected = await walk(site, f"{BASE}/dead?limit=30&reason=rejected&format=json")
    assert [record["reason"] for record in rejected] == ["rejected"] * 40


async def test_a_search_by_reason_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rare reason ends the page after so many rows, with a link to go on."""
    monkeypatch.setattr("retryapp.web.lists.SCAN_ROWS", 50)
    page = await site.facts(f"{BASE}/dead?reason=expired")
    assert page["records"] == []
    assert page["scanned"] == 50
    assert page["next"] is not None
    assert "there are more on the next page" in await site.page(f"{BASE}/dead?reason=expired")


async def test_a_reason_of_a_newer_build_is_searched_and_one_that_no_letter_has_is_refused(
    site: Site, worker: FakeWorker
) -> None:
    """While a group is updated an older worker refused what its own list showed."""
    _, _, refused = await site.get(f"{BASE}/dead?reason=quarantined")
    assert json.loads(refused)["error"]["hint"] == (
        "Expected one of cancelled, crashed, damaged, exhausted, expired, gone, non-retryable, overflow, rejected, "
        "too-large, undecodable"
    ), "the list was empty, as if nothing had died so"
    worker.bury(240, dead_metadata(9_000, reason="quarantined", last_failed_ms=NOW_MS))
    listed = await site.facts(f"{BASE}/dead?reason=quarantined")
    assert [(record["offset"], record["reason"]) for record in listed["records"]] == [(240, "quarantined")]
    assert "<option selected>quarantined</option>" in await site.page(f"{BASE}/dead?reason=quarantined")
    assert "<option>quarantined</option>" in await site.page(f"{BASE}/dead")


def merged(kind: str, wanted: LetterFilter, **said: Any) -> Any:
    """Return what a page shows of a worker here, which has nothing, and of another, which says something."""
    ours = lists.Listing(lines=[], partitions=[0], knows_reason=wanted.reason is None)
    chosen = [partition(0), partition(1, state="elsewhere", owner_url=PEER)]
    theirs = json.dumps({"lines": [], "partitions": [1], **said}).encode()
    return lists.merged_facts(Question(wanted=wanted), chosen, kind, {"": ours, PEER: theirs})


def test_a_reason_is_known_if_one_worker_knows_it() -> None:
    """A newer one: its letters may be done with, and the list empty."""
    assert merged("dead", LetterFilter(reason="quarantined"))["records"] == []
    with pytest.raises(PageError, match="reason='quarantined'"):
        merged("dead", LetterFilter(reason="quarantined"), knows_reason=False)


def test_a_worker_with_another_form_of_origins_is_left_out_by_name() -> None:
    """The page of what waits failed: it reads parts of them."""
    line: dict[str, Any] = {"cursor": "00" * ROW_KEY_BYTES, "partition": 1}
    origin = {"topic": MAIN, "topic_id": "kq8G0bTz", "partition": 1, "offset": 5}
    (record,) = merged("pending", LetterFilter(), lines=[{**line, "origin": origin}])["records"]
    assert record["origin"] == origin
    assert merged("pending", LetterFilter(), lines=[{**line, "origin": 5}])["silent"] == [PEER]


@pytest.mark.parametrize("kind", ["dead", "pending"])
@pytest.mark.parametrize("said", [{"upto": "v2:1"}, {"lines": [{"cursor": "v2:1", "partition": 1}]}])
def test_a_worker_with_other_cursors_is_left_out_by_name(kind: str, said: Any) -> None:
    """The whole list failed, or refused a parameter that was not sent."""
    facts = merged(kind, LetterFilter(), **said)
    assert (facts["silent"], facts["partitions_left_out"]) == ([PEER], [1])


def test_a_record_of_a_worker_that_says_less_is_shown() -> None:
    """An earlier build, say: what it does not say is not known."""
    line = lists.Line(cursor="00" * ROW_KEY_BYTES, partition=1, origin_offset=7)
    assert (line.held_by, line.origin) == (None, None), "the page looks at them"


@pytest.mark.parametrize(
    ("kind", "cursors"),
    [
        ("pending", [f"{at:0{2 * ROW_KEY_BYTES}x}" for at in (0, 1, 2)]),
        ("dead", [f"{NOW_MS}-9-{at}" for at in (3, 2, 1)]),
    ],
)
def test_of_what_a_worker_lists_only_what_is_shown_is_made(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, kind: str, cursors: list[str]
) -> None:
    """Each worker lists a whole page, and all but one page is thrown away: it was half of the time of a long list."""
    made, summary = list[Any](), getattr(lists, f"{kind}_summary")
    monkeypatch.setattr(lists, f"{kind}_summary", lambda entry: made.append(entry) or summary(entry))
    view, question, infos = cast("Any", worker), Question(main=MAIN, limit=5), worker.partitions(MAIN)
    if kind == "pending":
        ours = lists.waiting_here(view, infos, question, NOW_MS, None)
    else:
        ours = lists.dead_here(view, infos, question, worker.handlers()[0], None)
    assert len(ours.lines) == 5
    theirs = json.dumps({"lines": [{"cursor": each, "partition": 9} for each in cursors], "partitions": [9]}).encode()
    chosen = [*infos, partition(9, state="elsewhere", owner_url=PEER)]
    records = lists.merged_facts(question, chosen, kind, {"": ours, PEER: theirs})["records"]
    assert ([each["cursor"] for each in records[:3]], len(records), len(made)) == (cursors, 5, 2)


@pytest.mark.parametrize("kind", ["pending", "dead"])
async def test_a_record_in_a_list_calls_no_macro(site: Site, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Eight calls of macros for each took two thirds of the time of a long list."""
    calls, call = list[Macro](), Macro.__call__
    monkeypatch.setattr(Macro, "__call__", lambda self, *args, **more: calls.append(self) or call(self, *args, **more))
    counts = []
    for limit in (1, 50):
        assert f"{BASE}/{kind}" in await site.page(f"{BASE}/{kind}?limit={limit}")
        counts.append(len(calls))
        calls.clear()
    assert 0 < counts[0] == counts[1]


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("dead?before=0-0-0", "No further dead letters"),
        ("pending?after=" + "ff" * ROW_KEY_BYTES, "Nothing further waits"),
    ],
)
async def test_a_page_past_the_end_does_not_say_that_there_is_none(site: Site, kind: str, end: str) -> None:
    """What was on the last page may be done with since its address was given."""
    assert end in await site.page(f"{BASE}/{kind}")


@pytest.mark.parametrize("path", [f"{BASE}/pending?limit=500", f"{BASE}/dead?limit=500"])
@pytest.mark.parametrize("form", ["html", "json"])
async def test_lists_hold_no_payload(site: Site, path: str, form: str) -> None:
    """Neither value nor foreign header of any record stands in a list."""
    body = await site.page(f"{path}&format={form}")
    for part in ("4711", "traceparent", "north", "Zo", "user's own"):
        assert part not in body


async def test_dead_letters_are_listed_with_key_attempts_and_cause(site: Site, worker: FakeWorker) -> None:
    """The cause leads to all letters of it; the handler's page has the causes, the most frequent first."""
    worker.bury(900, dead_metadata(7_777, error_message="no shard 12", last_failed_ms=NOW_MS), key=b"customer-42")
    listed = (await site.facts(f"{BASE}/dead?key=customer-42"))["records"]
    assert [(each["offset"], each["key"], each["message"]) for each in listed] == [(900, "customer-42", "no shard 12")]
    page = Outline(await site.page(f"{BASE}/dead"))
    assert "customer-42" in page.text
    assert "no shard 12" in page.text
    assert f"{BASE}/dead?cause={listed[0]['cause_id']}" in page.links
    of_cause = (await site.facts(f"{BASE}/dead?cause={listed[0]['cause_id']}"))["records"]
    assert [each["offset"] for each in of_cause] == [900]
    causes = (await site.facts(f"{BASE}/"))["causes"]
    assert [cause["records"] for cause in causes] == sorted((cause["records"] for cause in causes), reverse=True)
    assert "no shard <number>" in Outline(await site.page(f"{BASE}/")).text


async def test_the_causes_of_what_waits_are_shown(site: Site, worker: FakeWorker) -> None:
    """Each leads to its records."""
    for number in range(3):
        worker.wait(metadata(6_000 + number, error_message=f"no shard {number}"), key=b"k", value=b"1")
    (cause,) = [
        each for each in (await site.facts(f"{BASE}/"))["waiting_causes"] if each["name"].endswith("no shard <number>")
    ]
    assert (cause["records"], cause["attempts"]) == (3, 6)
    page = Outline(await site.page(f"{BASE}/"))
    assert f"{BASE}/pending?cause={cause['cause_id']}" in page.links
    listed = Outline(await site.page(f"{BASE}/pending"))
    assert {link.partition("cause=")[0] for link in listed.links if "cause=" in link} == {f"{BASE}/pending?"}
    assert len((await site.facts(f"{BASE}/pending?cause={cause['cause_id']}"))["records"]) == 3


async def test_messages_headers_and_fields_are_searched(site: Site, worker: FakeWorker) -> None:
    """Past what the index keeps of a message; a page says how far it has looked, and the next one goes on."""
    long = f"{'x' * 150} shard 12"
    for number in range(250):
        worker.bury(1_000 + number, dead_metadata(8_000 + number, last_failed_ms=NOW_MS + number), value=b"no JSON")
    worker.bury(900, dead_metadata(7_777, error_message=long), value=b'{"id": 5}', headers=(("tenant", b"acme"),))
    for asked in ("message=SHARD 12", "header=tenant=acme", "field=/id=5"):
        path, found, looked = f"{BASE}/dead?{asked}&limit=1", list[int](), 0
        while path:
            page = await site.facts(path)
            assert page["total"] is None
            found += [each["offset"] for each in page["records"]]
            path, looked = page["next"], looked + page["scanned"]
        assert found == [900]
        assert looked > 250
    assert (await site.facts(f"{BASE}/dead?field=/id=6"))["records"] == []
    worker.wait(metadata(6_000), key=b"k", value=b'{"id": 7}', headers=(("tenant", b"acme"),))
    for asked in ("header=tenant=acme", "field=/id=7", "field=/id=7&header=tenant=acme&key=k"):
        assert [each["origin_offset"] for each in (await site.facts(f"{BASE}/pending?{asked}"))["records"]] == [6_000]
    assert (await site.get(f"{BASE}/dead?field=id"))[0] == 400


async def test_a_list_by_type_of_error_is_of_what_a_job_by_it_takes(site: Site, worker: FakeWorker) -> None:
    """Its buttons begin a job about the same letters, and no number of others is said of it."""
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    for kind in ("app.Declined", f"app.{'Declined' * 20}"):
        worker.bury(900 + len(kind), dead_metadata(7_000 + len(kind), error_type=kind))
        listed = await site.facts(f"{BASE}/dead?error_type={kind}")
        assert [each["offset"] for each in listed["records"]] == [900 + len(kind)]
        assert (listed["total"], listed["of"], listed["error_type"]) == (None, None, kind)
        for more, verbs in (("", ("replay", "discard")), ("&marked=1", ("replay", "discard", "restore"))):
            links = Outline(await site.page(f"{BASE}/dead?error_type={kind}{more}")).links
            assert {link for link in links if "/jobs/new" in link} == {
                f"{BASE}/jobs/new?error_type={kind}&verb={verb}" for verb in verbs
            }
    (shown,) = listed["records"]
    for more in ("", "&message=no&reason=exhausted"):
        address = f"{BASE}/dead?error_type={shown['error_type']}{more}"
        assert (await site.facts(address))["records"] == [shown], "the type as the list has it, which is cut"
        page = await site.page(address)
        assert ("/jobs/new" in page, "take the whole type" in page) == (False, True), "no job would take any"
    for path in ("pending?", "jobs/new?verb=replay&"):
        assert "take the whole type" in await site.page(f"{BASE}/{path}error_type={shown['error_type']}")
    assert (await site.facts(f"{BASE}/dead/0/{shown['offset']}"))["record"]["error_type"] == kind
    worker.wait(metadata(6_000, error_type="app.Declined"), key=b"k", value=b"{}")
    listed = await site.facts(f"{BASE}/pending?error_type=app.Declined")
    assert ([each["origin_offset"] for each in listed["records"]], listed["total"]) == ([6_000], None)
    assert (await site.facts(f"{BASE}/pending?since=1s"))["total"] is None


async def test_the_number_of_a_cause_is_said_where_all_partitions_are_known(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is unknown; also where tables have counted some causes together. It was too small there."""
    causes = summed(chain.from_iterable(worker.causes(MAIN).values()))
    cause = causes[0]
    asked = f"{BASE}/dead?cause={cause.cause_id}"
    assert (await site.facts(asked))["total"] is None, "a worker does not answer"
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    assert (await site.facts(asked))["total"] == cause.records
    assert (await site.facts(f"{BASE}/dead?cause=c1-0000000000"))["total"] == 0
    others = replace(cause, cause_id=OTHER_CAUSE, name=OTHER_CAUSE)
    monkeypatch.setattr(FakeWorker, "causes", lambda *_: {0: [cause, others]})
    assert (await site.facts(asked))["total"] is None


@pytest.mark.parametrize("kind", ["dead", "pending"])
async def test_an_old_number_is_no_total(site: Site, worker: FakeWorker, kind: str) -> None:
    """That of a worker that does not answer now."""
    worker.parts[MAIN] = [partition(0, pending=60, dead=120)]
    assert (await site.facts(f"{BASE}/{kind}"))["total"] == {"dead": 120, "pending": 60}[kind]
    worker.parts[MAIN] = [partition(0, pending=60, dead=120, as_of_ms=NOW_MS - 60_000)]
    assert (await site.facts(f"{BASE}/{kind}"))["total"] is None


async def test_letters_of_further_causes_are_listed_and_searched_and_no_job_is_offered(
    site: Site, worker: FakeWorker
) -> None:
    """The index tells which they are: no filter of a job could."""
    worker.bury(900, dead_metadata(7_777, error_message="no shard 12"))
    worker.bury(902, dead_metadata(7_778))
    others = [replace(row, cause_id=OTHER_CAUSE) for row in worker.letters[0][-2:]]
    worker.letters[0][-2:] = others
    for more, found in (("", [900, 902]), ("&message=shard", [900]), ("&key=customer-8", [])):
        asked = f"{BASE}/dead?cause={OTHER_CAUSE}{more}"
        assert sorted(each["offset"] for each in (await site.facts(asked))["records"]) == found
        assert not any("/jobs/new" in link for link in Outline(await site.page(asked)).links)


async def test_the_number_of_what_waits_of_a_cause_is_said(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables count it; a page may have looked at a part of what waits, and says so, too."""
    for number in range(60):
        worker.wait(metadata(6_000 + number, error_message=f"no shard {number}"), key=b"k", value=b"1")
    causes = worker.waiting_causes(MAIN)[0]
    (cause,) = [each for each in causes if each.name.endswith("no shard <number>")]
    asked = f"{BASE}/pending?cause={cause.cause_id}"
    assert (await site.facts(asked))["total"] is None, "a worker does not answer"
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    whole = sum(part.pending or 0 for part in worker.parts[MAIN])
    listed = await site.facts(asked)
    assert (len(listed["records"]), listed["total"], listed["of"]) == (50, 60, whole)
    assert "1-50 of 60" in Outline(await site.page(asked)).text
    assert (await site.facts(f"{BASE}/pending?cause=c1-0000000000"))["total"] == 0
    for more in ("partition=0", "error_type=x", "since=1s"):
        assert (await site.facts(f"{asked}&{more}"))["total"] is None
    parts = worker.parts[MAIN]
    worker.parts[MAIN] = [replace(parts[0], state="opening"), *parts[1:]]
    assert (await site.facts(asked))["total"] is None, "its last numbers are known, and no causes"
    worker.parts[MAIN] = parts
    others = replace(cause, cause_id=OTHER_CAUSE, name=OTHER_CAUSE)
    monkeypatch.setattr(FakeWorker, "waiting_causes", lambda *_: {0: [cause, others]})
    assert (await site.facts(asked))["total"] is None, "it was one of too many causes, some of which are over"


async def test_a_page_says_how_many_it_has_looked_at(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters are read a few at a time, and none after some time; of how many, replayed ones included, is not known."""
    monkeypatch.setattr(lists, "READ_ROWS", 2)
    monkeypatch.setattr(lists, "READ_S", -1.0)
    text = Outline(await site.page(f"{BASE}/dead?message=nowhere")).text
    assert "Searched 2 for this page; older ones were not looked at" in text
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    text = Outline(await site.page(f"{BASE}/dead?message=nowhere")).text
    assert "Searched 2 for this page" in text


@pytest.mark.parametrize("asked", ["cause=c1-0000000000", "key=nobody", "header=tenant=nobody", "field=/id=0"])
async def test_a_search_of_what_waits_ends_its_page_after_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Large values are long looked into; the next page goes on, up to the end."""
    monkeypatch.setattr(lists, "READ_S", -1.0)
    text = Outline(await site.page(f"{BASE}/pending?{asked}")).text
    assert re.search("Searched 1 (of [0-9]+ )?for this page; later ones were not looked at", text)
    assert await walk(site, f"{BASE}/pending?{asked}&format=json") == []
    assert len((await site.facts(f"{BASE}/pending"))["records"]) == 50, "a list of all has no such end"


async def test_searches_of_what_waits_hold_no_other_page_up(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took the threads in which all pages compute."""
    loop, begun, over = asyncio.get_running_loop(), asyncio.Semaphore(0), threading.Event()

    def wait(*_asked: Any, **_more: Any) -> Sequence[PendingEntry]:
        loop.call_soon_threadsafe(begun.release)
        over.wait()
        return []

    monkeypatch.setattr(worker, "pending_page", wait)
    searches = [asyncio.create_task(site.facts(f"{BASE}/pending?field=/id={number}")) for number in range(4)]
    try:
        for _ in searches:
            await begun.acquire()
        assert "Newest first" in await site.page(f"{BASE}/dead")
    finally:
        over.set()
        await asyncio.gather(*searches)


async def test_dead_letters_of_rules_are_among_the_others(site: Site, worker: FakeWorker) -> None:
    """In the list by time, page by page, each with a page of its own though another has its offset; found by id."""
    info = worker.infos[0]
    names = {"dead_letters": ("in-valid",), "topics": {**info.topics, "dlq in-valid": f"{info.topics['dlq']}.in-valid"}}
    worker.infos[0] = replace(info, **names)  # type: ignore[arg-type]  # its own fields
    before = (await site.facts(f"{BASE}/dead?limit=500"))["records"]
    for offset, failed_ms in ((238, NOW_MS), (7, NOW_MS - 10**9)):
        md = dead_metadata(9_000 + offset, last_failed_ms=failed_ms)
        worker.bury(offset, md, value=b'"bad"', letters="in-valid")
    path, rows = f"{BASE}/dead?limit=1", []
    while path:
        page = await site.facts(path)
        rows += page["records"]
        path = page["next"]
    assert len(rows) == len(before) + 2
    rows = [row for row in rows if row["last_failed_ms"] is not None]  # those without a time come first
    assert [(row["offset"], row["letters"]) for row in (rows[0], rows[-1])] == [(238, "in-valid"), (7, "in-valid")]
    assert f'href="{BASE}/dead/0/238?letters=in-valid"' in await site.page(f"{BASE}/dead")
    letter = await site.facts(f"{BASE}/dead/0/238?letters=in-valid")
    assert (letter["topic"], letter["record"]["value"]["text"]) == ("billing.shop.orders.dlq.in-valid", '"bad"')
    assert (await site.facts(f"{BASE}/dead/0/238"))["topic"] == "billing.shop.orders.dlq"
    assert (await site.get(f"{BASE}/dead/0/238?letters=other"))[0] == 404
    status, headers, _ = await site.get(f"{BASE}/find?id={quote(rows[0]['failure_id'])}")
    assert (status, headers["Location"]) == (303, f"{BASE}/dead/0/238?letters=in-valid")


async def test_a_partition_whose_dead_letters_are_still_being_read_is_left_out(site: Site, worker: FakeWorker) -> None:
    """The newest come last: what is known would look like all, or as if there were none."""
    worker.filling.add((MAIN, 0))
    listed = await site.facts(f"{BASE}/dead?limit=500")
    assert 0 in listed["partitions_left_out"]
    assert {line["partition"] for line in listed["records"]} == {1}
    assert (await site.facts(f"{BASE}/dead?partition=0"))["partitions_left_out"] == [0]


@pytest.mark.parametrize("holds", ["circuit", "rate"])
async def test_a_due_record_says_what_holds_it_back(site: Site, worker: FakeWorker, holds: str) -> None:
    """In the list, on its page and in its plan; one that is not due waits for its time."""
    worker.parts["shop.orders"] = [replace(item, holds_due=holds) for item in worker.parts["shop.orders"]]
    records = (await site.facts(f"{BASE}/pending?partition=1"))["records"]
    assert [record["held_back_by"] for record in records] == [holds, None]
    assert f"held back by the {holds}" in await site.page(f"{BASE}/pending?partition=1")
    assert (await site.facts(f"{BASE}/pending/1/42"))["record"]["held_back_by"] == holds
    assert "holds it back" in await site.page(f"{BASE}/pending/1/42")
    assert "holds it back" not in await site.page(f"{BASE}/pending/1/43")
    held, waits = [f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/1/{offset}" for offset in (42, 43)]
    assert f"held back by the {holds}" in await site.page(held)
    plans = [await site.facts(path) for path in (held, waits)]
    assert [(each["held_back_by"], len(each["planned"]) == 1) for each in plans] == [(holds, True), (None, False)]


async def test_letters_are_listed_by_time_whatever_the_clocks_of_brokers_did(site: Site, worker: FakeWorker) -> None:
    """One was set back for an hour, and one is behind: each letter is there once, also where a page ends between."""
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"][:2]
    worker.letters.clear()
    minutes = {0: [100, 200, 50, 60, 200, 300], 1: [150, 250, 240, 55, 400]}
    for number, times in minutes.items():
        for offset, minute in enumerate(times):
            md = dead_metadata(1_000 + offset, partition=number, last_failed_ms=NOW_MS)
            worker.bury(offset, md, append_ms=NOW_MS - 10**8 + minute * 60_000)
    expected = sorted(((minute, number) for number, times in minutes.items() for minute in times), reverse=True)
    for limit in (1, 2, 3, 50):
        records = await walk(site, f"{BASE}/dead?limit={limit}&format=json")
        found = [(minutes[each["partition"]][each["offset"]], each["partition"]) for each in records]
        assert found == expected
    records = await walk(site, f"{BASE}/dead?limit=2&since={100_000 - 150 * 60}s&format=json")
    assert len(records) == sum(minute >= 150 for minute, _ in expected)


async def test_letters_of_one_time_that_are_far_apart_are_read_apart(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a search would read all that is between them."""
    worker.letters.clear()
    for number in range(6):
        md = dead_metadata(1_000 + number, last_failed_ms=NOW_MS, error_message="no shard 12")
        worker.bury(number % 2 * 1_000_000 + number, md, append_ms=NOW_MS - number)
    read, spans = worker.read_range, list[int]()

    def noted(topic: str, ranges: Mapping[int, tuple[int, int]]) -> Any:
        spans.extend(stop - first for first, stop in ranges.values())
        return read(topic, ranges)

    monkeypatch.setattr(FakeWorker, "read_range", lambda _worker, *asked: noted(*asked))
    listed = await site.facts(f"{BASE}/dead?message=shard 12")
    assert len(listed["records"]) == 6
    assert max(spans) <= lists.READ_SPAN
    monkeypatch.setattr(lists, "READ_S", -1.0)
    spans.clear()
    listed = await site.facts(f"{BASE}/dead?message=shard 12")
    assert (len(listed["records"]), len(spans)) == (1, 1), "each reading takes its time"
    assert len(await walk(site, f"{BASE}/dead?message=shard 12&format=json")) == 6


async def test_what_waits_is_searched_by_time_in_a_form_that_keeps_what_was_asked(site: Site) -> None:
    """As dead letters are; all of it waits since 48 s."""
    for asked, count in (("since=1m", 50), ("since=40s", 0), ("until=1m", 0), ("since=1m&until=40s", 50)):
        page = await site.facts(f"{BASE}/pending?{asked}")
        assert len(page["records"]) == count, asked
        assert [page["since"], page["until"]] == [
            dict(each.split("=") for each in asked.split("&")).get(name) for name in ("since", "until")
        ]
    html = await site.page(f"{BASE}/pending?since=1m&until=40s")
    assert re.search('<details open>.*name="since" value="1m".*name="until" value="40s"', html, re.DOTALL)
    document = json.loads(await site.page("/retries/api/openapi.json"))
    said = {each["name"] for each in document["paths"]["/{main}/pending"]["get"]["parameters"]}
    assert {"since", "until"} <= said


async def test_a_list_compares_its_filter_once_not_with_each_row(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """That took a fifth of its time."""
    compared = list[Any]()
    monkeypatch.setattr(LetterFilter, "__eq__", lambda self, other: compared.append(other) or vars(self) == vars(other))
    assert len((await site.facts(f"{BASE}/pending?limit=60"))["records"]) == 60
    assert len(compared) < 10
