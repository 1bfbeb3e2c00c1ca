"""Offsets that do not fit what a topic has: a lane that finds them does not open, since going on could skip records."""

from __future__ import annotations

from collections.abc import Sequence

from retryapp.core.errors.environment import EnvironmentFault


class OffsetsGoneError(EnvironmentFault):
    """A committed offset lies outside of what its topic has. Operator action: set the group's offset."""

    def __init__(self, topic: str, partition: int, committed: int, first: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.committed = committed
        self.first = first
        self.end = end
        what = (
            f"up to {first - committed} records were deleted unread (retention.ms, DeleteRecords)"
            if committed < first
            else "the topic was cut or made again"
        )
        super().__init__(
            f"{topic}[{partition}]: the group is at offset {committed}, but the topic has {first} to {end}: "
            f"{what}. Find out why, then accept it by setting the group's offset "
            f"(kafka-consumer-groups.sh --reset-offsets)"
        )


class PositionGoneError(EnvironmentFault):
    """Where an open lane was to read on is not on its topic any more. It opens again and looks at what there is.

    Operator action: none for this; where records are gone, the lane says so with `OffsetsGoneError` and stays shut.
    """

    def __init__(self, topic: str, partition: int, position: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        super().__init__(
            f"{topic}[{partition}]: offset {position}, where reading was to go on, is not on the topic any more "
            f"(retention.ms, DeleteRecords, or the topic was cut)"
        )


class OffsetsMissingError(EnvironmentFault):
    """A lane has worked before, and the group's offsets are gone. Operator action: set the group's offsets."""

    def __init__(self, lane: str, rows: int, topics: Sequence[str]) -> None:
        self.lane = lane
        self.rows = rows
        self.topics = tuple(topics)
        super().__init__(
            f"lane {lane}: the group has no committed offsets for {', '.join(topics)}, but the changelog has {rows} or "
            f"more records: they expired (offsets.retention.minutes) or were deleted. Starting anew would repeat or "
            f"skip records; set them (kafka-consumer-groups.sh --reset-offsets), or delete the group's topics to begin "
            f"anew"
        )


class ChangelogReplacedError(EnvironmentFault):
    """A lane's changelog was deleted and made again: records that waited are not on it.

    Operator action: stop the workers and set the group's offsets on the retry topics, as the text says.
    """

    def __init__(self, lane: str, changelog: str, topics: Sequence[str]) -> None:
        self.lane = lane
        self.changelog = changelog
        self.topics = tuple(topics)
        super().__init__(
            f"lane {lane}: topic {changelog} was deleted and made again, and what waited is not on it. Nothing is "
            f"delivered until somebody decides; stop the workers first. To have all that is still on "
            f"{', '.join(topics)} wait once more, with what has been redelivered since: kafka-consumer-groups.sh "
            f"--reset-offsets --to-earliest on it; to go on without: --to-current. 'retryapp ledger' names what is "
            f"missing then"
        )


class StoreAheadError(EnvironmentFault):
    """A local store knows more of a changelog than the changelog has: the topic was cut.

    Operator action: find out why; stop the worker and remove the local store to accept it.
    """

    def __init__(self, lane: str, store: int, end: int) -> None:
        self.lane = lane
        self.store = store
        self.end = end
        super().__init__(
            f"lane {lane}: the local store has read its changelog up to offset {store}, but it ends at {end}. It "
            f"was truncated, or made anew; to accept the changelog as it is, stop the worker, remove the local store "
            f"and start it again"
        )
