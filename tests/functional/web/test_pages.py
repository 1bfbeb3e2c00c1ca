"""The pages over real HTTP: what they show, as HTML and as JSON, and what they never show."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from functional.web.house import BASE, EVIL, MAIN, NOW_MS, FakeWorker, Site, dead_metadata, metadata
from html5lib import HTMLParser as HTMLParser5
from samples import partition

from retryapp.core.record import idempotency_key
from retryapp.ports import CircuitInfo
from retryapp.web import answers, lists

HTML_PAGES = [
    "/retries/",
    f"{BASE}/",
    "/retries/flights/",
    f"{BASE}/partitions",
    f"{BASE}/pending",
    f"{BASE}/pending?partition=1",
    f"{BASE}/pending/0/10001",
    f"{BASE}/pending/1/42",
    f"{BASE}/pending/1/43",
    f"{BASE}/dead",
    f"{BASE}/dead?partition=1",
    f"{BASE}/dead?reason=rejected&limit=3",
    f"{BASE}/dead/0/238",
    f"{BASE}/dead/1/5",
    f"{BASE}/dead/1/7",
    f"{BASE}/dead/1/9",
    f"{BASE}/dead/1/12",
    f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/77",
    f"{BASE}/jobs",
    f"{BASE}/jobs/3f9ca81b02",
    f"{BASE}/jobs/77aa00bb11",
    f"{BASE}/jobs/new?verb=replay&message=shard",
]


async def facts(site: Site, path: str, expected: int = 200) -> Any:
    status, headers, body = await site.get(path + ("&" if "?" in path else "?") + "format=json")
    assert status == expected, body
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    return json.loads(body)


class Outline(HTMLParser):
    """Collects tags, links and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src", "action"}]

    def handle_data(self, data: str) -> None:
        self.text += data


async def walk(site: Site, path: str | None) -> list[dict[str, Any]]:
    """Return the records of a list, from page to page."""
    records: list[dict[str, Any]] = []
    while path:
        page = json.loads((await site.get(path))[2])
        records += page["records"]
        assert len(page["records"]) <= page["limit"]
        path = page["next"]
    return records


@pytest.mark.parametrize("path", HTML_PAGES)
async def test_every_page_is_whole_html_with_a_title_safe_headers_and_links_that_lead_somewhere(
    site: Site, path: str
) -> None:
    """A page nests its tags, has one heading, loads nothing but itself, and runs no script but our own."""
    status, headers, body = await site.get(path)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    HTMLParser5(strict=True).parse(body)
    page = Outline(body)
    assert page.tags.count("h1") == body.partition("<body")[0].count("<title>") == 1
    assert page.tags.count("script") == ('<body data-live="' in body), "our own, which loads a page again"
    assert "script-src 'sha256-" in headers["Content-Security-Policy"]
    assert not {"img", "link", "iframe", "object"} & set(page.tags)
    assert all(link.startswith(("/retries/", "?", "#", "http://127.0.0.1:6067/")) for link in page.links), page.links
    assert await facts(site, path), "the same as JSON"
    for link in {
        link
        for link in page.links
        if link.startswith(("/", "?")) and not link.endswith(("/find", "/jobs/new")) and "/command" not in link
    }:
        target = link if link.startswith("/") else path.partition("?")[0] + link
        assert (await site.get(target))[0] == (303 if "/find?" in target else 200), target


async def test_index_sums_up_what_is_on_this_worker(site: Site) -> None:
    """Totals leave out partitions of other workers; the earliest due time wins."""
    index = await facts(site, "/retries/")
    orders, flights = index["handlers"]
    assert (orders["pending"], orders["dead"], orders["in_flight"]) == (1_204_397, 135, 11)
    assert (orders["partitions_here"], orders["partitions_open"], orders["partitions"]) == (4, 3, 6)
    assert orders["next_due_ms"] == 1_759_999_999_100
    assert list(orders["pending_by_tier"].items()) == [("5m", 1_204_372), ("30m", 24), ("1h", 1)]
    assert flights["next_due_ms"] is None
    assert index["workers"] == ["http://127.0.0.1:6067"]
    assert index["ready"] is True
    partitions = (await facts(site, f"{BASE}/"))["partitions"]
    assert [item["state"] for item in partitions] == ["open", "open", "elsewhere", "elsewhere", "opening", "open"]
    assert partitions[2]["pending"] is None, "numbers of other workers' partitions are not guessed"
    assert "http://127.0.0.1:6067/retries/shop.orders/" in Outline((await site.get(f"{BASE}/"))[2]).links


async def test_handler_page_counts_what_becomes_due(site: Site) -> None:
    """60 records are due every 4 s from 1.2 s on, one is overdue, one is due in exactly an hour: exact numbers."""
    due = (await facts(site, f"{BASE}/"))["due"]
    assert due == {
        "overdue": {"count": 1, "more": False},
        "minute": {"count": 15, "more": False},
        "hour": {"count": 60, "more": False},
        "day": {"count": 61, "more": False},
    }


async def test_paging_gives_every_record_once_in_order(site: Site) -> None:
    """Waiting ones by due time; dead letters, newest first, merged over partitions, also with a filter by reason."""
    waiting = await walk(site, f"{BASE}/pending?limit=7&format=json")
    assert len(waiting) == len({record["failure_id"] for record in waiting}) == 62
    dues = [record["due_at_ms"] for record in waiting]
    assert dues == sorted(dues)
    assert (await facts(site, f"{BASE}/pending?limit=62"))["next"] is None, "a full last page has no next one"
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
    page = await facts(site, f"{BASE}/dead?reason=expired")
    assert page["records"] == []
    assert page["scanned"] == 50
    assert page["next"] is not None
    assert "there are more on the next page" in (await site.get(f"{BASE}/dead?reason=expired"))[2]


@pytest.mark.parametrize("path", [f"{BASE}/pending?limit=500", f"{BASE}/dead?limit=500"])
@pytest.mark.parametrize("form", ["html", "json"])
async def test_lists_hold_no_payload(site: Site, path: str, form: str) -> None:
    """Neither value nor foreign header of any record stands in a list."""
    body = (await site.get(f"{path}&format={form}"))[2]
    for part in ("4711", "traceparent", "north", "Zo", "user's own"):
        assert part not in body


async def test_one_waiting_record_shows_key_value_and_headers(site: Site) -> None:
    """JSON is laid out with its numbers as they were sent."""
    record = (await facts(site, f"{BASE}/pending/0/10001"))["record"]
    assert (record["key"]["kind"], record["key"]["text"]) == ("text", "customer-1")
    assert record["value"]["kind"] == "json"
    assert '"amount":19.90' in record["value"]["text"]
    assert {"name": "tenant", "value": "north"} in record["headers"]
    assert {"name": "retry-attempt", "value": "2"} in record["retry_headers"]
    assert [entry["attempt"] for entry in record["metadata"]["history"]] == [1, 2]
    assert '"amount": 19.90,' in Outline((await site.get(f"{BASE}/pending/0/10001"))[2]).text


async def test_one_dead_letter_shows_its_story_and_its_value_from_the_topic(site: Site) -> None:
    """Reason, attempts, first and last failure, trace, origin and the value that is read on demand; null is null."""
    assert (await facts(site, f"{BASE}/dead/1/7"))["record"]["value"]["kind"] == "null"
    letter = await facts(site, f"{BASE}/dead/0/238")
    record = letter["record"]
    assert letter["topic"] == "billing.shop.orders.dlq"
    assert (record["reason"], record["attempt"]) == ("non-retryable", 7)
    assert record["origin"] == {"topic": "shop.orders", "topic_id": "kq8G0bTz", "partition": 0, "offset": 2119}
    assert record["value"]["text"].startswith('{"id":4711')
    assert record["read_from"] == "billing.shop.orders.dlq[0]@238"
    text = Outline((await site.get(f"{BASE}/dead/0/238"))[2]).text
    assert 'File "billing.py", line 21, in charge' in text


async def test_dead_letters_are_listed_with_key_attempts_and_cause(site: Site, worker: FakeWorker) -> None:
    """The cause leads to all letters of it; the handler's page has the causes, the most frequent first."""
    worker.bury(900, dead_metadata(7_777, error_message="no shard 12", last_failed_ms=NOW_MS), key=b"customer-42")
    listed = (await facts(site, f"{BASE}/dead?key=customer-42"))["records"]
    assert [(each["offset"], each["key"], each["message"]) for each in listed] == [(900, "customer-42", "no shard 12")]
    page = Outline((await site.get(f"{BASE}/dead"))[2])
    assert "customer-42" in page.text
    assert "no shard 12" in page.text
    assert f"{BASE}/dead?cause={listed[0]['cause_id']}" in page.links
    of_cause = (await facts(site, f"{BASE}/dead?cause={listed[0]['cause_id']}"))["records"]
    assert [each["offset"] for each in of_cause] == [900]
    causes = (await facts(site, f"{BASE}/"))["causes"]
    assert [cause["records"] for cause in causes] == sorted((cause["records"] for cause in causes), reverse=True)
    assert "no shard <number>" in Outline((await site.get(f"{BASE}/"))[2]).text


async def test_the_causes_of_what_waits_are_shown(site: Site, worker: FakeWorker) -> None:
    """Each leads to its records."""
    for number in range(3):
        worker.wait(metadata(6_000 + number, error_message=f"no shard {number}"), key=b"k", value=b"1")
    (cause,) = [
        each for each in (await facts(site, f"{BASE}/"))["waiting_causes"] if each["name"].endswith("no shard <number>")
    ]
    assert (cause["records"], cause["attempts"]) == (3, 6)
    page = Outline((await site.get(f"{BASE}/"))[2])
    assert f"{BASE}/pending?cause={cause['cause_id']}" in page.links
    listed = Outline((await site.get(f"{BASE}/pending"))[2])
    assert {link.partition("cause=")[0] for link in listed.links if "cause=" in link} == {f"{BASE}/pending?"}
    assert len((await facts(site, f"{BASE}/pending?cause={cause['cause_id']}"))["records"]) == 3


async def test_messages_headers_and_fields_are_searched(site: Site, worker: FakeWorker) -> None:
    """Past what the index keeps of a message; a page says how far it has looked, and the next one goes on."""
    long = f"{'x' * 150} shard 12"
    for number in range(250):
        worker.bury(1_000 + number, dead_metadata(8_000 + number, last_failed_ms=NOW_MS + number), value=b"no JSON")
    worker.bury(900, dead_metadata(7_777, error_message=long), value=b'{"id": 5}', headers=(("tenant", b"acme"),))
    for asked in ("message=SHARD 12", "header=tenant=acme", "field=/id=5"):
        path, found, looked = f"{BASE}/dead?{asked}&limit=1", list[int](), 0
        while path:
            page = await facts(site, path)
            assert page["total"] is None
            found += [each["offset"] for each in page["records"]]
            path, looked = page["next"], looked + page["scanned"]
        assert found == [900]
        assert looked > 250
    assert (await facts(site, f"{BASE}/dead?field=/id=6"))["records"] == []
    worker.wait(metadata(6_000), key=b"k", value=b'{"id": 7}', headers=(("tenant", b"acme"),))
    for asked in ("header=tenant=acme", "field=/id=7", "field=/id=7&header=tenant=acme&key=k"):
        assert [each["origin_offset"] for each in (await facts(site, f"{BASE}/pending?{asked}"))["records"]] == [6_000]
    assert (await site.get(f"{BASE}/dead?field=id"))[0] == 400


async def test_a_list_by_type_of_error_is_of_what_a_job_by_it_takes(site: Site, worker: FakeWorker) -> None:
    """Its buttons begin a job about the same letters, and no number of others is said of it."""
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    whole = sum(part.dead or 0 for part in worker.parts[MAIN])
    for kind in ("app.Declined", f"app.{'Declined' * 20}"):
        worker.bury(900 + len(kind), dead_metadata(7_000 + len(kind), error_type=kind))
        listed = await facts(site, f"{BASE}/dead?error_type={kind}")
        assert [each["offset"] for each in listed["records"]] == [900 + len(kind)]
        assert (listed["total"], listed["of"], listed["error_type"]) == (None, whole, kind)
        links = Outline((await site.get(f"{BASE}/dead?error_type={kind}"))[2]).links
        assert {link for link in links if "/jobs/new" in link} == {
            f"{BASE}/jobs/new?error_type={kind}&verb={verb}" for verb in ("replay", "discard")
        }
    worker.wait(metadata(6_000, error_type="app.Declined"), key=b"k", value=b"{}")
    listed = await facts(site, f"{BASE}/pending?error_type=app.Declined")
    assert ([each["origin_offset"] for each in listed["records"]], listed["total"]) == ([6_000], None)
    assert (await facts(site, f"{BASE}/pending?since=1s"))["total"] is None


async def test_the_number_of_a_cause_is_said_where_all_partitions_are_known(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is unknown; also where tables tell no further causes apart."""
    (cause, *_) = worker.causes(MAIN)
    asked = f"{BASE}/dead?cause={cause.cause_id}"
    assert (await facts(site, asked))["total"] is None, "a worker does not answer"
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    assert (await facts(site, asked))["total"] == cause.records
    assert (await facts(site, f"{BASE}/dead?cause=c1-0000000000"))["total"] == 0
    monkeypatch.setattr(answers, "MAX_CAUSES", len(worker.causes(MAIN)))
    assert (await facts(site, asked))["total"] is None


async def test_the_number_of_what_waits_of_a_cause_is_said(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables count it; a page may have looked at a part of what waits, and says so, too."""
    for number in range(60):
        worker.wait(metadata(6_000 + number, error_message=f"no shard {number}"), key=b"k", value=b"1")
    (cause,) = [each for each in worker.waiting_causes(MAIN) if each.name.endswith("no shard <number>")]
    asked = f"{BASE}/pending?cause={cause.cause_id}"
    assert (await facts(site, asked))["total"] is None, "a worker does not answer"
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    whole = sum(part.pending or 0 for part in worker.parts[MAIN])
    listed = await facts(site, asked)
    assert (len(listed["records"]), listed["total"], listed["of"]) == (50, 60, whole)
    assert "1-50 of 60" in Outline((await site.get(asked))[2]).text
    assert (await facts(site, f"{BASE}/pending?cause=c1-0000000000"))["total"] == 0
    for more in ("partition=0", "error_type=x", "since=1s"):
        assert (await facts(site, f"{asked}&{more}"))["total"] is None
    parts = worker.parts[MAIN]
    worker.parts[MAIN] = [replace(parts[0], state="opening"), *parts[1:]]
    assert (await facts(site, asked))["total"] is None, "its last numbers are known, and no causes"
    worker.parts[MAIN] = parts
    monkeypatch.setattr(answers, "MAX_CAUSES", len(worker.waiting_causes(MAIN)))
    assert (await facts(site, asked))["total"] is None


async def test_a_page_says_of_how_many_it_has_looked_at(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters are read a few at a time, and none after some time."""
    monkeypatch.setattr(lists, "READ_ROWS", 2)
    monkeypatch.setattr(lists, "READ_S", -1.0)
    text = Outline((await site.get(f"{BASE}/dead?message=nowhere"))[2]).text
    assert "Searched 2 for this page; older ones were not looked at" in text
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    text = Outline((await site.get(f"{BASE}/dead?message=nowhere"))[2]).text
    assert f"Searched 2 of {sum(part.dead or 0 for part in worker.parts[MAIN])} for this page" in text


async def test_a_paused_handler_says_so(site: Site, worker: FakeWorker) -> None:
    """First of all, with who did it and why."""
    worker.parts["flights"] = [partition(0, paused="paused by ann: <migration>"), partition(1)]
    text = Outline((await site.get("/retries/flights/"))[2]).text
    assert "Paused by ann: <migration>. Nothing is delivered on partition 0." in text
    assert "Paused" not in Outline((await site.get(f"{BASE}/"))[2]).text


async def test_dead_letters_of_rules_are_among_the_others(site: Site, worker: FakeWorker) -> None:
    """In the list by time, page by page, each with a page of its own though another has its offset; found by id."""
    info = worker.infos[0]
    names = {"dead_letters": ("in-valid",), "topics": {**info.topics, "dlq in-valid": f"{info.topics['dlq']}.in-valid"}}
    worker.infos[0] = replace(info, **names)  # type: ignore[arg-type]  # its own fields
    before = (await facts(site, f"{BASE}/dead?limit=500"))["records"]
    for offset, failed_ms in ((238, NOW_MS), (7, NOW_MS - 10**9)):
        md = dead_metadata(9_000 + offset, last_failed_ms=failed_ms)
        worker.bury(offset, md, value=b'"bad"', letters="in-valid")
    path, rows = f"{BASE}/dead?limit=1", []
    while path:
        page = await facts(site, path)
        rows += page["records"]
        path = page["next"]
    assert len(rows) == len(before) + 2
    rows = [row for row in rows if row["last_failed_ms"] is not None]  # those without a time come first
    assert [(row["offset"], row["letters"]) for row in (rows[0], rows[-1])] == [(238, "in-valid"), (7, "in-valid")]
    assert f'href="{BASE}/dead/0/238?letters=in-valid"' in (await site.get(f"{BASE}/dead"))[2]
    letter = await facts(site, f"{BASE}/dead/0/238?letters=in-valid")
    assert (letter["topic"], letter["record"]["value"]["text"]) == ("billing.shop.orders.dlq.in-valid", '"bad"')
    assert (await facts(site, f"{BASE}/dead/0/238"))["topic"] == "billing.shop.orders.dlq"
    assert (await site.get(f"{BASE}/dead/0/238?letters=other"))[0] == 404
    status, headers, _ = await site.get(f"{BASE}/find?id={quote(rows[0]['failure_id'])}")
    assert (status, headers["Location"]) == (303, f"{BASE}/dead/0/238?letters=in-valid")


async def test_too_large_dead_letter_shows_the_value_of_the_main_topic(site: Site) -> None:
    """Its value was dropped from the copy; what is shown is cut and says so."""
    record = (await facts(site, f"{BASE}/dead/1/5"))["record"]
    assert record["read_from"] == "shop.orders[1]@8"
    assert (record["value"]["size_bytes"], record["value"]["shown_bytes"]) == (240_000, 65_536)
    assert record["value"]["truncated"] is True
    assert "Only the first 65,536 of 240,000 bytes are shown." in (await site.get(f"{BASE}/dead/1/5"))[2]


async def test_dead_letter_without_its_record_still_shows_why_it_died(site: Site, worker: FakeWorker) -> None:
    """A record that retention took, or a broker that is down, costs the value only."""
    worker.records.clear()
    record = (await facts(site, f"{BASE}/dead/0/238"))["record"]
    assert "no longer on the topic" in record["unread"]
    assert record["reason"] == "non-retryable"
    worker.broker_down = True
    status, _, body = await site.get(f"{BASE}/dead/0/238")
    assert status == 200
    assert "no Kafka broker answers" in body


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
    assert (await facts(site, f"{BASE}/journey?id={elsewhere}"))["find"].startswith("http://127.0.0.1:6067/retries/")
    page = await facts(site, f"{BASE}/journey?id={name}")
    assert page["idempotency_key"] == f"{idempotency_key(name)}-e1", "it was edited for its replay"
    assert [step["kind"] for step in page["steps"]] == ["failed", "dead", "replay", "replayed", "failed"]
    dues = [(each["attempt"], each["due_at_ms"] - NOW_MS) for each in page["planned"]]
    assert dues == [(2, 220_000), (3, 520_000), (4, 2_320_000), (5, 4_120_000), (6, 5_920_000), (7, 9_520_000)]
    text = Outline((await site.get(f"{BASE}/journey?id={name}"))[2]).text
    for shown in ("2.3 s", "by ann", "ledger is back", "replay 1", "1 of 7", "exhausted", name, "on pod-7/worker-2"):
        assert shown in text, shown


async def test_a_dead_letter_leads_to_those_beside_it(site: Site) -> None:
    """On its partition; the newest has no newer one."""
    links = Outline((await site.get(f"{BASE}/dead/0/236"))[2]).links
    assert {f"{BASE}/dead/0/238", f"{BASE}/dead/0/234"} <= set(links)
    newest = await facts(site, f"{BASE}/dead/0/238")
    assert (newest["newer"], newest["older"]) == (None, 236)


async def test_damaged_metadata_is_shown_as_damaged(site: Site) -> None:
    """A dead letter whose headers cannot be read has a line in the list and a page."""
    listed = (await facts(site, f"{BASE}/dead?partition=1"))["records"]
    damaged = next(record for record in listed if record["offset"] == 12)
    assert damaged["failure_id"] is None
    assert "retry-attempt" in damaged["damaged"] or "retry-" in damaged["damaged"]
    assert "cannot be trusted" in (await site.get(f"{BASE}/dead/1/12"))[2]


async def test_damaged_row_of_the_table_is_shown_as_damaged(site: Site, worker: FakeWorker) -> None:
    """A row that cannot be decoded does not take the page with it."""
    worker.waiting[0] = replace(worker.waiting[0], value=b"\xff\x00")
    offset = 10_000
    assert "damaged row" in (await facts(site, f"{BASE}/pending/0/{offset}"))["record"]["damaged"]
    assert "damaged row" in (await site.get(f"{BASE}/pending"))[2]
    assert (await site.get(f"{BASE}/pending/0/{offset}"))[0] == 200


@pytest.mark.parametrize(
    "path", [f"{BASE}/pending/1/43", f"{BASE}/pending?partition=1", f"{BASE}/dead/1/9", f"{BASE}/dead?partition=1"]
)
async def test_what_users_send_is_escaped(site: Site, path: str) -> None:
    """Markup in key, value, header name, header value, error type, message and trace stays text."""
    body = (await site.get(path))[2]
    assert EVIL not in body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body


async def test_what_a_request_sends_is_escaped(site: Site) -> None:
    """Markup in an address or a parameter comes back as text, on pages and in errors."""
    for path in (
        f"/retries/{EVIL.replace('/', '%2F')}/",
        f"{BASE}/dead?reason={EVIL}",
        f"{BASE}/pending?x={EVIL}%22%3E",
        f"{BASE}/pending?limit={EVIL}",
        f"{BASE}/find?id={EVIL}",
        f"/retries/a/b/c/{EVIL}",
    ):
        _, _, body = await site.get(path, accept="text/html")
        assert "<script" not in body, path


async def test_failure_id_leads_to_its_record(site: Site) -> None:
    """Waiting and dead records are found by the id that logs and headers have."""
    for failure_id, target in (
        ("billing/shop.orders@kq8G0bTz/0/10001", f"{BASE}/pending/0/10001"),
        ("billing/shop.orders@kq8G0bTz/0/2119", f"{BASE}/dead/0/238"),
    ):
        status, headers, _ = await site.get(f"{BASE}/find?id={failure_id}")
        assert (status, headers["Location"]) == (303, target)
        assert (await site.get(target))[0] == 200
    _, headers, _ = await site.get(f"{BASE}/find?id=billing/shop.orders@kq8G0bTz/0/2119&format=json")
    assert headers["Location"] == f"{BASE}/dead/0/238?format=json"


async def test_addresses_without_their_last_slash_are_sent_on(site: Site) -> None:
    """A hand-typed address works, its query kept."""
    for path, target in (("/retries", "/retries/"), (f"{BASE}?format=json", f"{BASE}/?format=json")):
        status, headers, _ = await site.get(path)
        assert (status, headers["Location"]) == (308, target)


async def test_health_ready_and_metrics_answer_machines(site: Site, worker: FakeWorker) -> None:
    """Health is always fine while serving; ready follows the worker; metrics are Prometheus text."""
    assert (await facts(site, "/retries/health")) == {"ok": True}
    assert (await facts(site, "/retries/ready")) == {"ok": True}
    worker.is_ready = False
    assert (await facts(site, "/retries/health")) == {"ok": True}
    assert (await facts(site, "/retries/ready", 503))["error"]["code"] == "not-ready"
    status, headers, body = await site.get("/retries/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "retryapp_succeeded_total 1.0" in body


async def test_partitions_page_tells_owner_lane_and_lag(site: Site) -> None:
    """What is not known is None, never 0."""
    page = await facts(site, f"{BASE}/partitions")
    first, second, away, nowhere, opening, _ = page["partitions"]
    assert (first["owner_url"], first["is_here"], first["session"]) == ("http://127.0.0.1:6066", True, 2)
    assert (first["committed_offset"], first["main_lag"]) == (7_001, 12)
    assert (first["release_lag_ms"], first["last_error"]) == (2_300, "TimeoutError: no answer")
    assert (second["due"], second["due_is_least"]) == (1, False)
    assert (away["owner_url"], away["main_lag"], away["session"]) == ("http://127.0.0.1:6067", None, None)
    assert nowhere["owner_url"] is None
    assert (opening["due"], opening["committed_offset"]) == (None, None)
    text = Outline((await site.get(f"{BASE}/partitions"))[2]).text
    assert "1 h ago" in text
    assert "TimeoutError: no answer" in text


async def test_a_circuit_that_is_not_closed_is_shown_with_its_cause(site: Site, worker: FakeWorker) -> None:
    """Where it is and since when; one that is closed is no news."""
    cause = {"circuit_since_ms": NOW_MS - 60_000, "circuit_cause": "9 of 20 records failed: <E>"}
    worker.parts["shop.orders"][:2] = [partition(0, circuit="open", **cause), partition(1, circuit="closed")]
    page, index = (await site.get(f"{BASE}/"))[2], (await site.get("/retries/"))[2]
    assert "circuit open since" in page
    assert "9 of 20 records failed: &lt;E&gt;" in page
    assert "circuit closed" not in page
    assert "circuit open on 1" in index
    ledger = {"ledger": CircuitInfo(state="half-open", since_ms=NOW_MS - 60_000, cause="4 of 4: <E>")}
    worker.parts["shop.orders"][:2] = [partition(0, circuits=ledger), partition(1)]
    page, index = (await site.get(f"{BASE}/"))[2], (await site.get("/retries/"))[2]
    assert "circuit ledger half-open since" in page
    assert "4 of 4: &lt;E&gt;" in page
    assert "circuit ledger half-open on 1" in index


@pytest.mark.parametrize("holds", ["circuit", "rate"])
async def test_a_due_record_says_what_holds_it_back(site: Site, worker: FakeWorker, holds: str) -> None:
    """In the list and on its page; one that is not due waits for its time."""
    worker.parts["shop.orders"] = [replace(item, holds_due=holds) for item in worker.parts["shop.orders"]]
    records = (await facts(site, f"{BASE}/pending?partition=1"))["records"]
    assert [record["held_back_by"] for record in records] == [holds, None]
    assert f"held back by the {holds}" in (await site.get(f"{BASE}/pending?partition=1"))[2]
    assert (await facts(site, f"{BASE}/pending/1/42"))["record"]["held_back_by"] == holds
    assert "holds it back" in (await site.get(f"{BASE}/pending/1/42"))[2]
    assert "holds it back" not in (await site.get(f"{BASE}/pending/1/43"))[2]


async def test_partitions_page_without_a_broker_still_shows_the_lanes(site: Site, worker: FakeWorker) -> None:
    """Lag is unknown, and why."""
    worker.broker_down = True
    page = await facts(site, f"{BASE}/partitions")
    assert "no Kafka broker answers" in page["lag_unknown"]
    assert page["partitions"][0]["main_lag"] is None
    assert page["partitions"][1]["due"] == 1


def unknown(worker: FakeWorker) -> None:
    """Let no broker have answered for 42 s; the numbers of two partitions are old, those of the others unknown."""
    worker.silent = "broker kafka-1:9092 has not answered for 42 s"
    parts = worker.parts["shop.orders"]
    for number, item in enumerate(parts):
        if item.state != "elsewhere":
            parts[number] = replace(
                item, pending=None, pending_by_tier={}, next_due_ms=None, dead=None, state="opening"
            )
    for number, pending in ((0, 700), (1, 42)):
        parts[number] = replace(parts[number], pending=pending, dead=number, as_of_ms=NOW_MS - 42_000)
    worker.parts["flights"] = [replace(partition(0), pending=None, dead=None, state="opening")]


async def test_what_is_not_known_is_the_last_known_with_its_age_or_unknown_and_never_zero(
    site: Site, worker: FakeWorker
) -> None:
    """On the pages and in their JSON; sums name the partitions that they leave out."""
    unknown(worker)
    index = await facts(site, "/retries/")
    orders, flights = index["handlers"]
    assert (orders["pending"], orders["dead"], orders["as_of_ms"]) == (742, 1, NOW_MS - 42_000)
    assert orders["unknown_partitions"] == [4, 5]
    assert (flights["pending"], flights["dead"], flights["unknown_partitions"]) == (None, None, [0])
    assert index["broker_silence"] == worker.silent
    text = Outline((await site.get("/retries/"))[2]).text
    for shown in ("has not answered for 42 s", "742 42 s ago", "without partitions 2, 3, 4, 5", "unknown"):
        assert shown in text
    page = await facts(site, f"{BASE}/")
    assert page["due"]["minute"] == {"count": None, "more": False}
    assert [item["pending"] for item in page["partitions"]] == [700, 42, None, None, None, None]
    text = Outline((await site.get(f"{BASE}/"))[2]).text
    assert "700 42 s ago" in text


@pytest.mark.parametrize("page", ["pending", "dead"])
async def test_a_list_names_the_partitions_that_it_leaves_out(site: Site, worker: FakeWorker, page: str) -> None:
    """Else an empty list looks as if nothing waited."""
    unknown(worker)
    worker.waiting.clear()
    worker.letters.clear()
    assert (await facts(site, f"{BASE}/{page}"))["partitions_left_out"] == [0, 1, 2, 3, 4, 5]
    text = Outline((await site.get(f"{BASE}/{page}"))[2]).text
    assert "dead on partitions 0, 1, 2, 3, 4, 5 is not in this list" in text
    assert "in the others." in text
