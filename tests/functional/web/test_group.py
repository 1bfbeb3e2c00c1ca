"""Pages of one worker show the whole group: the others are asked, briefly, and what is unknown is never zero."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from functional.web.server import ask, serving
from functional.web.worker import BASE, MAIN, NOW_MS, FakeWorker, busy_worker, dead_metadata, handler, metadata
from samples import partition

from retryapp.core.causes import summed
from retryapp.core.jobs import Part
from retryapp.ports import Activity, CauseTrends, PartitionInfo, PartitionLag
from retryapp.web import peers
from retryapp.web.group import group_of
from retryapp.web.peers import DEADLINE_S

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def facts(url: str, path: str = f"{BASE}/", **headers: str) -> Any:
    status, body = await ask(url, f"{path}{'&' if '?' in path else '?'}format=json", headers)
    assert status == 200
    return json.loads(body)


async def page(url: str, path: str = f"{BASE}/") -> str:
    return (await ask(url, path))[1]


def owner(peer: str) -> FakeWorker:
    """Return a worker with the partition 0, beside one with the partitions 1 and 2."""
    worker = busy_worker()
    worker.parts[MAIN] = [
        partition(0, pending=3, dead=1),
        partition(1, state="elsewhere", owner_url=peer),
        partition(2, state="elsewhere", owner_url=peer),
    ]
    worker.parts["flights"] = []
    return worker


def other() -> FakeWorker:
    worker = busy_worker()
    worker.parts[MAIN] = [
        partition(0, state="elsewhere"),
        partition(1, pending=40, dead=5, in_flight=2, paused="paused by ann"),
        partition(2, state="opening", pending=None, dead=None),
    ]
    worker.parts["flights"] = []
    return worker


@asynccontextmanager
async def answering(reply: Reply) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """Serve something that is no worker; yields its address and what it was asked."""
    asked: list[web.Request] = []

    async def note(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return await reply(request)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", note)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), asked


async def test_numbers_are_those_of_all_workers() -> None:
    """Of partitions, sums and causes; each number by the worker that has the partition."""
    async with serving(other()) as peer, serving(owner(peer)) as url:
        handler = await facts(url)
        assert [(each["partition"], each["state"], each["pending"]) for each in handler["everywhere"]] == [
            (0, "open", 3), (1, "open", 40), (2, "opening", None),
        ]  # fmt: skip
        group = handler["handler"]["group"]
        assert (group["pending"], group["dead"], group["in_flight"], group["silent"]) == (43, 6, 2, [])
        assert group["unknown_partitions"] == [2]
        alone = busy_worker().causes(MAIN)
        assert {each["cause_id"]: each["records"] for each in handler["causes"]} == {
            each.cause_id: each.records for each in summed([*alone[0], *alone[1]])
        }
        text = await page(url)
        assert "Paused by ann. Nothing is delivered on partition 1" in text
        (listed, *_) = (await facts(url, "/retries/"))["handlers"]
        assert listed["group"]["pending"] == 43
        assert ">43</a>" in await page(url, "/retries/")


@pytest.mark.parametrize("path", ["/retries/", f"{BASE}/"])
async def test_the_last_minute_is_that_of_all_workers_that_answer(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """What a silent one did before says nothing of now; and nothing known is no 0."""
    theirs, ours = other(), replace(owner(""), lately=None)
    theirs.lately = Activity(span_s=30, deliveries=600, failures=0, late_within={"0.05": 8, "0.1": 8, "+Inf": 8})
    async with serving(theirs) as peer:
        ours.parts[MAIN] = owner(peer).parts[MAIN]
        async with serving(ours) as url:
            text = await page(url, path)
            assert "1,200" in text
            assert "&le; 50 ms" in text
            ours.lately = Activity(span_s=60, deliveries=34, failures=7, late_within={"0.1": 92, "+Inf": 92})
            text = await page(url, path)
            assert "1,234" in text
            assert "7 failed" in text
            assert "&le; 100 ms" in text
            monkeypatch.setattr(peers, "FRESH_MS", -1)
            ours.lately = None
            assert "unknown" in await page(url, path)


async def test_a_worker_that_does_not_answer_leaves_its_last_numbers_with_their_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And before it has answered once they are unknown: never zero."""
    monkeypatch.setattr(peers, "DEADLINE_S", DEADLINE_S)
    monkeypatch.setattr(peers, "FRESH_MS", -1)  # each page asks, and what is known is old at once
    numbers = {"partitions": [{"partition": 1, "state": "open", "pending": 40, "dead": 5}], "causes": []}
    answers = False

    async def reply(request: web.Request) -> web.StreamResponse:
        return web.json_response({"handlers": {MAIN: numbers}}) if answers else await hang(request)

    async with answering(reply) as (peer, _), serving(owner(peer)) as url:
        group = (await facts(url))["handler"]["group"]
        assert (group["pending"], group["unknown_partitions"], group["silent"]) == (3, [1, 2], [peer])
        assert f"No answer from {peer}" in await page(url)
        answers = True
        assert (await facts(url))["handler"]["group"]["pending"] == 43
        answers = False
        await facts(url, "/retries/flights/")
        handler = await facts(url)
        group = handler["handler"]["group"]
        assert (group["pending"], group["unknown_partitions"], group["silent"]) == (43, [2], [peer])
        assert [each["as_of_ms"] for each in handler["everywhere"]] == [None, NOW_MS, None]


async def hang(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(1_024):
        await response.write(b" " * (1 << 20))
    return response


async def elsewhere(_request: web.Request) -> web.StreamResponse:
    """Send the asker to another address."""
    raise web.HTTPFound("http://127.0.0.1:9/retries/part")


async def garbage(_request: web.Request) -> web.StreamResponse:
    return web.Response(text='{"handlers": {"shop.orders": {"partitions": [{"partition": "one"}]}}}')


@pytest.mark.parametrize("reply", [hang, flood, elsewhere, garbage])
async def test_a_bad_neighbour_costs_a_page_little(monkeypatch: pytest.MonkeyPatch, reply: Reply) -> None:
    """The page says who did not answer; nothing of the reader's request went there."""
    monkeypatch.setattr(peers, "DEADLINE_S", DEADLINE_S)
    async with answering(reply) as (peer, asked), serving(owner(peer)) as url:
        handler = await facts(url, Authorization="Bearer secret", Cookie="retryapp-operator=secret")
        assert handler["handler"]["group"]["silent"] == [peer]
        assert handler["handler"]["group"]["pending"] == 3
        for request in asked:
            assert request.path in (peers.PART, f"{peers.PART}/{MAIN}/due")
            assert not {"Authorization", "Cookie"} & set(request.headers)


async def test_each_time_that_a_neighbour_refuses_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also when its secret was put right in between."""
    statuses = [403, 403, 200, 401, 403]

    async def next_status(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=statuses.pop(0))

    async with answering(next_status) as (peer, _):
        neighbours, theirs = peers.Peers(lambda: NOW_MS), [partition(1, state="elsewhere", owner_url=peer)]
        for told in (1, 1, 1, 2, 2):
            await neighbours.read(theirs, MAIN, "due")
            assert caplog.text.count("retryapp.peer_refused") == told


def test_parts_of_jobs_are_those_of_the_owner_of_their_partition() -> None:
    """The last answer of a worker that is silent may have what has gone on elsewhere since."""
    here, there = partition(0), partition(1, state="elsewhere", owner_url="http://new")
    jobs = {name: Part(job="3f9ca81b02", verb="replay", by=name) for name in ("new", "old")}
    answers = {
        f"http://{name}": peers.Answer(peers.WorkerPart({MAIN: peers.HandlerPart(jobs={1: [part]})}), NOW_MS)
        for name, part in jobs.items()
    }
    group = group_of(MAIN, [here, there], answers, NOW_MS, ({}, {}), {}, None, None)
    assert group.parts == [(1, jobs["new"])]


async def test_a_list_passes_on_its_filters_alone() -> None:
    """Whatever else is in an address, as a token of a proxy, is no concern of the others."""
    async with answering(garbage) as (peer, asked), serving(owner(peer)) as url:
        await facts(url, f"{BASE}/dead?cause=c1-3f9ca81b02&since=1h&marked=1&limit=7&token=secret&refresh=5")
        (listed,) = (request for request in asked if request.path == f"{peers.PART}/{MAIN}/dead")
        assert dict(listed.query) == {"cause": "c1-3f9ca81b02", "since": "1h", "marked": "1", "limit": "7"}


async def test_a_worker_of_another_group_is_no_neighbour() -> None:
    """It may have got the address, and a handler of the same topic: its numbers were shown as this group's."""
    stranger = other()
    stranger.infos = [replace(info, group="shipping") for info in stranger.infos]
    async with serving(stranger) as peer, serving(owner(peer)) as url:
        group = (await facts(url))["handler"]["group"]
        assert (group["pending"], group["silent"]) == (3, [peer])
        assert "not in this list" in await page(url, f"{BASE}/dead")
        assert (await facts(peer, peers.PART))["handlers"], "who says no group is an earlier version"


async def without_handlers(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(0.05)
    return web.json_response({"handlers": {}})


async def test_a_worker_is_asked_once_for_many_readers() -> None:
    """At the same time, and for a while after."""
    async with answering(without_handlers) as (peer, asked), serving(owner(peer)) as url:
        await asyncio.gather(*(facts(url) for _ in range(10)))
        for path in ("/retries/", "/retries/flights/", "/retries/"):
            await facts(url, path)
        paths = [peers.PART, f"{peers.PART}/{MAIN}/due"]
        assert sorted(each.path for each in asked) == paths, "also where another handler has nothing there"


async def test_a_worker_is_asked_again_once_the_clock_is_put_right() -> None:
    """The broker's time may set it back by hours: old numbers passed for new ones until it was as late again."""
    now_ms = NOW_MS
    async with answering(without_handlers) as (peer, asked):
        neighbours, theirs = peers.Peers(lambda: now_ms), [partition(1, state="elsewhere", owner_url=peer)]
        await neighbours.ask(MAIN, theirs)
        now_ms -= 3_600_000
        answers = await neighbours.ask(MAIN, theirs)
    assert (len(asked), answers[peer].at_ms) == (2, now_ms)
    assert answers[peer].is_old(now_ms - 3_600_000), "of one that answers no more"


async def test_a_page_asks_all_that_it_needs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One deadline bounds it: neither handlers nor list and total wait for one another."""
    monkeypatch.setattr(peers, "FRESH_MS", -1)
    both, met = asyncio.Barrier(2), list[str]()

    async def reply(request: web.Request) -> web.StreamResponse:
        await both.wait()
        met.append(request.path)
        return web.json_response({"handlers": {}} if request.path == peers.PART else {"lines": []})

    async with answering(reply) as (one, asked), answering(reply) as (two, others):
        worker = owner(one)
        async with serving(worker) as url:
            for kind in ("dead", "pending"):
                await facts(url, f"{BASE}/{kind}")
            worker.parts["flights"] = [partition(0, state="elsewhere", owner_url=two)]
            await facts(url, "/retries/")
            assert len(met) == len(asked) + len(others) == 6


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1%2", "::ffff:169.254.169.254"])
async def test_addresses_of_the_machine_itself_are_not_asked(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """As those of a cloud's metadata; by name, too, and however they are written."""
    loop = asyncio.get_running_loop()

    async def found(*_args: Any, **_more: Any) -> Any:
        return [(2, 1, 6, "", (address, 80))]

    monkeypatch.setattr(loop, "getaddrinfo", found)
    assert await peers._is_link_local("http://metadata.example/")


async def test_a_worker_that_is_asked_asks_nobody() -> None:
    """Else two that name each other would never end."""

    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"handlers": {}})

    async with answering(reply) as (peer, asked), serving(owner(peer)) as url:
        part = await facts(url, peers.PART)
        assert [each["partition"] for each in part["handlers"][MAIN]["partitions"]] == [0]
        assert asked == []


def dead_and_waiting(numbers: Iterable[int], number: int) -> FakeWorker:
    """Return a worker with one partition, with letters and waiting records in turn with those of another."""
    worker = FakeWorker(infos=[handler(partitions=2)])
    for offset in numbers:
        key = b"k%d" % offset
        worker.bury(offset, dead_metadata(offset, number, last_failed_ms=NOW_MS - 60_000 + offset), key=key)
        worker.wait(metadata(offset, number, due_at_ms=NOW_MS + offset * 1_000), key=key, value=b"{}")
    return worker


@asynccontextmanager
async def pair(
    left: FakeWorker, ours: PartitionInfo, right: FakeWorker, theirs: PartitionInfo
) -> AsyncIterator[tuple[str, str]]:
    """Serve two workers, which have one of two partitions each and take the other worker for the other's owner."""
    async with serving(left) as one, serving(right) as two:
        for worker, here, peer in ((left, ours, two), (right, theirs, one)):
            away = partition(1 - here.partition, state="elsewhere", owner_url=peer)
            worker.parts[MAIN] = [away, here] if here.partition else [here, away]
        yield one, two


@pytest.mark.parametrize("kind", ["causes", "waiting_causes"])
async def test_causes_while_partitions_move_count_nothing_twice(kind: str) -> None:
    """Each partition counts by the worker that has it, as its other numbers do."""
    left, right = dead_and_waiting(range(4), 0), dead_and_waiting(range(4), 0)
    both_have = partition(0, pending=4, dead=4)
    async with pair(left, both_have, right, both_have) as (one, _):
        causes = (await facts(one))[kind]
        assert (sum(each["records"] for each in causes), [each for each in causes if "by" in each]) == (4, [])


async def test_a_cause_says_how_often_it_fails_on_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a record of it to look at; where a worker does not say, that is unknown and no zero."""
    left, right = dead_and_waiting(range(4), 0), dead_and_waiting(range(4, 8), 1)
    cause = left.causes(MAIN)[0][0].cause_id
    left.failing = CauseTrends(lately_s=300, before_s=300, lately={cause: 10}, before={cause: 200})
    right.failing = CauseTrends(lately_s=60, before_s=300, lately={cause: 10})
    ours, theirs = partition(0, pending=4, dead=4), partition(1, pending=4, dead=4)
    async with pair(left, ours, right, theirs) as (one, two):
        for url in (one, two):
            told = await facts(url)
            about = [told["causes"][0], (await facts(url, f"{BASE}/dead?cause={cause}"))["about"]]
            assert [(each["failures_per_min"], each["failures_per_min_before"]) for each in about] == [(12, 40)] * 2
            assert [each["failures_per_min"] for each in told["waiting_causes"]] == [12]
            text = await page(url)
            assert '12 <span class="soft">(before: 40)</span>' in text
            assert f"/find?id={quote(told['causes'][0]['sample'], safe='')}" in text
            assert "(before: 40)" in await page(url, f"{BASE}/pending?cause={cause}")
        right.failing = None
        monkeypatch.setattr(peers, "FRESH_MS", -1)
        assert (await facts(one))["causes"][0]["failures_per_min"] is None
        assert "(before: " not in await page(one)


async def test_what_is_due_and_how_far_partitions_are_is_that_of_all_workers() -> None:
    """On the handler's page and on that of its partitions; of a silent worker it is unknown, and named."""
    left, right = dead_and_waiting(range(4), 0), dead_and_waiting(range(6), 1)
    right.wait(metadata(90, 1, due_at_ms=NOW_MS - 900), key=None, value=None)
    right.behind = [PartitionLag(partition=1, committed=7_001, main=12)]
    ours = partition(0, pending=4, pending_by_tier={"5m": 4})
    theirs = partition(1, pending=7, pending_by_tier={"5m": 1, "1h": 6}, release_lag_ms=2_300)
    async with pair(left, ours, right, theirs) as (one, two):
        for url in (one, two):
            handler = await facts(url)
            assert (handler["due"]["overdue"], handler["due"]["day"]) == (
                {"count": 1, "more": False}, {"count": 10, "more": False},
            )  # fmt: skip
            assert handler["due_left_out"] == []
            text = await page(url)
            assert re.search("Waiting by delay</dt><dd>.*5 min</code> 5</span>.*1 h</code> 6</span>", text)
        listed = await facts(one, f"{BASE}/partitions")
        away = listed["partitions"][1]
        shown = [away[name] for name in ("due", "release_lag_ms", "main_lag", "committed_offset")]
        assert shown == [1, 2_300, 12, 7_001]
        assert (away["is_here"], away["owner_url"], listed["silent"]) == (False, two, [])
        alone = (await facts(one, f"{BASE}/partitions?routed=1"))["partitions"][1]
        assert (alone["due"], alone["state"]) == (None, "elsewhere"), "it asks no other worker"
        right.parts[MAIN][1] = partition(1, state="elsewhere", owner_url=one)
        async with serving(left) as url:
            assert (await facts(url))["due_left_out"] == [1], "while the group moves it"
            assert (await facts(url, f"{BASE}/partitions"))["partitions"][1]["due"] is None


@pytest.mark.parametrize("reply", [flood, garbage])
async def test_what_a_worker_has_that_does_not_answer_is_left_out_by_name(reply: Reply) -> None:
    """Or answers nonsense: what is due, lags and lists; no zero."""
    left = dead_and_waiting(range(4), 0)
    async with answering(reply) as (peer, _), serving(left) as url:
        left.parts[MAIN] = [partition(0, pending=4, dead=4), partition(1, state="elsewhere", owner_url=peer)]
        handler, listed = await facts(url), await facts(url, f"{BASE}/partitions")
        assert (handler["due"]["day"], handler["due_left_out"]) == ({"count": 4, "more": False}, [1])
        assert "partition 1 is not in these numbers" in await page(url)
        assert (listed["silent"], listed["partitions"][1]["due"]) == ([peer], None)
        assert f"No answer from {peer}" in await page(url, f"{BASE}/partitions")
        text = await page(url, f"{BASE}/dead")
        for said in (f"No answer from {peer}", "partition 1 is not in this list", "1-4, the last"):
            assert said in text, "the total is not known"


async def test_a_worker_without_pages_is_an_owner_without_an_address() -> None:
    """No page asks it or links to it, nothing needs action, and sums name the partitions that they lack."""
    worker = FakeWorker(infos=busy_worker().infos)
    worker.parts = {MAIN: [partition(0, pending=3, dead=0), partition(1, state="elsewhere", owner_url="no-pages:ab")]}
    worker.infos = worker.infos[:1]
    async with serving(worker) as url:
        index, shown = await facts(url, "/retries/"), await page(url, "/retries/")
        partitions = (await facts(url))["everywhere"]
    assert (index["todo"], index["silent"], index["workers"]) == ([], [], [])
    assert index["handlers"][0]["group"]["unknown_partitions"] == [1]
    assert partitions[1]["owner_url"] is None
    assert "Nothing in the partitions whose numbers are known here." in shown
    assert "without partition 1" in shown
