"""The end of a broker that no process here has started; and the broker of a run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner

from retryapp.broker.config import properties, properties_file, write_files
from retryapp.broker.kept import broker_status, last_port, start_kept_broker, stop_kept_broker
from retryapp.broker.node import Broker, BrokerFailedError, OnWait, ends_within
from retryapp.cli import broker as cli_broker
from retryapp.jvm import FolderUnusableError
from retryapp.stage import Run


@contextmanager
def stated_process(data: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with these arguments that the state file names, as another build wrote it."""
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before, it may not have its command line yet
        state = {"pid": process.pid, "started_s": 1.5, "port": 1, "data": str(data), "log": "", "version": "4.3.1"}
        (data / "broker.json").write_text(json.dumps(state))
        try:
            yield process
        finally:
            process.kill()


def test_a_broker_that_was_stopped_starts_again_where_its_clients_ask(tmp_path: Path) -> None:
    """It came back on 9092 whatever port it had had, and the workers of the other port waited for it."""
    assert last_port(tmp_path) is None
    write_files(tmp_path, properties(tmp_path, port=9_592, controller_port=27_249, extra={}), tmp_path / "broker.log")
    assert last_port(tmp_path) == 9_592
    properties_file(tmp_path).write_text("listeners=SASL_SSL://127.0.0.1:9592\n")
    assert last_port(tmp_path) is None, "it is none of ours"


@pytest.mark.parametrize("command", ["start", "run"])
@pytest.mark.parametrize(("words", "expected"), [([], 9_592), (["--port", "9593"], 9_593)])
def test_the_command_takes_the_port_of_the_last_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str], expected: int
) -> None:
    """Unless it is given another."""
    write_files(tmp_path, properties(tmp_path, port=9_592, controller_port=27_249, extra={}), tmp_path / "broker.log")
    asked: list[int] = []

    def seen(*_args: object, port: int, **_more: object) -> None:
        asked.append(port)
        raise BrokerFailedError("was only asked for", "none")

    monkeypatch.setattr(cli_broker, "Broker", seen)
    monkeypatch.setattr(cli_broker, "start_kept_broker", seen)
    done = CliRunner().invoke(cli_broker.command, [command, "--data", str(tmp_path), *words])
    assert isinstance(done.exception, BrokerFailedError)
    assert asked == [expected]


def test_a_recycled_process_id_is_not_the_broker(tmp_path: Path) -> None:
    """A process that is no broker is not stopped. Waiting for one that does not end has a limit."""
    with stated_process(tmp_path) as other:
        assert broker_status(tmp_path) is None
        assert stop_kept_broker(tmp_path) is None
        assert other.poll() is None
        assert not ends_within(psutil.Process(other.pid), 0.1)


def test_the_broker_of_another_build_is_found(tmp_path: Path) -> None:
    """Else it could not be stopped. One that has ended is gone, although nobody has waited for it."""
    with stated_process(tmp_path, properties_file(tmp_path)) as process:
        state = (tmp_path / "broker.json").read_text()
        assert stop_kept_broker(tmp_path) is not None
        (tmp_path / "broker.json").write_text(state)
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        assert ends_within(psutil.Process(process.pid), 20)
        assert broker_status(tmp_path) is None


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    """Java reads files of properties as Latin-1, and Kafka a list of folders, with commas between."""
    settings = properties(tmp_path, port=1, controller_port=2, extra={"a": "\\"})
    written = write_files(tmp_path, settings, tmp_path / "données" / "broker.log").read_text()
    assert {"log.dirs=kafka", "a=\\\\"} <= set(written.splitlines())
    assert f"fileName = {tmp_path}/donn\\u00e9es/broker.log\n" in (tmp_path / "log4j2.properties").read_text("ascii")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_state_file_means_no_broker(tmp_path: Path, content: str) -> None:
    """It is replaced at the next start."""
    (tmp_path / "broker.json").write_text(content)
    assert broker_status(tmp_path) is None


def test_the_broker_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one cannot stop it, and it goes on."""

    def refuse(process: psutil.Process, _signal: int) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "send_signal", refuse)
    with stated_process(tmp_path, properties_file(tmp_path)) as process:
        with pytest.raises(BrokerFailedError, match=rf"\(pid {process.pid}\) belongs to another user"):
            stop_kept_broker(tmp_path)
        assert (tmp_path / "broker.json").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "data", tmp_path / ("x" * 300)):
        with pytest.raises(FolderUnusableError, match="--data"):
            start_kept_broker(tmp_path, folder, port=9092)


def test_a_broker_that_nobody_could_find_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran on, and no command knew of it, where its state could not be written."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(broker: Broker, **_options: object) -> None:
        broker._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        processes.append(broker._process)

    monkeypatch.setattr(Broker, "start", start)
    (tmp_path / "broker.json").mkdir()
    with pytest.raises(IsADirectoryError):
        start_kept_broker(tmp_path, tmp_path, port=9092)
    assert processes[0].poll() is not None


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BrokerFailedError]:
    """Run a program in the place of Java, which never serves clients; return how its start fails."""
    monkeypatch.setattr("retryapp.broker.probe.broker_count", lambda _port, timeout_s: time.sleep(0.02))

    def start(program: str, on_wait: OnWait | None = None) -> BrokerFailedError:
        broker = Broker(tmp_path, data=tmp_path, port=1)
        with pytest.raises(BrokerFailedError) as caught:
            broker._launch([sys.executable, "-u", "-c", program], on_wait)
        assert broker.pid is None
        return caught.value

    return start


JAVA_REFUSES = """
print("Unrecognized VM option 'X'\\nError: Could not create the Java Virtual Machine.\\nError: A fatal exception")
raise SystemExit(1)
"""


def test_a_broker_that_dies_at_its_start_says_why(tmp_path: Path, refused: Callable[..., BrokerFailedError]) -> None:
    """Its last error, or else its last lines: Java's own first line says what is wrong, and there is no log yet."""
    error = refused(JAVA_REFUSES)
    assert "exited with code 1 before it was ready: Unrecognized VM option 'X'; Error: Could not" in str(error)
    assert error.log == str(tmp_path / "output.txt")
    lines = "[1] INFO begun (kafka)\\n[2] ERROR no quorum (kafka)\\n[3] INFO shut down (kafka)\\n"
    error = refused(f"open('broker.log', 'w').write('{lines}'); raise SystemExit(1)")
    assert "before it was ready: [2] ERROR no quorum (kafka). Its log: " in str(error)
    assert error.log == str(tmp_path / "broker.log")


def test_a_slow_start_may_go_on_while_the_broker_logs(
    tmp_path: Path, refused: Callable[..., BrokerFailedError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that goes on logging is not ended; one that logs nothing is, and a long start says so."""
    output, now_s = tmp_path / "output.txt", 0.0

    def look(_port: int, timeout_s: float) -> None:
        """Let 20 s pass; a broker that logs has done so again."""
        nonlocal now_s
        size = output.stat().st_size
        while is_logging and output.stat().st_size == size:
            time.sleep(0.005)
        now_s += 20

    monkeypatch.setattr("retryapp.broker.probe.broker_count", look)
    monkeypatch.setattr("retryapp.broker.node.time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
    said: list[str] = []
    is_logging = True
    error = refused("import time\nwhile True: print('loading'); time.sleep(0.005)", said.append)
    assert "was not ready within 620 s, and was ended: loading; loading; loading" in str(error)
    assert said == [f"Kafka is not ready yet; its log: {output}"]
    is_logging = False
    assert "was not ready within 80 s, and was ended" in str(refused("import time; time.sleep(60)"))


def test_the_broker_of_a_run_is_not_fenced_on_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never starts again after a kill, which would wait for the end of the former session."""
    monkeypatch.setattr(Broker, "start", lambda _broker, **_options: None)
    with Run(tmp_path) as run:
        settings = run.broker(tmp_path)._settings
    assert settings["broker.session.timeout.ms"] == "120000"
