"""The HTTP client of the demo's handler: one session per process, opened in the running loop when first needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from retryapp.demo.data import Flight

DEFAULT_TIMEOUT_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the service said, when it said something."""

    status: int
    text: str
    """The body, cut to `MAX_TEXT_CHARS`."""
    retry_after_s: float | None
    """Seconds of the `Retry-After` header; none without one, or where it is a date."""


MAX_TEXT_CHARS = 300


class EnrichmentClient:
    """Asks the service for the plane of a flight.

    Time-outs and broken connections are raised as aiohttp raises them: what they mean is the caller's policy.
    """

    def __init__(self, url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Set the client up; nothing is opened.

        Args:
            url: base address of the service.
            timeout_s: for one whole request, in seconds.
        """
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def enrich(self, flight: Flight, headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request; never repeats it by itself.

        Args:
            flight: what to enrich.
            headers: further headers of the request.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            aiohttp.ClientError: the connection could not be made, or broke.
        """
        body = flight.model_dump_json().encode()
        async with self._open().post(
            f"{self.url}/enrich", data=body, headers={"Content-Type": "application/json", **(headers or {})}
        ) as response:
            text = await response.text()
            return Answer(
                status=response.status,
                text=text[:MAX_TEXT_CHARS],
                retry_after_s=_seconds(response.headers.get("Retry-After")),
            )

    async def close(self) -> None:
        """Close the session; a later request opens a new one."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.timeout_s),
                connector=aiohttp.TCPConnector(limit=0),  # the handler's concurrency is the limit
            )
        return self._session


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:  # an HTTP date: the policy's own delay serves
        return None
