"""The handler of every side, with the same body: it counts a delivery, and fails if the record says so."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ledger import Ledger
from benchmarks.spec import load_spec

spec = load_spec()
ledger = Ledger(Path(spec.ledger))


class DownError(Exception):
    """The service is down: the record shall fail."""


async def handle(value: bytes) -> None:
    if ledger.visit(value):
        raise DownError("the service is down")
