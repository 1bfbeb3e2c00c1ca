"""What parts of jobs say on the pages: in states of newer builds, and of replays that failed again."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from functional.web.server import opened, serving, words
from functional.web.test_group import answering, facts, owner, page
from functional.web.worker import BASE, MAIN, FakeWorker

from retryapp.core.jobs import Part, PartState
from retryapp.lookup.jobs import summed


async def test_a_worker_with_a_state_of_a_newer_build_is_heard() -> None:
    """It was wholly silent: its partitions, numbers and jobs were missing from all pages."""
    job: Any = {"job": "3f9ca81b02", "verb": "replay", "state": "resting", "done": 7}
    numbers = {"partitions": [{"partition": 1, "state": "open", "pending": 40, "dead": 5}], "jobs": {"1": [job]}}

    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"handlers": {MAIN: numbers}})

    async with answering(reply) as (peer, _):
        ours, path = owner(peer), f"{BASE}/jobs/3f9ca81b02"
        del ours.remembered[MAIN][1]
        async with serving(ours) as url:
            group = (await facts(url))["handler"]["group"]
            assert (group["pending"], group["silent"]) == (43, [])
            said = {each["partition"]: each["state"] for each in (await facts(url, path))["partitions"]}
            assert said == {0: "running", 1: "resting"}
            assert "resting" in await page(url, path)
    assert summed({1: Part.model_validate(job)}).state == "resting"
    ended = Part(job="a", verb="replay", state=PartState.ENDED)
    assert summed({0: ended, 1: Part.model_validate(job)}).state == "resting", "it is not over"


async def test_a_job_says_how_many_of_its_replays_failed_again(worker: FakeWorker) -> None:
    """As far as the workers that have its partitions have seen it: what is not known is no 0."""
    async with opened(worker) as site:
        said = {job: (await site.facts(f"{BASE}/jobs/{job}"))["job"] for job in ("77aa00bb11", "3f9ca81b02")}
        assert [(each["outcomes"], each["failed_again"]) for each in said.values()] == [(100, 60), (0, None)]
        first = words(await site.page(f"{BASE}/jobs/77aa00bb11"))
        assert "60 of 100 failed again at their first attempt 0 refused" in first
        assert "Known outcomes" not in first
        second = words(await site.page(f"{BASE}/jobs/3f9ca81b02"))
        assert "unknown failed again at their first attempt" in second
        assert "Known outcomes of replays: 0 of 305. A worker counts those that it has seen itself" in second
        listed = words(await site.page(f"{BASE}/jobs"))
        assert "60 of 100" in listed
        for part in worker.remembered[MAIN][0]:
            part.verb = "discard"
        assert "Failed again" not in await site.page(f"{BASE}/jobs/77aa00bb11")
