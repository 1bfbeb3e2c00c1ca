"""A real Prometheus scrapes real workers and evaluates the rules: what it says is what happens to the workers."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Answer, HandlerSpec, Stage, Visit, wait_for
from harness.service import fail_first

from retryapp.broker.probe import free_ports
from retryapp.core.alerts import alerts, rules_text
from retryapp.kafka import read_topic

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

JOB = "billing"
LATER = {"retryapp_dead_kinds_total", "retryapp_oldest_due_timestamp_seconds", "retryapp_pending_records"}
"""Series that are there only once something has died, or while something waits."""


@dataclass(frozen=True)
class Server:
    """A Prometheus that scrapes the workers of one stage every second."""

    process: subprocess.Popen[bytes]
    url: str

    def ask(self, path: str, **query: str) -> Any:
        """Ask its API; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=5) as told:  # noqa: S310 - our own http address
                return json.load(told)["data"]
        except OSError:
            return None

    def value(self, expr: str) -> float | None:
        """Return the value of an expression that has one series."""
        found = (self.ask("query", query=expr) or {"result": []})["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the labels of what fires now, by name."""
        found = self.ask("alerts") or {"alerts": []}
        return {each["labels"]["alertname"]: each["labels"] for each in found["alerts"] if each["state"] == "firing"}


def answer(visit: Visit) -> Answer:
    """Fail as the record says; some for good."""
    return Answer(400) if visit.facts.get("wrong") else fail_first(visit)


@pytest.fixture(scope="module")
def stage(bootstrap: str, make_stage: Callable[[str], Stage]) -> Stage:
    """Two workers with one handler, which publishes."""
    made = make_stage(bootstrap)
    made.service.rule = answer
    out = made.main_topic("receipts")
    made.program(HandlerSpec(topic=made.main_topic("orders"), policy="200ms 400ms", publishes=out))
    made.worker()
    made.worker()
    return made


@pytest.fixture(scope="module")
def server(stage: Stage, prometheus: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Prometheus with the rules of the file; they fire as soon as they are true."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "rules.yml").write_text(re.sub(r"for: \w+", "for: 0s", rules_text()))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {
                "job_name": JOB,
                "metrics_path": "/retries/metrics",
                "static_configs": [{"targets": [worker.url.removeprefix("http://") for worker in stage.workers]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                prometheus["prometheus"],
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    made = Server(process, f"http://{address}")
    try:
        wait_for(lambda: made.value(f'sum(up{{job="{JOB}"}})') == 2, "both workers are scraped", every_s=0.2)
        yield made
    finally:
        process.kill()
        process.wait(10)
        print((folder / "prometheus.log").read_text()[-3000:])  # noqa: T201 - for the failure report


def main(stage: Stage) -> str:
    """Return the main topic."""
    return next(iter(stage.handlers))


def test_nothing_fires_while_all_is_well(stage: Stage, server: Server) -> None:
    """Every rule is evaluated without an error, over series that real workers show."""
    topic = main(stage)
    stage.produce(topic, [{"id": f"a{n}"} for n in range(20)])
    wait_for(lambda: len(stage.service.done(topic)) == 20, "all are done")
    wait_for(lambda: server.value("sum(retryapp_succeeded_total)") == 20, "Prometheus has seen them")
    (group,) = wait_for(
        lambda: [g for g in server.ask("rules")["groups"] if all(r["health"] == "ok" for r in g["rules"])],
        "all rules were evaluated",
    )
    assert [rule["name"] for rule in group["rules"]] == [alert.name for alert in alerts()]
    assert [rule.get("lastError", "") for rule in group["rules"] if rule.get("lastError")] == []
    wait_for(lambda: server.ask("alerts") == {"alerts": []}, "nothing fires")
    asked = {
        name
        for alert in alerts()
        for name in re.findall(r"retryapp_\w+", alert.expr)
        if not name.startswith("retryapp_pipeline_")  # of the archive, which has a test of its own
    }
    assert asked > LATER
    assert {name for name in asked if server.value(f"count({name})") is None} <= LATER


def test_the_first_dead_letter_of_a_kind_is_told_with_its_kind(stage: Stage, server: Server) -> None:
    """Reason and type of the error; nothing else fires for a single record."""
    topic = main(stage)
    stage.produce(topic, [{"id": "w1", "wrong": 1}])
    labels = wait_for(lambda: server.firing().get("RetryAppFirstDeadLetterOfKind"), "it fires", every_s=0.2)
    assert labels == {
        "alertname": "RetryAppFirstDeadLetterOfKind",
        "job": JOB,
        "handler": topic,
        "reason": "non-retryable",
        "error": "app.WrongForGoodError",
        "severity": "warning",
    }
    (told,) = server.ask("alerts")["alerts"]
    assert told["annotations"]["summary"] == (
        f"{JOB}, {topic}: first dead letter with non-retryable, app.WrongForGoodError"
    )


def test_what_prometheus_adds_up_is_what_happened(stage: Stage, server: Server) -> None:
    """Counters of two workers against the service's own log and the topics."""
    topic = main(stage)
    stage.produce(topic, [{"id": f"m{n}", "fail": n % 3} for n in range(30)])
    stage.produce(topic, [{"id": f"x{n}", "fail": 99} for n in range(4)])
    wait_for(lambda: {f"m{n}" for n in range(30)} <= stage.service.done(topic), "all that can be are done")
    stage.wait_settled(topic)
    visits = stage.service.of(topic)
    evidence = stage.evidence(topic)
    receipts = list(read_topic(stage.connection, stage.handlers[topic].publishes))
    again = [visit for visit in visits if visit.attempt > 1]
    letters = evidence.dead()
    assert (len(again), len(letters), len(receipts)) == (30 + 8, 5, 50)
    wanted = {
        "retryapp_deliveries_total": len(visits),
        "retryapp_succeeded_total": 50,
        "retryapp_failures_total": len(visits) - 50,
        "retryapp_scheduled_total": len(again),
        "retryapp_parked_total": len(again),
        "retryapp_fired_total": len(again),
        "retryapp_lateness_seconds_count": len(again),
        "retryapp_retry_age_seconds_count": len(again),
        "retryapp_dead_total": len(letters),
        "retryapp_dead_kinds_total": len(letters),
        "retryapp_dead_letters": len(letters),
        "retryapp_published_total": len(receipts),
        "retryapp_table_behind_offsets": 0,
        "retryapp_lanes_open": 2,
    }

    def added() -> dict[str, float | None]:
        return {name: server.value(f"sum({name})") for name in wanted}

    wait_for(lambda: added() == wanted, f"{wanted}, seen by Prometheus", every_s=0.3)
    out = stage.handlers[topic].publishes
    assert server.value(f'sum(retryapp_published_total{{handler="{topic}", topic="{out}"}})') == len(receipts)
    assert server.value("max(retryapp_partitions)") == 2
    assert server.value("max(retryapp_longest_wait_seconds)") == 0.4
    assert server.value("min(retryapp_topic_retention_seconds - on (instance) group_left () "
                        "retryapp_retention_needed_seconds)") == 0  # fmt: skip
    overdue_s = server.value("time() - min(retryapp_scheduler_last_run_timestamp_seconds)")
    assert overdue_s is not None
    assert overdue_s < 65


def test_a_killed_worker_and_the_last_one_are_missed(stage: Stage, server: Server) -> None:
    """Lanes are missing until the other worker has them; when nobody is left, that is told too."""
    topic = main(stage)
    assert not {"RetryAppLanesClosed", "RetryAppNoWorker"} & set(server.firing())
    first, second = stage.workers[:2]
    first.kill()
    labels = wait_for(lambda: server.firing().get("RetryAppLanesClosed"), "lanes are missing", every_s=0.1)
    assert (labels["job"], labels["handler"], labels["severity"]) == (JOB, topic, "critical")
    second.wait_ready()
    wait_for(lambda: "RetryAppLanesClosed" not in server.firing(), "the other one has taken over", every_s=0.2)
    assert "RetryAppNoWorker" not in server.firing()
    assert second.stop() == 0
    labels = wait_for(lambda: server.firing().get("RetryAppNoWorker"), "nobody is left", every_s=0.2)
    assert (labels["job"], labels["handler"]) == (JOB, topic)
