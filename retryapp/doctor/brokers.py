"""The brokers' settings and number against what the protocol needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from retryapp.core.durations import format_duration_ms
from retryapp.core.tally import MAX_NOTE_CHARS
from retryapp.core.topology import METADATA_ROOM_BYTES
from retryapp.doctor.cluster import ClusterFacts
from retryapp.doctor.findings import Finding, Severity, note, ok
from retryapp.engine.lane import LaneLimits

SAFE_BROKERS: Final = 3
MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
TRANSACTION_TIMEOUT_MS: Final = 15_000
"""Time-out that lanes ask for; a test holds it to the publisher's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the settings are measured against."""

    brokers: int
    downtime_ms: int
    """How long all workers may be away."""
    session_timeout_ms: int
    """The application's ``broker_session_timeout``."""
    largest_bytes: int
    """The largest ``max.message.bytes`` among our topics; 0 when none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one setting is judged."""

    setting: str
    serves: Callable[[str, Needs], bool]
    expected: Callable[[Needs], str]
    severity: Severity
    why: str
    dynamic: bool = False
    """It can be changed with kafka-configs.sh while brokers run."""
    value: Callable[[Needs], str] = lambda _: "VALUE"
    """What to set it to."""

    def judge(self, told: Mapping[int, str], needs: Needs) -> Finding:
        """Judge what the brokers told, broker id → value."""
        bad = {broker: value for broker, value in told.items() if not self.serves(value, needs)}
        shown = bad or told
        values = sorted(set(shown.values()))
        where = f" (broker {', '.join(map(str, sorted(bad)))})" if bad and len(bad) < len(told) else ""
        seen, expected = f"{', '.join(values)}{where}", self.expected(needs)
        name = f"setting {self.setting}"
        if not bad:
            return ok(name, seen, expected)
        change = (
            f"kafka-configs.sh --alter --entity-type brokers --entity-default "
            f"--add-config {self.setting}={self.value(needs)}"
            if self.dynamic
            else f"{self.setting}={self.value(needs)} in each broker's server.properties, and restart them in turn"
        )
        return Finding(
            name=name, severity=self.severity, seen=seen, expected=expected, why=self.why, remedy=f"Set it: {change}"
        )


def _minutes(ms: int) -> str:
    return str(-(-ms // MINUTE_MS))


_RENEWED_MS: Final = int(2 * LaneLimits().renew_s * 1000)
"""Longest time for which an idle lane does not use its transactional id."""
RULES: Final = (
    Rule(
        setting="offsets.retention.minutes",
        serves=lambda value, needs: int(value) * MINUTE_MS >= needs.downtime_ms,
        expected=lambda needs: (
            f"{_minutes(needs.downtime_ms)} or more (downtime {format_duration_ms(needs.downtime_ms)})"
        ),
        value=lambda needs: _minutes(needs.downtime_ms),
        severity=Severity.WARNING,
        why="a group that is away for longer loses its offsets, and lanes that worked before refuse to start",
    ),
    Rule(
        setting="transactional.id.expiration.ms",
        serves=lambda value, _: int(value) > _RENEWED_MS,
        expected=lambda _: f"more than {_RENEWED_MS}",
        value=lambda _: str(7 * DAY_MS),
        severity=Severity.WARNING,
        why="an idle lane uses its transactional id every other day; one that is forgotten sooner has to open again",
    ),
    Rule(
        setting="transaction.max.timeout.ms",
        serves=lambda value, _: int(value) >= TRANSACTION_TIMEOUT_MS,
        expected=lambda _: f"{TRANSACTION_TIMEOUT_MS} or more",
        value=lambda _: "900000",
        severity=Severity.PROBLEM,
        why="lanes ask for transactions of 15 s, and are refused",
    ),
    Rule(
        setting="auto.create.topics.enable",
        serves=lambda value, _: value.lower() == "false",
        expected=lambda _: "false",
        value=lambda _: "false",
        severity=Severity.WARNING,
        why="a topic of ours that is deleted, or a name that is mistyped, comes into being with settings that lose "
        "records",
    ),
    Rule(
        setting="group.min.session.timeout.ms",
        serves=lambda value, needs: int(value) <= needs.session_timeout_ms,
        expected=lambda needs: f"{needs.session_timeout_ms} or less (the app's broker_session_timeout)",
        value=lambda needs: str(min(6_000, needs.session_timeout_ms)),
        severity=Severity.PROBLEM,
        why="the group refuses a member with so short a session",
    ),
    Rule(
        setting="group.max.session.timeout.ms",
        serves=lambda value, needs: int(value) >= needs.session_timeout_ms,
        expected=lambda needs: f"{needs.session_timeout_ms} or more (the app's broker_session_timeout)",
        value=lambda needs: str(max(1_800_000, needs.session_timeout_ms)),
        severity=Severity.PROBLEM,
        why="the group refuses a member with so long a session",
    ),
    Rule(
        setting="offset.metadata.max.bytes",
        serves=lambda value, _: int(value) >= MAX_NOTE_CHARS,
        expected=lambda _: f"{MAX_NOTE_CHARS} or more (what we write beside an offset)",
        value=lambda _: "4096",
        severity=Severity.PROBLEM,
        why="commits of offsets are refused",
    ),
    Rule(
        setting="message.max.bytes",
        serves=lambda _value, _needs: True,
        expected=lambda _: "any: our topics set max.message.bytes themselves",
        severity=Severity.NOTE,
        why="",
    ),
    Rule(
        setting="socket.request.max.bytes",
        serves=lambda value, needs: int(value) >= needs.largest_bytes + METADATA_ROOM_BYTES,
        expected=lambda needs: f"{needs.largest_bytes + METADATA_ROOM_BYTES} or more (our largest batch)",
        value=lambda _: "104857600",
        severity=Severity.PROBLEM,
        why="a record of the size that the topics allow is refused",
    ),
    Rule(
        setting="min.insync.replicas",
        serves=lambda value, needs: needs.brokers < SAFE_BROKERS or int(value) > 1,
        expected=lambda needs: "2 or more" if needs.brokers >= SAFE_BROKERS else "any on fewer than 3 brokers",
        value=lambda _: "2",
        severity=Severity.NOTE,
        dynamic=True,
        why="our topics set their own; what others write to the main topic counts with one copy",
    ),
    Rule(
        setting="transaction.state.log.min.isr",
        serves=lambda value, needs: int(value) <= max(1, needs.brokers),
        expected=lambda needs: f"{max(1, needs.brokers)} or less (brokers)",
        value=lambda needs: str(min(2, max(1, needs.brokers))),
        severity=Severity.PROBLEM,
        why="no transaction can be committed",
    ),
    Rule(
        setting="log.cleaner.enable",
        serves=lambda value, _: value.lower() == "true",
        expected=lambda _: "true",
        value=lambda _: "true",
        severity=Severity.WARNING,
        why="changelogs are never compacted: disks fill, and recovery takes longer and longer",
    ),
)
"""Settings that are judged one by one. ``transaction.partition.verification.enable`` goes with the version."""

INTERNAL: Final = {
    "__transaction_state": "transaction.state.log.replication.factor",
    "__consumer_offsets": "offsets.topic.replication.factor",
}
"""Kafka's own topics that every hand-off goes through → the setting that says how many copies they are made with."""


def judge_brokers(facts: ClusterFacts, needs: Needs, internal: Mapping[str, int]) -> Iterator[Finding]:
    """Judge number and settings of the brokers.

    Args:
        facts: what was told.
        needs: what it is measured against.
        internal: Kafka's own topics that exist and that we may see → copies.
    """
    yield _number(len(facts.brokers))
    if facts.settings is None:
        yield note(
            "broker settings",
            "not told",
            why="this login may not read them (DescribeConfigs on the cluster)",
            remedy="Let an operator run the doctor once, with --client-config",
        )
        return
    for rule in RULES:
        told = {broker: s[rule.setting] for broker, s in facts.settings.items() if rule.setting in s}
        if told:
            yield rule.judge(told, needs)
    first = facts.settings[min(facts.settings)]
    for topic, setting in INTERNAL.items():
        if setting in first:
            yield _internal(topic, setting, int(first[setting]), internal.get(topic), needs.brokers)


def _number(brokers: int) -> Finding:
    expected = f"{SAFE_BROKERS} or more in production"
    if brokers >= SAFE_BROKERS:
        return ok("brokers", str(brokers), expected)
    return note("brokers", str(brokers), expected=expected, why="a broker that is lost takes records with it")


def _internal(topic: str, setting: str, wanted: int, copies: int | None, brokers: int) -> Finding:
    name = f"setting {setting}"
    expected = f"{SAFE_BROKERS}" if brokers >= SAFE_BROKERS else f"{max(1, brokers)} or less (brokers)"
    if copies is None and wanted > brokers:
        return Finding(
            name=name,
            severity=Severity.PROBLEM,
            seen=str(wanted),
            expected=expected,
            why=f"{topic} can never be made, and no lane opens",
            remedy=f"Set {setting}={max(1, brokers)} in each broker's server.properties, or add brokers",
        )
    have = wanted if copies is None else copies
    if brokers >= SAFE_BROKERS > have:
        return Finding(
            name=name,
            severity=Severity.WARNING,
            seen=f"copies of {topic}: {have}",
            expected=expected,
            why="when these brokers are away nothing is handed off, and when they are lost so are offsets",
            remedy="Add copies with kafka-reassign-partitions.sh",
        )
    return ok(name, str(wanted) if copies is None else f"copies of {topic}: {copies}", expected)
