"""Which cluster and which handlers a look-up command is about.

Either the application says it (``-A``), or the command line does (``--broker``, ``--group``, ``--topic``); the latter
needs neither the user's code nor a running worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from retryapp.cli._app import app_option, load_handlers
from retryapp.core.errors import DamagedMetadataError, InvalidSettingError, TopicMissingError
from retryapp.core.record import Origin, parse_failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, find_handlers

if TYPE_CHECKING:
    from collections.abc import Mapping

R = TypeVar("R")

DEFAULT_LIMIT: Final = 50
REACH_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Options that say where to look, as they were given."""

    app_spec: str | None
    broker: str | None
    group: str | None
    topic: str | None
    client_config: Path | None


@dataclass(frozen=True, slots=True)
class Target:
    """Where to look."""

    connection: KafkaConnection
    topologies: tuple[HandlerTopology, ...]


def place_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of :class:`Place`; the command gets them together, as the argument ``place``."""

    @wraps(command)  # with the options that the command has so far
    def with_place(
        *,
        app_spec: str | None,
        broker: str | None,
        group: str | None,
        topic: str | None,
        client_config: Path | None,
        **others: Any,
    ) -> R:
        place = Place(app_spec=app_spec, broker=broker, group=group, topic=topic, client_config=client_config)
        return command(place=place, **others)

    options = [
        app_option(required=False),
        click.option("--broker", metavar="HOST:PORT", help="Bootstrap address, instead of -A."),
        click.option("--group", metavar="NAME", help="Consumer group = the Faust app's id, with --broker."),
        click.option("--topic", metavar="MAIN", help="Only the handler of this main topic."),
        click.option(
            "--client-config",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="File with librdkafka properties for --broker, name=value a line (security.protocol, sasl.username).",
        ),
    ]
    return reduce(lambda decorated, option: option(decorated), reversed(options), with_place)


def resolve(place: Place) -> Target:
    """Return the cluster and the handlers to look at.

    Raises:
        click.UsageError: neither ``-A`` nor ``--broker`` with ``--group``, or both.
        TopicMissingError: the group has no topics of ours there, or no handler of that main topic.
    """
    if place.app_spec is not None:
        _refuse(place, "broker", "group", "client_config")
        application = load_handlers(place.app_spec)
        reach(application.connection)
        return _only(Target(application.connection, tuple(application.topologies)), place.topic)
    if place.broker is None or place.group is None:
        raise click.UsageError("say where to look: -A MODULE[:APP], or --broker HOST:PORT with --group NAME")
    connection = connection_of(place)
    admin = reach(connection)
    if place.topic is not None:
        return Target(connection, (HandlerTopology(group=place.group, main=place.topic),))
    topologies = find_handlers(admin, place.group)
    if not topologies:
        remedy = f"Group {place.group!r} has no handlers there: correct --group (the Faust app's id) or --broker"
        raise TopicMissingError(f"{place.group}.*.pending.changelog", connection.bootstrap, remedy)
    return Target(connection, topologies)


def resolve_failure(place: Place, failure: str) -> tuple[KafkaConnection, HandlerTopology, Origin]:
    """Return where a failure id points to: it names group and main topic itself, so ``--group`` is not needed.

    Raises:
        click.UsageError: it is no failure id, or no cluster is named.
    """
    try:
        group, origin = parse_failure_id(failure)
    except DamagedMetadataError as error:
        raise click.UsageError(f"{failure!r} is no failure id: expected group/topic@id/partition/offset") from error
    if place.app_spec is not None:
        _refuse(place, "broker", "client_config")
        connection = load_handlers(place.app_spec).connection
    elif place.broker is not None:
        connection = connection_of(place)
    else:
        raise click.UsageError("say where to look: -A MODULE[:APP], or --broker HOST:PORT")
    reach(connection)
    return connection, HandlerTopology(group=group, main=origin.topic), origin


def reach(connection: KafkaConnection) -> KafkaAdmin:
    """Return an administrator of a cluster that answers; a person does not wait long for one that does not.

    Raises:
        BrokerUnreachableError: none answered within ``REACH_S``.
    """
    KafkaAdmin(connection, timeout_s=REACH_S).cluster()
    return KafkaAdmin(connection)


def connection_of(place: Place) -> KafkaConnection:
    """Return the cluster that ``--broker`` and ``--client-config`` name."""
    if place.broker is None:
        raise click.UsageError("--broker is missing")
    return KafkaConnection(place.broker, {} if place.client_config is None else read_client_config(place.client_config))


def read_client_config(path: Path) -> Mapping[str, str]:
    """Read a file of client properties: ``name=value`` lines, ``#`` comments.

    Raises:
        InvalidSettingError: a line has no ``=``; it is named by its number, for it may hold a secret.
    """
    properties: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidSettingError("--client-config", f"{path} line {number}", "expected name=value")
        properties[name.strip()] = value.strip()
    return properties


def _refuse(place: Place, *names: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(place, name) is not None]
    if given:
        raise click.UsageError(f"{', '.join(given)}: the application of -A says that itself; leave out one of them")


def _only(target: Target, main: str | None) -> Target:
    if main is None:
        return target
    kept = tuple(topology for topology in target.topologies if topology.main == main)
    if not kept:
        mains = ", ".join(topology.main for topology in target.topologies)
        raise click.UsageError(f"--topic {main}: no handler of that main topic; there are: {mains}")
    return Target(target.connection, kept)
