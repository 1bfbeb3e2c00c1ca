"""The number of brokers and their settings, compared with what the protocol needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from retryapp.core.durations import format_duration_ms
from retryapp.doctor.findings import Finding, note, ok, problem, warning
from retryapp.engine.lane.lane import LaneLimits
from retryapp.kafka import ClusterState, TopicState
from retryapp.kafka.positions import TRANSACTION_TIMEOUT_MS

SAFE_BROKERS: Final = 3
MINUTE_MS: Final = 60_000
METADATA_BYTES: Final = 2_560
"""More than any metadata of an offset takes (`core.marks`)."""
_RENEWED_MS: Final = int(2 * LaneLimits().renew_s * 1000)
"""Longest time for which an idle lane does not use its transactional id."""
VERIFICATION: Final = "transaction.partition.verification.enable"
INTERNAL: Final = {
    "__transaction_state": "transaction.state.log.replication.factor",
    "__consumer_offsets": "offsets.topic.replication.factor",
}
"""Kafka's own topics that every hand-off goes through → the setting for the number of their replicas."""
_FENCED: Final = "a late write of a fenced worker can leave a transaction open, which blocks committed readers"
_Rule = tuple[str, str, int | str, str, Callable[..., Finding], str]
"""Setting, ``is``, ``least`` or ``most``, the bound and its source, how bad a wrong value is, and why."""


def _rules(brokers: int, downtime_ms: int, session_timeout_ms: int) -> tuple[_Rule, ...]:
    session = " (the app's broker_session_timeout)"
    downtime, minutes = f" (downtime {format_duration_ms(downtime_ms)})", -(-downtime_ms // MINUTE_MS)
    return (
        ("offsets.retention.minutes", "least", minutes, downtime, warning,
         "a group that is down for longer loses its offsets"),
        ("transactional.id.expiration.ms", "least", _RENEWED_MS + MINUTE_MS, "", warning,
         "an idle lane uses its id every few hours; if it expires, the lane reopens"),
        ("transaction.max.timeout.ms", "least", TRANSACTION_TIMEOUT_MS, "", problem,
         "lanes request a transaction timeout of 15 s and are refused"),
        (VERIFICATION, "is", "true", "", warning, _FENCED),
        ("offset.metadata.max.bytes", "least", METADATA_BYTES, "", problem,
         "while a record runs for long no transaction can be committed: its offset notes what is settled after it"),
        ("auto.create.topics.enable", "is", "false", "", warning,
         "a deleted or mistyped topic is created with settings that lose records"),
        ("group.min.session.timeout.ms", "most", session_timeout_ms, session, problem,
         "the group refuses members with so short a session"),
        ("group.max.session.timeout.ms", "least", session_timeout_ms, session, problem,
         "the group refuses members with so long a session"),
        ("transaction.state.log.min.isr", "most", max(1, brokers), " (brokers)", problem,
         "no transaction can be committed"),
        ("log.cleaner.enable", "is", "true", "", warning,
         "changelogs are never compacted: disks fill, and recovery takes longer and longer"),
    )  # fmt: skip


def _serves(value: str, kind: str, bound: int | str) -> bool:
    if kind == "is":
        return value.lower() == bound
    return int(value) >= int(bound) if kind == "least" else int(value) <= int(bound)


def _judge(rule: _Rule, values: Mapping[str, str]) -> Finding:
    """Judge the values of a setting, by broker id."""
    setting, kind, bound, because, finding, why = rule
    bad = {broker: value for broker, value in values.items() if not _serves(value, kind, bound)}
    direction = {"is": "", "least": " or more", "most": " or less"}[kind]
    expected = f"{bound}{direction}{because}"
    seen = ", ".join(sorted(set((bad or values).values())))
    if not bad:
        return ok(f"setting {setting}", seen, expected)
    return finding(
        f"setting {setting}",
        f"{seen} (broker {', '.join(sorted(bad, key=int))})" if len(bad) < len(values) else seen,
        expected=expected,
        why=why,
        remedy=f"Set {setting}={bound} in each broker's server.properties, and restart them one by one",
    )


def judge_brokers(
    facts: ClusterState, topics: Mapping[str, TopicState], *, downtime_ms: int, session_timeout_ms: int
) -> Iterator[Finding]:
    """Judge number and settings of the brokers; `topics`: those that exist, Kafka's own included."""
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
            remedy="Grant it, or run the doctor once with an operator's login in Retries(admin_options=...)",
        )
        return
    for rule in _rules(count, downtime_ms, session_timeout_ms):
        values = {broker: known[rule[0]] for broker, known in facts.settings.items() if rule[0] in known}
        if values:
            yield _judge(rule, values)
    first = facts.settings[min(facts.settings, key=int)]
    if VERIFICATION not in first and "transaction.max.timeout.ms" in first:
        yield warning(
            f"setting {VERIFICATION}",
            "the brokers do not have it",
            expected="Kafka 3.6 or newer (KIP-890)",
            why=_FENCED,
            remedy="Upgrade the brokers; until then find such transactions, of each broker: "
            "kafka-transactions.sh find-hanging --broker-id N",
        )
    for topic, setting in INTERNAL.items():
        if setting in first:
            existing = topics[topic].replication if topic in topics else None
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
