"""What tests of the ledger share: a handler's topics by index, and a record's way written as text.

A way is words, one for each trace: station and attempt, as `T1 T2 W2 S3` (on a retry topic, a row, succeeded; `D2`: a
dead letter; `K0`: skipped; `H0`: held; `X2`: discarded; `F2`: a letter that failed; `U1`: superseded). `1:T0` is of the
first replay. `T2+1`: one delivery so far has spent no attempt. A `?`: it was published after the moment, maybe. A `!`:
damaged headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retryapp.ledger.journey import WHOLE, Cut
from retryapp.ledger.traces import Station, Topics, Trace

OURS = ("retry", "dlq", "events", "pending.changelog")
TOPICS = Topics("app", ("orders", *(f"app.orders.{name}" for name in OURS)))
STATIONS = {
    "H": (Station.HELD, 3),
    "T": (Station.RETRY, 1),
    "W": (Station.ROW, 4),
    "D": (Station.DEAD, 2),
    "S": (Station.SUCCEEDED, 3),
    "K": (Station.SKIPPED, 3),
    "X": (Station.DISCARDED, 3),
    "F": (Station.FAILED, 3),
    "U": (Station.SUPERSEDED, 3),
}
RECEIVED, FLOOR = 100, 1_000
TIME_MS = 500_000


def way_of(text: str) -> list[Trace]:
    """Return the traces that a text tells, each a second after the one before."""
    traces: list[Trace] = []
    before, last = {0: 0}, 0
    for n, word in enumerate(text.split()):
        replays, _, rest = word.rpartition(":")
        marks = rest.lstrip("HTWDSKXFU+0123456789")
        station, topic = STATIONS[rest[0]]
        offset = n + (FLOOR if "?" in marks else 0)
        attempt, free = (int(part or 0) for part in rest[1 : len(rest) - len(marks)].partition("+")[::2])
        replay, loose = int(replays or 0), "!" in marks
        if replay not in before:  # it takes a number, as those did that are left out, with a dead letter each
            before[replay] = max(last, 1) + 2 * (replay - len(before)) + 1
        delivery = attempt if loose else before[replay] + attempt + free
        last = last + (rest[0] == "D") if loose else max(last, delivery)
        traces.append(Trace(delivery, station, topic, attempt, replay, offset, TIME_MS + n * 1_000, loose))
    return sorted(traces)


@pytest.fixture
def topics() -> Topics:
    """Main, retry, dead letters, events, changelog."""
    return TOPICS


@pytest.fixture
def way() -> Callable[[str], list[Trace]]:
    return way_of


@pytest.fixture
def make_cut() -> Callable[..., Cut]:
    """Make a cut; `expired`: topic → time up to which it has deleted."""

    def make(expired: dict[int, float] | None = None, **facts: Any) -> Cut:
        kept = [WHOLE] * len(TOPICS.names)
        for topic, until_ms in (expired or {}).items():
            kept[topic] = until_ms
        given = {"received": RECEIVED, "floor": [0, FLOOR, FLOOR, FLOOR, 0], "kept_from_ms": kept, **facts}
        return Cut(partition=3, topics=TOPICS, **given)

    return make
