"""The HTTP service that enriches a flight with its plane, and fails like real ones do.

`POST /enrich` takes a flight as JSON and answers, in this order of precedence:

1. in the outage: 502, as from a proxy with nothing behind it;
2. the next planned fault of this flight: 503 with `Retry-After`, silence until the client gives up, or a reset;
3. final, from the data: 422 without an arrival time, 404 for an unknown plane;
4. 200 with the plane.

A share of the flights fails at its first one to three calls and then succeeds; a hash decides which, how often and how.
It prints its address as its first line.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import click
from aiohttp import web

from retryapp.core.errors import EnvironmentFault
from retryapp.demo.data import Flight, fate_of, load_planes
from retryapp.demo.settings import DEFAULT_PORT, OUTAGE_S
from retryapp.demo.visits import ATTEMPT_HEADER, DUE_HEADER, Outcome, Visit, append_visit, wall_ms

HANG_S = 30.0
"""How long a hanging request is held when the client does not give up."""
LATENCY_S = 0.004
"""What a healthy answer takes."""

MAX_PLANNED: Final = 3
"""A flight fails by plan at most this often."""
SHARE: Final = 0.15
"""Share of the flights that fail at all."""
TIMEOUT_SHARE: Final = 0.06
"""Share of the failures that hang until the client gives up. Small, because each holds a connection."""
RESET_SHARE: Final = 0.24
"""Share of the failures that break the connection; the rest is 503."""


class PlannedFault(NamedTuple):
    """One failure."""

    outcome: Outcome
    retry_after_s: int = 0
    """Seconds in the answer's `Retry-After`, where there is an answer."""


def planned_failures(flight_id: int) -> int:
    """Return how many attempts at a flight fail by plan, 0 to `MAX_PLANNED`."""
    return 1 + int(_draw("count", flight_id) * MAX_PLANNED) if _draw("flaky", flight_id) < SHARE else 0


def planned_fault(flight_id: int, attempt: int) -> PlannedFault | None:
    """Return how this attempt (1 is the first) at this flight fails, or None."""
    if attempt > planned_failures(flight_id):
        return None
    draw = _draw(f"kind{attempt}", flight_id)
    if draw < TIMEOUT_SHARE:
        return PlannedFault(Outcome.TIMEOUT)
    if draw < TIMEOUT_SHARE + RESET_SHARE:
        return PlannedFault(Outcome.RESET)
    return PlannedFault(Outcome.UNAVAILABLE, 1 + int(_draw(f"after{attempt}", flight_id) * 3))


def _draw(purpose: str, flight_id: int) -> float:
    digest = blake2b(f"1/{purpose}/{flight_id}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56


Record = Callable[..., None]
"""Writes the request's outcome to the log."""


class EnrichmentService:
    """Planes and log; the outage begins with request number `outage_after`, if any."""

    def __init__(self, log: Path, *, outage_after: int | None = None) -> None:
        self._log = log
        self._planes = load_planes()
        self._outage_after = outage_after
        self._outage_ends_s: float | None = None
        self._requests = 0
        self._faults: Counter[int] = Counter()
        """Planned faults that each flight has had."""

    async def enrich(self, request: web.Request) -> web.StreamResponse:
        started_ms = wall_ms()
        try:
            attempt = int(request.headers.get(ATTEMPT_HEADER, "1"))
            due_at_ms = int(request.headers[DUE_HEADER]) if DUE_HEADER in request.headers else None
            flight = Flight.model_validate_json(await request.read())
        except ValueError as error:  # the caller is wrong, and the log is about flights
            return web.json_response({"error": f"not a flight: {error}"}, status=400)
        self._requests += 1

        def record(outcome: Outcome, retry_after_ms: int | None = None) -> None:
            visit = Visit(
                flight_id=flight.id,
                attempt=attempt,
                due_at_ms=due_at_ms,
                started_ms=started_ms,
                ended_ms=wall_ms(),
                outcome=outcome,
                retry_after_ms=retry_after_ms,
            )
            append_visit(self._log, visit)

        if self._is_out():
            record(Outcome.DOWN)
            return web.json_response({"error": "nothing answers"}, status=int(Outcome.DOWN))
        # an attempt that an outage has made free comes again under its number, and must not fail for ever
        fault = planned_fault(flight.id, max(attempt, self._faults[flight.id] + 1))
        if fault is not None:
            self._faults[flight.id] += 1
            return await _fail(request, record, fault)
        await asyncio.sleep(LATENCY_S)
        return self._answer(record, flight)

    def _is_out(self) -> bool:
        if self._outage_ends_s is None and self._outage_after is not None and self._requests >= self._outage_after:
            self._outage_ends_s = time.monotonic() + OUTAGE_S
        return self._outage_ends_s is not None and time.monotonic() < self._outage_ends_s

    def _answer(self, record: Record, flight: Flight) -> web.Response:
        fate = fate_of(flight, self._planes)
        record(fate)
        bodies = {
            Outcome.UNPROCESSABLE: {"error": f"flight {flight.id} has no arrival time"},
            Outcome.NOT_FOUND: {"error": f"no plane has the tail number '{flight.tailnum}'"},
            Outcome.DONE: {"flight": flight.id, "plane": self._planes.get(flight.tailnum or "")},
        }
        return web.json_response(bodies[fate], status=int(fate))


async def _fail(request: web.Request, record: Record, fault: PlannedFault) -> web.StreamResponse:
    if fault.outcome is Outcome.UNAVAILABLE:
        record(Outcome.UNAVAILABLE, fault.retry_after_s * 1000)
        headers = {"Retry-After": str(fault.retry_after_s)}
        return web.json_response({"error": "try again later"}, status=503, headers=headers)
    if fault.outcome is Outcome.RESET:
        record(Outcome.RESET)
        _reset(request)
        await asyncio.sleep(HANG_S)  # cancelled at once: the connection is gone
    try:
        await asyncio.sleep(HANG_S)
    finally:  # cancelled as soon as the client goes away
        record(Outcome.TIMEOUT)
    return web.json_response({"error": "gave up"}, status=504)


def _reset(request: web.Request) -> None:
    """Break the connection so that the client sees a reset, not an orderly end."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        # Linger 0: the kernel sends RST and drops what was queued.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def serve(service: EnrichmentService, *, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Start listening; return the runner, which the caller cleans up, and the port (0 takes a free one)."""
    app = web.Application()
    app.router.add_post("/enrich", service.enrich)
    # Cancellation tells a hanging handler that its client has gone.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=1024).start()
    return runner, int(runner.addresses[0][1])


async def _run(service: EnrichmentService, host: str, port: int) -> None:
    runner, bound = await serve(service, host=host, port=port)
    click.echo(f"listening on http://{host}:{bound}")
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


@click.command(context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to bind to; another than loopback only within a container.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, help="Port; 0 takes a free one.")
@click.option("--log", "log_path", type=click.Path(path_type=Path), required=True, help="Log of requests.")
@click.option("--outage-after", type=click.IntRange(1), default=None, help="Outage from this request number on.")
def main(*, host: str, port: int, log_path: Path, outage_after: int | None) -> None:
    """Serve flights with their planes, and fail as planned."""
    try:
        service = EnrichmentService(log_path, outage_after=outage_after)
    except EnvironmentFault as error:
        raise click.ClickException(str(error)) from error
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(service, host, port))


if __name__ == "__main__":
    main()
