"""The service's log of deliveries."""

from pathlib import Path

import pytest

from retryapp.demo.visits import (
    ATTEMPT_HEADER,
    DUE_HEADER,
    Outcome,
    Visit,
    VisitLog,
    VisitTail,
    decode_visit,
    encode_visit,
    read_claims,
)

VISIT = Visit(
    flight_id=7,
    attempt=2,
    failure_id="demo/flights@kq8G0bTz/3/1042",
    due_at_ms=1_000,
    started_ms=1_002,
    ended_ms=1_005,
    outcome=Outcome.UNAVAILABLE,
    retry_after_ms=3_000,
    worker="worker-1",
)


def test_a_visit_survives_the_log() -> None:
    """A line reads back as what was written."""
    assert decode_visit(encode_visit(VISIT)) == VISIT


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"outcome":"200"}', '{"outcome":"999"}', "null"])
def test_a_foreign_line_is_named(line: str) -> None:
    """A line that is no visit is refused and shown."""
    with pytest.raises(ValueError, match="not a line of the service's log"):
        decode_visit(line)


def test_a_tail_reads_each_complete_line_once(tmp_path: Path) -> None:
    """A line is given once, and not before its end is written."""
    path = tmp_path / "visits.jsonl"
    tail = VisitTail(path)
    assert tail.read() == []
    log = VisitLog(path)
    log.append(VISIT)
    assert tail.read() == [VISIT]
    line = encode_visit(VISIT) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line + line[:10])
        file.flush()
        assert tail.read() == [VISIT]
        file.write(line[10:])
    assert tail.read() == [VISIT]
    assert tail.read() == []
    log.close()


def test_claims_default_to_a_first_delivery() -> None:
    """Without headers a request is attempt 1 and was never due."""
    claims = read_claims({})
    assert (claims.attempt, claims.failure_id, claims.due_at_ms) == (1, None, None)


@pytest.mark.parametrize("headers", [{ATTEMPT_HEADER: "two"}, {DUE_HEADER: ""}])
def test_claims_that_are_no_numbers_are_refused(headers: dict[str, str]) -> None:
    """A damaged claim is an error of the caller, not a first attempt."""
    with pytest.raises(ValueError, match="invalid literal"):
        read_claims(headers)
