"""All topics of a handler, as data: names, roles, settings and the reason of each setting.

* Every name has the prefix ``{group}.{main}.``: one ACL prefix for a group, and the same topics in each version.
* All topics of a handler have the main topic's partition count: partition p of each is assigned to one worker.
* Record topics use the broker's time of arrival: retention would delete a waiting copy with its old timestamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from retryapp.core.checks import check_kind
from retryapp.core.durations import format_duration_ms, parse_duration_ms
from retryapp.core.errors import (
    DuplicateHandlerError,
    InvalidDurationError,
    InvalidSettingError,
    InvalidTopicNameError,
    NameClashError,
    PublishCircleError,
)

DAY_MS: Final = 86_400_000
DEFAULT_DOWNTIME_MS: Final = 7 * DAY_MS
"""Longest time that all workers of a group may be down: its offsets and the main topic must be kept for so long."""
DEFAULT_DLQ_RETENTION_MS: Final = 30 * DAY_MS
"""How long dead letters are kept."""
DEFAULT_EVENTS_RETENTION_MS: Final = 7 * DAY_MS
"""How long lifecycle events and the copies of failures are kept: longer than the archive may lag."""
METADATA_ROOM_BYTES: Final = 64 * 1_024
"""What our topics allow over the main topic's ``max.message.bytes``: twice the bound of our headers."""
CHANGELOG_SEGMENT_MS: Final = 3_600_000
CHANGELOG_DELETE_RETENTION_MS: Final = DAY_MS
"""How long tombstones stay readable; a local store unused for half of this is dropped."""
MAX_NAME_CHARS: Final = 249
"""Kafka's limit for topic names."""

GROW: Final = "Run 'retryapp topics grow -A MODULE'"
"""What to do when the main topic has more partitions than ours."""

MAX_DEAD_LETTERS_CHARS: Final = 60
TAKEN_NAMES: Final = frozenset({"control", "dlq", "events", "retry"})
"""No names for a dead-letter topic: a handler of the topic ``{main}.dlq`` may have such topics."""

INTERNAL_TOPICS: Final = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"}
)
"""Topics in which Kafka keeps its own state."""

_DEAD_LETTERS: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_DEAD_LETTERS_CHARS}}}", re.ASCII)
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class Tiers(StrEnum):
    """How the delays of a policy share retry topics."""

    SINGLE = "single"
    """One retry topic for all delays: a policy edit changes no subscription."""
    PER_DELAY = "per-delay"
    """One retry topic for each distinct delay."""


class TopicRole(StrEnum):
    """What a topic of ours is for."""

    RETRY = "retry"
    DLQ = "dlq"
    EVENTS = "events"
    CHANGELOG = "changelog"
    CONTROL = "control"
    SEEN = "seen"


@dataclass(frozen=True, slots=True)
class HandlerTopology:
    """The topics of one handler.

    Raises:
        InvalidTopicNameError: a name that follows from group and main topic is not one for Kafka, or a topic is Kafka's
            own.
    """

    group: str
    main: str
    tiers: Tiers = Tiers.SINGLE
    delays_ms: tuple[int, ...] = ()
    """Distinct nominal delays of the policy, in milliseconds; they name the topics with ``Tiers.PER_DELAY``."""
    seen_window_ms: int | None = None
    """How long events are remembered to detect duplicates, in milliseconds; None: no deduplication."""
    dead_letters: tuple[str, ...] = ()
    """Names of further dead-letter topics, those of the policy's rules."""
    publishes: tuple[str, ...] = ()
    """Topics of others that the handler says that it publishes to."""
    drop: bool = False
    """It has no dead-letter topic: in place of a dead letter there is an event."""
    reference_ms: int | None = None
    """Records wait by reference, all their waits together at most so long; None: as copies."""
    through_main: bool = False
    """What is due again is published to the main topic."""
    letters_of: str | None = None
    """Main topic of the handler whose dead-letter topic the main topic is: this one handles its dead letters."""
    letters_from: str | None = None
    """Group of that handler, if it is another one: the main topic is then the other application's."""
    retry_topics: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Retry topics, by rising delay; one with ``Tiers.SINGLE``."""
    owned: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Topics that are ours: all but main."""
    prefix: str = field(init=False, repr=False, compare=False)
    """``{group}.{main}``. What each record needs of these names is made once."""
    dlqs: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Dead-letter topics; none with `drop`."""
    events: str = field(init=False, repr=False, compare=False)
    pending_changelog: str = field(init=False, repr=False, compare=False)
    """Changelog of the pending table; read by lanes, not subscribed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{self.group}.{self.main}")
        object.__setattr__(self, "events", f"{self.prefix}.events")
        object.__setattr__(self, "pending_changelog", f"{self.prefix}.pending.changelog")
        object.__setattr__(self, "tiers", Tiers(self.tiers))
        object.__setattr__(self, "delays_ms", tuple(sorted(set(self.delays_ms))))
        retry_topics = tuple(f"{self.prefix}.retry.{format_duration_ms(delay_ms)}" for delay_ms in self.delays_ms)
        if self.tiers is Tiers.SINGLE or not self.delays_ms:
            retry_topics = (f"{self.prefix}.retry",)
        object.__setattr__(self, "retry_topics", retry_topics)
        object.__setattr__(self, "dead_letters", tuple(sorted(set(self.dead_letters))))
        named = map(self.dlq_named, self.dead_letters)
        object.__setattr__(self, "dlqs", () if self.drop else (self.dlq, *named))
        owned = (*retry_topics, *self.dlqs, self.events, self.control, self.pending_changelog)
        if self.seen_window_ms is not None:
            owned = (*owned, self.seen_changelog)
        object.__setattr__(self, "owned", owned)
        for name in (self.group, self.main, *self.owned, *self.publishes):
            check_name(name)
        for name in (self.main, *self.publishes):
            if name in INTERNAL_TOPICS:
                raise InvalidTopicNameError(name, "Kafka keeps its own state there, no records of applications")

    def retry_topic_for(self, delay_ms: int) -> str:
        """Return the retry topic of the nearest delay, of the shorter one when two are as near."""
        topics = self.retry_topics
        if len(topics) == 1:
            return topics[0]
        return min(zip(self.delays_ms, topics, strict=True), key=lambda tier: (abs(tier[0] - delay_ms), tier[0]))[1]

    def retry_delay_ms(self, name: str) -> int | None:
        """Return the delay that a retry topic's name has, of this policy or not; 0 without one, None: no such topic."""
        base, dot, delay = name.partition(f"{self.prefix}.retry")
        if base or not dot:
            return None
        try:
            delay_ms = parse_duration_ms(delay[1:]) if delay else 0
        except InvalidDurationError:
            return None  # a topic that only looks like ours
        return delay_ms if delay == (f".{format_duration_ms(delay_ms)}" if delay else "") else None

    @property
    def dlq(self) -> str:
        """Dead-letter topic, unless a rule names another."""
        return f"{self.prefix}.dlq"

    def dlq_named(self, name: str | None) -> str:
        """Return the dead-letter topic of this name; None: the usual one."""
        return self.dlq if name is None else f"{self.dlq}.{name}"

    def is_dlq(self, topic: str) -> bool:
        """Tell whether a topic has the name of a dead-letter topic, of this policy or not."""
        base, dot, name = topic.partition(f"{self.dlq}.")
        return topic == self.dlq or (not base and bool(dot) and names_dead_letters(name))

    def may_have(self, topic: str) -> bool:
        """Tell whether a topic has the name of one that it has by policy or settings, these ones or others."""
        return topic == self.seen_changelog or self.is_dlq(topic) or self.retry_delay_ms(topic) is not None

    @property
    def reads_letters(self) -> bool:
        """Whether the main topic is a dead-letter topic, of any group: its name says so, as tools see only that."""
        base, dot, name = self.main.rpartition(".dlq")
        return bool(base and dot) and (not name or (name[0] == "." and names_dead_letters(name[1:])))

    @property
    def may_lack_letters(self) -> bool:
        """Whether, where the topics alone are known, its dead-letter topic may have been deleted.

        A handler of dead letters has none: what it gives up stays where it is.
        """
        return self.drop and not self.reads_letters

    @property
    def control(self) -> str:
        """Topic of commands; read by lanes, not subscribed."""
        return f"{self.prefix}.control"

    @property
    def seen_changelog(self) -> str:
        """Changelog of the table of seen events, if the handler deduplicates."""
        return f"{self.prefix}.seen.changelog"

    @property
    def own_letters_of(self) -> str | None:
        """Main topic of the handler of this group whose dead letters this one handles."""
        return self.letters_of if self.letters_from is None else None

    @property
    def named(self) -> tuple[str, ...]:
        """All topics that the handler needs: main, ours, and those that it publishes to."""
        return (self.main, *self.owned, *self.publishes)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The required state of a topic."""

    name: str
    role: TopicRole
    partitions: int
    replication: int
    config: dict[str, str]
    why: dict[str, str]
    """For each setting, and for ``partitions`` and ``replication``, the reason in one line."""


def names_dead_letters(name: object) -> bool:
    """Tell whether a dead-letter topic may have this name after that of the usual one."""
    return isinstance(name, str) and bool(_DEAD_LETTERS.fullmatch(name)) and name not in TAKEN_NAMES


def letters_topic(known: Iterable[HandlerTopology], main: str, named: str | None, *, group: str | None) -> str:
    """Return the dead-letter topic of a handler: of one that is `known`, or of another group's.

    Raises:
        InvalidSettingError: there is no such handler, or it has no such dead-letter topic.
        InvalidTopicNameError: with `group`, what follows is no name of a topic.
    """
    for name, given in {"topic": main, "group": group or ""}.items():
        check_kind(name, given, str, "one name, as text")  # callers without type checks pass a list
    if group is not None:
        if named is not None and not names_dead_letters(named):
            raise InvalidSettingError("named", named, "expected a name that a rule may have in dead_letters=")
        return HandlerTopology(group, main).dlq_named(named)
    of = next((each for each in known if each.main == main), None)
    if of is None:
        problem = f"declare its handler first, with @retries.handler({main!r}, ...); group= names another application's"
        raise InvalidSettingError("dead_letters", main, problem)
    if (letters := of.dlq_named(named)) not in of.dlqs:
        have = ", ".join(of.dlqs) or "none, as it has dead_letters='drop'"
        raise InvalidSettingError("named", named, f"the handler of {main} has no such dead-letter topic; it has {have}")
    return letters


def check_name(name: str) -> None:
    """Raise `InvalidTopicNameError` for a topic or group name that Kafka would refuse."""
    if not name:
        raise InvalidTopicNameError(name, "it is empty")
    if name in {".", ".."}:
        raise InvalidTopicNameError(name, "'.' and '..' are not allowed")
    if not _LEGAL.fullmatch(name):
        strange = sorted(set(re.sub(r"[A-Za-z0-9._-]", "", name)))
        raise InvalidTopicNameError(name, f"it contains {''.join(strange)!r}")
    if len(name) > MAX_NAME_CHARS:
        raise InvalidTopicNameError(name, f"it has {len(name)} characters")


def check_names(topologies: Iterable[HandlerTopology]) -> None:
    """Check that the topics of several handlers can exist together.

    Raises:
        DuplicateHandlerError: two handlers in one group have the same main topic.
        NameClashError: a topic would have two owners, a main topic is a topic of ours, or two names differ only in
            ``.`` and ``_`` (Kafka refuses to create the second); or a handler would publish to a topic of ours.
        PublishCircleError: handlers would publish to each other's main topics in a circle.
    """
    known = tuple(topologies)
    marks: set[str] = set()
    claims: dict[str, tuple[str, str]] = {}
    for topology in known:
        mark = f"{topology.group}+{topology.main}"  # a.b+c and a+b.c both own a.b.c.retry
        if mark in marks:
            raise DuplicateHandlerError(topology.main, topology.group, "one handler", "another handler")
        marks.add(mark)
        for name in topology.owned:
            _claim(claims, name, f"handler {mark}")
    for topology in known:
        main, other = topology.main, claims.get(_collision_key(topology.main))
        if other is not None and other != (main, f"handler {topology.group}+{topology.letters_of}"):
            raise NameClashError(main, other[0], f"the main topic of group {topology.group}", other[1])
    for topology in known:
        for topic in topology.publishes:
            if (other := claims.get(_collision_key(topic))) is not None:
                raise NameClashError(topic, other[0], f"the handler of {topology.main} (publishes=…)", other[1])
    ways = {topology.main: topology.publishes for topology in known}
    for topology in known:
        if topology.letters_of is not None:  # what dies goes there by itself
            ways[topology.letters_of] = (*ways.get(topology.letters_of, ()), topology.main)
    _refuse_circles(ways)


def _refuse_circles(publishes: Mapping[str, tuple[str, ...]]) -> None:
    """Raise `PublishCircleError` if a handler's own record can come back to it."""
    for main in publishes:
        ways: list[tuple[str, ...]] = [(main,)]
        seen: set[str] = set()
        while ways:
            way = ways.pop()
            for topic in publishes.get(way[-1], ()):
                if topic == main:
                    raise PublishCircleError(main, " -> ".join((*way, main)))
                if topic not in seen:
                    seen.add(topic)
                    ways.append((*way, topic))


def _collision_key(name: str) -> str:
    return name.replace(".", "_")


def _claim(claims: dict[str, tuple[str, str]], name: str, owner: str) -> None:
    other = claims.setdefault(_collision_key(name), (name, owner))
    if other != (name, owner):
        raise NameClashError(name, other[0], owner, other[1])


_HOUR_MS: Final = 3_600_000


def topic_specs(
    topology: HandlerTopology,
    *,
    partitions: int,
    main_max_message_bytes: int,
    replication: int,
    dlq_retention_ms: int | None = DEFAULT_DLQ_RETENTION_MS,
) -> tuple[TopicSpec, ...]:
    """Return the required state of each of ``topology.owned``, in that order."""
    history = "history, for people, the ledger and the archive: what waits is in the changelog"
    letters = "how long dead letters can be looked at and replayed"
    retentions: dict[str, tuple[TopicRole, int | None, str]] = {
        **dict.fromkeys(topology.retry_topics, (TopicRole.RETRY, DEFAULT_EVENTS_RETENTION_MS, history)),
        **dict.fromkeys(topology.dlqs, (TopicRole.DLQ, dlq_retention_ms, letters)),
        topology.events: (TopicRole.EVENTS, DEFAULT_EVENTS_RETENTION_MS, "how long events wait for the archive"),
    }
    retentions[topology.control] = TopicRole.CONTROL, DEFAULT_EVENTS_RETENTION_MS, "who asked for what, for a week"
    if topology.letters_of is not None:  # a segment may keep a letter for so much longer
        marks_ms = None if dlq_retention_ms is None else dlq_retention_ms + DEFAULT_EVENTS_RETENTION_MS
        retentions[topology.events] = TopicRole.EVENTS, marks_ms, "what became of a letter, for longer than the letter"
    shape = _Shape(partitions, replication, main_max_message_bytes)
    records = tuple(shape.record_topic(name, *retention) for name, retention in retentions.items())
    window_ms = topology.seen_window_ms
    seen = () if window_ms is None else (shape.seen(topology.seen_changelog, window_ms),)
    return (*records, shape.changelog(topology.pending_changelog), *seen)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What all topics of one handler have in common."""

    partitions: int
    replication: int
    main_max_message_bytes: int

    def common(self) -> dict[str, tuple[str, str]]:
        return {
            "message.timestamp.type": (
                "LogAppendTime",
                "time of arrival at the broker: a worker's clock is never refused, and an old timestamp never expires "
                "a copy",
            ),
            "max.message.bytes": (
                str(self.main_max_message_bytes + METADATA_ROOM_BYTES),
                f"the main topic's {self.main_max_message_bytes} plus {METADATA_ROOM_BYTES} for our headers",
            ),
            "compression.type": ("producer", "batches stay as the workers compressed them"),
            "min.insync.replicas": (
                "2" if self.replication >= 3 else "1",
                "with acks=all a record counts once this many replicas have it; one of three may be away",
            ),
        }

    def record_topic(self, name: str, role: TopicRole, retention_ms: int | None, reason: str) -> TopicSpec:
        return self.spec(
            name,
            role,
            {
                "cleanup.policy": ("delete", "compaction would drop all but one record of a key"),
                "retention.ms": (str(-1 if retention_ms is None else retention_ms), reason),
                "retention.bytes": ("-1", "by time only: a size limit would delete sooner"),
            },
        )

    def changelog(self, name: str) -> TopicSpec:
        return self.spec(
            name,
            TopicRole.CHANGELOG,
            {
                "cleanup.policy": ("compact", "holds what is pending for as long as it waits; 'delete' would lose it"),
                "segment.ms": (
                    str(CHANGELOG_SEGMENT_MS),
                    "only closed segments are compacted; a record is written and removed once, so replay grows "
                    "without this",
                ),
                "min.cleanable.dirty.ratio": ("0.1", "compact early: recovery reads what is left"),
                "delete.retention.ms": (
                    str(CHANGELOG_DELETE_RETENTION_MS),
                    "how long removals stay readable; a local store unused for half of this is dropped",
                ),
            },
        )

    def seen(self, name: str, window_ms: int) -> TopicSpec:
        hours = -(-window_ms // _HOUR_MS) + 1
        window = format_duration_ms(window_ms)
        return self.spec(
            name,
            TopicRole.SEEN,
            {
                "cleanup.policy": ("delete", "each event is written once and forgotten by age: nothing to compact"),
                "retention.ms": (
                    str(hours * _HOUR_MS),
                    f"events are remembered for {window}, in full hours, and one hour more",
                ),
                "retention.bytes": ("-1", "by time only: a size limit would forget events within the window"),
                "segment.ms": (
                    str(max(CHANGELOG_SEGMENT_MS, window_ms // 8)),
                    "only closed segments are deleted: a recovery reads about what is remembered",
                ),
            },
        )

    def spec(self, name: str, role: TopicRole, settings: dict[str, tuple[str, str]]) -> TopicSpec:
        merged = {**settings, **self.common()}
        why = {setting: reason for setting, (_, reason) in merged.items()}
        why["partitions"] = "as the main topic, so that all of one partition number is on one worker"
        why["replication"] = "as the broker's default: our topics are as safe as the main topic"
        config = {setting: value for setting, (value, _) in merged.items()}
        return TopicSpec(name, role, self.partitions, self.replication, config, why)
