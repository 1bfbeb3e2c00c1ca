"""`retryapp pipeline` from the command line, in this process's session; over TLS with a login; and its metrics."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
from delta import places_of
from harness.operator import Operator
from harness.rights import CLOSED, grant, rights_of_people
from harness.secured import PASSWORD, USER, SecuredBroker, secured_broker
from history import CommandLine, Group
from prometheus_client.parser import text_string_to_metric_families
from samples import dead

from retryapp.broker.probe import free_ports
from retryapp.cli import pipeline
from retryapp.cli._spark import cancelled_by, interruptible
from retryapp.cli.main import run
from retryapp.core.errors import InvalidSettingError, PortTakenError
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.archive import Archive
from retryapp.pipeline.errors import OtherRunError
from retryapp.pipeline.hold import ANALYSIS_HOLD, Holds
from retryapp.pipeline.lake import Lake, open_lake
from retryapp.pipeline.metrics import PipelineMetrics
from retryapp.pipeline.session import SessionOptions, beside
from retryapp.stage import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


def test_every_command(
    command: CommandLine, group: Group, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prints one JSON object; a loss is exit code 1. A group that is gone keeps no other from its run.

    What is archived is analysed once a vacuum has ended, and the page says the same as the JSON.
    """
    topic, page = group.topology.dlq, tmp_path / "report.html"
    where = group.where
    for number in range(3):
        group.dead(0, dead(number), key=b"ada")
    code, facts = command("archive", *where, "--group", "a-gone")
    assert (code, facts["error"]["type"], places_of(tmp_path / "lake").total()) == (3, "GroupMissingError", 3)
    for number in (3, 4):
        group.dead(0, dead(number))
    code, facts = command("status", *where)
    topics = {outlook["topic"]: outlook for outlook in facts["topics"]}
    unread = topics[topic]
    assert (code, unread["behind"], unread["epoch"], topics[group.topology.events]["behind"]) == (0, 2, 1, 0)
    assert unread["loss_at_ms"] == unread["oldest_unread_ms"] + 30 * 86_400_000
    with ExitStack() as vacuum:
        vacuum.enter_context(Holds(lake).take("vacuum", ANALYSIS_HOLD))
        monkeypatch.setattr("retryapp.cli._analyse.print_waiting", lambda _: vacuum.close())
        code, facts = command("analyse", *where, "--report", str(page))
    assert (code, facts["archived"][0]["rows"], facts["journeys"], facts["sound"]) == (0, 2, 5, True)
    failed = [each["name"] for each in facts["verdicts"] if each["failures"]]
    assert failed == ["ledger: main topics are there"], "what failed of a topic that is gone is counted whole"
    assert facts["report"]["totals"]["dead"] == 5
    assert facts["report"]["headline"] in page.read_text()
    code, facts = command("report")
    assert (code, facts["totals"]["failed"], facts["causes"][0]["error_type"]) == (0, 5, "ValueError")
    for number in (5, 6):
        group.dead(0, dead(number))
    group.operator.delete_records(topic, 0, 6)
    assert command("status", *where)[0] == 1
    code, facts = command("archive", *where)
    (archived,) = facts["groups"]
    assert (code, archived["rows"]) == (1, 1)
    assert [(gap["reason"], gap["from_offset"], gap["to_offset"]) for gap in archived["gaps"]] == [("retention", 5, 6)]
    assert {"topic": topic, "partition": 0, "offset": 7} in archived["cut"]
    (tmp_path / "key").write_bytes(b"ada")
    erase = ("erase", "--key-file", str(tmp_path / "key"), *where)
    assert command(*erase, "--group", "a-typo")[0] == 3, "before anything is erased"
    facts = command(*erase)[1]
    assert (facts["rows"], facts["remains"]) == (3, []), "deleted from the topic above"
    assert command("vacuum", "--older-than", "90m") == (0, {"age_ms": 5_400_000})
    code, facts = command("expire", "--older-than", "1d")
    assert (code, facts["rows"]) == (0, 0)


def test_many_records_are_worth_javas_second_compiler(
    command: CommandLine, connection: KafkaConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics say how many there are, before Java starts; those of a group that is not there have none."""
    group, briefs = Group(connection, has_main=True), list[bool]()
    group.send_dead(5)

    def note(_lake: str, session: SessionOptions, **_: Any) -> Any:
        briefs.append(session.brief)
        raise KeyboardInterrupt

    monkeypatch.setattr("retryapp.cli._analyse.lake_job", note)
    for many in (6, 5):
        monkeypatch.setattr("retryapp.cli._analyse.MANY_RECORDS", many)
        assert command("analyse", *group.where)[0] == 130
    command("analyse", *group.where[:-1], "a-gone")
    assert briefs == [True, False, True]


def test_a_stop_does_not_wait_for_the_batch_under_way(
    command: CommandLine, spark: SparkSession, connection: KafkaConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one may take minutes, and supervisors kill after some seconds; a rerun archives it."""
    group, rows, tracker = Group(connection, has_main=True), Archive._rows, spark.sparkContext.statusTracker()
    group.send_dead(400)
    begun = threading.Event()

    def slow(*arguments: Any) -> Any:
        begun.set()
        return rows(*arguments).where("java_method('java.lang.Thread', 'sleep', 100L) = 'null'")

    def operator() -> None:
        begun.wait()
        wait_for(tracker.getActiveStageIds, "the batch is under way")
        os.kill(os.getpid(), signal.SIGTERM)

    for name in ("archive", "analyse"):
        with monkeypatch.context() as slowed:
            slowed.setattr(Archive, "_rows", slow)
            begun.clear()
            person, began_s = threading.Thread(target=operator, daemon=True), time.monotonic()
            person.start()
            code, facts = command(name, *group.where)
            assert (code, time.monotonic() - began_s < 15) == (130, True), facts
            person.join()
    code, facts = command("archive", *group.where)
    assert (code, facts["groups"][0]["rows"]) == (0, 400)


def test_a_conflict_at_a_stop_is_no_clean_end(
    command: CommandLine, connection: KafkaConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a lake that another run holds is left in peace."""
    group = Group(connection, has_main=True)
    group.send_dead(4)

    def overtaken(*_arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise OtherRunError("archive", "another run has written commit 1")

    monkeypatch.setattr(Archive, "_commit", overtaken)
    assert command("archive", *group.where, "--every", "1h")[0] == 130


def test_jars_for_spark_submit(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of a session that is started here; an image downloads them as it is built."""
    assert run(["pipeline", "jars"]) == 0
    assert capsys.readouterr().out.strip() == spark.conf.get("spark.jars")


def test_what_is_missing_is_named(
    command: CommandLine, spark: SparkSession, connection: KafkaConnection, tmp_path: Path
) -> None:
    """No lake where a wrong --lake or --group names one: it is not made. No archive; no analysis; no folder."""

    def says(text: str, code: int, kind: str, *words: str) -> None:
        ended, facts = command(*words)
        assert (ended, facts["error"]["type"]) == (code, kind), words
        assert text in facts["error"]["message"]

    where = ("--broker", connection.bootstrap, "--group", "unknown")
    for words in (("gaps",), ("report",), ("causes",), ("vacuum",), ("status", *where)):
        says("no archive yet. Run 'retryapp pipeline archive' with this --lake", 3, "TableMissingError", *words)
    for name in ("archive", "analyse"):
        says("--group", 3, "GroupMissingError", name, *where)
    assert not (tmp_path / "lake").exists()
    open_lake(spark, str(tmp_path / "lake"))
    says("--group", 3, "GroupMissingError", "archive", *where)
    says("no archive yet", 3, "TableMissingError", "vacuum")
    says("no analysis yet. Run 'retryapp pipeline analyse'", 3, "TableMissingError", "causes")
    says(
        "its folder is not there", 2, "UsageError", "analyse", *where, "--report", str(tmp_path / "none" / "page.html")
    )


@pytest.fixture(scope="module")
def secured(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker that wants a login, which may do what it is granted."""
    with secured_broker(cache_dir, tmp_path_factory.mktemp("certificates"), CLOSED) as running:
        yield running


@pytest.mark.extended
@pytest.mark.parametrize("way", ["sasl_tls", "tls", "keystore"])
def test_spark_gets_in_with_what_the_other_clients_have(
    command: CommandLine, secured: SecuredBroker, tmp_path: Path, way: str
) -> None:
    """A SCRAM login over TLS, a client certificate in PEM or a keystore: the same file serves, with rights to look."""
    group = Group(KafkaConnection(secured.plain))
    group.dead(0, dead(0))
    certificate = str(secured.certificates.folder / "broker.pem")  # Java reads a key in PKCS #8 only
    properties = {
        "sasl_tls": {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": USER,
            "sasl.password": PASSWORD,
        },
        "tls": {
            "security.protocol": "SSL", "ssl.certificate.location": certificate, "ssl.key.location": certificate,
        },
        "keystore": {
            "security.protocol": "SSL", "ssl.keystore.location": str(secured.certificates.folder / "broker.p12"),
            "ssl.keystore.password": PASSWORD,
        },
    }[way] | {"ssl.ca.location": str(secured.certificates.ca)}  # fmt: skip
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    look = rights_of_people("look", billing=group.topology.group, orders=group.topology.main)
    grant(Operator(secured.plain), look, "*")  # a certificate's name is its subject
    address = secured.sasl_tls if way == "sasl_tls" else secured.tls
    where = ("--broker", address, "--group", group.topology.group, "--client-config", str(config))
    done = {name: command(name, *where) for name in ("archive", "status", "analyse")}
    assert [code for code, _ in done.values()] == [0, 0, 0], done
    assert (done["archive"][1]["groups"][0]["rows"], done["analyse"][1]["journeys"]) == (1, 1)


def test_a_stop_ends_what_runs_beside_too_and_no_other_job(spark: SparkSession) -> None:
    """A query in a thread of its own has the job's tag; a notebook's other jobs in the same session go on."""
    stopped, jobs = threading.Event(), spark.sparkContext.statusTracker()

    def endless() -> object:
        return spark.range(10**15).selectExpr("sum(hash(id))").collect()

    with beside(spark, endless) as other:
        try:
            with pytest.raises(KeyboardInterrupt), cancelled_by(stopped, spark), beside(spark, endless) as work:  # noqa: PT012
                wait_for(lambda: len(jobs.getActiveJobsIds()) == 2, "both run")
                stopped.set()
                work.result()
            assert (other.done(), list(spark.sparkContext.getJobTags())) == (False, [])
        finally:
            spark.sparkContext.cancelAllJobs()


def test_the_first_signal_is_polite_and_the_second_ends_at_once() -> None:
    """Where cancelling does not help."""
    with interruptible(Mock()) as stopped:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


# -- metrics -----------------------------------------------------------------------------------------------------


def scrape(address: str) -> dict[str, float]:
    """Ask as Prometheus does: name without its prefix → value."""
    text = urlopen(address, timeout=10).read().decode()  # noqa: S310 - an address of the test's own
    return {
        sample.name.removeprefix("retryapp_pipeline_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_served_on_a_port_that_nobody_else_has() -> None:
    """When a round ended and what it missed. For an address of another machine another port does not help."""
    metrics = PipelineMetrics()
    with metrics.served("127.0.0.1", 0) as port:
        metrics.round_ended("billing", ended_ms=1_005_000, gaps=2)
        found = scrape(f"http://127.0.0.1:{port}/metrics")
        with pytest.raises(PortTakenError, match="--metrics-port"), PipelineMetrics().served("127.0.0.1", port):
            pytest.fail("it is taken")
    assert (found["last_round_timestamp_seconds"], found["unacknowledged_gaps"]) == (1_005, 2)
    for address in ("192.0.2.1", "nowhere.invalid"):
        with pytest.raises(InvalidSettingError, match="--metrics-bind"), PipelineMetrics().served(address, 0):
            pytest.fail("it is not ours")


def test_the_address_of_the_metrics_can_be_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is printed, also an IPv6 one."""
    monkeypatch.setattr(PipelineMetrics, "served", lambda *_: nullcontext(6080))
    with pipeline._served("::1", 0):
        assert capsys.readouterr().err == "metrics: http://[::1]:6080/metrics\n"


def test_a_run_of_the_archive_is_seen_over_http(spark: SparkSession, group: Group, tmp_path: Path) -> None:
    """`archive --every --metrics-port` serves them while it runs, and closes the port at its end."""
    group.dead(0, dead(0))
    (port,), seen = free_ports(1), dict[str, float]()
    address = f"http://127.0.0.1:{port}/metrics"

    def has_ended_a_round() -> bool:
        with suppress(OSError):
            seen.update(scrape(address))
        return "last_round_timestamp_seconds" in seen

    def operator() -> None:
        try:
            wait_for(has_ended_a_round, "a round", timeout_s=200)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    person = threading.Thread(target=operator)
    person.start()
    began_s = time.time()  # noqa: TID251 - what the program's own clock is held against
    words = ["--every", "50ms", "--metrics-port", str(port), "--lake", str(tmp_path / "lake")]
    code = run(["pipeline", "archive", *group.where, *words])
    ended_s = time.time()  # noqa: TID251
    person.join()
    assert code == 0
    assert began_s < seen["last_round_timestamp_seconds"] <= ended_s
    assert seen["unacknowledged_gaps"] == 0
    with pytest.raises(OSError, match="refused"):
        scrape(address)
