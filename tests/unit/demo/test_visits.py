"""The service's log of deliveries."""

from pathlib import Path

from retryapp.demo.visits import Outcome, Visit, VisitTail, append_visit

VISIT = Visit(
    flight_id=7,
    attempt=2,
    due_at_ms=1_000,
    started_ms=1_002,
    ended_ms=1_005,
    outcome=Outcome.UNAVAILABLE,
    retry_after_ms=3_000,
)


def test_a_tail_reads_each_complete_line_once(tmp_path: Path) -> None:
    """A line reads back as what was written, once, and not before its end is written."""
    path = tmp_path / "visits.jsonl"
    tail = VisitTail(path)
    assert tail.read() == []
    append_visit(path, VISIT)
    assert tail.read() == [VISIT]
    line = path.read_text()
    with path.open("a", encoding="utf-8") as file:
        file.write(line + line[:10])
        file.flush()
        assert tail.read() == [VISIT]
        file.write(line[10:])
    assert tail.read() == [VISIT]
    assert tail.read() == []
