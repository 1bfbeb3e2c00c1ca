"""The demo's app: one handler that asks a failing service for the plane of a flight."""

from __future__ import annotations

import aiohttp
import faust
from mode import Service

from retryapp import CircuitBreaker, Delivery, Reject, Retries, RetryLater, RetryPolicy
from retryapp.demo.data import Flight
from retryapp.demo.settings import GROUP, MAIN_TOPIC, PARTITIONS, POLICY, SESSION_TIMEOUT_S, DemoSettings
from retryapp.demo.visits import ATTEMPT_HEADER, DUE_HEADER

TIMEOUT_S = 1.5
CONCURRENCY = 64
CIRCUIT = CircuitBreaker(failure_ratio=0.8, sampling="1s", break_for="500ms", ramp="4s")
"""Quicker than usual: the outage is short. Many of the flights that come again fail by plan: no outage."""

settings = DemoSettings()
app = faust.App(
    GROUP,
    broker=f"kafka://{settings.broker}",
    store="rocksdb://",
    broker_session_timeout=SESSION_TIMEOUT_S,
    broker_heartbeat_interval=1.0,
)
retries = Retries(app, create_main_partitions=PARTITIONS)


@app.service
class HttpClient(Service):
    """One HTTP session for the worker's life, opened by its first request."""

    session: aiohttp.ClientSession | None = None

    async def on_stop(self) -> None:
        if HttpClient.session is not None:
            await HttpClient.session.close()

    @classmethod
    def open(cls) -> aiohttp.ClientSession:
        if cls.session is None:
            cls.session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                connector=aiohttp.TCPConnector(limit=0),  # the handler's concurrency is the limit
            )
        return cls.session


@retries.handler(
    MAIN_TOPIC,
    value=Flight,
    policy=RetryPolicy(POLICY),
    tiers="per-delay",
    concurrency=CONCURRENCY,
    circuit=CIRCUIT,
)
async def enrich(flight: Flight, delivery: Delivery) -> None:
    """Ask the service for the flight's plane: 404 and 422 are final, a 503 has a `Retry-After`, 502 is an outage."""
    headers = {"Content-Type": "application/json", ATTEMPT_HEADER: str(delivery.attempt)}
    if delivery.due_at_ms is not None:
        headers[DUE_HEADER] = str(delivery.due_at_ms)
    url, body = f"{settings.service_url}/enrich", flight.model_dump_json().encode()
    async with HttpClient.open().post(url, data=body, headers=headers) as answer:
        told = await answer.json()
        if answer.ok:
            return
        text = f"{answer.status}: {told['error']}"  # plain words: the name of its cause
        if answer.status in {404, 422}:
            raise Reject(text)
        if "Retry-After" in answer.headers:
            raise RetryLater(after=answer.headers["Retry-After"], text=text)
        answer.raise_for_status()
