"""Faults of the engine's own code: a call of it raises what it never should."""

from __future__ import annotations

from typing import Any

from simulation.worker import SimWorker

POINTS = (
    ("engine", "begin"),
    ("engine", "settled"),
    ("session", "accept"),
    ("session", "_turns"),
    ("session", "_turns_ahead"),
    ("scheduler", "_claim"),
    ("lane", "_settle"),
    ("lane", "_drop"),
)
"""Of each lane: of which of its parts, and which call."""


def break_one(worker: SimWorker, size: float) -> str:
    """Have the next call of one kind fail, in one lane; return its name, empty where the worker has no open lane."""
    lanes = [placed for _, placed in sorted(worker.ownership.placed.items()) if placed.lane.session]
    if not lanes or (session := (placed := lanes[int(size * 97) % len(lanes)]).engine.session) is None:
        return ""
    part, name = POINTS[int(size * len(POINTS))]
    parts = {"engine": placed.engine, "session": session, "lane": placed.lane, "scheduler": session.scheduler}
    owner: Any = parts[part]

    def fail(*_: object, **__: object) -> None:
        delattr(owner, name)
        raise RuntimeError(f"a fault of ours in {name}")

    setattr(owner, name, fail)
    if name in {"begin", "_drop"}:
        placed.lane.fail(RuntimeError("so that it is called"))
    return name


def break_letters(worker: SimWorker) -> None:
    """Have the tables of dead letters fail when they are written next: they are dropped, and read anew."""
    for placed in worker.ownership.placed.values():
        for table in placed.transport.dead.values():
            failing: Any = table
            failing.write = failing.mark = _full


def _full(*_: object) -> None:
    raise OSError("the disk is full")
