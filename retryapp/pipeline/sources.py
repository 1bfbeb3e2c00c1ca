"""Which topics a job reads, and which life of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retryapp.core.topology import HandlerTopology, TopicRole
from retryapp.kafka import KafkaAdmin, Positions, find_handlers, group_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One life of a topic, from its creation to its deletion."""

    topic: str
    topic_id: str
    group: str
    main: str
    station: str  # `retry`, `dlq` or `events`
    epoch: int = 1  # 1 for the first life of the name that was seen
    next: tuple[int | None, ...] = ()  # by partition: all before it is archived; None: not known
    over: bool = False  # the topic was deleted, or the broker did not show it


def find_sources(admin: KafkaAdmin, group: str, known: Iterable[Life] = ()) -> list[Life]:
    """Return a group's topics as they are, by name; ``known`` ones also where those that name their handler are gone.

    No two groups share one, so neither do their runs. Of what is archived nothing is said.

    Raises:
        GroupMissingError: the group has no topics there.
        AccessDeniedError: a known topic is hidden from this login, which does not say whether it was deleted.
    """
    names = admin.topic_names()
    found = stations_of(find_handlers(admin, group), names)
    stations = {name: (topology.main, role.value) for name, (topology, role) in found.items()}
    lives = {life.topic: (life.main, life.station) for life in known}
    if not stations and not lives:
        raise group_missing(admin, group)
    stations = lives | stations
    topics = []
    for name, state in sorted(admin.describe_topics(stations).items()):
        main, station = stations[name]
        unknown = (None,) * state.partitions
        topics.append(Life(topic=name, topic_id=state.topic_id, group=group, main=main, station=station, next=unknown))
    return topics


def refuse_missing(admin: KafkaAdmin, groups: Sequence[str]) -> None:
    """Return if one of some groups has handlers there.

    Raises:
        GroupMissingError: none has any; it names the first one.
    """
    if not any(find_handlers(admin, group) for group in groups):
        raise group_missing(admin, groups[0])


def places_of(lives: Iterable[Life]) -> list[tuple[str, int]]:
    return [(life.topic, number) for life in lives for number in range(len(life.next))]


def count_offsets(admin: KafkaAdmin, groups: Sequence[str]) -> int:
    """Return how many offsets the groups' own topics keep: not less than the records that an analysis reads there."""
    names = admin.topic_names()
    ours = [name for group in set(groups) for name in stations_of(find_handlers(admin, group), names)]
    states = admin.describe_topics(ours).items()
    places = [(name, number) for name, state in states for number in range(state.partitions)]
    offsets = Positions(admin.connection)
    return sum(offsets.ends(places).values()) - sum(offsets.begins(places).values()) if places else 0


def retention_of(admin: KafkaAdmin, names: Iterable[str]) -> dict[str, int | None]:
    """Return how long topics keep records, in milliseconds; None: without a limit."""
    return {name: state.deletes_after_ms for name, state in admin.describe_topics(names).items()}


def stations_of(
    topologies: Sequence[HandlerTopology], names: Iterable[str]
) -> dict[str, tuple[HandlerTopology, TopicRole]]:
    """Return which of the names are topics that are archived, of which handler and for what."""
    found = {}
    for name in names:
        for topology in topologies:
            if name == topology.events:
                found[name] = (topology, TopicRole.EVENTS)
            elif topology.is_dlq(name):
                found[name] = (topology, TopicRole.DLQ)
            elif topology.retry_delay_ms(name) is not None:
                found[name] = (topology, TopicRole.RETRY)
    return found
