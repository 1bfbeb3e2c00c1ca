"""The failing service over real HTTP on the loopback interface."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from retryapp.demo.client import EnrichmentClient
from retryapp.demo.data import Flight, load_planes, read_flights
from retryapp.demo.faults import FaultKind, FaultPlan, Outage
from retryapp.demo.service import EnrichmentService, serve
from retryapp.demo.visits import ATTEMPT_HEADER, DUE_HEADER, FAILURE_ID_HEADER, Outcome, VisitLog, VisitTail

NO_OUTAGE = Outage(after_requests=None, after_s=None, seconds=0)
QUIET = FaultPlan(seed=1, share=0.0)
FLAKY = FaultPlan(seed=1, share=1.0, timeout_share=0.34, reset_share=0.33)

Start = Callable[..., Awaitable[tuple[EnrichmentClient, VisitTail]]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a service; yields a factory of (client, tail of its log)."""
    closers: list[Callable[[], Awaitable[None]]] = []
    log = VisitLog(tmp_path / "visits.jsonl")

    async def _start(plan: FaultPlan = QUIET, outage: Outage = NO_OUTAGE) -> tuple[EnrichmentClient, VisitTail]:
        service = EnrichmentService(planes=load_planes(), plan=plan, outage=outage, log=log, latency_s=0.0)
        runner, port = await serve(service, host="127.0.0.1", port=0)
        client = EnrichmentClient(f"http://127.0.0.1:{port}", timeout_s=0.3)
        closers.extend([client.close, runner.cleanup])
        return client, VisitTail(tmp_path / "visits.jsonl")

    yield _start
    for close in closers:
        await close()
    log.close()


def flight_with(kind: FaultKind, plan: FaultPlan) -> Flight:
    """Return a flight whose first attempt fails in this way."""
    for flight in read_flights():
        fault = plan.fault(flight.id, 1)
        if fault is not None and fault.kind is kind:
            return flight
    raise LookupError(kind)


async def test_a_flight_gets_its_plane(start: Start) -> None:
    """A healthy request is answered with the plane and logged once, with what the client claims."""
    client, tail = await start()
    flight = next(read_flights())
    answer = await client.enrich(
        flight, {ATTEMPT_HEADER: "3", FAILURE_ID_HEADER: "demo/flights@abc/0/1", DUE_HEADER: "123"}
    )
    assert answer.status == 200
    assert "N14228" in answer.text
    [visit] = tail.read()
    assert (visit.flight_id, visit.attempt, visit.outcome, visit.due_at_ms) == (1, 3, Outcome.DONE, 123)
    assert visit.failure_id == "demo/flights@abc/0/1"
    assert visit.started_ms <= visit.ended_ms


async def test_the_data_decide_what_fails_for_good(start: Start) -> None:
    """No arrival time is 422, checked first; an unknown tail number is 404."""
    client, tail = await start()
    flight = next(read_flights())
    unknown = flight.model_copy(update={"tailnum": "N0"})
    never = unknown.model_copy(update={"arr_time": None})
    assert [(await client.enrich(each)).status for each in (unknown, never)] == [404, 422]
    assert [visit.outcome for visit in tail.read()] == [Outcome.NOT_FOUND, Outcome.UNPROCESSABLE]


async def test_a_planned_503_says_when_to_come_back(start: Start) -> None:
    """The planned 503 carries Retry-After, and the log says the same."""
    client, tail = await start(FLAKY)
    answer = await client.enrich(flight_with(FaultKind.UNAVAILABLE, FLAKY))
    [visit] = tail.read()
    assert (answer.status, visit.outcome) == (503, Outcome.UNAVAILABLE)
    assert answer.retry_after_s is not None
    assert visit.retry_after_ms == answer.retry_after_s * 1000


async def test_a_planned_time_out_outlasts_the_client(start: Start) -> None:
    """The client gives up, and the log has the time-out once the client is gone."""
    client, tail = await start(FLAKY)
    with pytest.raises(TimeoutError):
        await client.enrich(flight_with(FaultKind.TIMEOUT, FLAKY))
    async with asyncio.timeout(5):
        while not (visits := tail.read()):  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
    assert visits[0].outcome is Outcome.TIMEOUT
    assert visits[0].ended_ms - visits[0].started_ms >= 200


async def test_a_planned_reset_breaks_the_connection_once(start: Start) -> None:
    """The client sees a broken connection and does not try again by itself."""
    client, tail = await start(FLAKY)
    with pytest.raises((aiohttp.ClientConnectionError, ConnectionResetError)):
        await client.enrich(flight_with(FaultKind.RESET, FLAKY))
    assert [visit.outcome for visit in tail.read()] == [Outcome.RESET]


async def test_planned_failures_end(start: Start) -> None:
    """After its planned failures a flight succeeds."""
    client, _ = await start(FLAKY)
    flight = flight_with(FaultKind.UNAVAILABLE, FLAKY)
    answer = await client.enrich(flight, {ATTEMPT_HEADER: str(FLAKY.failures(flight.id) + 1)})
    assert answer.status == 200


async def test_in_the_outage_everything_is_503(start: Start) -> None:
    """From the stated request on even flights that fail for good are answered 503."""
    client, tail = await start(outage=Outage(after_requests=2, after_s=None, seconds=60))
    flight = next(read_flights())
    never = flight.model_copy(update={"arr_time": None})
    assert [(await client.enrich(each)).status for each in (flight, flight, never)] == [200, 503, 503]
    assert [visit.retry_after_ms is None for visit in tail.read()] == [True, False, False]


async def test_health_and_stats(start: Start) -> None:
    """Health tells the outage, the counts tell every outcome."""
    client, _ = await start(outage=Outage(after_requests=1, after_s=None, seconds=60))
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{client.url}/health") as response:
            assert (response.status, await response.json()) == (200, {"status": "up"})
        await client.enrich(next(read_flights()))
        async with session.get(f"{client.url}/health") as response:
            assert (response.status, await response.json()) == (503, {"status": "outage"})
        async with session.get(f"{client.url}/stats") as response:
            stats = await response.json()
    assert (stats["requests"], stats["outcomes"]["503"], stats["outage"]) == (1, 1, "on")


async def test_a_body_that_is_no_flight_is_the_callers_fault(start: Start) -> None:
    """It is answered 400 and does not enter the log."""
    client, tail = await start()
    async with aiohttp.ClientSession() as session, session.post(f"{client.url}/enrich", data=b"{") as response:
        assert response.status == 400
    assert tail.read() == []


async def test_the_service_runs_as_a_process(tmp_path: Path) -> None:
    """Started as a module it names its address first, serves, and stops at once on a signal."""
    log = tmp_path / "visits.jsonl"
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "retryapp.demo.service", "--port", "0", "--log", str(log), "--share", "0"],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        client = EnrichmentClient(line.removeprefix("listening on ").strip(), timeout_s=5)
        assert (await client.enrich(next(read_flights()))).status == 200
        await client.close()
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 10)
    assert len(VisitTail(log).read()) == 1
