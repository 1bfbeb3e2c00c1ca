"""What a worker that is not there says of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retryapp.core.lifecycle import Commanded
from retryapp.lookup.audit import Audit, AuditEntry

NOW_MS = 1_760_000_000_000


def audit_of(main: str, since_ms: int, until_ms: int | None, _go_on: Callable[[], bool]) -> Audit:
    """Return a command of each kind; where there is an end, none in the time that a page has."""
    facts: Any = {"group": "billing", "handler": "h", "main": main, "partition": 0, "text": "a sentence"}
    told = [
        Commanded(**facts, command="c1", verb="replay", failure_id=f"billing/{main}@kq8G0bTz/0/77",
                  by="<b>eve</b>", why="mended", edited="value", at_ms=NOW_MS - 60_000),
        Commanded(**facts, command="c2", verb="job-start", failure_id="", job="3f9ca81b02", by="ann",
                  why="ledger is back", at_ms=NOW_MS - 90_000),
        Commanded(**facts, command="", verb="job-end", failure_id="", job="0ld0ld0ld0", at_ms=NOW_MS - 95_000),
        Commanded(**facts, command="c3", verb="outage-open", failure_id="", circuit="ledger", by="bob",
                  at_ms=NOW_MS - 99_000),
    ]  # fmt: skip
    entries = [AuditEntry(each, done=1) for each in told if each.at_ms >= since_ms and until_ms is None]
    if entries:
        entries[-1].refused["no-circuit"] = 3
    return Audit([each.facts for each in entries], more=False, looked=40_000, complete=until_ms is None)
