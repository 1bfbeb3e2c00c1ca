"""Ours: a plain async handler, called for each record."""

from __future__ import annotations

import faust

from benchmarks.peers.handler import DownError, ledger, spec
from benchmarks.records import REJECTED
from retryapp import Reject, Retries, RetryLater, RetryPolicy

app = faust.App(spec.group, broker=f"kafka://{spec.bootstrap}", store="rocksdb://", datadir=spec.datadir)
retries = Retries(app)


async def handle(value: bytes) -> None:
    """Do as the record says."""
    wait_ms = ledger.visit(value)
    if wait_ms == REJECTED:
        raise Reject("the service refuses it")
    if wait_ms < 0:
        raise DownError("the service is down")
    if wait_ms:
        raise RetryLater(after=wait_ms / 1000)


for topic in spec.topics:
    policy = RetryPolicy(f"fixed({spec.delay_ms}ms, 9)")
    retries.handler(topic, policy=policy, concurrency=spec.concurrency, **spec.options)(handle)
