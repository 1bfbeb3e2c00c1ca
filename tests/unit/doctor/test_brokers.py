"""Brokers' settings: each rule can fail, and says what to do."""

from __future__ import annotations

import pytest

from retryapp.doctor.brokers import VERIFICATION, judge_brokers
from retryapp.doctor.findings import Finding, Severity
from retryapp.kafka import ClusterState, TopicState

DAY_MS = 86_400_000
NEEDS = {"downtime_ms": 7 * DAY_MS, "session_timeout_ms": 15_000}
GOOD = {
    "offsets.retention.minutes": "10080",
    "transactional.id.expiration.ms": str(7 * DAY_MS),
    "transaction.max.timeout.ms": "900000",
    VERIFICATION: "true",
    "offset.metadata.max.bytes": "4096",
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "transaction.state.log.min.isr": "2",
    "log.cleaner.enable": "true",
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
}


def judged(
    changes: dict[str, str] | None = None, *, brokers: int = 3, internal: dict[str, int] | None = None
) -> dict[str, Finding]:
    settings = {str(number): dict(GOOD) for number in range(brokers)}
    settings[str(min(1, brokers - 1))].update(changes or {})
    if changes and any("replication.factor" in name for name in changes):
        settings["0"].update(changes)
    facts = ClusterState(brokers=tuple(range(brokers)), settings=settings, operations=None)
    topics = {name: TopicState(name, "x" * 8, 8, count, {}) for name, count in (internal or {}).items()}
    return {finding.name: finding for finding in judge_brokers(facts, topics, **NEEDS)}


def test_good_brokers_are_fine() -> None:
    """Every setting is judged."""
    found = judged()
    assert {f"setting {name}" for name in GOOD} | {"brokers"} == set(found)
    assert {finding.severity for finding in found.values()} == {Severity.OK}


@pytest.mark.parametrize(
    ("setting", "value", "severity"),
    [
        ("offsets.retention.minutes", "10079", Severity.WARNING),
        ("transactional.id.expiration.ms", str(10 * 3_600_000), Severity.WARNING),
        ("transaction.max.timeout.ms", "14999", Severity.PROBLEM),
        (VERIFICATION, "false", Severity.WARNING),
        ("offset.metadata.max.bytes", "2047", Severity.PROBLEM),
        ("auto.create.topics.enable", "true", Severity.WARNING),
        ("group.min.session.timeout.ms", "15001", Severity.PROBLEM),
        ("group.max.session.timeout.ms", "14999", Severity.PROBLEM),
        ("transaction.state.log.min.isr", "4", Severity.PROBLEM),
        ("log.cleaner.enable", "false", Severity.WARNING),
        ("transaction.state.log.replication.factor", "4", Severity.PROBLEM),
        ("offsets.topic.replication.factor", "1", Severity.WARNING),
    ],
)
def test_a_wrong_setting_is_found(setting: str, value: str, severity: Severity) -> None:
    """One broker of three is enough; the finding has value, expected value, reason and remedy."""
    found = judged({setting: value})
    finding = found.pop(f"setting {setting}")
    assert finding.severity is severity
    assert value in finding.seen
    assert "replication.factor" in setting or finding.seen.endswith(" (broker 1)")
    assert finding.expected and finding.why and finding.remedy  # noqa: PT018 - one sentence
    assert {other.severity for other in found.values()} == {Severity.OK}


def test_one_broker_is_a_note_and_needs_one_replica() -> None:
    """A development broker has no finding that counts; one that requires three replicas can never work."""
    factor = "transaction.state.log.replication.factor"
    one = {factor: "1", "transaction.state.log.min.isr": "1", "offsets.topic.replication.factor": "1"}
    found = judged(one, brokers=1)
    assert found["brokers"].severity is Severity.NOTE
    assert not any(finding.counts for finding in found.values())
    assert judged({**one, factor: "3"}, brokers=1)[f"setting {factor}"].severity is Severity.PROBLEM
    existing = judged({**one, factor: "3"}, brokers=1, internal={"__transaction_state": 1})
    assert existing[f"setting {factor}"].severity is Severity.OK, "the setting only matters until the topic exists"
    three = judged(internal={"__consumer_offsets": 1})["setting offsets.topic.replication.factor"]
    assert (three.severity, three.seen) == (Severity.WARNING, "replicas of __consumer_offsets: 1")


def test_settings_that_are_not_shown() -> None:
    """Many clusters show applications none; brokers before 3.6 do not know one of them."""
    number, settings = judge_brokers(ClusterState(brokers=(1, 2, 3), settings={}, operations=None), {}, **NEEDS)
    assert (number.severity, settings.severity) == (Severity.OK, Severity.NOTE)
    old = {name: value for name, value in GOOD.items() if name != VERIFICATION}
    facts = ClusterState(brokers=(1, 2, 3), settings={"1": old}, operations=None)
    (found,) = [finding for finding in judge_brokers(facts, {}, **NEEDS) if finding.counts]
    assert (found.severity, found.expected) == (Severity.WARNING, "Kafka 3.6 or newer (KIP-890)")
    some = ClusterState(brokers=(1,), settings={"1": {"log.cleaner.enable": "true"}}, operations=None)
    assert not [finding for finding in judge_brokers(some, {}, **NEEDS) if finding.counts]
