"""The programs of docs/guarantees.md: an effect happens once, however often its attempt runs."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from docs.commands import ROOT, blocks

from retryapp import Delivery
from retryapp.testing import MemoryPartition, Step

TEXT = (ROOT / "docs" / "guarantees.md").read_text()


def program(heading: str, number: int = 0) -> dict[str, Any]:
    """Run a code block below a heading; return its names."""
    section = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    names: dict[str, Any] = {}
    exec(compile(blocks(section, "python")[number], heading, "exec"), names)  # noqa: S102 - the project's own document
    return names


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    """A database in memory, with an account."""
    made = sqlite3.connect(":memory:")
    made.executescript(program("Effects in a database")["TABLES"])
    with made:
        made.execute("INSERT INTO account VALUES ('alice', 1000)")
    yield made
    made.close()


@pytest.fixture
async def service() -> AsyncIterator[dict[str, Any]]:
    """A service that knows idempotency keys: `charged` by key, `requests` in all, `lost` answers still to come."""
    state: dict[str, Any] = {"charged": {}, "requests": 0, "lost": 0}

    async def charge(request: web.Request) -> web.Response:
        state["requests"] += 1
        receipt = {"number": len(state["charged"]) + 1}
        receipt = state["charged"].setdefault(request.headers["Idempotency-Key"], receipt)
        if state["lost"]:
            state["lost"] -= 1
            return web.Response(status=504)
        return web.json_response(receipt)

    app = web.Application()
    app.router.add_post("/charge", charge)
    async with TestServer(app) as server:
        state["url"] = str(server.make_url("/charge"))
        yield state


def values(partition: MemoryPartition, topic: str) -> list[Any]:
    """Return the JSON that a committed reader sees."""
    return [json.loads(record.value or b"") for record in partition.records(topic)]


async def test_the_example_of_a_test_passes() -> None:
    """It has asserts of its own."""
    await program("Results on topics", 1)["test_a_payment_is_published_once"]()


@pytest.mark.parametrize("fails", ["before", "in", "after"])
async def test_a_booking_happens_once_however_often_its_attempt_runs(database: sqlite3.Connection, fails: str) -> None:
    """It fails before, in or after the booking, then its worker dies in the transaction: one booking, one result.

    Key and effect are in one transaction: a booking that fails leaves no key.
    """
    book, runs = program("Effects in a database")["book"], []

    async def handle(order: dict[str, Any], record: Delivery) -> None:
        runs.append(record.idempotency_key)
        now = fails if len(runs) == 1 else ""
        if now == "before":
            raise TimeoutError
        book(database, order | ({"account": object()} if now == "in" else {}), record)
        if now == "after":
            raise TimeoutError

    async with MemoryPartition(handle, "1s", value_type=dict) as orders:
        await orders.send(b'{"id": 1, "account": "alice", "cents": 300}')
        assert database.execute("SELECT count(*) FROM booking").fetchall() == [(int(fails == "after"),)]
        dying = orders.transport.pause(Step.COMMIT)
        await orders.advance(1_000)
        assert dying.reached
    async with MemoryPartition(handle, "1s", value_type=dict, transport=orders.transport) as orders:
        assert values(orders, "bookings") == [{"order": 1, "cents": 300}]
    assert (len(runs), len(set(runs))) == (3, 1)
    assert database.execute("SELECT cents FROM account").fetchall() == [(700,)]


async def test_a_service_that_knows_the_header_charges_once(service: dict[str, Any]) -> None:
    """Also where its first answer was lost; each order has a key of its own."""
    names = program("Calls of a service")
    names["SERVICE"], service["lost"] = service["url"], 1
    async with MemoryPartition(names["charge"], "1s", value_type=dict) as orders:
        for number in (1, 2):
            orders.transport.append(orders.engine.sources[0], b"%d" % number, b'{"id": %d}' % number)
        await orders.until(lambda: orders.waiting == {"1s": 1}, rounds=1_000_000)
        orders.clock.advance(1_000)
        await orders.until(lambda: len(orders.records("receipts")) == 2, rounds=1_000_000)
        assert sorted(receipt["number"] for receipt in values(orders, "receipts")) == [1, 2]
    assert (service["requests"], len(service["charged"])) == (3, 2)


def test_the_limits_are_those_of_the_code() -> None:
    """And the errors are there to be imported."""
    from retryapp.core import errors
    from retryapp.core.publication import FRESH_S
    from retryapp.engine.handler.publish import MAX_BYTES, MAX_RECORDS

    assert f"{MAX_RECORDS:,} records, and {MAX_BYTES >> 20} MiB" in TEXT.replace("\n", " ")
    assert FRESH_S == 300.0
    assert "every five minutes" in TEXT
    for name in re.findall(r"^\| `(\w+Error)`", TEXT, re.MULTILINE):
        assert issubclass(getattr(errors, name), errors.PublishError)


async def test_an_event_that_is_sent_twice_is_charged_once() -> None:
    """The program declares the handler; a duplicate within its window is skipped."""
    (handler,) = program("Duplicates of a producer")["retries"].handlers
    assert handler.deduplicate.window_ms == 7 * 86_400_000
    taken: list[bytes] = []

    async def take(order: bytes) -> None:
        taken.append(order)
        await handler.function(order)

    async with MemoryPartition(take, deduplicate=handler.deduplicate) as orders:
        for value in (b"first", b"again"):
            await orders.send(value, headers=(("event-id", b"e1"),))
        await orders.advance(1_000)
        assert taken == [b"first"]
