"""Brokers' settings: each rule can fail, and says what to do."""

from __future__ import annotations

import pytest

from retryapp.doctor.brokers import RULES, TRANSACTION_TIMEOUT_MS, Needs, judge_brokers
from retryapp.doctor.cluster import ClusterFacts
from retryapp.doctor.findings import Finding, Severity
from retryapp.runtime import publisher

DAY_MS = 86_400_000
GOOD = {
    "offsets.retention.minutes": "10080",
    "transactional.id.expiration.ms": str(7 * DAY_MS),
    "transaction.max.timeout.ms": "900000",
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "offset.metadata.max.bytes": "4096",
    "message.max.bytes": "1048588",
    "socket.request.max.bytes": "104857600",
    "min.insync.replicas": "2",
    "transaction.state.log.min.isr": "2",
    "log.cleaner.enable": "true",
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
}


def judged(
    changes: dict[str, str] | None = None, *, brokers: int = 3, internal: dict[str, int] | None = None
) -> dict[str, Finding]:
    """Judge brokers of which the second has other settings."""
    settings = {number: dict(GOOD) for number in range(brokers)}
    settings[min(1, brokers - 1)].update(changes or {})
    if changes and any("replication.factor" in name for name in changes):
        settings[0].update(changes)
    facts = ClusterFacts(brokers=tuple(range(brokers)), settings=settings, operations=None)
    needs = Needs(brokers=brokers, downtime_ms=7 * DAY_MS, session_timeout_ms=15_000, largest_bytes=1_114_124)
    return {finding.name: finding for finding in judge_brokers(facts, needs, internal or {})}


def test_good_brokers_are_fine() -> None:
    """Every rule is judged, and none complains."""
    found = judged()
    assert {f"setting {rule.setting}" for rule in RULES} <= set(found)
    assert {finding.severity for finding in found.values()} == {Severity.OK}


@pytest.mark.parametrize(
    ("setting", "value", "severity"),
    [
        ("offsets.retention.minutes", "10079", Severity.WARNING),
        ("transactional.id.expiration.ms", str(2 * DAY_MS), Severity.WARNING),
        ("transaction.max.timeout.ms", "14999", Severity.PROBLEM),
        ("auto.create.topics.enable", "true", Severity.WARNING),
        ("group.min.session.timeout.ms", "15001", Severity.PROBLEM),
        ("group.max.session.timeout.ms", "14999", Severity.PROBLEM),
        ("offset.metadata.max.bytes", "255", Severity.PROBLEM),
        ("socket.request.max.bytes", "1048576", Severity.PROBLEM),
        ("min.insync.replicas", "1", Severity.NOTE),
        ("transaction.state.log.min.isr", "4", Severity.PROBLEM),
        ("log.cleaner.enable", "false", Severity.WARNING),
        ("transaction.state.log.replication.factor", "4", Severity.PROBLEM),
        ("offsets.topic.replication.factor", "1", Severity.WARNING),
    ],
)
def test_a_setting_that_does_not_serve_is_told(setting: str, value: str, severity: Severity) -> None:
    """One broker of three is enough; the finding has value, wanted value, reason and remedy."""
    found = judged({setting: value})
    finding = found.pop(f"setting {setting}")
    assert finding.severity is severity
    assert value in finding.seen
    assert finding.expected
    assert finding.why
    assert finding.remedy
    assert {other.severity for other in found.values()} == {Severity.OK}


def test_the_broker_that_differs_is_named() -> None:
    """Where all are alike nobody is."""
    assert judged({"auto.create.topics.enable": "true"})["setting auto.create.topics.enable"].seen == "true (broker 1)"
    alone = judged({"log.cleaner.enable": "false"}, brokers=1)["setting log.cleaner.enable"]
    assert alone.seen == "false"


def test_one_broker_is_a_note_and_asks_for_one_copy() -> None:
    """A development broker is no finding; one that asks for three copies of Kafka's own topics can never work."""
    one = {
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "offsets.topic.replication.factor": "1",
        "min.insync.replicas": "1",
    }
    found = judged(one, brokers=1)
    assert found["brokers"].severity is Severity.NOTE
    assert not any(finding.counts for finding in found.values())
    stuck = judged({**one, "transaction.state.log.replication.factor": "3"}, brokers=1)
    assert stuck["setting transaction.state.log.replication.factor"].severity is Severity.PROBLEM
    made = judged(
        {**one, "transaction.state.log.replication.factor": "3"}, brokers=1, internal={"__transaction_state": 1}
    )
    assert made["setting transaction.state.log.replication.factor"].severity is Severity.OK


def test_copies_that_are_there_count_more_than_the_setting() -> None:
    """The setting only matters when the topic is made."""
    found = judged(internal={"__consumer_offsets": 1})["setting offsets.topic.replication.factor"]
    assert (found.severity, found.seen) == (Severity.WARNING, "copies of __consumer_offsets: 1")


def test_settings_that_may_not_be_read_are_a_note() -> None:
    """Many clusters do not show them to applications."""
    facts = ClusterFacts(brokers=(1, 2, 3), settings=None, operations=None)
    needs = Needs(brokers=3, downtime_ms=1, session_timeout_ms=1, largest_bytes=0)
    number, settings = judge_brokers(facts, needs, {})
    assert (number.severity, settings.severity) == (Severity.OK, Severity.NOTE)


def test_the_transaction_time_out_is_the_publishers() -> None:
    """The doctor stands below the runtime, so it says the number again."""
    assert TRANSACTION_TIMEOUT_MS == publisher.TRANSACTION_TIMEOUT_MS
