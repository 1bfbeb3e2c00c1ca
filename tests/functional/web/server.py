"""The pages of a worker over real HTTP, and what a page holds."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from typing import Any

import aiohttp
import faust
from aiohttp.test_utils import TestServer
from functional.web.worker import BASE, GROUP, NOW_MS, FakeWorker

from retryapp.core.masking import UNMASKED, Mask
from retryapp.lookup.decoding import Decoding
from retryapp.testing import VirtualClock
from retryapp.web import register
from retryapp.web.access import Operators, Role


@dataclass
class Site:
    """A worker's pages over real HTTP."""

    url: str
    worker: FakeWorker
    session: aiohttp.ClientSession

    async def get(self, path: str, *, accept: str = "*/*", follow: bool = False) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and body."""
        async with self.session.get(self.url + path, headers={"Accept": accept}, allow_redirects=follow) as response:
            return response.status, response.headers, await response.text()

    async def facts(self, path: str, expected: int = 200) -> Any:
        """Return what a page says as JSON."""
        status, headers, body = await self.get(path + ("&" if "?" in path else "?") + "format=json")
        assert status == expected, body
        assert headers["Content-Type"] == "application/json; charset=utf-8"
        return json.loads(body)

    async def page(self, path: str, headers: Mapping[str, str] = {}) -> str:
        """Return what a browser is shown."""
        async with self.session.get(self.url + path, headers={"Accept": "text/html", **headers}) as response:
            return await response.text()

    async def post(
        self, sent: Any, headers: Mapping[str, str] = {}, path: str = f"{BASE}/command"
    ) -> tuple[int, str, Mapping[str, str]]:
        """Send JSON as a program, or a form as a browser; return status, body and headers."""
        body = {"json": sent} if "Accept" not in headers else {"data": sent}
        asked_from = {"Origin": self.url} if "Accept" in headers else {}  # as browsers do
        said = {name: value for name, value in {**asked_from, **headers}.items() if value}
        asked: Any = {"headers": said, "allow_redirects": False, **body}
        async with self.session.post(self.url + path, **asked) as response:
            return response.status, await response.text(), response.headers


ADMIN = Operators(local=Role.ADMIN)


@asynccontextmanager
async def serving(
    worker: FakeWorker, operators: Operators = ADMIN, mask: Mask = UNMASKED, decoding: Decoding | None = None
) -> AsyncIterator[str]:
    """Serve a worker's pages from a real Faust app; yields its address."""
    app = faust.App(GROUP, web_tables_enabled=False, web_router_enabled=False)
    register(app, worker, clock=VirtualClock(NOW_MS), operators=operators, mask=mask, decoding=decoding)
    async with TestServer(await app.web.wsgi()) as server:
        yield str(server.make_url("")).rstrip("/")


@asynccontextmanager
async def opened(worker: FakeWorker, operators: Operators = ADMIN, **more: Any) -> AsyncIterator[Site]:
    """Serve a worker's pages, with somebody before them; for what else may be said see `serving`."""
    async with serving(worker, operators, **more) as url, aiohttp.ClientSession() as session:
        yield Site(url, worker, session)


class Served:
    """A worker's pages, served in a thread of their own: the browser blocks this one."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker, self.url = worker, ""
        self._up, self._loop = threading.Event(), asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        async with serving(self.worker) as self.url:
            self._up.set()
            await self._over.wait()

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._up.wait(20)
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)
        self._loop.close()


async def ask(
    url: str, path: str, headers: Mapping[str, str] = {}, method: str = "GET", **sent: Any
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + path, headers=headers, allow_redirects=False, **sent) as response,
    ):
        return response.status, await response.text()


def words(page: str) -> str:
    """Return the text of a page as it is read, with a space in place of each tag."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


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
