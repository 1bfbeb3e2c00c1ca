"""What former handlers, policies and groups have left on the cluster, and whether something still waits in it.

Nothing of ours is ever deleted by a worker: a handler that is taken out of the program, a schedule with other tiers and
a group with another name leave their topics behind. Records that wait there come back when their handler does, and
never else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from retryapp.core.errors import RetryAppError
from retryapp.core.topology import HandlerTopology
from retryapp.doctor.cluster import ClusterReader
from retryapp.doctor.findings import Finding, Severity, counted, note
from retryapp.doctor.topics import known_tiers
from retryapp.kafka import KafkaAdmin, OwnerMark, fold_changelog, read_owner_mark
from retryapp.kafka.discovery import CHANGELOG_SUFFIX

GONE: Final = "dead"
"""State of a group that the brokers have forgotten, offsets and all."""
EMPTY: Final = "empty"
"""State of a group without members whose offsets are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """The topics of a handler that nobody has any more."""

    group: str
    main: str
    topics: tuple[str, ...]
    waiting: int
    """Rows in its changelog."""
    state: str | None
    """Of its group; None: it is the group that is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTier:
    """A retry topic that a handler's policy has no more."""

    topic: str
    main: str
    unread: int
    """Offsets that the group has not read: there are so many records at most."""


def find_orphans(
    admin: KafkaAdmin, reader: ClusterReader, group: str, topologies: Sequence[HandlerTopology], names: Sequence[str]
) -> Iterator[Orphan]:
    """Yield what the cluster has of former handlers of a group, and of groups without workers on the same main topics.

    Args:
        admin: the cluster.
        reader: the same.
        group: that is looked at.
        topologies: the handlers that the application has.
        names: all topics.
    """
    mains = {topology.main for topology in topologies}
    current = {topology.prefix for topology in topologies}
    for changelog in (name for name in names if name.endswith(CHANGELOG_SUFFIX)):
        prefix = changelog.removesuffix(CHANGELOG_SUFFIX)
        here = prefix.startswith(f"{group}.")
        if prefix in current or not (here or any(prefix.endswith(f".{main}") for main in mains)):
            continue
        try:
            owner = read_owner_mark(admin.connection, changelog)
            if owner is None or (owner.group != group and owner.main not in mains):
                continue
            state = None if owner.group == group else reader.group(owner.group).state
            if state in {None, GONE, EMPTY}:
                yield _orphan(admin, owner, changelog, names, state)
        except RetryAppError:
            continue  # somebody else's, and closed to us


def _orphan(admin: KafkaAdmin, owner: OwnerMark, changelog: str, names: Sequence[str], state: str | None) -> Orphan:
    known = known_tiers(HandlerTopology(group=owner.group, main=owner.main), names)
    there = set(names)
    return Orphan(
        group=owner.group,
        main=owner.main,
        topics=tuple(name for name in (*known.owned, known.seen_changelog) if name in there),
        waiting=len(fold_changelog(admin.connection, changelog, lambda _key, _value: None)),
        state=state,
    )


def find_old_tiers(
    topologies: Sequence[HandlerTopology], names: Sequence[str], unread: Callable[[Sequence[str]], Mapping[str, int]]
) -> tuple[OldTier, ...]:
    """Return the retry topics of an application's handlers that their policies have no more.

    Args:
        topologies: its handlers, with the delays of their policies.
        names: all topics.
        unread: asked for topics: how many offsets the group has not read of each.
    """
    there = set(names)
    found = {}
    for topology in topologies:
        single = f"{topology.prefix}.retry"
        plain = HandlerTopology(group=topology.group, main=topology.main)
        every = {single, *known_tiers(plain, names).retry_topics}
        found.update(dict.fromkeys(sorted((every & there) - set(topology.owned)), topology.main))
    left = unread(tuple(found)) if found else {}
    return tuple(OldTier(topic=topic, main=main, unread=left.get(topic, 0)) for topic, main in found.items())


def judge_orphans(orphans: Sequence[Orphan], tiers: Sequence[OldTier]) -> Iterator[Finding]:
    """Say what was left behind: a warning where something waits in it."""
    for orphan in orphans:
        yield from _judge(orphan)
    for tier in tiers:
        name = f"topic {tier.topic}"
        if tier.unread:
            yield Finding(
                name=name,
                severity=Severity.WARNING,
                seen=f"the policy of {tier.main} has no such tier, and up to {counted(tier.unread, 'record')} in it "
                "were never read",
                why="nobody reads it any more: they do not come back",
                remedy="Run the former schedule and tiers= until it is read, then change them again",
            )
        else:
            yield note(
                name,
                f"the policy of {tier.main} has no such tier any more, and all of it was read",
                remedy=f"Delete it: {_deletion([tier.topic])}",
            )


def _judge(orphan: Orphan) -> Iterator[Finding]:
    waiting = counted(orphan.waiting, "record")
    mine = orphan.state is None
    name = f"handler of {orphan.main}" if mine else f"group {orphan.group} on {orphan.main}"
    whose = "this app has no such handler" if mine else "no worker runs" if orphan.state == EMPTY else "it is gone"
    deletion = f"{_deletion(orphan.topics)} (dead letters go with them)"
    if not orphan.waiting:
        if orphan.state != EMPTY:
            yield note(
                name,
                f"{whose}, its {counted(len(orphan.topics), 'topic')} are still there, and nothing waits in them",
                remedy=f"Delete them: {deletion}",
            )
    elif orphan.state == EMPTY:
        yield note(
            name,
            f"{whose}, and what waits in its tables: {waiting}",
            why="it may be another application that is down, or a former name of this one",
            remedy="Start its workers until nothing waits, if it is a former name",
        )
    else:
        yield Finding(
            name=name,
            severity=Severity.WARNING,
            seen=f"{whose}, and what waits in its tables: {waiting}",
            why="they come back when the handler does, and never else",
            remedy=f"Run that handler under that group until nothing waits; or give them up: {deletion}",
        )


def _deletion(topics: Sequence[str]) -> str:
    names = "|".join(name.replace(".", r"\.") for name in topics)  # it takes a pattern
    return f"kafka-topics.sh --delete --topic '{names}'"
