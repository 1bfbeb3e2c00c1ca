"""Retries by Faust's own means: a RocksDB table of what failed, a timer that looks for what is due.

Written from Faust's user guide (agents, tables, timers):

1. the agent of the main topic calls the handler; what fails goes into the table with its due time;
2. a timer looks through the table each second and sends what is due to a retry topic of as many partitions;
3. the agent of the retry topic calls the handler again, and takes the row out of the table or gives it a new due time.

The table is only changed in agents: Faust refuses to change one from a timer ("Cannot modify table key from outside of
stream iteration"). The key names the partition's record, and the retry is sent to the same partition, so that table
and retry topic stay co-partitioned. `sent` keeps the timer from sending a row twice before its agent has taken it out.
"""

from __future__ import annotations

import time
from typing import Any

import faust

from benchmarks.peers.handler import DownError, handle, spec

app = faust.App(
    spec.group,
    broker=f"kafka://{spec.bootstrap}",
    store="rocksdb://",
    datadir=spec.datadir,
    topic_partitions=spec.partitions,
    topic_replication_factor=1,
)


class Waiting(faust.Record):
    """A record that failed."""

    partition: int
    value: str
    due: float
    attempt: int


records = app.topic(spec.topics[0], key_type=bytes, value_type=bytes, value_serializer="raw")
retries = app.topic(spec.retry_topic, key_type=str, value_type=Waiting)
waiting = app.Table("waiting", key_type=str, value_type=Waiting, partitions=spec.partitions)
sent: set[str] = set()


@app.agent(records)
async def first(stream: Any) -> None:
    """Try each record; keep those that fail."""
    async for event in stream.events():
        try:
            await handle(event.value)
        except DownError:
            message = event.message
            waiting[f"{message.partition}/{message.offset}"] = Waiting(
                partition=message.partition,
                value=event.value.decode(),
                due=time.time_ns() / 1e9 + spec.delay_ms / 1000,
                attempt=1,
            )


@app.timer(interval=1.0)  # type: ignore[untyped-decorator]  # Faust's own
async def send_due() -> None:
    """Send what is due to the retry topic."""
    now = time.time_ns() / 1e9
    due = [(key, row) for key, row in waiting.items() if row.due <= now and key not in sent]
    sent.update(key for key, _ in due)
    for key, row in due:
        await retries.send(key=key, value=row, partition=row.partition)


@app.agent(retries)
async def again(stream: Any) -> None:
    """Try a record again; done, or back into the table."""
    async for key, row in stream.items():
        try:
            await handle(row.value.encode())
        except DownError:
            due = time.time_ns() / 1e9 + spec.delay_ms / 1000
            waiting[key] = Waiting(partition=row.partition, value=row.value, due=due, attempt=row.attempt + 1)
        else:
            waiting.pop(key, None)
        sent.discard(key)
