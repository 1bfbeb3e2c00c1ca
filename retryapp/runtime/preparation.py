"""Checks before a worker consumes anything: handlers, codecs, topics.

First what needs no broker; then, waiting for a broker, what would strand records; topics are created last.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import faust
from mode.utils.logging import get_logger

from retryapp.core.errors import (
    BrokerUnreachableError,
    DuplicateHandlerError,
    InvalidSettingError,
    TopicMissingError,
)
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import quick_findings
from retryapp.engine.worker.placement import Served
from retryapp.kafka import AccessDeniedError, KafkaAdmin, KafkaConnection, Plan, ensure_topics, fold_changelog
from retryapp.kafka.compare import kept_ms
from retryapp.kafka.errors import OlderVersionHiddenError
from retryapp.ports import Clock
from retryapp.runtime.clients.security import prove_login
from retryapp.runtime.clients.unreadable import refuse_missing_codecs
from retryapp.runtime.options import RuntimeOptions

logger = get_logger(__name__)

_PROBE_S = 2.0  # longest wait for one answer while the broker is down
_LOGIN_S = 10.0  # longest wait for one address to accept the app's login
_PROBE_PAUSE_S = 1.0  # wait between two tries: a broker that hangs up does so at once


def prepare(
    app: faust.App, served: Mapping[str, Served], connection: KafkaConnection, *, options: RuntimeOptions, clock: Clock
) -> Plan:
    """Check handlers (by main topic) and topics, create missing topics, and learn ids and sizes; blocks.

    Raises:
        ConfigurationError: the program is wrong.
        EnvironmentFault: broker or topics are.
    """
    for each in served.values():
        each.handler.values.check()
    _refuse_second_readers(app, served)
    refuse_missing_codecs()
    admin = KafkaAdmin(connection)
    topologies = [each.handler.topology for each in served.values()]
    deadline_s = clock.monotonic_s() + options.start_timeout_ms / 1000
    while True:
        left_s = deadline_s - clock.monotonic_s()
        try:
            # a short time-out first: that of the plan's requests may exceed the deadline
            KafkaAdmin(connection, timeout_s=max(0.5, min(_PROBE_S, left_s))).topic_names()
            prove_login(app, timeout_s=_LOGIN_S)
            _refuse_stranding(app, topologies, admin)
            plan = ensure_topics(admin, topologies, options.plan)
            plan.raise_refused()
            break
        except BrokerUnreachableError as exc:
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                raise
            logger.warning("Waiting for a broker, up to %.0f s more: %s", left_s, exc)
            time.sleep(min(_PROBE_PAUSE_S, left_s))  # no event loop runs in this thread
    for each in served.values():
        _learn(each, plan)
    for finding in quick_findings(
        connection,
        topologies,
        options.plan,
        session_timeout_ms=int(app.conf.broker_session_timeout * 1000),
        datadir=Path(app.conf.datadir),
    ):
        logger.warning("retryapp.doctor %s", finding.text)
    return plan


def _refuse_second_readers(app: faust.App, served: Mapping[str, Served]) -> None:
    for agent in app.agents.values():
        channel = agent.channel  # not `_channel`: Faust makes it on first use
        for topic in channel.topics if isinstance(channel, faust.Topic) else ():
            if topic in served:
                first, second = f"the handler {served[topic].handler.name}", f"the agent {agent.name}"
                raise DuplicateHandlerError(topic, app.conf.id, first, second)


def _refuse_stranding(app: faust.App, topologies: Iterable[HandlerTopology], admin: KafkaAdmin) -> None:
    """Refuse Faust's `version=`, which renames the group and so our topics, while records of an older version wait."""
    conf = app.conf
    name = conf.id.removesuffix(f"-v{conf.version}")
    for version in range(1, conf.version):
        group = name if version == 1 else f"{name}-v{version}"
        for topology in topologies:
            # a dead-letter topic of ours has the group in its name
            main = topology.main if topology.own_letters_of is None else group + topology.main.removeprefix(conf.id)
            changelog = replace(topology, group=group, main=main).pending_changelog
            try:
                admin.describe(changelog)
                waiting = len(fold_changelog(admin.connection, changelog, lambda _key, _value: None))
            except TopicMissingError:
                continue
            except AccessDeniedError as exc:
                doing = f"see whether records of version {version} still wait in {changelog}"
                raise OlderVersionHiddenError(doing, exc.bootstrap, exc.reason) from exc
            if waiting:
                raise InvalidSettingError(
                    "version",
                    conf.version,
                    f"{waiting} records of version {version} still wait in {changelog}, and this version would "
                    f"never see them: run version {version} until nothing waits",
                )


def _learn(served: Served, plan: Plan) -> None:
    topology = served.handler.topology
    main = plan.states[topology.main]
    served.partitions = served.known = served.complete = main.partitions
    served.topic_id = main.topic_id
    served.kept_ms = kept_ms(main.config)
    served.deletes_after_ms = main.deletes_after_ms
    served.changelog_id = plan.states[topology.pending_changelog].topic_id
    served.control_id = plan.states[topology.control].topic_id
    served.dlq_ids = {name: plan.states[name].topic_id for name in topology.dlqs}
    if topology.seen_window_ms is not None:
        served.seen_id = plan.states[topology.seen_changelog].topic_id
    if topology.through_main and (destinations := served.handler.destinations) is not None:
        copies = destinations.of(topology.main)
        copies.max_bytes = copies.batch_bytes = int(main.config["max.message.bytes"])
    # the smallest: a record goes through all of them, and an operator may have raised one
    served.max_bytes = min(int(plan.states[name].config["max.message.bytes"]) for name in topology.owned)
