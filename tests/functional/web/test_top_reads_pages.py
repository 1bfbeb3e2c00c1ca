"""`retryapp top` and the pages agree: what it shows is what the pages say, over real HTTP."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from functional.web.server import Site, serving
from functional.web.worker import MAIN, NOW_MS, FakeWorker, busy_worker
from samples import partition

from retryapp.cli import _workers
from retryapp.cli._workers import Workers
from retryapp.ports import Activity
from retryapp.web import peers
from retryapp.web.access import Role, parse_operators
from retryapp.web.figures import rates_of

BUSY = Activity(span_s=30, deliveries=1_000, failures=10, late_within={"0.01": 39, "0.05": 40, "+Inf": 40})


async def test_figures_and_lanes_are_those_of_the_pages(site: Site, worker: FakeWorker) -> None:
    """Totals, lanes of this worker with state, circuit, lag and last error."""
    worker.address = site.url
    worker.parts["shop.orders"][1] = replace(worker.parts["shop.orders"][1], circuit="open")
    worker.lately = BUSY
    group = await Workers("billing", [site.url])._ask(NOW_MS)
    assert (group.group, group.workers) == ("billing", [site.url])
    plain = await Workers("billing", [site.url.removeprefix("http://")])._ask(NOW_MS)
    assert plain.workers == [site.url], "an address as it is typed, without the scheme"
    flights, orders = group.handlers
    assert flights["main"] == "flights"
    assert (orders["pending"], orders["dead"]) == (1_204_397, 135)
    assert orders["rates"] == {
        "deliveries_per_min": 2_000, "failures_per_min": 20, "retries": 40, "late_p99_ms": 50,
    }  # fmt: skip
    assert flights["rates"] is None, "not known"
    assert "shop.orders: 135 dead, 122 of them: ValueError: no" in group.todo
    mine = {lane["partition"]: lane for lane in group.lanes if lane["main"] == "shop.orders"}
    assert sorted(mine) == [0, 1, 4, 5], "partitions of other workers are theirs to tell"
    assert (mine[0]["main_lag"], mine[0]["state"], mine[0]["last_error"]) == (12, "open", "TimeoutError: no answer")
    assert (mine[0]["circuit"], mine[1]["circuit"]) == (None, "open")


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
        assert (await Workers("billing", [url])._ask(NOW_MS)).workers == []
        group = await Workers("billing", [url], token="secret")._ask(NOW_MS)  # noqa: S106
        assert (group.workers, group.handlers[1]["dead"]) == ([url], 135)
        assert set(heard) == {None}


async def test_a_worker_is_asked_by_the_address_that_was_given(worker: FakeWorker) -> None:
    """In every frame: others may name it as it calls itself, and the token is not for that address."""
    only_ann = parse_operators(f"ann:{hashlib.sha256(b'secret').hexdigest()}:admin")
    other = busy_worker()
    async with serving(worker, only_ann) as url, serving(other) as elsewhere:
        worker.address = url.replace("127.0.0.1", "localhost")
        other.address = elsewhere
        other.parts["shop.orders"][2] = partition(2, state="elsewhere", owner_url=worker.address)
        workers = Workers("billing", [url, elsewhere], token="secret")  # noqa: S106
        for _ in range(2):
            assert (await workers._ask(NOW_MS)).workers == sorted([worker.address, elsewhere])
            assert (workers.refused, workers.urls) == (set(), sorted([url, elsewhere]))


@pytest.mark.parametrize("secret", ["s3cret", ""])
async def test_what_needs_action_is_said_once_by_whoever_knows_it(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """One that hears all says all; without a secret of the group they do not hear each other, and each says its own."""
    monkeypatch.setattr(peers, "DEADLINE_S", 30)  # a busy machine is no silent worker
    other = busy_worker()
    only_ann = parse_operators(f"ann:{hashlib.sha256(b'secret').hexdigest()}:look", peer_secret=secret)
    only_ann = replace(only_ann, local=Role.NONE)
    async with serving(worker, only_ann) as url, serving(other, only_ann) as elsewhere:
        worker.address, other.address = url, elsewhere
        for number, (mine, peer) in enumerate(((worker, elsewhere), (other, url))):
            mine.infos, away = [replace(mine.infos[0], partitions=2)], {"state": "elsewhere", "owner_url": peer}
            mine.letters, mine.remembered = {}, {}
            here = partition(number, state="opening", last_error=f"fault {number}")
            mine.parts = {MAIN: [here if at == number else partition(at, **away) for at in range(2)]}
        todo = (await Workers("billing", [url, elsewhere], token="secret")._ask(NOW_MS)).todo  # noqa: S106
    apart = [f"{MAIN}: nothing goes on at partition {number}: fault {number}" for number in range(2)]
    assert sorted(todo) == ([f"{MAIN}: nothing goes on at partitions 0, 1: fault 0"] if secret else apart)


async def test_workers_that_pages_name_are_asked_too(site: Site, worker: FakeWorker) -> None:
    """One address is enough; figures add up."""
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
        assert group.workers == sorted([site.url, url])
        assert group.handlers[1]["pending"] == 1_204_397 + 600
        assert group.handlers[1]["unknown_partitions"] == [3], "nobody has it"
        both = rates_of([BUSY, BUSY])
        assert both is not None
        assert group.handlers[1]["rates"] == asdict(both)


async def test_a_partition_with_two_claims_counts_once_by_the_newer_numbers(site: Site, worker: FakeWorker) -> None:
    """A worker that has lost its broker shows what it knew last, and its partitions may be open elsewhere by now."""
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
        (orders,) = (await Workers("billing", [site.url, url])._ask(NOW_MS)).handlers
        assert (orders["pending"], orders["dead"], orders["as_of_ms"]) == (5, 0, None)
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
    """As in a rolling upgrade: it says more of a handler, and not what needs action."""
    worker.address = site.url
    ask = _workers._json

    async def other(*args: Any) -> Any:
        answer = await ask(*args)
        for each in answer.get("handlers", ()):
            each["group"]["more"] = 1
        return {name: fact for name, fact in answer.items() if name != "todo"}

    monkeypatch.setattr(_workers, "_json", other)
    group = await Workers("billing", [site.url])._ask(NOW_MS)
    assert [each["main"] for each in group.handlers] == ["flights", "shop.orders"]
    assert group.todo == []


async def test_a_worker_of_an_earlier_release_that_says_less_is_named(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling upgrade: its lanes are shown, and the totals are those that another worker has."""
    worker.address = site.url
    ask, other = _workers._json, busy_worker(site.url)

    async def less(session: Any, headers: Any, address: str) -> Any:
        answer = await ask(session, headers, address)
        if address.startswith(site.url):
            for each in answer.get("handlers", ()):
                del each["group"]["rates"]
            for each in answer.get("partitions", ()):
                del each["circuits"]
        return answer

    monkeypatch.setattr(_workers, "_json", less)
    named = f"{site.url} is of another version, and does not say all that is shown here"
    alone = await Workers("billing", [site.url])._ask(NOW_MS)
    assert (alone.handlers, alone.note, alone.workers) == ([], named, [site.url])
    assert {lane["partition"] for lane in alone.lanes} == {0, 1, 4, 5}
    async with serving(other) as url:
        other.address = url
        both = await Workers("billing", [site.url, url])._ask(NOW_MS)
        assert (both.note, [each["main"] for each in both.handlers]) == (named, ["flights", "shop.orders"])


async def test_workers_of_other_groups_are_passed_over(site: Site) -> None:
    """On one machine the ports are shared."""
    assert not (await Workers("other", [site.url])._ask(NOW_MS)).workers


@pytest.mark.parametrize("broken", ["broken", "gone"])
async def test_a_worker_that_fails_is_no_worker(site: Site, worker: FakeWorker, broken: str) -> None:
    """A page with an error, or nobody there."""
    worker.broken = broken == "broken"
    url = site.url if broken == "broken" else "http://127.0.0.1:1"
    assert not (await Workers(None, [url])._ask(NOW_MS)).workers
