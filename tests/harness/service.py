"""The outside service that handlers call: it decides what becomes of a delivery, and counts them independently."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One delivery as the service saw it begin."""

    number: int
    at_ms: int
    topic: str
    failure_id: str
    attempt: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    due_at_ms: int | None
    pid: int
    hot_attempt: int
    facts: dict[str, Any]
    """The value, where it is a JSON object; else empty."""
    replays: int = 0
    idempotency_key: str = ""
    """Empty for what is not the call of a handler of ours."""
    fence: int = -1


class Gate(threading.Event):
    """Deliveries wait at it until it is opened."""

    open = threading.Event.set


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service says: 200 fine, 422 never, 503 not now."""

    status: int = 200
    retry_after: str | None = None
    gate: Gate | None = None
    """Answer once it is open."""
    after_s: float = 0.0
    """Answer so much later."""


Rule = Callable[[Visit], Answer]


def fail_first(visit: Visit) -> Answer:
    """Answer 503 to as many attempts as the value's `fail` says, 422 where it says `reject`; else 200."""
    if visit.facts.get("reject"):
        return Answer(422)
    return Answer(503 if visit.attempt <= int(visit.facts.get("fail", 0)) else 200)


@dataclass(slots=True)
class Service:
    """An HTTP server in a thread. `rule` answers; `visits` holds every delivery, answered or not."""

    rule: Rule = fail_first
    visits: list[Visit] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    """Visit number → status that was sent."""
    url: str = ""
    log: Path | None = None
    """File that each delivery is written to as it begins and as it is answered: one JSON object a line."""
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _thread: threading.Thread = field(init=False)
    _stopping: asyncio.Event = field(init=False)

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="service")
        self._thread.start()
        if not ready.wait(10):
            raise RuntimeError("the service did not start")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def of(self, topic: str) -> list[Visit]:
        """Return the visits for a main topic, in order of arrival."""
        return [visit for visit in list(self.visits) if visit.topic == topic]

    def done(self, topic: str) -> set[Any]:
        """Return the ids whose delivery was answered with 200."""
        return {visit.facts["id"] for visit in self.of(topic) if self.finished.get(visit.number) == 200}

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=8 << 20)
        app.router.add_post("/visit", self._visit)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/visit"
        ready.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _visit(self, request: web.Request) -> web.Response:
        visit = self._note(await request.json())
        answer = self.rule(visit)
        if answer.gate is not None:
            while not answer.gate.is_set():  # noqa: ASYNC110 - opened by another thread
                await asyncio.sleep(0.02)
        if answer.after_s:
            await asyncio.sleep(answer.after_s)
        self.finished[visit.number] = answer.status
        self._write({"visit": visit.number, "answered_ms": _now_ms(), "status": answer.status})
        headers = {} if answer.retry_after is None else {"Retry-After": answer.retry_after}
        return web.Response(status=answer.status, headers=headers)

    def _note(self, delivery: dict[str, Any]) -> Visit:
        key, value = _bytes(delivery["key"]), _bytes(delivery["value"])
        headers = tuple((name, _bytes(text)) for name, text in delivery["headers"])
        decoded = {"hot_attempt": 1, **delivery, "key": key, "value": value, "headers": headers, "facts": _facts(value)}
        visit = Visit(number=len(self.visits), at_ms=_now_ms(), **decoded)
        self.visits.append(visit)
        self._write({"visit": visit.number, "begun_ms": visit.at_ms, **delivery})
        return visit

    def _write(self, fact: dict[str, Any]) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps(fact) + "\n")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _facts(value: bytes | None) -> dict[str, Any]:
    try:
        facts = json.loads(value or b"null")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
