"""How fast a worker's pages are over a large pending table: ``python tools/measure_pages.py --rows 1000000``.

A real table on RocksDB is filled, the real pages are served from it, and a second process asks for them. For each page:
time as the reader sees it, and the longest delay of the event loop, which is how long records wait (`quiet`: without a
reader). A full garbage collection takes some 50 ms in a process that has loaded Faust, with or without pages.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faust
from aiohttp import web as aioweb

from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import RetryMetadata
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin
from retryapp.core.rows import IDENTITY_AT, PendingRow, due_bound, encode_row, identity_of, origin_offset
from retryapp.core.topology import HandlerTopology
from retryapp.engine.lane.lane import LaneState
from retryapp.ports import Row
from retryapp.runtime.machine.clock import SystemClock
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import StoreIdentity
from retryapp.runtime.view import RuntimeView
from retryapp.testing import MemoryDeadLetterTable
from retryapp.web import register

DAY_MS = 86_400_000
READER = """
import http.client, sys, time
times = []
client = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
for _ in range(int(sys.argv[3])):
    began = time.perf_counter()
    client.request("GET", sys.argv[2])
    answer = client.getresponse()
    answer.read()
    times.append((time.perf_counter() - began) * 1e3)
    assert answer.status == 200, answer.status
    time.sleep(0.01)
times.sort()
print(f"p50 {times[len(times) // 2]:6.1f} ms   p99 {times[int(len(times) * 0.99)]:6.1f} ms", end="")
"""


def fill(folder: Path, partition: int, rows: int, now_ms: int) -> RocksPendingTable:
    """Return a table with rows that become due within a day, more of them soon."""
    identity = StoreIdentity(topic="c", topic_id="i", partition=partition)
    table = RocksPendingTable(folder / str(partition), identity, now_ms=now_ms, max_age_ms=None)
    chance = random.Random(partition)  # noqa: S311 - test data
    for first in range(0, rows, 2_000):
        batch = []
        for offset in range(first, min(rows, first + 2_000)):
            due_ms = now_ms + int(chance.random() ** 2 * DAY_MS)
            origin = Origin("orders", "kq8G0bTz", partition, offset)
            headers = encode_metadata(
                RetryMetadata(
                    group="app", handler="shop.charge", origin=origin,
                    origin_timestamp_ms=now_ms, attempt=1, delivery=1, due_at_ms=due_ms, started_ms=now_ms,
                    policy="p", tier="1m",
                    first_failed_ms=now_ms, last_failed_ms=now_ms, error_type="ValueError", error_message="no",
                    fingerprint="f",
                )
            )  # fmt: skip
            row = encode_row(PendingRow(b"k", b"x" * 200, headers, due_ms, now_ms))
            batch.append(Row(identity_of(origin), row, "1m"))
        table.write(batch, first)
    return table


def worker(app: faust.App, tables: list[RocksPendingTable]) -> RuntimeView:
    """Return the view of a worker that has these tables and nothing else."""
    policy = RetryPolicy("1m 5m")
    topology = HandlerTopology(group="app", main="orders", delays_ms=policy.delays_ms)
    handler = SimpleNamespace(
        group="app", main="orders", name="shop.charge", policy=policy, topology=topology, concurrency=8
    )

    async def no_offsets(_function: object) -> tuple[dict[Any, int], dict[Any, int], dict[Any, int]]:
        return {}, {}, {}

    runtime: Any = SimpleNamespace(
        app=app, clock=SystemClock(), plan=None, assigned=True, consumer=SimpleNamespace(in_thread=no_offsets),
        contact=SimpleNamespace(silence=lambda: None, silent_s=float),
        behind=lambda _main, _number: (0, 0),
        observer=SimpleNamespace(observe=lambda _: None), intake=SimpleNamespace(waiting=lambda _: 0),
        served={"orders": SimpleNamespace(handler=handler, partitions=len(tables), topic_id="kq8G0bTz")},
        placed={
            ("orders", number): SimpleNamespace(
                engine=SimpleNamespace(in_flight=0, release_lag_ms=0, looked_ms=None, sources=()),
                lane=SimpleNamespace(state=LaneState.OPEN, session=1, last_error=None),
                transport=SimpleNamespace(pending=table, dead={topology.dlq: MemoryDeadLetterTable()}),
            )
            for number, table in enumerate(tables)
        },
    )  # fmt: skip
    return RuntimeView(runtime)


async def measure(tables: list[RocksPendingTable], now_ms: int, requests: int) -> None:
    """Serve the pages and ask for each."""
    app = faust.App("app", web_tables_enabled=False, web_router_enabled=False)
    register(app, worker(app, tables), clock=SystemClock())
    runner = aioweb.AppRunner(await app.web.wsgi(), access_log=None)
    await runner.setup()
    await aioweb.TCPSite(runner, "127.0.0.1", 0).start()
    port = str(runner.addresses[0][1])
    delays: list[float] = []

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            delays.append(time.perf_counter() - began - 0.001)

    heart = asyncio.create_task(beat())
    await asyncio.sleep(2)
    print(f"{'quiet':<54} longest delay {max(delays) * 1e3:5.1f} ms")
    (deep, _) = tables[0].page(due_bound(now_ms + DAY_MS // 3), 1)[0]
    offset = origin_offset(deep[IDENTITY_AT:])
    pages = {
        "index": "", "handler": "orders/", "partitions": "orders/partitions",
        "pending": "orders/pending", "pending, deep": f"orders/pending?after={deep.hex()}",
        "pending, 500": f"orders/pending?limit=500&after={deep.hex()}", "one record": f"orders/pending/0/{offset}",
    }  # fmt: skip
    for name, path in pages.items():
        delays.clear()
        command = [sys.executable, "-c", READER, port, f"/retries/{path}", str(requests)]
        reader = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        times, _ = await reader.communicate()
        print(f"{name:<14} {times.decode()}   longest delay {max(delays) * 1e3:5.1f} ms")
    heart.cancel()
    await runner.cleanup()


def main() -> None:
    """Fill, serve, ask, print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000, help="rows in all")
    options.add_argument("--partitions", type=int, default=1)
    options.add_argument("--requests", type=int, default=200, help="for each page")
    chosen = options.parse_args()
    now_ms = SystemClock().wall_ms()
    with tempfile.TemporaryDirectory() as folder:
        share = chosen.rows // chosen.partitions
        tables = [fill(Path(folder), number, share, now_ms) for number in range(chosen.partitions)]
        try:
            asyncio.run(measure(tables, now_ms, chosen.requests))
        finally:
            for table in tables:
                table.close()


if __name__ == "__main__":
    main()
