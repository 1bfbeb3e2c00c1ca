"""Lanes that do nothing, seen from the topics alone.

A lane writes to its changelog with every transaction, so one that is not written while records wait to be read stands
still. A lane that has nothing to do writes every other day at least, so that the broker does not forget its
transactional id: silence for longer belongs to one that is not open, or whose worker has started since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from retryapp.core.durations import format_duration_ms
from retryapp.core.topology import HandlerTopology
from retryapp.doctor.findings import Finding, Severity, counted, note, ok
from retryapp.engine.lane import LaneLimits

HOUR_MS: Final = 3_600_000
SECOND_MS: Final = 1_000
LONGEST_SILENCE_MS: Final = int(2 * LaneLimits().renew_s * 1_000) + HOUR_MS
"""An open lane writes more often than this."""
BUSY_SILENCE_MS: Final = HOUR_MS
"""One with records to read writes more often than this: a handler that takes longer is given up before."""

Place = tuple[str, int]
"""Topic and partition number."""


def judge_lanes(
    topologies: Sequence[HandlerTopology],
    partitions: Mapping[str, int],
    newest_ms: Mapping[Place, int],
    unread: Mapping[Place, int],
    *,
    now_ms: int,
) -> Iterator[Finding]:
    """Say which lanes are silent although workers run.

    Args:
        topologies: the handlers.
        partitions: main topic → how many it has; those that are missing are passed over.
        newest_ms: changelog and partition → when it was written last, epoch milliseconds; absent: never.
        unread: main topic and partition → offsets of all sources that the group has not read yet.
        now_ms: epoch milliseconds.
    """
    for topology in topologies:
        silent: dict[int, int | None] = {}
        for number in range(partitions.get(topology.main, 0)):
            written_ms = newest_ms.get((topology.pending_changelog, number))
            silent[number] = None if written_ms is None else max(0, now_ms - written_ms)
        found = [
            finding
            for number, silence_ms in silent.items()
            for finding in _judge(topology, number, silence_ms, unread.get((topology.main, number), 0))
        ]
        yield from found
        if silent and not found:
            longest_ms = max((silence for silence in silent.values() if silence is not None), default=0)
            yield ok(
                f"lanes of {topology.main}", f"{counted(len(silent), 'lane')}, silent for {_text(longest_ms)} at most"
            )


def _judge(topology: HandlerTopology, number: int, silence_ms: int | None, unread: int) -> Iterator[Finding]:
    if silence_ms is None and not unread:
        return  # nothing was ever there for it
    if silence_ms is not None and silence_ms <= (BUSY_SILENCE_MS if unread else LONGEST_SILENCE_MS):
        return
    since = "has never written" if silence_ms is None else f"has written nothing for {_text(silence_ms)}"
    name = f"lane of {topology.main}[{number}]"
    page = f"its worker's page /retries/{topology.main}/partitions"
    if not unread:
        yield note(
            name,
            f"it {since}, while workers run",
            expected="a record every other day",
            why="it is not open, unless its worker has started within the last day, after a pause",
            remedy=f"Look at the lane's state and last error on {page}",
        )
        return
    yield Finding(
        name=name,
        severity=Severity.WARNING,
        seen=f"it {since} and has {counted(unread, 'offset')} to read, while workers run",
        expected="a record every hour while there is something to do",
        why="it is not open, or a handler holds it: what is in that partition stands still",
        remedy=f"Look at the lane's state and last error on {page}; restart that worker if it does not open. One that "
        "has just started needs a minute",
    )


def _text(silence_ms: int) -> str:
    return format_duration_ms(max(SECOND_MS, silence_ms // SECOND_MS * SECOND_MS))
