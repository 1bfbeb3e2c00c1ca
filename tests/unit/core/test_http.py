"""Errors of HTTP clients: the real types of aiohttp, httpx and requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from multidict import CIMultiDict

from retryapp.core.classify import DeadReason, classify
from retryapp.core.errors import InvalidPolicyError
from retryapp.core.http import http_errors
from retryapp.core.policy import RetryPolicy

NOW_MS = 1_767_225_600_000  # Thu, 01 Jan 2026 00:00:00 GMT


def answered(library: str, status: int, **headers: str) -> Exception:
    if library == "aiohttp":
        info: Any = SimpleNamespace(real_url="http://x")
        return aiohttp.ClientResponseError(info, (), status=status, headers=CIMultiDict(headers))
    if library == "requests":
        response = requests.Response()
        response.status_code = status
        response.headers.update(headers)
        return requests.HTTPError(response=response)
    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
    request = httpx.Request("GET", "http://x")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status, headers=raw, request=request))


LIBRARIES = pytest.mark.parametrize("library", ["aiohttp", "requests", "httpx"])


@LIBRARIES
def test_answers_are_sorted_by_status(library: str) -> None:
    """What may pass, what is wrong for good, and what no rule names."""
    rules = http_errors()
    for status in (500, 502, 503, 504, 599, 401, 403, 404, 408, 409, 425, 429):
        assert classify(answered(library, status), rules).rule is rules[1], status
    for status in (400, 410, 422):
        assert classify(answered(library, status), rules).reason_if_dead is DeadReason.NON_RETRYABLE, status
    for status in (200, 302, 402, 405, 418, 600):
        assert classify(answered(library, status), rules).rule is None, status


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ClientConnectionError(), aiohttp.ServerTimeoutError(), aiohttp.ClientPayloadError(),
        requests.ConnectionError(), requests.ReadTimeout(), requests.exceptions.ChunkedEncodingError(),
        requests.exceptions.RetryError(),
        httpx.ConnectTimeout(""), httpx.ReadError(""), httpx.RemoteProtocolError(""),
    ],
)  # fmt: skip
def test_no_answer_is_retryable(error: Exception) -> None:
    """Also as a cause, and where the policy calls unknown errors final."""
    policy = RetryPolicy("1s", on=[http_errors()], otherwise="non-retryable")
    wrapped = RuntimeError()
    wrapped.__cause__ = error
    for each in (error, wrapped):
        assert classify(each, policy.on, otherwise=policy.otherwise).reason_if_dead is None
    assert classify(RuntimeError(), policy.on, otherwise=policy.otherwise).reason_if_dead is DeadReason.NON_RETRYABLE


@pytest.mark.parametrize("begins", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
async def test_a_whole_time_out_of_aiohttp_is_no_answer(begins: bytes) -> None:
    """It raises Python's own `TimeoutError`, before the answer and in its body; one of the user's matches no rule."""

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write(begins)

    async with await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.3)) as client:
            with pytest.raises(TimeoutError) as silent:
                await (await client.get(url)).read()
            with pytest.raises(TimeoutError) as own:
                async with asyncio.timeout(0.05):
                    await (await client.get(url, timeout=aiohttp.ClientTimeout(total=None))).read()
    rules = http_errors()
    assert type(silent.value) is TimeoutError
    assert classify(silent.value, rules).rule is rules[1]
    assert classify(own.value, rules).rule is None
    assert classify(TimeoutError(), rules).rule is None


@LIBRARIES
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [
        ("120", 120_000), (" 1 ", 1_000), ("0", None), ("86400", 3_600_000), ("9" * 400, 3_600_000),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30_000), ("Thu, 01 Jan 2026 00:00:30 -0000", 30_000),
        ("Wed, 31 Dec 2025 00:00:00 GMT", None), ("Thu, 01 Jan 2099 00:00:00 GMT", 3_600_000),
        ("soon", None), ("-5", None), ("1.5", None), ("", None), ("Thu, 99 Foo 2026", None), ("²", None),
    ],
)  # fmt: skip
def test_retry_after_is_the_wait(library: str, status: int, text: str, wait_ms: int | None) -> None:
    """Seconds or an HTTP date, at most the cap; what is no time to come leaves it to the schedule."""
    error = answered(library, status, **{"retry-after": text})
    assert classify(error, http_errors(), now_ms=NOW_MS).retry_after_ms == wait_ms


@LIBRARIES
def test_other_answers_name_no_wait(library: str) -> None:
    """`Retry-After` counts where it says that the same request may be sent again."""
    assert classify(answered(library, 500, **{"Retry-After": "9"}), http_errors()).retry_after_ms is None
    assert classify(answered(library, 503), http_errors()).retry_after_ms is None


def test_what_only_looks_like_an_answer_is_none() -> None:
    """A type of another library with the same attributes, and errors without a response."""
    stranger = RuntimeError()
    stranger.response = SimpleNamespace(status_code=400, headers={})  # type: ignore[attr-defined]
    stranger.status = 400  # type: ignore[attr-defined]
    bare: dict[str, Any] = {"request": None, "response": None}
    for error in (stranger, requests.HTTPError(), httpx.HTTPStatusError("", **bare)):
        assert classify(error, http_errors()).rule is None


def test_a_circuit_counts_what_may_pass_and_nothing_that_is_final() -> None:
    """An answer that says that the request is wrong says nothing of the service."""
    rules = http_errors(circuit="ledger")
    assert classify(answered("aiohttp", 500), rules).circuit == "ledger"
    assert classify(answered("aiohttp", 422), rules).circuit == ""
    assert "circuit=ledger" in RetryPolicy("1s", on=rules).text


def test_the_cap_is_part_of_the_policy() -> None:
    """In its text; one that is no duration is refused."""
    text = "1s; timeout=5m; non-retryable=http_errors; retryable=http_errors retry_after<=10m"
    assert RetryPolicy("1s", on=http_errors("10m")).text == text
    with pytest.raises(InvalidPolicyError, match="cap"):
        http_errors("soon")
