"""docs/dashboard.json and docs/alerts.yml in a real Prometheus that has scraped a worker and the archive."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from retryapp.pipeline.metrics import PipelineMetrics
from retryapp.runtime.observe.metrics import Scrape

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PANELS: list[dict[str, Any]] = json.loads((DOCS / "dashboard.json").read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
CHOSEN = {"$job": ".+", "$handler": ".+", "$__rate_interval": "1m"}
"""What Grafana puts for the dashboard's variables."""
DEADLINE_S = 60.0
Ask = Any


def chosen(query: str) -> str:
    for name, value in CHOSEN.items():
        query = query.replace(name, value)
    return query


@pytest.fixture(scope="module")
def text(worker_metrics: Scrape) -> bytes:
    archive = PipelineMetrics()
    archive.round_ended("billing", ended_ms=1, gaps=0)
    return worker_metrics.text() + generate_latest(archive.registry)


@pytest.fixture(scope="module")
def ask(prometheus: Mapping[str, Path], text: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask the API of a Prometheus that has scraped the metrics at least twice, and has evaluated the alert rules."""

    class Worker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    folder = tmp_path_factory.mktemp("prometheus")
    worker = ThreadingHTTPServer(("127.0.0.1", 0), Worker)
    threading.Thread(target=worker.serve_forever, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shutil.copy(DOCS / "alerts.yml", folder)
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {"job_name": "billing", "static_configs": [{"targets": [f"127.0.0.1:{worker.server_port}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    arguments = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([prometheus["prometheus"], *arguments], cwd=folder, stdout=log, stderr=log)

    def ask(path: str, **parameters: str) -> Any:
        address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            return json.load(answer)["data"]

    def ready() -> bool:
        try:
            scrapes = ask("query", query="min(count_over_time(retryapp_partitions[5m])) >= 2")["result"]
            rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        except OSError:
            return False
        return bool(scrapes) and all(rule["health"] != "unknown" for rule in rules)

    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while not ready():
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline_s, (folder / "log").read_text()
            time.sleep(0.1)
        yield ask
    finally:
        server.kill()
        server.wait()
        worker.shutdown()
        worker.server_close()


def test_every_query_of_the_dashboard_has_an_answer(ask: Ask) -> None:
    """None is invalid, none names a metric or a label that does not exist: each finds series."""
    assert len(QUERIES) > 40
    assert [query for query in QUERIES if not ask("query", query=chosen(query))["result"]] == []


def test_a_partition_with_two_circuits_that_are_not_closed_is_counted_once(ask: Ask) -> None:
    """The number of outages is one of partitions."""
    (query,) = [target["expr"] for panel in PANELS if panel["title"] == "Outages" for target in panel["targets"]]
    assert [each["value"][1] for each in ask("query", query=chosen(query))["result"]] == ["1"]


def test_the_choices_of_the_dashboard_have_values(ask: Ask) -> None:
    """Its lists of jobs and main topics come from a series that every worker has."""
    found = ask("series", **{"match[]": 'retryapp_partitions{job=~".+"}'})
    assert [(series["job"], series["handler"]) for series in found] == [("billing", "orders")]


def test_every_alert_rule_is_evaluated_without_an_error(ask: Ask) -> None:
    """In a real server, not only in the tool that tests rules."""
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 20
    assert [rule["name"] for rule in rules if rule["health"] != "ok" or rule.get("lastError")] == []


def test_every_metric_is_in_an_alert_or_on_the_dashboard(text: bytes) -> None:
    """What nobody reads is not worth its series."""
    read = "\n".join(QUERIES) + (DOCS / "alerts.yml").read_text()
    families = {family.name for family in text_string_to_metric_families(text.decode())}
    names = {name for name in families if not name.endswith("_created")}
    assert names - {name for name in names if re.search(rf"\b{name}(_total|_count|_bucket|_sum)?\b", read)} == set()
