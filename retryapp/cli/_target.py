"""Which cluster and which handlers a look-up command reads: those of the application, or those that options name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from retryapp.cli._app import load_handlers
from retryapp.cli._options import Place
from retryapp.core.errors import DamagedMetadataError, InvalidSettingError
from retryapp.core.record import Origin, parse_failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, find_handlers, group_missing, reach, with_dead_letters
from retryapp.lookup.decoding import Decoding, Show, undecoded

WHERE: Final = "say where to look: -A MODULE[:APP], or --broker HOST:PORT with --group NAME"


class Target(NamedTuple):
    """Where to look."""

    connection: KafkaConnection
    topologies: tuple[HandlerTopology, ...]


def resolve(place: Place, *, ask: bool = True) -> Target:
    """Return the cluster and the handlers to look at; with ``-A`` and without `ask` the cluster need not answer.

    Raises:
        click.UsageError: neither ``-A`` nor ``--broker`` with ``--group``, or both, or no handler of that main topic.
        GroupMissingError: the group has no handlers there.
    """
    if place.app_spec is not None:
        _refuse_with_app(place, "broker", "group", "client_config")
        application = load_handlers(place.app_spec)
        if ask:
            reach(application.connection)
        return Target(application.connection, _only(tuple(application.topologies), place.topic))
    if place.broker is None or place.group is None:
        raise click.UsageError(WHERE)
    connection = connect(place.broker, place.client_config)
    admin = reach(connection)
    if place.topic is not None:
        topology, names = HandlerTopology(group=place.group, main=place.topic), set(admin.topic_names())
        if {topology.dlq, topology.pending_changelog} & names:
            return Target(connection, (with_dead_letters(topology, names),))
    handlers = find_handlers(admin, place.group)
    if not handlers:
        raise group_missing(admin, place.group)
    return Target(connection, _only(handlers, place.topic))


def missing_letters(place: Place, topologies: Iterable[HandlerTopology]) -> list[str]:
    """Return the dead-letter topics that are not there and that only the app could say more of."""
    return [each.dlq for each in topologies if place.app_spec is None and each.may_lack_letters]


def decoding_of(place: Place) -> Decoding | None:
    """Return what shows keys and values as the application does; None without ``-A``, or if it has no decoder."""
    return None if place.app_spec is None else load_handlers(place.app_spec).decoding


def origin_named(failure: str) -> tuple[str, Origin]:
    """Return the group and the record that a failure id names.

    Raises:
        click.UsageError: it is no failure id.
    """
    try:
        return parse_failure_id(failure)
    except DamagedMetadataError as error:
        raise click.UsageError(f"{failure!r} is no failure id: expected group/topic@id/partition/offset") from error


def show_of(place: Place, main: str) -> Show:
    decoding = decoding_of(place)
    return undecoded if decoding is None else decoding.shows(main)


def resolve_failure(place: Place, failure: str) -> tuple[KafkaConnection, HandlerTopology, Origin]:
    """Return where a failure id points to: it contains group and main topic, so ``--group`` is not needed.

    Raises:
        click.UsageError: it is no failure id, or of another group than the application, or of a topic that its group
            has no handler of, or no cluster is named.
    """
    group, origin = origin_named(failure)
    declared = set[str]()
    if place.app_spec is not None:
        _refuse_with_app(place, "broker", "client_config")
        application = load_handlers(place.app_spec)
        connection, own = application.connection, application.topologies[0].group
        declared = {topology.main for topology in application.topologies}  # one that never ran has no topics yet
        if group != own:
            where = "give -A its app, or --broker HOST:PORT"
            raise click.UsageError(f"{failure} is of group {group}, and -A {place.app_spec} is group {own}: {where}")
    elif place.broker is not None:
        connection = connect(place.broker, place.client_config)
    else:
        raise click.UsageError("say where to look: -A MODULE[:APP], or --broker HOST:PORT")
    names, topology = set(reach(connection).topic_names()), HandlerTopology(group=group, main=origin.topic)
    if origin.topic not in declared and not {topology.dlq, topology.pending_changelog} & names:
        raise click.UsageError(
            f"{failure}: group {group} has no handler of topic {origin.topic} on {connection.bootstrap}. Correct the "
            "failure id, or --broker"
        )
    return connection, with_dead_letters(topology, names), origin


def _read_client_config(path: Path) -> Mapping[str, str]:
    """Read a file of client properties: ``name=value`` lines, ``#`` comments.

    Raises:
        InvalidSettingError: it is no text in UTF-8, or a line has no ``=``; only the number of that is shown, for it
            may contain a secret.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        expected = "expected text in UTF-8, name=value a line"
        raise InvalidSettingError("--client-config", str(path), expected) from error
    properties: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidSettingError("--client-config", f"{path} line {number}", "expected name=value")
        properties[name.strip()] = value.strip()
    return properties


def connect(broker: str, client_config: Path | None) -> KafkaConnection:
    """Return a connection with the properties of a file, without asking the cluster."""
    return KafkaConnection(broker, {} if client_config is None else _read_client_config(client_config))


def _refuse_with_app(place: Place, *names: str) -> None:
    """Refuse options that exclude ``-A``.

    Raises:
        click.UsageError: one of them is given.
    """
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(place, name) is not None]
    if given:
        raise click.UsageError(f"{', '.join(given)} and -A exclude each other: the application has its own")


def _only(topologies: Sequence[HandlerTopology], main: str | None) -> tuple[HandlerTopology, ...]:
    chosen = tuple(topology for topology in topologies if main in (None, topology.main))
    if chosen or main is None:
        return chosen
    mains = ", ".join(topology.main for topology in topologies)
    raise click.UsageError(f"--topic {main}: no handler of that topic was found. There are: {mains}")
