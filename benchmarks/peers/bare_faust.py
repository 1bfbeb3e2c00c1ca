"""The bare Faust agent: stock settings, no tables, a plain async handler called for each record. It has no retries."""

from __future__ import annotations

from typing import Any

import faust

from benchmarks.peers.handler import handle, spec

app = faust.App(spec.group, broker=f"kafka://{spec.bootstrap}", datadir=spec.datadir)
records = app.topic(spec.topics[0], key_type=bytes, value_type=bytes, value_serializer="raw")


@app.agent(records)
async def work(values: Any) -> None:
    async for value in values:
        await handle(value)
