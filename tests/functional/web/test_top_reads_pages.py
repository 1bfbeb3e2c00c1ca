"""`retryapp top` and the pages agree: what it shows is what the pages say, over real HTTP."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from functional.web.server import Site, serving
from functional.web.worker import NOW_MS, FakeWorker, busy_worker
from samples import partition

from retryapp.cli._workers import Workers
from retryapp.ports import Activity
from retryapp.web.access import Role, parse_operators
from retryapp.web.figures import rates_of

BUSY = Activity(span_s=30, deliveries=1_000, failures=10, late_within={"0.01": 39, "0.05": 40, "+Inf": 40})


async def test_figures_and_lanes_are_those_of_the_pages(site: Site, worker: FakeWorker) -> None:
    """Totals, lanes with state, circuit, lag and last error, and whose numbers are not known."""
    worker.address = site.url
    worker.parts["shop.orders"][1] = replace(worker.parts["shop.orders"][1], circuit="open")
    worker.lately = BUSY
    group = await Workers("billing", [site.url])._ask(NOW_MS)
    assert (group.group, group.workers) == ("billing", [site.url])
    plain = await Workers("billing", [site.url.removeprefix("http://")])._ask(NOW_MS)
    assert plain.workers == [site.url], "an address as it is typed, without the scheme"
    ahead = await Workers("billing", [site.url])._ask(NOW_MS + 240_000)
    assert ahead == group, "the operator's clock is wrong: ages are by the worker's"
    orders, flights = group.handlers
    assert flights["main"] == "flights"
    assert (orders["pending"], orders["dead"]) == (1_204_397, 135)
    assert orders["rates"] == {
        "deliveries_per_min": 2_000, "failures_per_min": 20, "retries": 40, "late_p99_ms": 50,
        "workers": 1, "of_workers": 2, "is_least": True,
    }  # fmt: skip
    assert flights["rates"] is None, "not known"
    assert "shop.orders: 135 dead, 122 of them: ValueError: no" in group.todo
    lanes = {lane["partition"]: lane for lane in group.lanes if lane["main"] == "shop.orders"}
    assert (lanes[0]["main_lag"], lanes[0]["state"], lanes[0]["last_error"]) == (12, "open", "TimeoutError: no answer")
    assert (lanes[0]["circuit"], lanes[1]["circuit"]) == (None, "open")
    assert [(lanes[number]["worker"], lanes[number]["pending"]) for number in (0, 2, 3)] == [
        (site.url, 64), ("http://127.0.0.1:6067", None), ("", None),
    ]  # fmt: skip
    assert group.note == "no answer from http://127.0.0.1:6067: their last numbers are shown, or are left out"
    only = await Workers("billing", [site.url], only="flights")._ask(NOW_MS)
    assert ([each["main"] for each in only.handlers], only.todo) == (["flights"], [])


async def test_a_token_is_shown_to_the_workers_that_were_named(worker: FakeWorker) -> None:
    """And to no other address, whoever names it: it could be anybody's."""
    heard: list[str | None] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append(request.headers.get("Authorization"))
        return web.Response(status=404)

    elsewhere = web.Application()
    elsewhere.router.add_get("/{path:.*}", listen)
    only_ann = parse_operators(f"ann:{hashlib.sha256(b'secret').hexdigest()}:admin, anyone:look")
    only_ann = replace(only_ann, local=Role.NONE, anyone=Role.NONE)
    async with TestServer(elsewhere) as other, serving(worker, only_ann) as url:
        worker.address = url
        worker.parts["shop.orders"][2] = partition(2, state="elsewhere", owner_url=str(other.make_url("")))
        workers = Workers("billing", [url])
        assert ((await workers._ask(NOW_MS)).workers, workers.refused) == ((), [url])
        group = await Workers("billing", [url], token="secret")._ask(NOW_MS)  # noqa: S106
        assert (group.workers, group.handlers[0]["dead"]) == ([url], 135)
        assert set(heard) <= {None}


async def test_one_worker_says_all_of_the_group(site: Site, worker: FakeWorker) -> None:
    """It asks the others; figures add up, and lanes of all are shown as their owners say."""
    worker.address = site.url
    other = busy_worker(site.url)
    worker.lately = other.lately = BUSY
    async with serving(other) as url:
        other.address = url
        worker.parts["shop.orders"][2] = replace(worker.parts["shop.orders"][2], owner_url=url)
        away = {"state": "elsewhere", "owner_url": site.url}
        mine = [replace(item, **away) for item in worker.parts["shop.orders"]]
        mine[2] = partition(2, pending=600)
        other.parts["shop.orders"] = mine
        group = await Workers("billing", [site.url])._ask(NOW_MS)
        assert (group.workers, group.note) == (sorted([site.url, url]), "")
        assert group.handlers[0]["pending"] == 1_204_397 + 600
        assert group.handlers[0]["unknown_partitions"] == [3], "no worker has it"
        both = rates_of([BUSY, BUSY], unowned=True)
        assert both is not None
        assert group.handlers[0]["rates"] == asdict(both)
        (lane,) = (each for each in group.lanes if (each["main"], each["partition"]) == ("shop.orders", 2))
        assert (lane["worker"], lane["state"], lane["pending"]) == (url, "open", 600)


async def test_the_worker_that_knows_most_is_shown(site: Site, worker: FakeWorker) -> None:
    """One that has lost its broker shows what it knew last, and its partitions may be open elsewhere by now."""
    worker.address = site.url
    other = busy_worker(site.url)
    for each in (worker, other):
        each.parts = {"shop.orders": [partition(0, pending=5), partition(1, pending=None, dead=None, state="opening")]}
        each.infos = [replace(each.infos[0], partitions=2)]
    old = partition(0, pending=742, dead=1, as_of_ms=NOW_MS - 42_000, state="idle")
    worker.parts["shop.orders"][0] = old
    worker.silent = "broker kafka-1:9092 has not answered for 42 s"
    async with serving(other) as url:
        other.address = url
        workers = Workers("billing", [site.url, url])
        (orders,) = (await workers._ask(NOW_MS)).handlers
        assert (orders["pending"], orders["dead"], orders["as_of_ms"]) == (5, 0, None)
        assert workers.answered == [site.url, url]
    group = await Workers("billing", [site.url])._ask(NOW_MS)
    (orders,) = group.handlers
    assert (orders["pending"], orders["dead"], orders["as_of_ms"]) == (742, 1, NOW_MS - 42_000)
    assert orders["unknown_partitions"] == [1]
    assert group.note == f"{site.url}: broker kafka-1:9092 has not answered for 42 s"
    worker.parts["shop.orders"][0] = worker.parts["shop.orders"][1]
    (orders,) = (await Workers("billing", [site.url])._ask(NOW_MS)).handlers
    assert (orders["pending"], orders["dead"]) == (None, None)


async def test_a_worker_of_another_release_is_shown(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling upgrade: it says more of a handler, and what it does not say is not known."""
    worker.address = site.url
    ask = Workers._json

    async def other(*args: Any) -> Any:
        answer = await ask(*args)
        for each in answer.get("handlers", ()):
            each["group"]["more"] = 1
            del each["group"]["rates"]
        for each in answer.get("partitions", ()):
            del each["circuits"]
        return answer

    monkeypatch.setattr(Workers, "_json", other)
    group = await Workers("billing", [site.url])._ask(NOW_MS)
    assert [(each["main"], each["rates"]) for each in group.handlers] == [("shop.orders", None), ("flights", None)]
    assert {lane["circuits"] for lane in group.lanes} == {None}


async def test_workers_of_other_groups_are_passed_over(site: Site) -> None:
    """On one machine the ports are shared."""
    assert not (await Workers("other", [site.url])._ask(NOW_MS)).workers


@pytest.mark.parametrize("broken", ["broken", "gone"])
async def test_a_worker_that_fails_is_no_worker(site: Site, worker: FakeWorker, broken: str) -> None:
    """A page with an error, or nobody there."""
    worker.broken = broken == "broken"
    url = site.url if broken == "broken" else "http://127.0.0.1:1"
    assert not (await Workers(None, [url])._ask(NOW_MS)).workers
