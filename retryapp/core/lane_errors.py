"""Errors of a lane: it cannot go on, or does not open, because going on could skip records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from retryapp.core.errors import EnvironmentFault, RetryAppError

_BROKERS_AWAY = "Bring back the brokers that are away; the lane opens again by itself"


def _reset(group: str, which: str) -> str:
    return f"kafka-consumer-groups.sh --group {group} --reset-offsets --topic {which} --execute"


class LaneError(RetryAppError):
    """A lane cannot go on; its turns were dropped and nothing of them was committed."""

    exit_code: ClassVar[int] = 4

    def __init__(self, lane: str, problem: str) -> None:
        self.lane = lane
        self.problem = problem
        super().__init__(f"lane {lane}: {problem}")


class LaneClosedError(LaneError):
    """A turn was handed to a lane that is not open. The caller's records are not lost: they are read again."""


class MembershipLapsedError(LaneError):
    """The group's coordinator was silent for a whole session: another worker may have the lane. It opens again."""

    def __init__(self, lane: str) -> None:
        super().__init__(lane, "the group's coordinator was silent for a whole session, so it may be another's by now")


class OffsetsGoneError(EnvironmentFault):
    """A committed offset is outside of its topic's offsets. Operator action: set the group's offset."""

    def __init__(self, group: str, topic: str, partition: int, committed: int, first: int, end: int) -> None:
        self.group = group
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
            f"{what}. Find out why. To accept it stop the workers, then set the group's offset: "
            f"{_reset(group, f'{topic}:{partition} --to-earliest')}"
        )


class PositionGoneError(EnvironmentFault):
    """The next offset of an open lane is not on its topic any more; the lane opens again.

    Operator action: none; if records are gone, `OffsetsGoneError` follows and the lane stays closed.
    """

    def __init__(self, topic: str, partition: int, position: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        super().__init__(
            f"{topic}[{partition}]: offset {position}, where reading was to go on, is not on the topic any more "
            f"(retention.ms, DeleteRecords, or the topic was cut)"
        )


class MainReplacedError(EnvironmentFault):
    """A main topic was deleted and made again under a running worker. Operator action: start the worker again."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        super().__init__(
            f"{topic}[{partition}]: the topic was deleted and made again. This worker would name its records like the "
            f"former ones, so it reads none and ends within 30 s; one that starts then reads it from its beginning"
        )


class OffsetsMissingError(EnvironmentFault):
    """A lane has worked before, and the group's offsets are gone. Operator action: set the group's offsets."""

    def __init__(self, lane: str, group: str, rows: int, topics: Sequence[str]) -> None:
        self.lane = lane
        self.group = group
        self.rows = rows
        self.topics = tuple(topics)
        super().__init__(
            f"lane {lane}: the group has no committed offsets for {', '.join(topics)}, but the changelog has {rows} or "
            f"more records: they expired (offsets.retention.minutes) or were deleted. Starting anew would repeat or "
            f"skip records. Stop the workers, then set the offsets ({_reset(group, '...')}), "
            f"or delete the group's topics to begin anew"
        )


class RightMissingError(EnvironmentFault):
    """This login lacks a right that every hand-off needs. Operator action: grant it; the message names it."""

    def __init__(self, problem: str, right: str) -> None:
        self.problem = problem
        self.right = right
        super().__init__(
            f"{problem}: this login needs {right}. Grant it ('retryapp plan -A MODULE --acls' prints all that workers "
            f"need); the lane opens again by itself"
        )


class ChangelogReplacedError(EnvironmentFault):
    """A lane's changelog was recreated without the waiting records.

    Operator action: stop the workers and set the group's offsets, as the message says.
    """

    def __init__(self, lane: str, group: str, changelog: str, main: str) -> None:
        self.lane = lane
        self.group = group
        self.changelog = changelog
        self.main = main
        super().__init__(
            f"lane {lane}: topic {changelog} was deleted and made again, and what waited is not on it. Nothing is "
            f"delivered until somebody decides; stop the workers first. To go on without what waited: "
            f"{_reset(group, f'{main} --to-current')}, which accepts the topic as it is. "
            f"'retryapp ledger -A MODULE' names what is missing then; the retry topic has copies of it"
        )


class StoreAheadError(EnvironmentFault):
    """A local store is past the end of its changelog: the topic was truncated.

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


class CommitLostError(LaneError):
    """A broker took back a commit that it had acknowledged; the lane reopens and reads what is there."""


class CommitUndecidedError(LaneError):
    """A broker has left an acknowledged transaction without an end; the lane reopens until it has one."""

    def __init__(self, lane: str, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        where = f"{topic}[{partition}]"
        problem = f"the broker has left a committed transaction on {where} without an end"
        super().__init__(lane, f"{problem}: the lane opens once it has one, and reads it")


class TooFewCopiesError(EnvironmentFault):
    """A topic has taken no records for too long. Operator action: see the message."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        super().__init__(
            f"{topic}[{partition}] takes no records (NOT_ENOUGH_REPLICAS): fewer copies are in sync than its "
            f"min.insync.replicas asks for, or its broker cannot reach the transaction's coordinator. "
            f"{_BROKERS_AWAY}"
        )


class NoLeaderError(EnvironmentFault):
    """A topic has taken no records for too long. Operator action: see the message."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        super().__init__(f"{topic}[{partition}] takes no records: it has no leader. {_BROKERS_AWAY}")


class TopicGoneError(EnvironmentFault):
    """A topic that a lane writes to is not there any more. Operator action: create it again."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic} is not there, or this login may no longer see it. Create it again ('retryapp topics create "
            f"-A MODULE' makes those of retryapp; they come back empty), or grant Describe on it"
        )


class CoordinatorAwayError(EnvironmentFault):
    """The broker that keeps a group has just started, or handed the group on. Operator action: none."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(
            f"no broker answers for group {group} now: the one that kept it has just started, or stops and hands it "
            f"on to another. The lane opens by itself"
        )


class MarkersLateError(LaneError):
    """The end of a lane's former transaction is not on all its partitions. Operator action: see the message."""

    def __init__(self, lane: str) -> None:
        super().__init__(
            lane,
            f"the brokers have not written the end of its former transaction: a partition of it has no leader, or too "
            f"few copies in sync. {_BROKERS_AWAY}",
        )


class HandOffRefusedError(EnvironmentFault):
    """A topic refused a hand-off; nothing of its transaction was committed. Operator action: see the message."""

    def __init__(self, topic: str, problem: str, size: int | None = None, limit: int | None = None) -> None:
        self.topic, self.problem, self.size, self.limit = topic, problem, size, limit
        sizes = "" if size is None else f"; the largest record takes {size} bytes uncompressed"
        sizes += "" if limit is None else f", the topic at most {limit} (max.message.bytes)"
        super().__init__(f"{topic} refuses a hand-off: {problem}{sizes}")
