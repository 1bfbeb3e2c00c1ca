"""Ours: a plain async handler, called for each record."""

from __future__ import annotations

import asyncio

import faust

from benchmarks.peers.handler import DownError, ledger, spec
from benchmarks.records import REJECTED
from retryapp import Batch, Reject, Retries, RetryLater, RetryPolicy

app = faust.App(spec.group, broker=f"kafka://{spec.bootstrap}", store="rocksdb://", datadir=spec.datadir)
retries = Retries(app)


options = dict(spec.options)
batch, call_s = options.pop("batch", 0), options.pop("call_ms", 0) / 1000
"""Records of one call, 0: no list; and what a call waits for its service."""


async def handle_list(values: list[bytes]) -> None:
    """Write a list in one call, which goes well."""
    await asyncio.sleep(call_s)
    for value in values:
        ledger.visit(value)


async def handle(value: bytes) -> None:
    if call_s:
        await asyncio.sleep(call_s)
    wait_ms = ledger.visit(value)
    if wait_ms == REJECTED:
        raise Reject("the service refuses it")
    if wait_ms < 0:
        raise DownError("the service is down")
    if wait_ms:
        raise RetryLater(after=wait_ms / 1000)


for topic in spec.topics:
    policy = RetryPolicy(f"{spec.delay_ms}ms*9")
    declared = retries.handler(
        topic,
        policy=policy,
        concurrency=spec.concurrency,
        batch=Batch(batch, "10ms") if batch else None,
        **options,
    )
    declared(handle_list if batch else handle)
