"""What the doctor reports as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import Finding, Subject, examine
from retryapp.doctor.examine import _Cluster
from retryapp.doctor.findings import problem
from retryapp.kafka import KafkaConnection, PlanOptions


@pytest.mark.parametrize("silent", [False, True])
def test_remedies_reach_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: bool) -> None:
    """Also of what was found before its brokers fell silent."""

    def check(_cluster: _Cluster) -> Iterator[Finding]:
        yield problem("topic orders", "x", remedy="Set it: kafka-configs.sh --alter --topic orders")
        if silent:
            raise BrokerUnreachableError("b:9092", "no answer")

    monkeypatch.setattr(_Cluster, "check", check)
    subject = Subject(
        connection=KafkaConnection("b:9092"), group="g", topologies=(HandlerTopology("g", "orders"),),
        options=PlanOptions(), session_timeout_ms=15_000, datadir=tmp_path,
    )  # fmt: skip
    report = examine(subject, wall_ms=lambda: 0)
    (topic,) = [finding for finding in report.findings if finding.name == "topic orders"]
    assert topic.remedy == "Set it: kafka-configs.sh --bootstrap-server b:9092 --alter --topic orders"
    assert report.reachable is not silent
