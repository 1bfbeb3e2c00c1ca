"""Records that come back through the main topic: what is judged of their copies there (I24)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.ports import TopicPartition
from simulation.broker import Broker
from simulation.lives import SPAN
from simulation.story import Origin, Story, Violation

if TYPE_CHECKING:
    from simulation.judge import Judge

NAME: Final = "retry-redelivery"
STRAY: Final = "stray"
TOPIC_ID: Final = "simulated"


def stray(record: Record, which: int) -> Outgoing:
    """Return a copy of a record that no row waits for: of another group, or as somebody copies one by hand."""
    group = "others" if which % 2 else "sim"
    name = f"{group}/{record.topic}@{TOPIC_ID}/{record.partition}/{record.offset}:{2 + which % 3}".encode()
    headers = (*record.headers, (STRAY, b"1"), (NAME, name))
    return Outgoing(record.topic, record.partition, record.key, record.value, headers)


def scatter(broker: Broker, judges: Iterable[Judge], number: int, which: int) -> None:
    """Put a copy of a record on the main topics that no row waits for: of another group, or a second one."""
    for judge in (each for each in judges if each.letters is None):
        tp = TopicPartition(judge.topology.main, number)
        stories = [story for (at, _), story in judge.oracle.stories.items() if at == number]
        if stories:
            judge.oracle.offsets.strays.add((number, broker.logs[tp].end + SPAN * broker.life[tp.topic]))
            broker.append(tp, stray(stories[which % len(stories)].record, which))


class Copies:
    """The copies that were visible on a main topic."""

    def __init__(self) -> None:
        self._there: Counter[tuple[Origin, int]] = Counter()
        """By record, and delivery that follows."""

    def appeared(self, record: Record, stories: Mapping[Origin, Story]) -> None:
        """Judge a record of the main topic.

        Raises:
            Violation: it is a copy, and not as its record was, or the second one.
        """
        names = [value or b"" for name, value in record.headers if name == NAME]
        if not names or (STRAY, b"1") in record.headers:
            return
        identity, _, delivery = names[-1].decode().rpartition(":")
        _, partition, offset = identity.rsplit("/", 2)
        origin = int(partition), int(offset)
        told, was = stories[origin].record, (record.key, record.value, record.headers[:-1])
        if was != (told.key, told.value, told.headers) or record.partition != origin[0]:
            raise Violation(f"I24 {origin[0]}/{origin[1]}: its copy is another record")
        self._there[origin, int(delivery)] += 1
        if self._there[origin, int(delivery)] > 1 + stories[origin].again:
            raise Violation(f"I24 {origin[0]}/{origin[1]}: delivery {delivery} has a second copy")

    def begun(self, origin: Origin, delivery: int) -> None:
        """A handler call begins.

        Raises:
            Violation: it is no first delivery, and the main topic has no copy for it.
        """
        if delivery > 1 and not self._there[origin, delivery]:
            raise Violation(f"I24 {origin[0]}/{origin[1]}: delivery {delivery} begins before its copy is there")
