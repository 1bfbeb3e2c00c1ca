"""The service's answers, as the demo's handler raises them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiohttp.web import Response, StreamResponse

from retryapp.core.causes import template_of
from retryapp.demo.data import Flight
from retryapp.demo.service import EnrichmentService, PlannedFault, _fail
from retryapp.demo.visits import Outcome

NO_REQUEST: Any = None
FLIGHT = {"id": 1, "arr_time": 900, "tailnum": "N14228"}


async def test_its_failures_are_causes_of_their_own(tmp_path: Path) -> None:
    """404, 422 and 503 come apart, by names that people understand; flights and planes do not."""
    service = EnrichmentService(tmp_path / "visits.log")

    def told(answer: StreamResponse) -> str:
        assert isinstance(answer, Response)
        return f"{answer.status}: {json.loads(answer.text or '')['error']}"

    def answered(**changed: object) -> str:
        return told(service._answer(lambda *_: None, Flight.model_construct(**FLIGHT | changed)))

    busy = told(await _fail(NO_REQUEST, lambda *_: None, PlannedFault(Outcome.UNAVAILABLE, 3)))
    unknown, another = answered(tailnum="N999ZZ", id=7), answered(tailnum="N123", id=8)
    late, later = answered(arr_time=None, id=7), answered(arr_time=None, id=8)
    assert unknown != another
    assert late != later
    assert {template_of(text) for text in (unknown, another)} == {"404: no plane has the tail number <text>"}
    assert {template_of(text) for text in (late, later)} == {"422: flight <number> has no arrival time"}
    assert template_of(busy) == "503: try again later"
