"""docs/alerts.yml: rules over series that workers and the archive really have, evaluated by Prometheus' own tool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from retryapp.pipeline.metrics import PipelineMetrics
from retryapp.runtime.observe.metrics import Scrape

HERE = Path(__file__).resolve().parent
FILE = HERE.parent.parent / "docs" / "alerts.yml"
(GROUP,) = yaml.safe_load(FILE.read_text())["groups"]
RULES: list[dict[str, Any]] = GROUP["rules"]
CASES: dict[str, Any] = yaml.safe_load((HERE / "alerts_test.yml").read_text())
SCRAPED = {"job", "instance"}
"""Labels that Prometheus puts on every series."""


def nodes(expr: str, kind: type) -> list[Any]:
    """Return the parts of an expression that are of a kind, as a real parser reads it."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expr), found.append)
    return [node for node in found if isinstance(node, kind)]


@pytest.fixture(scope="module")
def shown(worker_metrics: Scrape) -> dict[str, list[dict[str, str]]]:
    """Every series that a worker or the archive shows, by name: its labels."""
    archive = PipelineMetrics()
    archive.round_ended("billing", ended_ms=1, gaps=0)
    series: dict[str, list[dict[str, str]]] = {}
    text = worker_metrics.text().decode() + generate_latest(archive.registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    return series


def _matches(matcher: Any, value: str) -> bool:
    return (re.fullmatch(matcher.value, value) is None) == str(matcher.op).endswith(("NotEqual", "NotRe"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_metric_and_label_of_a_rule_exists(rule: dict[str, Any], shown: dict[str, list[dict[str, str]]]) -> None:
    """A rule over a series that does not exist never fires; an unknown label is an empty word in its message."""
    selectors = nodes(rule["expr"], promql_parser.VectorSelector)
    assert {selector.name for selector in selectors} == set(re.findall(r"retryapp_\w+", rule["expr"]))
    for selector in selectors:
        assert selector.name in shown
        for matcher in selector.matchers.matchers:
            values = [labels[matcher.name] for labels in shown[selector.name] if matcher.name in labels]
            assert any(_matches(matcher, value) for value in values), (selector.name, matcher.name)
    known = SCRAPED.union(*(labels for selector in selectors for labels in shown[selector.name]))
    kept = [set(node.modifier.labels) for node in nodes(rule["expr"], promql_parser.AggregateExpr)]
    assert set().union(*kept) <= known
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert used
    assert used <= kept[0]


def test_every_rule_has_its_words_and_cases() -> None:
    """Severity, summary, description and action; a moment at which it fires and one at which it does not."""
    assert all(rule["labels"]["severity"] in {"critical", "warning", "info"} for rule in RULES)
    assert all(rule["annotations"].keys() == {"summary", "description", "action"} for rule in RULES)
    checks = [check for case in CASES["tests"] for check in case["alert_rule_test"]]
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    assert {check["alertname"] for check in checks if check.get("exp_alerts")} == set(names)
    assert {check["alertname"] for check in checks if not check.get("exp_alerts")} == set(names)


def test_a_quoted_command_with_a_filter_has_its_reason() -> None:
    """Without `--why` it is refused."""
    texts = " ".join(text for rule in RULES for text in rule["annotations"].values())
    filtered = re.findall(r"'(retryapp dead (?:replay|discard|restore) [^']*--[^']*)'", texts)
    assert filtered
    assert all("--why" in command for command in filtered)


def run_cases(promtool: Path, folder: Path, cases: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Have promtool evaluate the rules over the series of the cases; of the annotations it compares the summary."""
    files: list[str] = []
    for number, case in enumerate(cases["tests"]):
        # only the rules that it names: with all of them it takes eight times as long
        names = {check["alertname"] for check in case["alert_rule_test"]}
        rules = [
            {**rule, "annotations": {"summary": rule["annotations"]["summary"]}}
            for rule in RULES
            if rule["alert"] in names
        ]
        (folder / f"rules-{number}.yml").write_text(yaml.safe_dump({"groups": [{**GROUP, "rules": rules}]}))
        files.append(f"case-{number}.yml")
        own = {**cases, "rule_files": [f"rules-{number}.yml"], "tests": [case]}
        (folder / files[-1]).write_text(yaml.safe_dump(own))
    return subprocess.run([promtool, "test", "rules", *files], cwd=folder, capture_output=True, text=True)


def test_rules_fire_when_they_should_and_not_otherwise(prometheus: Mapping[str, Path], tmp_path: Path) -> None:
    """The file with its templates is valid; all cases hold; and a wrong expectation of either kind is seen."""
    checked = subprocess.run([prometheus["promtool"], "check", "rules", FILE], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = run_cases(prometheus["promtool"], tmp_path, CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    first = CASES["tests"][0]
    *_, fires = first["alert_rule_test"]
    never = {"eval_time": fires["eval_time"], "alertname": fires["alertname"]}
    for wrong in ({**fires, "eval_time": "11m"}, never):
        cases = {**CASES, "tests": [{**first, "alert_rule_test": [wrong]}]}
        assert run_cases(prometheus["promtool"], tmp_path, cases).returncode
