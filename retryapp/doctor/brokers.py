"""The number of brokers and their settings, compared with what the protocol needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from retryapp.core.durations import format_duration_ms
from retryapp.doctor.cluster import ClusterFacts, ReplicaFacts
from retryapp.doctor.findings import Finding, Severity, note, ok, problem, warning
from retryapp.engine.lane import LaneLimits

SAFE_BROKERS: Final = 3
MINUTE_MS: Final = 60_000
WEEK_MS: Final = 7 * 86_400_000
TRANSACTION_TIMEOUT_MS: Final = 15_000
"""Timeout of a lane's transactions; a test compares it with the publisher's."""
_RENEWED_MS: Final = int(2 * LaneLimits().renew_s * 1000)
"""Longest time for which an idle lane does not use its transactional id."""
VERIFICATION: Final = "transaction.partition.verification.enable"
INTERNAL: Final = {
    "__transaction_state": "transaction.state.log.replication.factor",
    "__consumer_offsets": "offsets.topic.replication.factor",
}
"""Kafka's own topics that every hand-off goes through → the setting for the number of their replicas."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One setting and its bound."""

    setting: str
    bound: Literal["is", "least", "most"]
    value: int | str
    severity: Severity
    why: str
    because: str = ""
    """Where the bound comes from."""

    def serves(self, value: str) -> bool:
        if self.bound == "is":
            return value.lower() == self.value
        return int(value) >= int(self.value) if self.bound == "least" else int(value) <= int(self.value)

    def judge(self, values: Mapping[int, str]) -> Finding:
        """Judge the values, broker id → value."""
        bad = {broker: value for broker, value in values.items() if not self.serves(value)}
        where = f" (broker {', '.join(map(str, sorted(bad)))})" if len(bad) < len(values) else ""
        direction = {"is": "", "least": " or more", "most": " or less"}[self.bound]
        name, expected = f"setting {self.setting}", f"{self.value}{direction}{self.because}"
        if not bad:
            return ok(name, ", ".join(sorted(set(values.values()))), expected)
        return Finding(
            name=name,
            severity=self.severity,
            seen=f"{', '.join(sorted(set(bad.values())))}{where}",
            expected=expected,
            why=self.why,
            remedy=f"Set {self.setting}={self.value} in each broker's server.properties, and restart them one by one",
        )


def _rules(brokers: int, downtime_ms: int, session_timeout_ms: int) -> tuple[_Rule, ...]:
    session = " (the app's broker_session_timeout)"
    return (
        _Rule(
            "offsets.retention.minutes",
            "least",
            -(-downtime_ms // MINUTE_MS),
            Severity.WARNING,
            "a group that is down for longer loses its offsets",
            f" (downtime {format_duration_ms(downtime_ms)})",
        ),
        _Rule(
            "transactional.id.expiration.ms",
            "least",
            _RENEWED_MS + MINUTE_MS,
            Severity.WARNING,
            "an idle lane renews its transactional id every day; if it expires before, the lane must reopen",
        ),
        _Rule(
            "transaction.max.timeout.ms",
            "least",
            TRANSACTION_TIMEOUT_MS,
            Severity.PROBLEM,
            "lanes request a transaction timeout of 15 s and are refused",
        ),
        _Rule(
            VERIFICATION,
            "is",
            "true",
            Severity.WARNING,
            "a late write of a fenced worker can leave a transaction open, which blocks committed readers",
        ),
        _Rule(
            "auto.create.topics.enable",
            "is",
            "false",
            Severity.WARNING,
            "a deleted topic of ours, or a mistyped name, is created with settings that lose records",
        ),
        _Rule(
            "group.min.session.timeout.ms",
            "most",
            session_timeout_ms,
            Severity.PROBLEM,
            "the group refuses members with so short a session",
            session,
        ),
        _Rule(
            "group.max.session.timeout.ms",
            "least",
            session_timeout_ms,
            Severity.PROBLEM,
            "the group refuses members with so long a session",
            session,
        ),
        _Rule(
            "transaction.state.log.min.isr",
            "most",
            max(1, brokers),
            Severity.PROBLEM,
            "no transaction can be committed",
            " (brokers)",
        ),
        _Rule(
            "log.cleaner.enable",
            "is",
            "true",
            Severity.WARNING,
            "changelogs are never compacted: disks fill, and recovery takes longer and longer",
        ),
    )


def judge_brokers(
    facts: ClusterFacts, replicas: Mapping[str, ReplicaFacts], *, downtime_ms: int, session_timeout_ms: int
) -> Iterator[Finding]:
    """Judge number and settings of the brokers.

    Args:
        facts: what the cluster reported.
        replicas: the topics that exist and that we may see, Kafka's own among them.
        downtime_ms: how long all workers may be down.
        session_timeout_ms: the application's ``broker_session_timeout``.
    """
    count, expected = len(facts.brokers), f"{SAFE_BROKERS} or more in production"
    if count >= SAFE_BROKERS:
        yield ok("brokers", str(count), expected)
    else:
        yield note("brokers", str(count), expected=expected, why="a broker that is lost takes records with it")
    if not facts.settings:
        yield note(
            "broker settings",
            "not readable",
            why="this login lacks DescribeConfigs on the cluster",
            remedy="Ask an operator to run the doctor once, with --client-config",
        )
        return
    for rule in _rules(count, downtime_ms, session_timeout_ms):
        values = {broker: s[rule.setting] for broker, s in facts.settings.items() if rule.setting in s}
        if values:
            yield rule.judge(values)
    first = facts.settings[min(facts.settings)]
    if VERIFICATION not in first and "transaction.max.timeout.ms" in first:
        yield warning(
            f"setting {VERIFICATION}",
            "the brokers do not have it",
            expected="Kafka 3.6 or newer (KIP-890)",
            why="a late write of a fenced worker can leave a transaction open, which blocks committed readers",
            remedy="Upgrade the brokers; until then find such transactions with kafka-transactions.sh find-hanging",
        )
    for topic, setting in INTERNAL.items():
        if setting in first:
            existing = replicas[topic].replication if topic in replicas else None
            yield _internal(topic, setting, int(first[setting]), existing, count)


def _internal(topic: str, setting: str, configured: int, existing: int | None, brokers: int) -> Finding:
    """Judge the replicas of one of Kafka's own topics; the setting only matters until the topic exists."""
    name = f"setting {setting}"
    expected = f"{SAFE_BROKERS}" if brokers >= SAFE_BROKERS else f"{max(1, brokers)} or less (brokers)"
    if existing is None and configured > brokers:
        return problem(
            name,
            str(configured),
            expected=expected,
            why=f"{topic} cannot be created, and no lane opens",
            remedy=f"Set {setting}={max(1, brokers)} in each broker's server.properties, or add brokers",
        )
    replicas = configured if existing is None else existing
    seen = str(configured) if existing is None else f"replicas of {topic}: {existing}"
    if brokers >= SAFE_BROKERS > replicas:
        return warning(
            name,
            seen,
            expected=expected,
            why="while these brokers are down no hand-off is possible, and if they are lost so are the offsets",
            remedy="Add replicas with kafka-reassign-partitions.sh",
        )
    return ok(name, seen, expected)
