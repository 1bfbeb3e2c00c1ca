"""A job on partitions that have not begun: its page says so, or that it could not look."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest
from functional.web.server import opened
from functional.web.worker import BASE, MAIN, FakeWorker, job_parts

from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.jobs import PartState
from retryapp.web.errors import PageError


@pytest.mark.parametrize(("late", "state"), [([1, 3], "running"), ([1], "ended"), ([], "ended"), ([], "cancelled")])
async def test_a_job_has_not_ended_while_a_partition_has_not_begun(
    worker: FakeWorker, late: list[int], state: str
) -> None:
    """As `job show` says it; partition 1 has begun just now, and its changelog does not know yet.

    The page of a job that is over is not loaded again: not of a cancelled one, nor where a worker is silent.
    """
    over = {"state": PartState.CANCELLED if state == "cancelled" else PartState.ENDED}
    parts = {number: job_parts()[number][-1].model_copy(update=over) for number in (0, 1)}
    worker.remembered = {MAIN: {number: [part] for number, part in parts.items()}}
    worker.known, worker.not_begun = {"3f9ca81b02": {0: parts[0]}}, late
    async with opened(worker) as site:
        job = json.loads(await site.page(f"{BASE}/jobs/3f9ca81b02?format=json"))["job"]
        assert (job["state"], job["not_begun"]) == (state, late[1:])
        body = await site.page(f"{BASE}/jobs/3f9ca81b02")
        assert ("It has not begun on 1 partition" in body) == (late[1:] == [3])
        assert ('data-live="30"' in body, "data-live" in body) == (state == "running",) * 2


async def test_a_job_that_no_worker_has_taken_is_not_said_to_be_none(worker: FakeWorker) -> None:
    """Workers do not know it; the command line reads it from the topics."""
    worker.remembered = {}
    async with opened(worker) as site:
        assert "<code>retryapp job list</code> also has those that wait" in await site.page(f"{BASE}/jobs")
        error = json.loads(await site.page(f"{BASE}/jobs/3f9ca81b02?format=json"))["error"]
        assert (error["code"], "'retryapp job list' has those that wait" in error["hint"]) == ("no-such-job", True)


@pytest.mark.parametrize(
    "problem", [BrokerUnreachableError("kafka:9092", "it is away"), PageError(503, "busy", "", "")]
)
async def test_where_no_topic_can_be_read_a_job_is_shown_as_its_workers_know_it(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """It says that it has not looked for others, and looks again."""
    worker.remembered = {MAIN: {0: [job_parts()[0][-1].model_copy(update={"state": PartState.ENDED})]}}
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state != "elsewhere"]  # no worker is silent
    progress_of = Mock(side_effect=problem)
    monkeypatch.setattr(worker, "progress_of", progress_of)
    async with opened(worker) as site:
        job = json.loads(await site.page(f"{BASE}/jobs/3f9ca81b02?format=json"))["job"]
        assert (job["state"], job["not_begun"]) == ("ended", None)
        body = await site.page(f"{BASE}/jobs/3f9ca81b02")
        assert "Other partitions, where it may go on or has not begun, could not be looked at just now" in body
        assert 'data-live="30"' in body
        worker.silent, asked = "no broker answers", progress_of.call_count
        assert "could not be looked at just now" in await site.page(f"{BASE}/jobs/3f9ca81b02")
        assert progress_of.call_count == asked, "while that is known"
