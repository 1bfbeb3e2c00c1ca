"""The HTTP service that enriches a flight with its plane, and fails like real ones do.

    python -m retryapp.demo.service --port 0 --log visits.jsonl --seed 1

`POST /enrich` takes a flight as JSON and answers, in this order of precedence:

1. in the outage: 503 with `Retry-After`;
2. a planned fault of this flight and attempt: 503 with `Retry-After`, silence until the client gives up, or a reset;
3. for good, from the data: 422 without an arrival time, 404 for an unknown plane;
4. 200 with the plane.

Every request is one line of the log, written before its answer leaves. `GET /health` says whether the outage is on,
`GET /stats` what was counted. It listens on the loopback interface, unless told otherwise, and prints its address as
its first line.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from aiohttp import web
from pydantic import ValidationError

from retryapp.demo.clock import monotonic_s, wall_ms
from retryapp.demo.data import Fate, Flight, Plane, fate_of, load_planes
from retryapp.demo.faults import Fault, FaultKind, FaultPlan, Outage
from retryapp.demo.visits import Claims, Outcome, Visit, VisitLog, read_claims

DEFAULT_PORT = 6070
HANG_S = 30.0
"""How long a hanging request is held when the client does not give up."""


class EnrichmentService:
    """The service's state: what it knows, how it fails, what it has counted."""

    def __init__(
        self, *, planes: Mapping[str, Plane], plan: FaultPlan, outage: Outage, log: VisitLog, latency_s: float = 0.004
    ) -> None:
        """Set the service up.

        Args:
            planes: by tail number.
            plan: the faults outside the outage.
            outage: the one window in which all fails.
            log: where each request goes.
            latency_s: what a healthy answer takes, in seconds.
        """
        self._planes = planes
        self._plan = plan
        self._outage = outage
        self._log = log
        self._latency_s = latency_s
        self._requests = 0
        self._open = 0
        self._outcomes: Counter[Outcome] = Counter()

    def application(self) -> web.Application:
        """Return a new aiohttp application over this state."""
        app = web.Application()
        app.add_routes(
            [
                web.post("/enrich", self._enrich),
                web.get("/health", self._health),
                web.get("/stats", self._stats),
            ]
        )
        return app

    async def _enrich(self, request: web.Request) -> web.StreamResponse:
        started_ms = wall_ms()
        try:
            claims = read_claims(request.headers)
            flight = Flight.model_validate_json(await request.read())
        except (ValueError, ValidationError) as error:
            # Not one of the demo's fates: the caller is wrong, and the log is about flights.
            return web.json_response({"error": f"not a flight: {error}"}, status=400)
        self._requests += 1
        self._open += 1
        visit = _Draft(claims, flight.id, started_ms)
        try:
            if self._outage.covers(requests=self._requests, now_s=monotonic_s()):
                wait_s = self._plan.outage_retry_after_s(flight.id, self._outage.seconds)
                return self._unavailable(visit, wait_s)
            fault = self._plan.fault(flight.id, claims.attempt)
            if fault is not None:
                return await self._fail(request, visit, fault)
            await asyncio.sleep(self._latency_s)
            return self._answer(visit, flight)
        finally:
            self._open -= 1

    def _answer(self, visit: _Draft, flight: Flight) -> web.Response:
        fate = fate_of(flight, self._planes)
        if fate is Fate.UNPROCESSABLE:
            self._record(visit, Outcome.UNPROCESSABLE)
            return web.json_response({"error": f"flight {flight.id} has no arrival time"}, status=422)
        if fate is Fate.NOT_FOUND:
            self._record(visit, Outcome.NOT_FOUND)
            return web.json_response({"error": f"no plane has the tail number {flight.tailnum}"}, status=404)
        self._record(visit, Outcome.DONE)
        plane = self._planes[flight.tailnum or ""]
        return web.json_response({"flight": flight.id, "plane": plane.model_dump()})

    async def _fail(self, request: web.Request, visit: _Draft, fault: Fault) -> web.StreamResponse:
        if fault.kind is FaultKind.UNAVAILABLE:
            return self._unavailable(visit, fault.retry_after_s or 1)
        if fault.kind is FaultKind.RESET:
            self._record(visit, Outcome.RESET)
            _reset(request)
            await asyncio.sleep(HANG_S)  # cancelled at once: the connection is gone
        try:
            await asyncio.sleep(HANG_S)
        finally:  # cancelled as soon as the client goes away
            self._record(visit, Outcome.TIMEOUT)
        return web.json_response({"error": "gave up"}, status=504)

    def _unavailable(self, visit: _Draft, wait_s: int) -> web.Response:
        self._record(visit, Outcome.UNAVAILABLE, retry_after_ms=wait_s * 1000)
        return web.json_response({"error": "try again later"}, status=503, headers={"Retry-After": str(wait_s)})

    def _record(self, visit: _Draft, outcome: Outcome, *, retry_after_ms: int | None = None) -> None:
        self._outcomes[outcome] += 1
        self._log.append(visit.end(outcome, retry_after_ms))

    async def _health(self, request: web.Request) -> web.Response:
        is_out = self._outage.is_on(monotonic_s())
        return web.json_response({"status": "outage" if is_out else "up"}, status=503 if is_out else 200)

    async def _stats(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = {
            "requests": self._requests,
            "open": self._open,
            "outcomes": {outcome.value: self._outcomes[outcome] for outcome in Outcome},
            "outage": self._outage.state(monotonic_s()),
        }
        return web.json_response(body)


class _Draft:
    """A visit whose outcome is not known yet."""

    def __init__(self, claims: Claims, flight_id: int, started_ms: int) -> None:
        self._claims = claims
        self._flight_id = flight_id
        self._started_ms = started_ms

    def end(self, outcome: Outcome, retry_after_ms: int | None) -> Visit:
        return Visit(
            flight_id=self._flight_id,
            attempt=self._claims.attempt,
            failure_id=self._claims.failure_id,
            due_at_ms=self._claims.due_at_ms,
            started_ms=self._started_ms,
            ended_ms=wall_ms(),
            outcome=outcome,
            retry_after_ms=retry_after_ms,
            worker=self._claims.worker,
        )


def _reset(request: web.Request) -> None:
    """Break the connection so that the client sees a reset, not an orderly end."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        # Linger 0: the kernel sends RST and drops what was queued.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def serve(service: EnrichmentService, *, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Start listening.

    Args:
        service: what to serve.
        host: the address to bind to.
        port: 0 takes a free one.

    Returns:
        The runner, to be cleaned up by the caller, and the port.
    """
    # Cancellation tells a hanging handler that its client has gone.
    runner = web.AppRunner(service.application(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=1024)
    await site.start()
    bound = runner.addresses[0]
    return runner, int(bound[1])


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
@click.option(
    "--log", "log_path", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Log of requests."
)
@click.option("--seed", type=int, default=1, help="Decides which flights fail, how and how often.")
@click.option("--share", type=click.FloatRange(0, 1), default=0.15, help="Share of flights that fail at first.")
@click.option("--outage-after", type=click.IntRange(1), default=None, help="Outage from this request number on.")
@click.option(
    "--outage-after-seconds", type=float, default=None, help="Outage so many seconds after the first request."
)
@click.option("--outage-seconds", type=click.FloatRange(0), default=8.0, help="Length of the outage.")
@click.option("--latency-ms", type=click.FloatRange(0), default=4.0, help="What a healthy answer takes.")
def main(
    *,
    host: str,
    port: int,
    log_path: Path,
    seed: int,
    share: float,
    outage_after: int | None,
    outage_after_seconds: float | None,
    outage_seconds: float,
    latency_ms: float,
) -> None:
    """Serve flights with their planes, and fail as planned."""
    outage = Outage(after_requests=outage_after, after_s=outage_after_seconds, seconds=outage_seconds)
    plan = FaultPlan(seed=seed, share=share)
    log = VisitLog(log_path)
    service = EnrichmentService(planes=load_planes(), plan=plan, outage=outage, log=log, latency_s=latency_ms / 1000)
    try:
        asyncio.run(_run(service, host, port))
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
    finally:
        log.close()


if __name__ == "__main__":
    main()
