"""The alert rules run by Prometheus' own evaluator: series in, alerts out.

Each case says what a few series are, minute by minute, when its alert fires, and when it does not. Values are written
as promtool reads them: `0+60x10` begins at 0 and grows by 60 ten times, `_` is a scrape without the series.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from retryapp.core.alerts import alerts, rules_text

ORDERS = {"job": "billing", "handler": "orders"}
RETRY = "billing.orders.retry"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One alert over some series."""

    alert: str
    series: dict[str, str]
    """Name and labels (but `job`) to values, one a minute."""
    fires: dict[int, str] = field(default_factory=dict)
    """Minute to the summary that people read."""
    labels: dict[str, str] = field(default_factory=lambda: ORDERS)
    quiet: tuple[int, ...] = ()
    """Minutes at which it does not fire."""


def bare(name: str, worker: str = "a", **labels: str) -> str:
    """Name one series of a worker."""
    pairs = {"job": "billing", "instance": worker, **labels}
    shown = ", ".join(f'{key}="{value}"' for key, value in pairs.items())
    return f"retryapp_{name}{{{shown}}}"


def of(name: str, worker: str = "a", **labels: str) -> str:
    """Name one series of a handler on a worker."""
    return bare(name, worker, **{"handler": "orders", **labels})


def kind(worker: str = "a") -> str:
    """Name the series of one kind of dead letters."""
    return of("dead_kinds_total", worker, reason="exhausted", error="httpx.ReadTimeout")


CASES = (
    Case(
        alert="RetryAppRecordsOverdue",
        series={of("oldest_due_timestamp_seconds"): "600x60", of("oldest_due_timestamp_seconds", "b"): "9000x60"},
        fires={14: "billing, orders: a waiting record is overdue by 4m 0s"},
        quiet=(10, 11, 13),
    ),
    Case(
        alert="RetryAppRecordsOverdue",  # it is always a minute late, and moves on
        series={of("oldest_due_timestamp_seconds"): "-60+60x60"},
        quiet=(5, 30, 60),
    ),
    Case(
        alert="RetryAppDeliveriesLate",
        series={
            of("lateness_seconds_bucket", le="10.0"): "0x40",
            of("lateness_seconds_bucket", le="30.0"): "0x40",
            of("lateness_seconds_bucket", le="60.0"): "0+10x40",
            of("lateness_seconds_bucket", le="+Inf"): "0+10x40",
        },
        fires={30: "billing, orders: retries reach the handler up to 59.7s late"},
        quiet=(5,),
    ),
    Case(
        alert="RetryAppDeliveriesLate",
        series={
            of("lateness_seconds_bucket", le="10.0"): "0+100x40",
            of("lateness_seconds_bucket", le="60.0"): "0+100x40",
            of("lateness_seconds_bucket", le="+Inf"): "0+100x40",
        },
        quiet=(20, 40),
    ),
    Case(
        alert="RetryAppPendingGrowing",
        series={
            of("pending_records", tier="5m"): "1000x60 4000x60",
            of("pending_records", "b", tier="1h"): "1000x60 1000x60",
            of("partitions"): "6x120",
        },
        fires={90: "billing, orders: 5000 records wait, many more than an hour ago"},
        quiet=(60, 70),
    ),
    Case(
        alert="RetryAppPendingGrowing",  # nothing waited an hour ago, so the series is not there
        series={of("pending_records", tier="5m"): "_x60 1500x60", of("partitions"): "6x120"},
        fires={90: "billing, orders: 1500 records wait, many more than an hour ago"},
    ),
    Case(
        alert="RetryAppPendingGrowing",  # nobody looked an hour ago
        series={of("pending_records", tier="5m"): "_x60 1500x60", of("partitions"): "_x60 6x60"},
        quiet=(80, 90, 115),
    ),
    Case(
        alert="RetryAppPendingGrowing",  # many, as always; few, growing
        series={
            of("pending_records", tier="5m"): "90000x120",
            of("pending_records", tier="5m").replace("orders", "returns"): "1+5x120",
            of("partitions"): "6x120",
            of("partitions").replace("orders", "returns"): "6x120",
        },
        quiet=(80, 120),
    ),
    Case(
        alert="RetryAppRetriesLastLong",
        series={
            of("retry_age_seconds_count"): "40x30 41x100",
            of("retry_age_seconds_bucket", le="86400.0"): "40x130",
            of("retry_age_seconds_bucket", le="259200.0"): "40x30 41x100",
        },
        fires={35: "billing, orders: a record was tried again more than 1d after its first failure"},
        quiet=(30, 120),
    ),
    Case(
        alert="RetryAppRetriesLastLong",  # as a newer server writes the bound
        series={of("retry_age_seconds_count"): "0x30 2x30", of("retry_age_seconds_bucket", le="86400"): "0x60"},
        fires={40: "billing, orders: a record was tried again more than 1d after its first failure"},
    ),
    Case(
        alert="RetryAppRetriesLastLong",  # one old record long ago; all since then are young
        series={
            of("retry_age_seconds_count"): "100+10x130",
            of("retry_age_seconds_bucket", le="86400.0"): "1+10x130",
        },
        quiet=(20, 70, 130),
    ),
    Case(
        alert="RetryAppSchedulerStopped",
        series={
            of("scheduler_last_run_timestamp_seconds"): "0+60x10 600x50",
            of("scheduler_last_run_timestamp_seconds", "b"): "0+60x60",
        },
        fires={15: "billing, orders: nobody has looked for what is due for 5m 0s"},
        quiet=(10, 13),
    ),
    Case(
        alert="RetryAppFirstDeadLetterOfKind",
        series={kind(): "_x30 1x60"},
        fires={31: "billing, orders: first dead letter with exhausted, httpx.ReadTimeout"},
        labels={**ORDERS, "reason": "exhausted", "error": "httpx.ReadTimeout"},
        quiet=(29, 46, 80),
    ),
    Case(
        alert="RetryAppFirstDeadLetterOfKind",  # another worker, gone since, had it hours ago
        series={kind(): "3x20 _x400", kind("b"): "_x300 1x120"},
        quiet=(301, 310, 400),
    ),
    Case(
        alert="RetryAppFirstDeadLetterOfKind",  # the last one was two days ago
        series={kind(): "3x20 _x3000", kind("b"): "_x2900 1x120"},
        fires={2905: "billing, orders: first dead letter with exhausted, httpx.ReadTimeout"},
        labels={**ORDERS, "reason": "exhausted", "error": "httpx.ReadTimeout"},
    ),
    Case(
        alert="RetryAppDeadLetterRate",
        series={
            of("dead_total", reason="exhausted"): "0+1x60",
            of("dead_total", "b", reason="rejected"): "0+1x60",
            of("succeeded_total"): "0+48x60",
            of("succeeded_total", "b"): "0+50x60",
        },
        fires={30: "billing, orders: 2% of records end as dead letters"},
        quiet=(2,),
    ),
    Case(
        alert="RetryAppDeadLetterRate",
        series={of("dead_total", reason="exhausted"): "0+1x60", of("succeeded_total"): "0+200x60"},
        quiet=(15, 30, 60),
    ),
    Case(
        alert="RetryAppDeadLetterRate",  # all of them, and they are three
        series={of("dead_total", reason="exhausted"): "0x20 3x40", of("succeeded_total"): "0x60"},
        quiet=(21, 25, 30),
    ),
    Case(
        alert="RetryAppRebalancesFrequent",
        series={bare("rebalance_seconds_count"): "0+1x120", bare("rebalance_seconds_count", "b"): "2x120"},
        labels={"job": "billing"},
        fires={90: "billing: 60 rebalances within an hour"},
        quiet=(5,),
    ),
    Case(
        alert="RetryAppRebalancesFrequent",  # three workers were replaced, one by one
        series={bare("rebalance_seconds_count"): "1x10 3x10 5x10 7x90"},
        quiet=(31, 60, 90),
    ),
    Case(
        alert="RetryAppRebalanceLong",
        series={bare("rebalancing_seconds"): "0x10 30 90 150 0x20", bare("rebalancing_seconds", "b"): "0x40"},
        labels={"job": "billing"},
        fires={13: "billing: a rebalance goes on for 2m 30s"},
        quiet=(10, 11, 14),
    ),
    Case(
        alert="RetryAppNoWorker",
        series={of("partitions"): "6x10 stale _x300"},
        fires={
            20: "billing, orders: no worker tells of it any more",
            200: "billing, orders: no worker tells of it any more",
        },
        quiet=(9, 13),
    ),
    Case(
        alert="RetryAppNoWorker",  # one of two goes away
        series={of("partitions"): "6x10 stale _x300", of("partitions", "b"): "6x300"},
        quiet=(20, 200),
    ),
    Case(
        alert="RetryAppLanesClosed",
        series={
            of("lanes_open"): "3x60",
            of("lanes_open", "b"): "3x10 2x50",
            of("partitions"): "6x60",
            of("partitions", "b"): "6x60",
        },
        fires={20: "billing, orders: only 5 lanes are open"},
        quiet=(10, 14),
    ),
    Case(
        alert="RetryAppLaneFailures",
        series={of("lane_failures_total"): "0+1x60"},
        fires={40: "billing, orders: lanes have failed 15 times within 15 minutes"},
    ),
    Case(
        alert="RetryAppLaneFailures",  # a broker was restarted: each lane failed once
        series={of("lane_failures_total"): "0x10 3x50", of("lane_failures_total", "b"): "0x10 2x50"},
        quiet=(12, 17, 40),
    ),
    Case(
        alert="RetryAppChangelogBehind",
        series={of("table_behind_offsets", table="pending"): "0x5 900x40"},
        fires={17: "billing, orders: 900 offsets of changelogs are yet to be read"},
        quiet=(5, 12),
    ),
    Case(
        alert="RetryAppChangelogBehind",  # dead letters only answer questions; a short reading is a start
        series={
            of("table_behind_offsets", table="dead"): "900x60",
            of("table_behind_offsets", table="pending"): "900x8 0x52",
        },
        quiet=(7, 12, 60),
    ),
    Case(
        alert="RetryAppRetentionShort",
        series={
            of("topic_retention_seconds", topic=RETRY): "608400x10 86400x20",
            of("topic_retention_seconds", topic="billing.orders.redelivery"): " ".join(["Inf"] * 31),
            of("retention_needed_seconds"): "608400x30",
            of("retention_needed_seconds", "b"): "608400x30",
        },
        labels={**ORDERS, "topic": RETRY},
        fires={12: f"billing, orders: {RETRY} keeps records for 1d 0h 0m 0s only"},
        quiet=(9,),
    ),
    Case(
        alert="RetryAppClockDoubted",
        series={bare("clock_trusted"): "1x10 0x40", of("lanes_open"): "3x50", bare("clock_trusted", "b"): "1x50"},
        labels={"job": "billing", "instance": "a"},
        fires={17: "billing, a: fires nothing, its clock and the broker's do not agree"},
        quiet=(10, 14),
    ),
    Case(
        alert="RetryAppClockDoubted",  # a worker too many: it has no lane, so nobody has told it the time
        series={bare("clock_trusted"): "0x60", of("lanes_open"): "0x60"},
        quiet=(10, 60),
    ),
    Case(
        alert="RetryAppHandlerHangs",
        series={of("orphaned_runs"): "0x5 2x40", of("orphaned_runs", "b"): "0x45"},
        fires={22: "billing, orders: 2 runs of the handler hang"},
        quiet=(5, 15),
    ),
    Case(
        alert="RetryAppArchiveStandsStill",  # it goes on until minute 10, and is not there at all from 30 on
        series={bare("pipeline_last_round_timestamp_seconds", group="billing", task="archive"): "0+60x10 600x20 _x80"},
        labels={"job": "billing", "group": "billing"},
        fires={76: "billing, billing: archived last 1h 6m 0s ago"},
        quiet=(10, 40, 69, 74),
    ),
    Case(
        alert="RetryAppArchiveStandsStill",  # a round an hour
        series={bare("pipeline_last_round_timestamp_seconds", group="billing", task="archive"): "0x59 3600x59 7200x59"},
        labels={"job": "billing", "group": "billing"},
        quiet=(60, 119, 170),
    ),
)


@pytest.fixture(scope="module")
def promtool(prometheus: Mapping[str, Path]) -> Path:
    """Prometheus' own tool, which evaluates rules as the server does."""
    return prometheus["promtool"]


def expected(case: Case, minute: int) -> list[dict[str, Any]]:
    """Return what promtool is to find at a minute."""
    if minute not in case.fires:
        return []
    severity = next(alert.urgency.value for alert in alerts() if alert.name == case.alert)
    return [{"exp_labels": {**case.labels, "severity": severity}, "exp_annotations": {"summary": case.fires[minute]}}]


def run(promtool: Path, folder: Path, cases: tuple[Case, ...]) -> subprocess.CompletedProcess[str]:
    """Have promtool evaluate the rules over the series of cases."""
    rules = yaml.safe_load(rules_text())
    for rule in rules["groups"][0]["rules"]:
        rule["annotations"] = {"summary": rule["annotations"]["summary"]}  # the others are the same in every alert
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": expected(case, minute)}
                for minute in sorted({*case.fires, *case.quiet})
            ],
        }
        for case in cases
    ]
    spec = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(spec))
    return subprocess.run([promtool, "test", "rules", "tests.yml"], cwd=folder, capture_output=True, text=True)


def test_prometheus_takes_the_rules(promtool: Path, tmp_path: Path) -> None:
    """The file as users get it: syntax, templates, no rule twice."""
    (tmp_path / "rules.yml").write_text(rules_text())
    done = subprocess.run(
        [promtool, "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(alerts())} rules found" in done.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_fires_when_it_should_and_not_else(case: Case, promtool: Path, tmp_path: Path) -> None:
    """With the summary that people read."""
    done = run(promtool, tmp_path, (case,))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_case_that_fires_and_a_moment_at_which_it_does_not() -> None:
    """None is forgotten."""
    fires, quiet = defaultdict(int), defaultdict(int)
    for case in CASES:
        fires[case.alert] += len(case.fires)
        quiet[case.alert] += len(case.quiet)
    assert {name for name, count in fires.items() if count} == {alert.name for alert in alerts()}
    assert {name for name, count in quiet.items() if count} == {alert.name for alert in alerts()}


def test_a_wrong_expectation_is_seen(promtool: Path, tmp_path: Path) -> None:
    """The tests above can fail, both ways."""
    case = CASES[0]
    late = Case(alert=case.alert, series=case.series, fires={11: case.fires[14]})
    never = Case(alert=case.alert, series=case.series, quiet=(14,))
    assert all(run(promtool, tmp_path, (wrong,)).returncode for wrong in (late, never))
