"""The alert rules as data: what they ask for is what workers show, whoever evaluates them."""

from __future__ import annotations

import re
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from samples import partition

from retryapp.core.alerts import GROUP_NAME, Limits, alerts, rules_text
from retryapp.pipeline.metrics import PipelineMetrics
from retryapp.ports import Event, Observation
from retryapp.runtime.metrics import MetricsObserver, Retention, Sources

SCRAPED = {"job", "instance"}
"""Labels that Prometheus puts on every series."""


def parts(expr: str) -> list[Any]:
    """Return all nodes of an expression, as a real parser reads it."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expr), found.append)
    return found


def selectors(expr: str) -> list[Any]:
    """Return the series that an expression asks for."""
    return [node for node in parts(expr) if isinstance(node, promql_parser.VectorSelector)]


@pytest.fixture(scope="module")
def shown() -> dict[str, list[dict[str, str]]]:
    """Every series that a worker or the archive shows, by name: its labels."""
    info = partition(0, pending=1, pending_by_tier={"5m": 1}, next_due_ms=1, looked_ms=1)
    told = Retention(longest_wait_s=1, needed_s=1, topics_s={"billing.orders.retry": 1})
    metrics = MetricsObserver(Sources(partitions=lambda: {"orders": [info]}, retentions=lambda: {"orders": told}))
    metrics.begin("orders", ["5m"])
    metrics.observe(Observation(event=Event.DEAD, handler="orders", reason="exhausted", error_type="E"))
    archive = PipelineMetrics()
    times = {"began_ms": 0, "ended_ms": 1, "gaps": 0}
    archive.round_ended("archive", "billing", read={}, ends={}, retention_ms={}, **times)
    found: dict[str, list[dict[str, str]]] = {}
    text = metrics.text().decode() + generate_latest(archive.registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_every_series_that_a_rule_asks_for_is_shown_by_workers(
    alert: Any, shown: dict[str, list[dict[str, str]]]
) -> None:
    """By name, and by the labels that it asks for; a rule over a series that nobody has never fires."""
    asked = selectors(alert.expr)
    assert asked
    for selector in asked:
        assert selector.name in shown
        for matcher in selector.matchers.matchers:
            values = [labels[matcher.name] for labels in shown[selector.name] if matcher.name in labels]
            assert any(re.fullmatch(matcher.value, value) for value in values), (selector.name, matcher.name)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_rules_group_by_labels_that_exist_and_speak_of_those_only(
    alert: Any, shown: dict[str, list[dict[str, str]]]
) -> None:
    """A label that is not there would be an empty word in a message at night."""
    aggregates = [n for n in parts(alert.expr) if isinstance(n, promql_parser.AggregateExpr)]
    assert aggregates
    known = SCRAPED.union(*(labels for selector in selectors(alert.expr) for labels in shown[selector.name]))
    kept = [set(node.modifier.labels) for node in aggregates]
    assert set().union(*kept) <= known
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    assert used
    assert used <= kept[0]


def test_the_walk_finds_all_series_of_a_rule() -> None:
    """The tests above see what they judge."""
    for alert in alerts():
        assert {s.name for s in selectors(alert.expr)} == set(re.findall(r"retryapp_\w+", alert.expr))


def test_limits_are_in_the_rules() -> None:
    """Each one changes something."""
    plain = {alert.name: alert for alert in alerts()}
    for change, name, text in (
        ({"late_s": 7}, "RetryAppRecordsOverdue", "> 7"),
        ({"late_s": 7}, "RetryAppDeliveriesLate", "> 7"),
        ({"late_s": 600}, "RetryAppDeliveriesLate", "> 30"),
        ({"growth": 1.5}, "RetryAppPendingGrowing", "> 1.5 *"),
        ({"pending": 77}, "RetryAppPendingGrowing", "> 77"),
        ({"dead_share": 0.002}, "RetryAppDeadLetterRate", "> 0.002"),
        ({"dead_count": 3}, "RetryAppDeadLetterRate", ">= 3"),
        ({"retry_age_s": 604_800}, "RetryAppRetriesLastLong", '"604800(\\\\.0)?"'),
        ({"rebalances": 4}, "RetryAppRebalancesFrequent", "> 4"),
        ({"rebalance_s": 9}, "RetryAppRebalanceLong", "> 9"),
        ({"archive_age_s": 99}, "RetryAppArchiveStandsStill", "> 99"),
    ):
        changed = {alert.name: alert for alert in alerts(Limits(**change))}  # type: ignore[arg-type]
        assert text in changed[name].expr
        assert changed[name].expr != plain[name].expr or change == {"late_s": 600}


def test_the_limit_of_an_age_is_one_that_workers_count() -> None:
    """Another bound has no bucket, so the rule would never fire."""
    with pytest.raises(ValueError, match="172800"):
        alerts(Limits(retry_age_s=172_800))


def test_the_file_says_what_the_rules_are() -> None:
    """It is YAML as others read it."""
    (group,) = yaml.safe_load(rules_text())["groups"]
    assert group["name"] == GROUP_NAME
    assert [
        (
            rule["alert"],
            rule["expr"],
            rule["for"],
            rule["labels"]["severity"],
            rule["annotations"]["summary"],
            rule["annotations"]["description"],
            rule["annotations"]["action"],
        )
        for rule in group["rules"]
    ] == [(a.name, a.expr, a.hold, a.urgency.value, a.summary, a.meaning, a.action) for a in alerts()]
