"""Records that wait by reference: what happens to the main topic meanwhile, and what is judged of it (I21)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from retryapp.core.record import Damage, Record
from retryapp.ports import TopicPartition
from retryapp.testing.broker import Entry
from simulation.broker import Broker
from simulation.faults import LOSSES, Fault
from simulation.story import Origin, Story, Violation

if TYPE_CHECKING:
    from simulation.judge import Judge

KEPT_MS: Final = 120_000
"""How long the main topic keeps a record; half of it is for workers that are away."""
STEP_MS: Final = 12_000
SHORT_LIVES: Final = 2
"""After so many workers that a handler has ended, one by one, its rows may be claimed as suspects until it is late."""
DELETED, _, BROKEN = LOSSES
_REFERENCE: Final = struct.Struct(">BHqIIQ")
_DUE_AT: Final = 4


def age_ms(event: int) -> int:
    """Return how old a record is when it comes; some are too old to wait by reference."""
    return event * 5 % 8 * STEP_MS


class Referring:
    """What is known of the main topic of a handler."""

    def __init__(self) -> None:
        self.lost: set[Origin] = set()
        """Records that are not there any more."""
        self.deaths_ms: list[float] = []
        """When a handler has ended its worker."""

    def strike(self, broker: Broker, tp: TopicPartition, kind: str, random: Random) -> None:
        entries, settled = broker.logs[tp].entries, broker.committed.get(tp, 0)
        found = [at for at, entry in enumerate(entries) if entry.record.offset < settled]
        if not found:
            return
        at = random.choice(found)
        record = entries[at].record
        if kind == DELETED:  # the beginning of the topic, as of somebody who makes room
            self.lost.update((tp.partition, entry.record.offset) for entry in entries[: at + 1])
            broker.delete_before(tp, record.offset + 1)
            return
        self.lost.add((tp.partition, record.offset))
        entries[at] = Entry(_changed(record, kind), None)

    def retain(self, broker: Broker, tp: TopicPartition) -> None:
        """Delete what the main topic need not keep; nothing that waits by reference may be among it."""
        old_ms = broker.now_ms() - KEPT_MS
        for entry in broker.logs[tp].entries[:]:
            if entry.record.timestamp_ms >= old_ms or entry.record.offset >= broker.committed.get(tp, 0):
                return
            broker.delete_before(tp, entry.record.offset + 1)

    def written(self, origin: Origin, story: Story, row: bytes, now_ms: float) -> None:
        """Judge a row: one without payload says what the main topic has, and is due while that is safe, or by now.

        One whose hold has just ended is due at once: it need not have become a copy before.

        Raises:
            Violation: it is not so.
        """
        if row[1] < 2:  # a copy
            return
        at = row.rfind(struct.pack(">BH", 2, _REFERENCE.size - 3))
        _, _, time_ms, _, _, safe_ms = _REFERENCE.unpack_from(row, at)
        due_ms = int.from_bytes(row[_DUE_AT : _DUE_AT + 8], "big")
        latest_ms = story.record.timestamp_ms + KEPT_MS // 2
        waits_on = not story.hurried and not row[2] and due_ms > max(latest_ms, now_ms)
        if time_ms != story.record.timestamp_ms or (waits_on and origin not in self.lost) or safe_ms > latest_ms:
            raise Violation(f"I21 {origin[0]}/{origin[1]}: waits by reference until {due_ms}, is safe to {latest_ms}")
        if (story.record.value or b"") in row:
            raise Violation(f"I21 {origin[0]}/{origin[1]}: waits by reference, and its value is in the row")

    def ended(self, origin: Origin, ours: Mapping[str, bytes], story: Story) -> bool:
        """Judge a dead letter; tell whether its record was lost.

        Raises:
            Violation: the main topic has it; or had it for long enough, and workers lived long enough to copy it.
        """
        lost = ours.get("retry-reason") in (b"gone", b"damaged")
        unsafe_ms = story.record.timestamp_ms + KEPT_MS // 2
        if lost and sum(at_ms > unsafe_ms for at_ms in self.deaths_ms) > SHORT_LIVES:
            self.lost.add(origin)
        if lost and origin not in self.lost:
            raise Violation(f"I21 {origin[0]}/{origin[1]}: dead as gone, and the main topic need not have lost it")
        return lost


def _changed(record: Record, kind: str) -> Record:
    if kind == BROKEN:
        return replace(record, key=None, value=b"", headers=(), damage=Damage(record.offset, "a wrong checksum"))
    return replace(record, value=(record.value or b"")[::-1])  # as of a topic that has lost its end


def lose(broker: Broker, judges: Iterable[Judge], loss: Fault) -> None:
    """Have the main topics lose records that have an outcome."""
    for judge in judges:
        if (main := judge.oracle.main) is not None:
            tp = TopicPartition(judge.topology.main, loss.slot)
            main.strike(broker, tp, loss.kind, Random(int(loss.size * 1e9)))


def retain(broker: Broker, judges: Iterable[Judge]) -> None:
    """Have the main topics delete what they need not keep."""
    for judge in judges:
        if (main := judge.oracle.main) is not None:
            for number in range(judge.plan.partitions):
                main.retain(broker, TopicPartition(judge.topology.main, number))
