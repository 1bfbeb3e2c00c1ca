"""The pages over real HTTP: what they show, as HTML and as JSON, and what they never show."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from functional.web.server import Outline, Site, words
from functional.web.worker import BASE, EVIL, MAIN, NOW_MS, FakeWorker
from html5lib import HTMLParser as HTMLParser5
from samples import partition

from retryapp.web import answers, attention, group, lists, views
from retryapp.web.render import environment

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
    f"{BASE}/audit",
    f"{BASE}/audit?since=30s",
    f"{BASE}/audit?until=1s",
    f"/retries/api/commands/{MAIN}/0/0",
    f"{BASE}/jobs",
    f"{BASE}/jobs/3f9ca81b02",
    f"{BASE}/jobs/77aa00bb11",
    f"{BASE}/jobs/3f9ca81b02/refused",
    f"{BASE}/jobs/new?verb=replay&message=shard",
]


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
    assert await site.facts(path), "the same as JSON"
    for link in {
        link
        for link in page.links
        if link.startswith(("/", "?")) and not link.endswith(("/find", "/jobs/new")) and "/command" not in link
    }:
        target = link if link.startswith("/") else path.partition("?")[0] + link
        assert (await site.get(target))[0] == (303 if "/find?" in target else 200), target


async def test_enter_presses_none_of_several_buttons(site: Site) -> None:
    """Browsers press the first of a form, unless it is disabled: a length for hold and Enter had retried now."""
    several = 0
    for path in HTML_PAGES:
        for form in re.findall(r'<form [^>]*method="post".*?</form>', await site.page(path), re.DOTALL):
            first, *others = re.findall("<button[^>]*>", form)
            if len(others) > 1:
                several += 1
                assert first == "<button disabled hidden>", (path, first)
    assert several > 10


async def test_index_sums_up_what_is_known(site: Site) -> None:
    """Totals leave out partitions of workers that do not answer; the earliest due time wins."""
    index = await site.facts("/retries/")
    orders, flights = (handler["group"] for handler in index["handlers"])
    assert (orders["pending"], orders["dead"], orders["in_flight"]) == (1_204_397, 135, 11)
    assert (orders["partitions_open"], orders["unknown_partitions"]) == (3, [2, 3])
    assert (index["handlers"][0]["partitions_here"], index["handlers"][0]["partitions"]) == (4, 6)
    assert orders["next_due_ms"] == 1_759_999_999_100
    assert list(orders["pending_by_tier"].items()) == [("5m", 1_204_372), ("30m", 24), ("1h", 1)]
    assert flights["next_due_ms"] is None
    assert index["workers"] == ["http://127.0.0.1:6067"]
    assert index["ready"] is True
    partitions = (await site.facts(f"{BASE}/"))["everywhere"]
    assert [item["state"] for item in partitions] == ["open", "open", "elsewhere", "elsewhere", "opening", "open"]
    assert partitions[2]["pending"] is None, "numbers of other workers' partitions are not guessed"
    assert "http://127.0.0.1:6067/retries/shop.orders/" in Outline((await site.get(f"{BASE}/"))[2]).links


@pytest.mark.parametrize("path", ["/retries/", f"{BASE}/"])
async def test_rates_of_some_workers_are_the_least_that_there_may_be(site: Site, worker: FakeWorker, path: str) -> None:
    """They were shown as those of all; what runs on partitions of others is not known either."""
    text = words(await site.page(path))
    assert "at least 6,310 at least 42 failed" in text
    assert "1 of 2 workers" in text
    assert "without partitions 2, 3" in text.partition("Due soon")[0]
    worker.parts[MAIN][2] = partition(2)
    text = words(await site.page(path))
    assert ("at least 6,310" in text, "not of all workers" in text) == (True, True), (
        "the worker of partition 3 is not known"
    )
    worker.parts[MAIN][3] = partition(3)
    text = words(await site.page(path))
    assert ("6,310 42 failed" in text, "at least" in text) == (True, False)
    for number in range(6):
        worker.parts[MAIN][number] = partition(number, state="elsewhere")
    (group,) = [each["group"] for each in (await site.facts("/retries/"))["handlers"] if each["main"] == MAIN]
    assert (group["in_flight"], group["partitions_open"]) == (None, None), "unknown is not 0"


def test_what_is_bad_on_the_overview_has_the_colour_of_it() -> None:
    """The colours go by weight: those moved once, and what was worst was shown as a warning."""
    style = str(environment().globals["style"])
    found = re.search(r"^(.*) \{ border-left-color: var\(--bad\); \}$", style, re.MULTILINE)
    assert found is not None
    bad = (attention._STALLED, attention._CIRCUIT, attention._FAILING, attention._DEAD)
    assert found[1].split(", ") == [f".todo .w{weight}" for weight in bad]
    assert f".todo .w{attention._NEWS} {{ border-left-color: var(--good); }}" in style


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


async def test_addresses_without_their_last_slash_are_sent_on(site: Site) -> None:
    """A hand-typed address works, its query kept."""
    for path, target in (("/retries", "/retries/"), (f"{BASE}?format=json", f"{BASE}/?format=json")):
        status, headers, _ = await site.get(path)
        assert (status, headers["Location"]) == (308, target)


async def test_health_ready_and_metrics_answer_machines(site: Site, worker: FakeWorker) -> None:
    """Health is always fine while serving; ready follows the worker; metrics are Prometheus text."""
    assert (await site.facts("/retries/health")) == {"ok": True}
    assert (await site.facts("/retries/ready")) == {"ok": True}
    worker.is_ready = False
    assert (await site.facts("/retries/health")) == {"ok": True}
    assert (await site.facts("/retries/ready", 503))["error"]["code"] == "not-ready"
    status, headers, body = await site.get("/retries/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "retryapp_succeeded_total 1.0" in body


async def test_partitions_page_tells_owner_lane_and_lag(site: Site) -> None:
    """What is not known is None, never 0."""
    page = await site.facts(f"{BASE}/partitions")
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
    assert "Numbers are of the whole group" in text


async def test_partitions_page_without_a_broker_still_shows_the_lanes(site: Site, worker: FakeWorker) -> None:
    """Lag is unknown, and why."""
    worker.broker_down = True
    page = await site.facts(f"{BASE}/partitions")
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
    index = await site.facts("/retries/")
    orders, flights = (handler["group"] for handler in index["handlers"])
    assert (orders["pending"], orders["dead"], orders["as_of_ms"]) == (742, 1, NOW_MS - 42_000)
    assert orders["unknown_partitions"] == [2, 3, 4, 5]
    assert (flights["pending"], flights["dead"], flights["unknown_partitions"]) == (None, None, [0])
    assert index["broker_silence"] == worker.silent
    text = Outline((await site.get("/retries/"))[2]).text
    old = "742 42 s ago", "0 of 6 42 s ago"
    for shown in ("has not answered for 42 s", *old, "without partitions 2, 3, 4, 5", "unknown"):
        assert shown in text
    page = await site.facts(f"{BASE}/")
    assert page["due"]["minute"] == {"count": None, "more": False}
    assert [item["pending"] for item in page["everywhere"]] == [700, 42, None, None, None, None]
    text = Outline((await site.get(f"{BASE}/"))[2]).text
    assert "700 42 s ago" in text


@pytest.mark.parametrize(
    ("page", "what", "none"),
    [
        ("pending", "waits or is dead", "Nothing waits"),
        ("dead", "waits or is dead", "No dead letters"),
        ("jobs", "jobs do", "No other jobs"),
    ],
)
async def test_a_list_names_the_partitions_that_it_leaves_out(
    site: Site, worker: FakeWorker, page: str, what: str, none: str
) -> None:
    """Else an empty list looks as if nothing waited; it says so of the others, if there are others."""
    unknown(worker)
    for each in (worker.waiting, worker.letters, worker.remembered):
        each.clear()
    assert (await site.facts(f"{BASE}/{page}"))["partitions_left_out"] == [0, 1, 2, 3, 4, 5]
    text = Outline((await site.get(f"{BASE}/{page}"))[2]).text
    assert f"What {what} on partitions 0, 1, 2, 3, 4, 5 is not in this list" in text
    assert (none in text) == (page == "jobs")
    worker.parts[MAIN][0] = partition(0)
    for query, said in (("", page != "jobs"), ("?partition=1", False)):
        assert (f"{none} in the others." in await site.page(f"{BASE}/{page}{query}")) == said


@pytest.mark.parametrize(
    ("page", "shown"),
    [("", True), ("pending?cause=c1-3f9ca81b02", True), ("pending", False), ("dead", False), ("jobs", False)],
)
async def test_causes_are_put_together_for_who_shows_them(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, page: str, shown: bool
) -> None:
    """Each partition may have hundreds of them."""
    asked, causes = list[str](), worker.waiting_causes
    monkeypatch.setattr(worker, "waiting_causes", lambda main: asked.append(main) or causes(main))
    await site.facts(f"{BASE}/{page}")
    assert asked == [MAIN] * shown


@pytest.mark.parametrize(
    ("path", "module", "work"),
    [
        ("/retries/", group, "causes_of"),
        ("/retries/", group, "totals"),
        (f"{BASE}/", group, "causes_of"),
        (f"{BASE}/", answers, "partition_facts"),
        (f"{BASE}/pending", lists, "merge"),
        (f"{BASE}/dead", lists, "merge"),
        ("/retries/part", answers, "spread"),
        (f"{BASE}/dead/0/238", answers, "payloads"),
        ("/retries/api/openapi.json", views, "document"),
    ],
)
async def test_what_grows_with_partitions_causes_and_records_does_not_block_the_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str, module: Any, work: str
) -> None:
    """Another thread puts the facts together, from one look at the partitions."""
    threads, looks = set[int](), list[str]()
    call, look = getattr(module, work), site.worker.partitions

    def noted(*args: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return call(*args, **options)

    def looked(main: str) -> Any:
        looks.append(main)
        return look(main)

    monkeypatch.setattr(module, work, noted)
    monkeypatch.setattr(site.worker, "partitions", looked)
    assert (await site.get(f"{path}?format=json"))[0] == 200
    assert threads
    assert threading.get_ident() not in threads
    assert len(looks) == len({*looks})
