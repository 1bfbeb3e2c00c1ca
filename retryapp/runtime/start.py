"""What a worker says when it starts, in which form, and its metrics on a port of their own.

A brief start (`--quiet`, as `retryapp worker` runs Faust unless it logs at debug level) hides what Faust, its client
and single lanes say until the worker is ready, for `BRIEF_S` at most; warnings are always shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from mode import Service
from prometheus_client import CONTENT_TYPE_LATEST
from typing_extensions import override

from retryapp.core.errors import RetryAppError
from retryapp.core.text import counted
from retryapp.engine.lane.lane import LaneState
from retryapp.ports import ELSEWHERE, Event
from retryapp.runtime.app import Runtime
from retryapp.runtime.observe.observers import EVENT_IDS, EVENT_LOGGER

BRIEF_S: Final = 60.0
_LOOK_S: Final = 0.2
_SCRAPE_S: Final = 1.0  # how long a stop waits for a scrape, twice: the consumer leaves its group after that
_LIBRARIES: Final = ("aiokafka", "faust", "mode", "retryapp.runtime")  # the last one: services say that they start
_TABLES: Final = "aiokafka.consumer.subscription_state"  # draws a table of topics, also of our own readers'

logger = logging.getLogger("retryapp")


def json_logging(level: int, logfile: object = None) -> dict[str, Any]:
    """Return a configuration of logging: one JSON object a line, in `logfile` if that is a path, else on stderr.

    Facts of our events are its fields.
    """
    formatter = {
        "()": "pythonjsonlogger.json.JsonFormatter",
        "fmt": "%(levelname)s %(name)s %(process)d %(message)s",
        "rename_fields": {"levelname": "level", "name": "logger"},
        "timestamp": "time",
    }
    to_file = {"class": "logging.FileHandler", "filename": logfile}
    where = to_file if isinstance(logfile, str) else {"class": "logging.StreamHandler"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": formatter},
        "handlers": {"default": {**where, "formatter": "json", "level": level}},
        "root": {"level": level, "handlers": ["default"]},
    }


class BriefStart:
    """Hides what is said between the start of a worker and its readiness, from when it is made until `end`."""

    def __init__(self) -> None:
        loggers = [logging.getLogger(name) for name in _LIBRARIES]
        self._levels = [(each, each.level) for each in loggers]  # the app may have levels of its own
        for each in (*loggers, logging.getLogger(_TABLES)):  # the last one stays so
            each.setLevel(max(each.level, logging.WARNING))
        logging.getLogger(EVENT_LOGGER).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether an event is shown; as a filter of `logging`."""
        return record.msg != EVENT_IDS[Event.LANE_OPENED][0]

    def end(self) -> None:
        levels, self._levels = self._levels, []
        for each, level in levels:
            each.setLevel(level)
        logging.getLogger(EVENT_LOGGER).removeFilter(self)


async def announce(runtime: Runtime, pages: str | None, metrics: str | None, on_end: Callable[[], None]) -> None:
    """Wait until all lanes of a worker are open and counted; say so. `on_end` is called then, or after `BRIEF_S`."""
    timer = asyncio.get_running_loop().call_later(BRIEF_S, on_end)
    try:
        while (waiting := _waiting(runtime)) is None:  # noqa: ASYNC110 - what it consists of has no event
            await asyncio.sleep(_LOOK_S)
        facts = {"partitions": len(waiting), "waiting": sum(waiting)}
        text = f"retryapp.ready: {counted(facts['partitions'], 'partition')}, {facts['waiting']} waiting"
        text += "" if pages is None else f", pages at {pages}"
        text += "" if metrics is None else f", metrics at {metrics}"
        logger.info(text, extra=facts)
    finally:
        timer.cancel()
        on_end()


def _waiting(runtime: Runtime) -> list[int] | None:
    """Return the number of waiting records of each partition here; None until all are open and counted."""
    if not runtime.assigned or runtime.app.rebalancing:
        return None
    try:
        here = [info for infos in runtime.gauges().values() for info in infos if info.state != ELSEWHERE]
    except RetryAppError:  # a store that cannot be read fails its lane, which says so
        return None
    counted = [info.pending for info in here if info.state == LaneState.OPEN and info.as_of_ms is None]
    return None if len(counted) < len(here) or None in counted else counted


class MetricsPort(Service):
    """Serves a worker's metrics on a port of their own: ``/metrics``, on the worker's event loop, as its pages do."""

    def __init__(self, runtime: Runtime, host: str, port: int) -> None:
        super().__init__()
        self._runtime = runtime
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None

    @override
    async def on_start(self) -> None:
        site = web.Application()
        site.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(site, access_log=None, shutdown_timeout=_SCRAPE_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    @override
    async def on_stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._runtime.scrape(), headers={"Content-Type": CONTENT_TYPE_LATEST})
