"""The demo's program: one handler that asks a failing service for the plane of a flight.

This is what a user writes: an app, a policy, a function. `faust -A retryapp.demo worker -l info` runs it.
"""

from __future__ import annotations

import faust
from mode import Service

from retryapp import Delivery, Reject, Retries, RetryLater, RetryPolicy
from retryapp.demo.client import EnrichmentClient
from retryapp.demo.data import Flight
from retryapp.demo.policy import CONCURRENCY, PARTITIONS, POLICY, SESSION_TIMEOUT_S
from retryapp.demo.settings import MAIN_TOPIC, DemoSettings
from retryapp.demo.visits import ATTEMPT_HEADER, DUE_HEADER, FAILURE_ID_HEADER, WORKER_HEADER

settings = DemoSettings()
client = EnrichmentClient(settings.service_url, timeout_s=settings.timeout_s)

app = faust.App(
    settings.group,
    broker=f"kafka://{settings.broker}",
    store="rocksdb://",
    broker_session_timeout=SESSION_TIMEOUT_S,  # a killed worker's partitions move after this
    broker_heartbeat_interval=1.0,
)
retries = Retries(app, create_main_partitions=PARTITIONS)


@app.service
class ClientCloser(Service):
    """Closes the HTTP session when the worker stops."""

    async def on_stop(self) -> None:
        """Close what the handler opened."""
        await client.close()


@retries.handler(MAIN_TOPIC, value=Flight, policy=RetryPolicy(POLICY), tiers="per-delay", concurrency=CONCURRENCY)
async def enrich(flight: Flight, delivery: Delivery) -> None:
    """Ask the service for the flight's plane.

    Raises:
        Reject: 404 and 422 are for good.
        RetryLater: a 503 says when to come back.
        TimeoutError: no answer in time; the policy's next delay follows.
        aiohttp.ClientError: the connection broke; the same.
    """
    answer = await client.enrich(flight, claims(delivery))
    if answer.status == 200:
        return
    if answer.status in {404, 422}:
        raise Reject(f"{answer.status}: {answer.text}")
    if answer.retry_after_s is not None:
        raise RetryLater(after=answer.retry_after_s, text=f"{answer.status}: {answer.text}")
    raise UnexpectedAnswerError(answer.status, answer.text)


class UnexpectedAnswerError(Exception):
    """The service answered with a status that means neither yes nor no; retried by the policy."""

    def __init__(self, status: int, text: str) -> None:
        """Keep status and text."""
        self.status = status
        super().__init__(f"{status}: {text}")


def claims(delivery: Delivery) -> dict[str, str]:
    """Return the headers that let the service's log judge this delivery."""
    headers = {
        ATTEMPT_HEADER: str(delivery.attempt),
        FAILURE_ID_HEADER: delivery.failure_id,
        WORKER_HEADER: settings.worker,
    }
    if delivery.due_at_ms is not None:
        headers[DUE_HEADER] = str(delivery.due_at_ms)
    return headers
