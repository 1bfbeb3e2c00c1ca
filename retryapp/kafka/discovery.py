"""Which handlers a group has, from the topics alone: for commands that run without the application."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Final

from retryapp.core.errors import EnvironmentFault, RetryAppError, TopicMissingError
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.admin import KafkaAdmin
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.errors import AccessDeniedError
from retryapp.kafka.owner import read_owner_mark

_CHANGELOG: Final = ".pending.changelog"
_MOST_MARKS: Final = 20  # each takes a consumer of its own


class GroupMissingError(EnvironmentFault):
    """A cluster has no handlers of a group. Operator action: correct the group's name or the broker's address."""

    def __init__(self, group: str, connection: KafkaConnection, others: Sequence[str]) -> None:
        self.group = group
        hidden = "" if connection.protocol == "PLAINTEXT" else ", or grant this login DESCRIBE on the group's topics"
        there = f". Groups that have some: {', '.join(others)}" if others else ""
        super().__init__(
            f"group {group!r} has no handlers on {connection.bootstrap}. Correct --group (the Faust app's id) or "
            f"--broker{hidden}{there}"
        )


def group_missing(admin: KafkaAdmin, group: str) -> GroupMissingError:
    """Return the refusal of a group without handlers; it names others, those that are most like it."""
    others = set[str]()
    with suppress(RetryAppError):  # the broker is gone
        changelogs = [name for name in admin.topic_names() if name.endswith(_CHANGELOG)]
        for name in nlargest(_MOST_MARKS, changelogs, lambda name: _likeness(group, name)):
            with suppress(AccessDeniedError):  # this login may read others
                mark = read_owner_mark(admin.connection, name)
                others |= set() if mark is None else {mark.group}
    return GroupMissingError(group, admin.connection, sorted(others - {group}))


def _likeness(group: str, changelog: str) -> float:
    begin = changelog[: len(group)]  # the rest is the main topic, which says nothing of the group
    return SequenceMatcher(None, group, begin).ratio()


def find_handlers(admin: KafkaAdmin, group: str, *, but: Collection[str] = ()) -> tuple[HandlerTopology, ...]:
    """Return the handlers of a group whose topics exist, by main topic; their tiers and delays are not known.

    A name does not say where the group ends and the main topic begins; the owner mark in the changelog does. Topics
    without a mark are taken for this group's. Those of the main topics `but` are not looked at.
    """
    prefix = f"{group}."
    names = [name for name in admin.topic_names() if name.startswith(prefix)]
    changelogs = {main: name for name in names if (main := _main(name, prefix, _CHANGELOG))}
    mains = {main for name in names if (main := _main(name, prefix, ".dlq"))} | set(changelogs)
    owners = {
        main: read_owner_mark(admin.connection, changelog) for main, changelog in changelogs.items() if main not in but
    }
    foreign = {main for main, owner in owners.items() if owner is not None and owner.group != group}
    found = (HandlerTopology(group=group, main=main) for main in sorted(mains - foreign - {*but}))
    return tuple(with_dead_letters(topology, names) for topology in found)


def dead_letter_topics(admin: KafkaAdmin, topology: HandlerTopology) -> Sequence[str]:
    """Return the dead-letter topics of a handler that there are, of this policy or not.

    Raises:
        AccessDeniedError: the brokers may hide one from this login, which lists as if there were none.
        TopicMissingError: the handler has one, and it is not there: what is dead is unknown, and not nothing.
    """
    names = admin.topic_names()
    if topology.dlq not in names and not admin.describe_topics([topology.dlq]) and not topology.drop:
        raise TopicMissingError(topology.dlq, admin.connection.bootstrap)
    return with_dead_letters(topology, names).dlqs


def with_dead_letters(topology: HandlerTopology, names: Iterable[str]) -> HandlerTopology:
    """Return the topology with all dead-letter topics that there are, of this policy or not, or with none."""
    known = {name for name in names if topology.is_dlq(name)}
    there = {name.removeprefix(f"{topology.dlq}.") for name in known - {topology.dlq}}
    return replace(topology, dead_letters=(*topology.dead_letters, *there), drop=topology.dlq not in known)


def _main(name: str, prefix: str, suffix: str) -> str:
    rest = name.removeprefix(prefix)  # of another program's topic `billing.dlq` only `dlq`: it has no main topic
    return rest.removesuffix(suffix) if rest.endswith(suffix) else ""
