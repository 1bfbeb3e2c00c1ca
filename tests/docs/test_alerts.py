"""docs/alerts.yml and what docs/operating.md says of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from retryapp.cli.main import run
from retryapp.core.alerts import alerts, rules_text

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "docs" / "alerts.yml"
SECTION = (ROOT / "docs" / "operating.md").read_text().split("### Alerts")[1].split("### Logs")[0]


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return what `retryapp alerts` prints."""
    assert run(["alerts", *options]) == 0
    return capsys.readouterr().out


def test_the_file_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever takes it from the repository has the same rules. `python tools/docs_tables.py` writes it."""
    assert RULES.read_text() == rules_text() == printed(capsys)


def test_limits_of_the_command_reach_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON."""
    options = ("--late", "5m", "--dead-share", "0.5%", "--retry-age", "7d", "--rebalance", "2m", "--growth", "3")
    rules = {rule["alert"]: rule["expr"] for rule in yaml.safe_load(printed(capsys, *options))["groups"][0]["rules"]}
    assert rules["RetryAppRecordsOverdue"].endswith("> 300")
    assert "> 0.005\n" in rules["RetryAppDeadLetterRate"]
    assert "604800" in rules["RetryAppRetriesLastLong"]
    assert rules["RetryAppRebalanceLong"].endswith("> 120")
    told: dict[str, Any] = json.loads(printed(capsys, *options, "--json"))
    assert {each["name"]: each["expr"] for each in told["alerts"]} == rules
    assert told["limits"]["late_s"] == 300


@pytest.mark.parametrize(
    "words", [("--retry-age", "2d"), ("--dead-share", "0"), ("--dead-share", "much"), ("--late", "x")]
)
def test_limits_that_make_no_sense_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """With the choice where there is one."""
    assert run(["alerts", *words]) == 2
    told = capsys.readouterr().err
    assert words[0] in told
    assert ("1d, 3d, 7d" in told) == (words[0] == "--retry-age")


def test_the_table_has_every_rule_of_the_file_with_its_severity_and_its_words() -> None:
    """In the file's order."""
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in SECTION.splitlines() if line.startswith("| `")]
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert [
        (name.strip("`"), severity, meaning, action.replace("`", "'")) for name, severity, meaning, action in rows
    ] == [
        (
            rule["alert"],
            rule["labels"]["severity"],
            rule["annotations"]["description"],
            rule["annotations"]["action"].replace("`", "'"),
        )
        for rule in rules
    ]
    assert len(rows) == len(alerts())


def test_a_stale_file_is_seen(docs_tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--check` looks at it too."""
    monkeypatch.setattr(docs_tables, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("nothing to renew")
    (tmp_path / "docs").mkdir()
    assert docs_tables.main(["--check"]) == 1
    assert docs_tables.main([]) == 0
    assert docs_tables.main(["--check"]) == 0
    assert (tmp_path / "docs" / "alerts.yml").read_text() == rules_text()


def test_prometheus_takes_the_configuration(prometheus: Mapping[str, Path], tmp_path: Path) -> None:
    """That of the document, with the file beside it."""
    (config,) = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(config)
    (tmp_path / "alerts.yml").write_text(RULES.read_text())
    done = subprocess.run(
        [prometheus["promtool"], "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(alerts())} rules found" in done.stdout
