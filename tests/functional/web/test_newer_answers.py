"""Answers of a newer build, as in a rolling upgrade: a field that is not known here is passed over."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from functional.web.server import ask, serving
from functional.web.test_group import answering, other, owner
from functional.web.worker import BASE, MAIN, FakeWorker

from retryapp.ports import Activity, CauseTrends, CircuitInfo, PartitionLag
from retryapp.web.peers import PART

PLACES = {
    PART: (
        *("", "handlers/{}", "handlers/{}/partitions/0", "handlers/{}/partitions/0/circuits/ledger"),
        *("handlers/{}/causes/0", "handlers/{}/waiting/0", "handlers/{}/activity", "handlers/{}/trends"),
        *("handlers/{}/jobs/1/0", "handlers/{}/jobs/1/0/order", "handlers/{}/jobs/1/0/order/filter"),
    ),
    f"{PART}/{MAIN}/due": ("", "due/overdue"),
    f"{PART}/{MAIN}/partitions": ("", "lanes/0", "lanes/0/info", "lanes/0/lag"),
    f"{PART}/{MAIN}/pending": ("", "lines/0"),
    f"{PART}/{MAIN}/dead": ("", "lines/0"),
}
"""The objects of all answers, by what a worker is asked."""
PAGES = {
    **{asked: f"{BASE}/{asked.rpartition('/')[2]}" for asked in PLACES},
    **{PART: f"{BASE}/jobs/3f9ca81b02", f"{PART}/{MAIN}/due": f"{BASE}/"},
}


def newer() -> FakeWorker:
    """Return another worker, whose answers have an object of each kind."""
    worker = other()
    elsewhere, first, second = worker.parts[MAIN]
    circuits = {"ledger": CircuitInfo(state="open", since_ms=1, cause="HTTP 503")}
    worker.parts[MAIN] = [elsewhere, replace(first, circuits=circuits), second]
    worker.lately, worker.failing = Activity(span_s=60, deliveries=600, failures=6), CauseTrends(lately_s=6, before_s=6)
    worker.behind = [PartitionLag(partition=1, committed=7, main=12)]
    return worker


async def said(peer: str, asked: str, place: str | None) -> Any:
    """Return what a page says where an answer of another worker has a field more."""
    added = 0

    async def passed_on(request: web.Request) -> web.StreamResponse:
        nonlocal added
        async with aiohttp.ClientSession() as session, session.get(peer + request.raw_path) as response:
            answer = await response.json()
        if place is not None and request.path == asked:
            found = answer
            for name in filter(None, place.format(MAIN).split("/")):
                found = found[int(name)] if isinstance(found, list) else found[name]
            found["shade"], added = {"of": [1]}, added + 1
        return web.json_response(answer)

    async with answering(passed_on) as (relay, _), serving(owner(relay)) as url:
        _, page = await ask(url, f"{PAGES[asked]}?format=json")
        assert added == (place is not None)
        return json.loads(page.replace(relay, "there").replace(url, "here"), object_hook=_known)


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "shade"}  # a list passes on what lines have


@pytest.mark.parametrize(("asked", "place"), [(asked, place) for asked, places in PLACES.items() for place in places])
async def test_a_field_of_a_newer_build_silences_no_worker(asked: str, place: str) -> None:
    """One in the filter of a job did: partitions, numbers and jobs of its worker were missing from all pages."""
    async with serving(newer()) as peer:
        facts = await said(peer, asked, place)
        assert facts.get("silent", []) == []
        assert facts == await said(peer, asked, None)
