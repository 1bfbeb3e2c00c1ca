"""Checks before a worker consumes anything: handlers, codecs, topics.

First what needs no broker; then, waiting for a broker, what would strand records; topics are created last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import faust
from mode.utils.logging import get_logger

from retryapp.core.errors import (
    BrokerUnreachableError,
    DuplicateHandlerError,
    InvalidSettingError,
)
from retryapp.core.record import short_topic_id
from retryapp.doctor import quick_findings
from retryapp.engine.placement import Served
from retryapp.kafka import KafkaAdmin, KafkaConnection, Plan, ensure_topics, fold_changelog
from retryapp.ports import Clock
from retryapp.runtime.options import RuntimeOptions
from retryapp.runtime.security import admin_connection, prove_login
from retryapp.runtime.unreadable import refuse_missing_codecs

logger = get_logger(__name__)

_PROBE_S = 2.0
"""Longest wait for one answer while the broker is down."""
_LOGIN_S = 10.0
"""Longest wait for one address to accept the app's login."""
_PROBE_PAUSE_S = 1.0
"""Wait between two tries: a broker that hangs up does so at once."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Checks handlers and topics, and creates missing topics."""

    app: faust.App
    options: RuntimeOptions
    served: Mapping[str, Served]
    """By main topic; gets what the broker knows of each handler's topics."""
    clock: Clock

    def run(self) -> Plan:
        """Run all checks; blocks.

        Raises:
            ConfigurationError: the program is wrong.
            EnvironmentFault: broker or topics are.
        """
        self._refuse_second_readers()
        refuse_missing_codecs()
        plan = self._plan_patiently()
        for served in self.served.values():
            _learn(served, plan)
        self._examine(plan)
        return plan

    def _examine(self, plan: Plan) -> None:
        """Log what may fail later, as `retryapp doctor` does in full; refuses nothing."""
        conf = self.app.conf
        for found in quick_findings(
            self._connection,
            [served.handler.topology for served in self.served.values()],
            self.options.plan,
            plan.states,
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            datadir=Path(conf.datadir),
            wall_ms=self.clock.wall_ms,
        ):
            logger.warning("retryapp.doctor %s", found.text)

    @property
    def _connection(self) -> KafkaConnection:
        return admin_connection(self.app, self.options.admin_options)

    def _plan_patiently(self) -> Plan:
        topologies = [served.handler.topology for served in self.served.values()]
        admin = KafkaAdmin(self._connection)
        deadline_s = self.clock.monotonic_s() + self.options.start_timeout_ms / 1000
        while True:
            try:
                self._wait_for_broker(deadline_s)
                prove_login(self.app, timeout_s=_LOGIN_S)
                self._refuse_stranding(admin)
                return ensure_topics(admin, topologies, self.options.plan)
            except BrokerUnreachableError as exc:
                left_s = deadline_s - self.clock.monotonic_s()
                if left_s <= 0:
                    raise
                logger.warning("Waiting for a broker, up to %.0f s more: %s", left_s, exc)
                time.sleep(min(_PROBE_PAUSE_S, left_s))  # `prepare` blocks: no event loop runs in this thread

    def _wait_for_broker(self, deadline_s: float) -> None:
        """Ask once, with a short time-out: that of the planning's requests may exceed the deadline."""
        left_s = deadline_s - self.clock.monotonic_s()
        KafkaAdmin(self._connection, timeout_s=max(0.5, min(_PROBE_S, left_s))).topic_names()

    def _refuse_second_readers(self) -> None:
        """Refuse agents of the user on topics that a handler reads.

        Raises:
            DuplicateHandlerError: names both.
        """
        readers = {
            topic: served.handler for served in self.served.values() for topic in served.handler.topology.consumed
        }
        for agent in self.app.agents.values():
            channel = agent.channel  # not `_channel`: Faust makes it on first use
            for topic in channel.topics if isinstance(channel, faust.Topic) else ():
                if topic in readers:
                    raise DuplicateHandlerError(
                        topic, self.app.conf.id, f"the handler {readers[topic].name}", f"the agent {agent.name}"
                    )

    def _refuse_stranding(self, admin: KafkaAdmin) -> None:
        """Refuse Faust's `version=`, which renames the group and so our topics, while records of an older version wait.

        Raises:
            InvalidSettingError: names the records that would never be retried.
        """
        conf = self.app.conf
        name = conf.id.removesuffix(f"-v{conf.version}")
        for version in range(1, conf.version):
            group = name if version == 1 else f"{name}-v{version}"
            for served in self.served.values():
                changelog = replace(served.handler.topology, group=group).pending_changelog
                if changelog not in admin.describe_topics([changelog]):
                    continue
                waiting = len(fold_changelog(self._connection, changelog, lambda _key, _value: None))
                if waiting:
                    raise InvalidSettingError(
                        "version",
                        conf.version,
                        f"{waiting} records of version {version} still wait in {changelog}, and this version would "
                        f"never see them: run version {version} until nothing waits",
                    )


def _learn(served: Served, plan: Plan) -> None:
    """Copy what the broker knows of a handler's topics."""
    topology = served.handler.topology
    main = plan.states[topology.main]
    served.partitions = main.partitions
    served.topic_id = short_topic_id(main.topic_id)
    served.changelog_id = plan.states[topology.pending_changelog].topic_id
    served.dlq_id = plan.states[topology.dlq].topic_id
    if topology.seen_window_ms is not None:
        served.seen_id = plan.states[topology.seen_changelog].topic_id
    # the smallest: a record goes through all of them, and an operator may have raised one
    served.max_bytes = min(int(plan.states[name].config["max.message.bytes"]) for name in topology.owned)
