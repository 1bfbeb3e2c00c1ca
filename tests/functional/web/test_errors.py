"""Every error of every address has one shape, and questions for other workers find their way."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from functional.web.server import Outline, Site, ask, serving
from functional.web.test_access import address_of
from functional.web.worker import BASE, GROUP, MAIN, NOW_MS, FakeWorker, busy_worker

from retryapp.core.errors import StoreBrokenError
from retryapp.kafka import AccessDeniedError
from retryapp.web import render
from retryapp.web.access import Operators, Role
from retryapp.web.views import ROUTES

ERRORS = [
    ("/retries/nothing/", 404, "no-such-handler"),
    ("/retries/nothing/dead/0/1", 404, "no-such-handler"),
    ("/retries/nothing/find?id=billing/nothing@a/0/1", 404, "no-such-handler"),
    ("/retries/a/b/c/d/e", 404, "no-such-page"),
    (f"{BASE}/pending/0/x", 404, "no-such-page"),
    (f"{BASE}/pending/0/99999999999999999999999", 404, "no-such-page"),
    (f"{BASE}/dead/-1/1", 404, "no-such-page"),
    (f"{BASE}/pending/0/77", 404, "not-pending"),
    (f"{BASE}/pending/6/77", 404, "no-such-partition"),
    (f"{BASE}/dead?partition=99", 404, "no-such-partition"),
    (f"{BASE}/dead/0/237", 404, "not-dead"),
    (f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/78", 404, "no-journey"),
    (f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/9/78", 400, "bad-parameter"),
    (f"{BASE}/journey", 400, "bad-parameter"),
    (f"{BASE}/find?id=nonsense", 400, "bad-parameter"),
    (f"{BASE}/find?id=other/shop.orders@kq8G0bTz/0/77", 400, "bad-parameter"),
    (f"{BASE}/pending?after=00", 400, "bad-parameter"),
    (f"{BASE}/dead?reason=zzz", 400, "bad-parameter"),
    (f"{BASE}/dead?since=1h&until=2h", 400, "bad-parameter"),
    ("/retries/?format=xml", 400, "bad-parameter"),
    (f"{BASE}/pending?partition=4", 503, "partition-not-open"),
    (f"{BASE}/dead/4/1", 503, "partition-not-open"),
    (f"{BASE}/pending?partition=3", 409, "partition-elsewhere"),
    (f"{BASE}/pending/2/1?routed=1", 409, "partition-elsewhere"),
    (f"{BASE}/pending/2/1", 307, "partition-elsewhere"),
    (f"{BASE}/dead/2/1", 307, "partition-elsewhere"),
    (f"{BASE}/find?id=billing/shop.orders@kq8G0bTz/2/77", 307, "partition-elsewhere"),
]


def assert_shape(body: str, code: str) -> None:
    error = json.loads(body)
    assert set(error) == {"error"}
    assert set(error["error"]) == {"code", "message", "hint"}
    assert error["error"]["code"] == code
    assert all(isinstance(text, str) and text for text in error["error"].values())


@pytest.mark.parametrize(("path", "status", "code"), ERRORS)
async def test_errors_have_one_shape(site: Site, path: str, status: int, code: str) -> None:
    """Without a browser, every error is JSON with code, message and hint; a browser gets the same words."""
    got, headers, body = await site.get(path)
    assert (got, headers["Content-Type"]) == (status, "application/json; charset=utf-8")
    assert_shape(body, code)
    got, headers, page = await site.get(path, accept="text/html,application/xhtml+xml")
    assert (got, headers["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert code in page
    joined = path + ("&" if "?" in path else "?") + "format=json"
    if "format=xml" not in path:
        assert_shape((await site.get(joined, accept="text/html"))[2], code)


async def test_an_error_leads_on(site: Site) -> None:
    """A link of an hour ago: to the pages of the handler, to where the record is now, and to who has the partition."""
    waits = Outline(await site.page(f"{BASE}/pending/0/77?topic_id=other"))
    assert {f"{BASE}/", f"{BASE}/dead", f"{BASE}/find?id=billing%2Fshop.orders%40other%2F0%2F77"} <= {*waits.links}
    moved = Outline(await site.page(f"{BASE}/dead/2/1?letters=a&routed=1"))
    assert f"http://127.0.0.1:6067{BASE}/dead/2/1?letters=a" in moved.links
    assert "is on another worker by now" in moved.text
    assert f"{BASE}/" not in Outline(await site.page("/retries/nothing/dead")).links


async def test_without_a_role_no_handler_is_told() -> None:
    """Nor by where an error leads to."""
    async with serving(busy_worker(), Operators(local=Role.NONE)) as url:
        pages = [(await ask(url, f"/retries/{main}/dead", {"Accept": "text/html"}))[1] for main in (MAIN, "nothing")]
    assert pages[0].count("<a ") == pages[1].count("<a ")


async def test_a_failure_id_is_found_from_the_page_of_another_handler(site: Site) -> None:
    """It was refused as none of this handler."""
    status, headers, _ = await site.get(f"/retries/flights/find?id=%20{GROUP}/{MAIN}@kq8G0bTz/0/10001&here=1")
    assert (status, headers["Location"]) == (303, f"{BASE}/find?id=billing%2Fshop.orders%40kq8G0bTz%2F0%2F10001&here=1")
    status, headers, _ = await site.get(headers["Location"])
    assert (status, headers["Location"]) == (303, f"{BASE}/pending/0/10001?topic_id=kq8G0bTz")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_pages_only_show(site: Site, method: str) -> None:
    """Any other method is refused in the same shape, at every address, whoever asks."""
    for path, _ in ROUTES:
        async with site.session.request(method, site.url + address_of(path)) as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD"), path
            assert_shape(await response.text(), "method-not-allowed")


@pytest.mark.parametrize("path", ["/retries/", f"{BASE}/dead"])
async def test_a_bug_is_an_error_in_the_same_shape(
    site: Site, worker: FakeWorker, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader gets no traceback, the log does."""
    worker.broken = True
    status, _, body = await site.get(path)
    assert status == 500
    assert_shape(body, "page-failed")
    assert "ZeroDivisionError" not in body
    assert any(record.message == "retryapp.page_failed" and record.exc_info for record in caplog.records)


async def test_a_right_that_the_worker_lacks_to_read_is_named(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask again in a few seconds, as the answer said, was no remedy."""
    denied = AccessDeniedError("read topic 'e'", "localhost:9092", "Topic authorization failed. Needed: Read")
    monkeypatch.setattr(worker, "read_journey", Mock(side_effect=denied))
    status, headers, body = await site.get(f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/77")
    assert (status, "Retry-After" in headers) == (503, False)
    assert_shape(body, "not-allowed")
    assert "Needed: Read. Grant the right" in json.loads(body)["error"]["message"]


async def test_a_worker_that_is_not_ready_names_the_lanes_that_wait_and_why(site: Site, worker: FakeWorker) -> None:
    """Handler, topic and partition, in which state, for how long, and what stopped it last; the rest is fine."""
    worker.is_ready = False
    worker.parts["shop.orders"][4] = replace(worker.parts["shop.orders"][4], since_ms=NOW_MS - 12_500)
    worker.parts["flights"][1] = replace(worker.parts["flights"][1], state="idle")
    worker.parts["flights"][0] = replace(worker.parts["flights"][0], stalled="flights.dlq[0] refuses a hand-off")
    status, headers, body = await site.get("/retries/ready")
    assert (status, headers["Retry-After"]) == (503, "2")
    assert_shape(body, "not-ready")
    assert json.loads(body)["error"]["message"] == (
        "3 of 6 lanes of this worker are not open or stalled: shop.orders[4] of billing.charge is opening for 12 s, "
        "last error: lane billing.shop.orders.4: not a member of generation 12; flights[0] of flights.enrich is "
        "stalled: flights.dlq[0] refuses a hand-off; flights[1] of flights.enrich is idle"
    )


async def test_a_worker_without_a_broker_is_not_ready_and_says_since_when(site: Site, worker: FakeWorker) -> None:
    """Also while all its lanes are open: they learn of it when they commit."""
    worker.silent = "broker kafka-1:9092 has not answered for 12 s"
    del worker.parts["shop.orders"][4]
    status, _, body = await site.get("/retries/ready")
    assert status == 503
    assert_shape(body, "not-ready")
    error = json.loads(body)["error"]
    assert error["message"] == "broker kafka-1:9092 has not answered for 12 s"
    assert error["hint"].startswith("If no cause is named, see whether it runs"), "a refused login is one, and says so"
    worker.parts["flights"][1] = replace(worker.parts["flights"][1], state="opening")
    message = json.loads((await site.get("/retries/ready"))[2])["error"]["message"]
    assert message == (
        "broker kafka-1:9092 has not answered for 12 s; "
        "1 of 5 lanes of this worker is not open or stalled: flights[1] of flights.enrich is opening"
    )


@pytest.mark.parametrize(
    "path",
    [
        f"{BASE}/journey?id=billing/shop.orders@kq8G0bTz/0/77",
        f"{BASE}/dead?message=shard",
        f"{BASE}/jobs/new?verb=replay&all=1",
        f"{BASE}/jobs/3f9ca81b02/refused",
        f"{BASE}/jobs/aa",
        "/retries/api/commands/shop.orders/0/0",
    ],
)
async def test_no_topic_is_read_while_it_is_known_that_no_broker_answers(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """To ask took 15 s, in which others were refused, and a preview said "at least 0"."""
    worker.silent = "broker kafka-1:9092 has not answered for 12 s"
    for name in ("on_topics", "read_range"):
        monkeypatch.setattr(worker, name, Mock(side_effect=AssertionError))
    status, _, body = await site.get(path)
    assert status == 503
    assert_shape(body, "try-again")
    assert json.loads(body)["error"]["message"] == worker.silent


async def test_a_worker_that_has_no_partitions_yet_says_that_it_waits_for_them(site: Site, worker: FakeWorker) -> None:
    """Before the first assignment, and while a rebalance goes on with all lanes open."""
    worker.is_ready = False
    for main, items in worker.parts.items():
        worker.parts[main] = [replace(item, state="elsewhere") for item in items]
    status, _, body = await site.get("/retries/ready")
    assert (status, json.loads(body)["error"]["code"]) == (503, "not-ready")
    assert "waits for its partitions: for its first assignment" in json.loads(body)["error"]["message"]


async def test_the_redirect_keeps_the_question(site: Site) -> None:
    """Path and query go along, with the mark that stops a second redirect."""
    _, headers, _ = await site.get(f"{BASE}/dead/2/7?letters=invalid&format=json")
    assert headers["Location"] == (
        "http://127.0.0.1:6067/retries/shop.orders/dead/2/7?letters=invalid&format=json&routed=1"
    )


async def test_two_workers_that_point_at_each_other_do_not_send_a_reader_round(site: Site, worker: FakeWorker) -> None:
    """While a partition moves, the second worker says so instead of sending the reader back."""
    async with serving(busy_worker(site.url)) as url:
        worker.parts["shop.orders"][2] = replace(worker.parts["shop.orders"][2], owner_url=url)
        status, _, body = await site.get(f"{BASE}/dead/2/7", follow=True)
        assert status == 409
        assert_shape(body, "partition-elsewhere")


async def test_an_owner_address_that_is_no_web_address_is_not_followed(site: Site, worker: FakeWorker) -> None:
    """Addresses come from the group's metadata, which others can write."""
    worker.parts["shop.orders"][2] = replace(worker.parts["shop.orders"][2], owner_url="javascript:alert(1)")
    assert (await site.get(f"{BASE}/dead?partition=2"))[0] == 409
    assert "javascript:" not in (await site.get(f"{BASE}/"))[2]


async def test_a_table_that_was_closed_while_it_was_read_is_asked_for_again(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are read in a thread, and a partition may leave meanwhile: 503, and no bug in the log."""

    def closed(*_: object, **__: object) -> None:
        raise StoreBrokenError("/data/orders/0", "it is closed")

    monkeypatch.setattr(worker, "pending_page", closed)
    status, headers, body = await site.get(f"{BASE}/pending")
    assert (status, headers["Retry-After"]) == (503, "2")
    assert_shape(body, "try-again")


async def test_templates_are_read_in_threads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer of a worker, to a probe, held its event loop up for 80 ms."""
    threads, loader = set[int](), render.PackageLoader

    def noted(*args: Any) -> Any:
        threads.add(threading.get_ident())
        return loader(*args)

    monkeypatch.setattr(render, "PackageLoader", noted)
    for cached in (render.environment, render.safety_headers):
        cached.cache_clear()
    await site.get("/retries/health")
    assert threads == set()
    assert "no handler for topic" in Outline(await site.page("/retries/nowhere/")).text
    assert threads
    assert threading.get_ident() not in threads
