"""The pages come to an app whenever they are registered, beside the user's own pages."""

from __future__ import annotations

from typing import Any

import faust
import pytest
from aiohttp.test_utils import TestClient, TestServer
from functional.web.worker import FakeWorker

from retryapp import Retries
from retryapp.testing import VirtualClock
from retryapp.web import register


async def statuses(app: faust.App, *paths: str) -> list[int]:
    """Serve an app, as a worker does (its web server is told to start twice), and ask for some pages."""
    app.web.init_server()
    async with TestClient(TestServer(await app.web.wsgi())) as client:
        return [(await client.get(path)).status for path in paths]


async def test_pages_are_there_beside_the_users_own_that_ask_for_the_web_server_first(
    worker: FakeWorker,
) -> None:
    """`@app.page` makes the web server while the app is configured; the pages are not lost with the first one."""
    app = faust.App("billing")
    register(app, worker, clock=VirtualClock(0))
    assert not app.configured

    @app.page("/mine/")
    async def mine(view: Any, request: Any) -> Any:
        return view.json({})

    assert await statuses(app, "/retries/health", "/mine/") == [200, 200]


async def test_registering_too_late_is_refused(worker: FakeWorker) -> None:
    """No silent absence of pages."""
    app = faust.App("billing")
    app.web.init_server()
    with pytest.raises(RuntimeError, match="before"):
        register(app, worker, clock=VirtualClock(0))


async def test_two_apps_in_one_process_keep_their_workers_apart(worker: FakeWorker) -> None:
    """The views are bound to the app that they were registered for."""
    tired = FakeWorker(is_ready=False)
    first, second = faust.App("a"), faust.App("b")
    register(first, worker, clock=VirtualClock(0))
    register(second, tired, clock=VirtualClock(0))
    assert await statuses(first, "/retries/ready") == [200]
    assert await statuses(second, "/retries/ready") == [503]


async def test_fausts_own_pages_that_pass_requests_on_are_off() -> None:
    """They send all headers, tokens too, to whatever address a member of the group advertises."""
    app = faust.App("billing")
    Retries(app)
    assert await statuses(app, "/table/", "/table/x/y/", "/router/", "/router/x/y/") == [404] * 4
