"""`retryapp pipeline` from the command line, in this process's session; and over TLS with a login."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta import rows_of
from history import Group
from samples import dead

from retryapp.cli._spark import stopped_by_signals
from retryapp.cli.main import run
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "acceptance"))  # for `harness`
from harness.secured import PASSWORD, USER, SecuredBroker, secured_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def command(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command of the pipeline on a lake of this test: (exit code, JSON)."""

    def call(name: str, *words: str) -> tuple[int, Any]:
        code = run(["pipeline", name, *words, "--lake", str(tmp_path / "lake"), "--json"])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


def test_archive_status_and_upkeep(
    command: Command, connection: KafkaConnection, topology: HandlerTopology, tmp_path: Path
) -> None:
    """Each prints one JSON object; a loss is exit code 1."""
    group = Group(connection, topology)
    group.make(partitions=1)
    for number in range(3):
        group.dead(0, dead(number), key=b"ada")
    where = ("--broker", connection.bootstrap, "--group", topology.group)
    code, facts = command("archive", *where)
    assert (code, facts["groups"][0]["rows"], facts["groups"][0]["gaps"]) == (0, 3, [])
    cut = {(part["topic"], part["partition"]): part["offset"] for part in facts["groups"][0]["cut"]}
    assert cut[topology.dlq, 0] == 3
    assert command("compact")[0] == 0
    group.dead(0, dead(3))
    group.dead(0, dead(4))
    code, facts = command("status", *where)
    behind = {topic["topic"]: topic["behind"] for topic in facts["topics"]}
    assert (code, behind[topology.dlq], behind[topology.events]) == (0, 2, 0)
    group.delete_before(topology.dlq, 0, 4)
    assert command("status", *where)[0] == 1
    code, facts = command("archive", *where)
    assert (code, facts["groups"][0]["rows"]) == (1, 1)
    assert [(gap["reason"], gap["from_offset"], gap["to_offset"]) for gap in facts["groups"][0]["gaps"]] == [
        ("retention", 3, 4)
    ]
    (tmp_path / "key").write_bytes(b"ada")
    facts = command("erase", "--key-file", str(tmp_path / "key"), *where)[1]
    assert facts["rows"] == 3
    assert facts["remains"] == []  # deleted above
    code, facts = command("expire", "--older-than", "1d")
    assert (code, facts["rows"]) == (0, 0)


def test_what_is_missing_is_named(command: Command, connection: KafkaConnection) -> None:
    """No such group; no archive in the lake; no such broker."""
    code, facts = command("archive", "--broker", connection.bootstrap, "--group", "nobody")
    assert (code, facts["error"]["type"]) == (3, "TopicMissingError")
    code, facts = command("compact")
    assert (code, facts["error"]["type"]) == (3, "TableMissingError")
    code, facts = command("archive", "--broker", "127.0.0.1:1", "--group", "nobody")
    assert (code, facts["error"]["type"]) == (3, "BrokerUnreachableError")


@pytest.fixture(scope="module")
def secured(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker that wants a login."""
    with secured_broker(cache_dir, tmp_path_factory.mktemp("certificates")) as running:
        yield running


@pytest.mark.parametrize("way", ["sasl_tls", "tls"])
def test_spark_gets_in_with_what_the_other_clients_have(
    command: Command, secured: SecuredBroker, topology: HandlerTopology, tmp_path: Path, way: str
) -> None:
    """A SCRAM login over TLS, and a client certificate: the same file of properties serves."""
    group = Group(KafkaConnection(secured.plain), topology)
    group.make(partitions=1)
    group.dead(0, dead(0))
    properties = {
        "sasl_tls": {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        },
        "tls": {
            "security.protocol": "SSL",
            "ssl.certificate.location": str(secured.certificates.client),
            "ssl.key.location": str(secured.certificates.client),
        },
    }[way] | {"ssl.ca.location": str(secured.certificates.ca)}
    if way == "tls":  # Java reads a key in PKCS #8 only
        properties |= {"ssl.key.location": str(secured.certificates.folder / "broker.pem")}
        properties |= {"ssl.certificate.location": str(secured.certificates.folder / "broker.pem")}
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    address = getattr(secured, way)
    code, facts = command("archive", "--broker", address, "--group", topology.group, "--client-config", str(config))
    assert (code, facts["groups"][0]["rows"]) == (0, 1), facts


def test_signals_stop_between_batches_and_the_second_at_once() -> None:
    """Ctrl-C once is polite."""
    with stopped_by_signals() as stopped:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_rounds_go_on_until_they_are_stopped(
    command: Command, connection: KafkaConnection, topology: HandlerTopology, tmp_path: Path
) -> None:
    """With --every: what comes later is archived by a later round; Ctrl-C ends it in order."""
    group = Group(connection, topology)
    group.make(partitions=1)
    group.dead(0, dead(0))

    def finished() -> int:
        return len(list((tmp_path / "lake" / "runs").glob("*finished.json")))

    def operator() -> None:
        deadline_s = time.monotonic() + 200
        for number in (1, 2):
            while finished() < number and time.monotonic() < deadline_s:
                time.sleep(0.05)
            if number == 1:
                group.dead(0, dead(1))
        os.kill(os.getpid(), signal.SIGINT)

    person = threading.Thread(target=operator)
    person.start()
    code, _ = command("archive", "--broker", connection.bootstrap, "--group", topology.group, "--every", "50ms")
    person.join()
    assert (code, finished()) == (0, 2)
    assert len(rows_of(tmp_path / "lake" / "records", ("offset",))) == 2
