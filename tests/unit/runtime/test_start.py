"""What a worker hides while it starts, and the line that says that it is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from retryapp.broker.probe import LOOPBACK, free_ports
from retryapp.core.errors import StoreBrokenError
from retryapp.ports import PartitionInfo
from retryapp.runtime import start
from retryapp.runtime.app import Runtime
from retryapp.runtime.start import BriefStart, MetricsPort, announce


@pytest.mark.parametrize(
    ("own", "meanwhile"), [(logging.NOTSET, logging.WARNING), (logging.DEBUG, logging.WARNING), (logging.ERROR,) * 2]
)
def test_the_levels_of_the_app_are_back_after_a_brief_start(own: int, meanwhile: int) -> None:
    """They were forgotten: what an app had silenced was shown from then on."""
    logger = logging.getLogger("aiokafka")
    before = logger.level
    try:
        logger.setLevel(own)
        brief = BriefStart()
        assert logger.level == meanwhile
        brief.end()
        assert logger.level == own
        logger.setLevel(logging.CRITICAL)
        brief.end()
        assert logger.level == logging.CRITICAL
    finally:
        logger.setLevel(before)


async def test_the_start_line_waits_for_stores_that_break_and_for_numbers(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that broke during a look ended the worker, and an unknown number of waiting records was shown as 0."""
    numbers = iter([{"pending": None}, {"pending": 5, "as_of_ms": 1}, {"pending": 7}])
    broken = [StoreBrokenError("store", "damaged")]

    def gauges() -> Mapping[str, Any]:
        if broken:
            raise broken.pop()
        here = PartitionInfo(partition=0, state="open", **next(numbers))
        return {"orders": [here, PartitionInfo(partition=1, state="elsewhere")]}

    ended: list[bool] = []
    monkeypatch.setattr(start, "_LOOK_S", 0)
    monkeypatch.setattr(runtime, "gauges", gauges)
    runtime.assigned = True
    with caplog.at_level(logging.INFO, logger="retryapp"):
        await announce(runtime, None, None, lambda: ended.append(True))
    assert [record.message for record in caplog.records] == ["retryapp.ready: 1 partition, 7 waiting"]
    assert ended == [True]


async def test_a_scrape_that_does_not_end_keeps_no_worker_in_its_group(runtime: Runtime) -> None:
    """The port stops before the consumer leaves its group. Until then nobody else gets the partitions."""
    begun = asyncio.Event()

    async def scrape() -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return b""

    runtime.scrape = scrape
    (number,) = free_ports(1)
    port = MetricsPort(runtime, LOOPBACK, number)
    await port.on_start()
    _, writer = await asyncio.open_connection(LOOPBACK, number)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
    await begun.wait()
    await port.on_stop()
    writer.close()
