"""The failing service over real HTTP on the loopback interface."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from retryapp.demo import service
from retryapp.demo.data import Flight, read_flights
from retryapp.demo.service import EnrichmentService, planned_failures, planned_fault, serve
from retryapp.demo.visits import ATTEMPT_HEADER, DUE_HEADER, Outcome, VisitTail

TIMEOUT_S = 1.0
"""Of the client that gives up; the others wait for a busy machine."""


class House:
    """A running service, a client and the tail of its log."""

    def __init__(self, url: str, session: aiohttp.ClientSession, tail: VisitTail) -> None:
        self.url, self.session, self.tail = url, session, tail

    async def ask(
        self, flight: Flight, headers: dict[str, str] | None = None, timeout_s: float = 20.0
    ) -> tuple[int, str, str | None]:
        """Return status, body and the wait that the answer asks for."""
        body, timeout = flight.model_dump_json(), aiohttp.ClientTimeout(total=timeout_s)
        async with self.session.post(f"{self.url}/enrich", data=body, headers=headers, timeout=timeout) as response:
            return response.status, await response.text(), response.headers.get("Retry-After")


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    log = tmp_path / "visits.jsonl"
    async with AsyncExitStack() as stack:

        async def _start(**options: Any) -> House:
            runner, port = await serve(EnrichmentService(log, **options), host="127.0.0.1", port=0)
            stack.push_async_callback(runner.cleanup)
            client = await stack.enter_async_context(aiohttp.ClientSession())
            return House(f"http://127.0.0.1:{port}", client, VisitTail(log))

        yield _start


def flight_with(kind: Outcome | None) -> Flight:
    """Return a flight whose first attempt fails in this way, or not at all."""
    return next(flight for flight in read_flights() if getattr(planned_fault(flight.id, 1), "outcome", None) is kind)


async def test_a_flight_gets_its_plane(start: Callable[..., Any]) -> None:
    """A healthy request is answered with the plane and logged once, with what the client claims."""
    house, flight = await start(), flight_with(None)
    status, text, _ = await house.ask(flight, {ATTEMPT_HEADER: "3", DUE_HEADER: "123"})
    assert status == 200
    assert flight.tailnum in text
    (visit,) = house.tail.read()
    assert (visit.flight_id, visit.attempt, visit.outcome, visit.due_at_ms) == (flight.id, 3, Outcome.DONE, 123)
    assert visit.started_ms <= visit.ended_ms


async def test_the_data_decide_the_final_answers(start: Callable[..., Any]) -> None:
    """No arrival time is 422, checked first; an unknown tail number is 404."""
    house = await start()
    unknown = flight_with(None).model_copy(update={"tailnum": "N0"})
    never = unknown.model_copy(update={"arr_time": None})
    assert [(await house.ask(each))[0] for each in (unknown, never)] == [404, 422]
    assert [visit.outcome for visit in house.tail.read()] == [Outcome.NOT_FOUND, Outcome.UNPROCESSABLE]


async def test_a_planned_503_says_when_to_come_back(start: Callable[..., Any]) -> None:
    """The log has the wait of `Retry-After`; after its planned failures the flight succeeds."""
    house, flight = await start(), flight_with(Outcome.UNAVAILABLE)
    status, _, retry_after = await house.ask(flight)
    (visit,) = house.tail.read()
    assert (status, visit.outcome) == (503, Outcome.UNAVAILABLE)
    assert visit.retry_after_ms == int(retry_after) * 1000 > 0
    assert (await house.ask(flight, {ATTEMPT_HEADER: str(planned_failures(flight.id) + 1)}))[0] in {200, 404, 422}


async def test_calls_that_repeat_an_attempt_use_up_its_planned_faults(start: Callable[..., Any]) -> None:
    """So do those that spend none: a flight cannot fail for ever under one number."""
    house = await start()
    flight = next(
        each
        for each in read_flights()
        if (count := planned_failures(each.id)) > 1
        and all(planned_fault(each.id, n).outcome is Outcome.UNAVAILABLE for n in range(1, count + 1))
    )
    answers = [(await house.ask(flight, {ATTEMPT_HEADER: "1"}))[0] for _ in range(planned_failures(flight.id) + 1)]
    assert answers[:-1] == [503] * planned_failures(flight.id)
    assert answers[-1] in {200, 404, 422}


async def test_a_planned_time_out_outlasts_the_client(start: Callable[..., Any]) -> None:
    """The client gives up, and the log has the time-out once the client is gone."""
    house = await start()
    with pytest.raises(TimeoutError):
        await house.ask(flight_with(Outcome.TIMEOUT), timeout_s=TIMEOUT_S)
    while not (visits := house.tail.read()):  # noqa: ASYNC110 - a file signals nothing
        await asyncio.sleep(0.01)
    assert visits[0].outcome is Outcome.TIMEOUT
    assert visits[0].ended_ms - visits[0].started_ms >= 1000 * TIMEOUT_S * 0.7


async def test_a_planned_reset_breaks_the_connection_once(start: Callable[..., Any]) -> None:
    """The client sees a broken connection and does not try again by itself."""
    house = await start()
    with pytest.raises((aiohttp.ClientConnectionError, ConnectionResetError)):
        await house.ask(flight_with(Outcome.RESET))
    assert [visit.outcome for visit in house.tail.read()] == [Outcome.RESET]


async def test_in_the_outage_everything_is_502(start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the stated request on, for its length, even flights with a final answer are answered 502."""
    now_s = 0.0
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now_s))
    house, flight = await start(outage_after=2), flight_with(None)
    never = flight.model_copy(update={"arr_time": None})
    assert [(await house.ask(each))[0] for each in (flight, flight, never)] == [200, 502, 502]
    assert [visit.outcome for visit in house.tail.read()][1:] == [Outcome.DOWN] * 2
    now_s = service.OUTAGE_S
    assert (await house.ask(never))[0] == 422


@pytest.mark.parametrize(("body", "headers"), [(b"{", {}), (None, {ATTEMPT_HEADER: "two"}), (None, {DUE_HEADER: ""})])
async def test_a_request_that_is_damaged_is_the_callers_fault(
    start: Callable[..., Any], body: bytes | None, headers: dict[str, str]
) -> None:
    """It is answered 400 and does not enter the log."""
    house = await start()
    body = body or flight_with(None).model_dump_json().encode()
    async with house.session.post(f"{house.url}/enrich", data=body, headers=headers) as response:
        assert response.status == 400
    assert house.tail.read() == []
