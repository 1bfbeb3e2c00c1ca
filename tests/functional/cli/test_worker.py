"""`retryapp worker`: what it refuses by name, what it hands to Faust, and to several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retryapp.cli import worker as cli_worker
from retryapp.cli._workers import Group
from retryapp.cli.console import ExitCode
from retryapp.cli.main import run
from retryapp.doctor.examine import Report
from retryapp.doctor.findings import problem
from retryapp.doctor.group import REMEDY
from retryapp.kafka import AccessDeniedError

PROGRAM = """
import faust
from retryapp import Retries, RetryPolicy

app = faust.App("{name}", broker="kafka://localhost:1")
retries = Retries(app)
"""
HANDLER = """
@retries.handler("orders", policy=RetryPolicy("5m"))
async def charge(value): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of programs, as a user's working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wk_plain.py").write_text('import faust\napp = faust.App("plain", broker="kafka://localhost:1")\n')
    (tmp_path / "wk_broken.py").write_text("1 / 0\n")
    (tmp_path / "wk_ends.py").write_text("import sys\nsys.exit('DATABASE_URL is not set')\n")
    (tmp_path / "wk_ends_well.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "wk_needs.py").write_text("import surely_not_there\n")
    (tmp_path / "wk_policy.py").write_text("from retryapp import RetryPolicy\nRetryPolicy('5parsecs')\n")
    (tmp_path / "wk_number.py").write_text("app = 3\n")
    (tmp_path / "wk_empty.py").write_text(PROGRAM.format(name="empty"))
    (tmp_path / "wk_good.py").write_text(PROGRAM.format(name="good") + HANDLER)
    for name, policy in (("wk_finds", "5m"), ("wk_refuses", "5parsecs")):
        (tmp_path / name).mkdir()
        program = PROGRAM.format(name=name).replace('localhost:1"', f'localhost:1", autodiscover=["{name}"]')
        (tmp_path / name / "__init__.py").write_text(program)
        (tmp_path / name / "orders.py").write_text(
            f"from {name} import RetryPolicy, retries\n{HANDLER}".replace("5m", policy)
        )
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("wk_")]:
        del sys.modules[name]


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What Faust's command line is called with; it is not run."""
    calls: list[list[str]] = []

    def record(arguments: list[str]) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(cli_worker, "_run", record)
    return calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no app is given"),
        (["wk_good", "--processes", "0"], "--processes"),
        (["wk_good", "--processes", "many"], "'--processes': 'many': expected auto, or a number from 1"),
        (["wk_good", "-A", "wk_empty"], "two apps are given"),
        (["wk_nowhere"], "no module 'wk_nowhere'"),
        (["wk_good.py"], "no module 'wk_good.py': leave out '.py'. Give wk_good in its place"),
        (["./wk_good.py"], "-A ./wk_good.py: that is a path, and a module is needed. Give wk_good in its place"),
        (["shop/billing.py:app"], "Give shop.billing:app in its place"),
        (["/srv/shop/billing.py"], "Give billing in its place, and run it in /srv/shop"),
        (["../billing"], "Give billing in its place, and run it in /"),
        (["wk_broken"], "wk_broken.py, line 1"),
        (["wk_needs"], "wk_needs.py, line 1"),
        (["wk_ends"], "wk_ends raised SystemExit: DATABASE_URL is not set"),
        (["wk_ends"], "wk_ends.py, line 2"),
        (["wk_ends_well"], "wk_ends_well raised SystemExit: 0"),
        (["wk_policy"], "5parsecs"),
        (["wk_policy"], "wk_policy.py, line 2)"),
        (["wk_number"], "3 is no Faust app"),
        (["wk_refuses"], "5parsecs"),
        (["wk_refuses"], "orders.py, line 3)"),
        (["wk_good:other"], "wk_good has no 'other'. Give wk_good:app\n"),
        (["wk_plain"], "app 'plain' has no Retries"),
        (["-A", "wk_empty"], "wk_empty has no handlers"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    words: list[str], said: str, handed_over: list[list[str]], retryapp: Callable[..., Any]
) -> None:
    """Exit code 2, one line, and nothing is started."""
    done = retryapp("worker", *words)
    assert (done.code, len(done.err.splitlines())) == (ExitCode.USAGE, 1)
    assert said in done.err
    assert handed_over == []


def test_a_folder_that_was_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retryapp: Callable[..., Any]
) -> None:
    """A deploy replaces the folder of an open shell: that was "No such file or directory", and a bug of ours."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    shown = retryapp("plan", "-A", "wk_good", "--acls")
    assert (shown.code, "-A wk_good: the current folder was deleted" in shown.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["wk_good"], ["--quiet", "-A", "wk_good", "worker", "--loglevel", "info"]),
        (["-A", "wk_good:app", "-l", "WARN", "--without-web"],
         ["--quiet", "-A", "wk_good:app", "worker", "--loglevel", "warn", "--without-web"]),
        (["wk_good", "-l", "debug"], ["-A", "wk_good", "worker", "--loglevel", "debug"]),
    ],
)  # fmt: skip
def test_faust_runs_the_worker(words: list[str], expected: list[str], handed_over: list[list[str]]) -> None:
    """With its own options; what SIGTERM does in this process is as before."""
    before = signal.getsignal(signal.SIGTERM)
    assert run(["worker", *words]) == ExitCode.FINE
    assert handed_over == [expected]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_plan_needs_handlers(retryapp: Callable[..., Any]) -> None:
    """An app without any is refused before a broker is asked."""
    done = retryapp("plan", "-A", "wk_empty")
    assert (done.code, "wk_empty has no handlers" in done.err) == (ExitCode.USAGE, True)


def test_handlers_that_autodiscover_finds_are_those_of_commands(retryapp: Callable[..., Any]) -> None:
    """A worker has them; a plan said that there were none, or left them out."""
    done = retryapp("plan", "-A", "wk_finds", "--acls", "--principal", "User:app")
    assert (done.code, "--topic orders" in done.out) == (ExitCode.FINE, True), done


@pytest.mark.parametrize("app", ["wk_good", "wk_good:app"])
def test_what_is_suggested_names_the_app_that_was_given(
    app: str, retryapp: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In errors and in results, as text and as JSON: it can be run as it is printed."""

    def refuse(_connection: object) -> None:
        raise AccessDeniedError("list brokers", "b:9092", "no right")

    finding = problem("group", "no READ", remedy=REMEDY)
    monkeypatch.setattr("retryapp.cli.plan.reach", refuse)
    monkeypatch.setattr("retryapp.cli.doctor.examine", lambda *_args, **_more: Report((finding,), reachable=True))
    group = Group(group="good", now_ms=1, workers=["w"], todo=["orders: Run 'retryapp topics grow -A MODULE'"])
    monkeypatch.setattr("retryapp.cli.top._Watch.look", lambda _watch: group)
    assert f"'retryapp topics grow -A {app}'" in retryapp("top", "-A", app, "--once").out, "with --json it always was"
    command = f"'retryapp plan -A {app} --acls'"
    assert command in retryapp("plan", "-A", app).err
    assert command in retryapp("plan", "-A", app, "--json").json["error"]["message"]
    assert command in retryapp("doctor", "-A", app).out
    assert command in retryapp("doctor", "-A", app, "--json").json["findings"][0]["remedy"]


@pytest.mark.parametrize(
    ("app", "until"),
    [("wk_slow", "importing"), ("wk_good", "Waiting for a broker")],
)
def test_sigterm_ends_a_worker_that_has_not_begun(folder: Path, app: str, until: str) -> None:
    """While its module is imported, and while it waits for a broker: with the exit code of a stop, and a word.

    The default action ended it by the signal; in a container, as its first process, it went on until it was killed.
    """
    source = "import sys, time\nsys.stderr.write('importing\\n')\ntry:\n    time.sleep(60)\nexcept BaseException: ...\n"
    (folder / "wk_slow.py").write_text(source)
    env = {**os.environ, "RETRYAPP_DATADIR": str(folder / "data"), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "retryapp", "worker", app, "--without-web"]
    with subprocess.Popen(words, env=env, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            assert any(until in line for line in lines), "it has ended"
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == ExitCode.FINE
            assert [*lines][-1] == "retryapp: stopped by SIGTERM before the worker had begun\n"
        finally:
            process.kill()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int]]:
    """Commands and numbers of processes that would be started."""
    calls: list[tuple[list[str], int]] = []

    def record(command: list[str], count: int, *, check: list[str]) -> int:
        assert check == [*command[:-2], "--check"], "the same, without its words for Faust"
        calls.append((command, count))
        return ExitCode.RESTART

    monkeypatch.setattr(cli_worker, "run_processes", record)
    monkeypatch.setattr(cli_worker, "usable_cores", lambda: 5)
    return calls


@pytest.mark.parametrize(("processes", "count"), [("3", 3), ("auto", 5)])
def test_several_processes_run_the_same_command(
    started: list[tuple[list[str], int]], processes: str, count: int
) -> None:
    """Each checks and prints the same."""
    words = ["worker", "wk_good", "--processes", processes, "-l", "error"]
    assert run(words) == ExitCode.RESTART
    own = ["-m", "retryapp", "worker", "-A", "wk_good", "--parent", str(os.getpid()), "--loglevel", "error"]
    assert started == [([sys.executable, *own], count)]


def test_several_processes_refuse_once(folder: Path) -> None:
    """Each of them said it, and one of them that the others are stopped."""
    words = [sys.executable, "-m", "retryapp", "worker", "wk_policy", "--processes", "3"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (ExitCode.USAGE, "", 1)
    assert "wk_policy.py, line 2" in done.stderr


def test_several_processes_wait_for_a_broker_once(folder: Path) -> None:
    """Each of them said it, every few seconds."""
    program = PROGRAM.format(name="away").replace("Retries(app)", "Retries(app, start_timeout='2500ms')")
    (folder / "wk_away.py").write_text(program + HANDLER)
    words = [sys.executable, "-m", "retryapp", "worker", "wk_away", "--processes", "3"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    waiting, refusal = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (ExitCode.ENVIRONMENT, "")
    assert waiting.startswith("retryapp: waiting for a broker, up to ")
    assert refusal.startswith("retryapp: no Kafka broker answers at localhost:1")


def test_a_check_waits_for_no_thread_of_the_app(folder: Path, shop: Any) -> None:
    """The processes never began where an import leaves one. What the app has printed is seen."""
    thread = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nprint('imported')\n"
    program = (PROGRAM.format(name=shop.topology.group) + HANDLER).replace("localhost:1", shop.operator.bootstrap)
    (folder / "wk_thread.py").write_text(program.replace("orders", shop.topology.main) + thread)
    words = [sys.executable, "-m", "retryapp", "worker", "wk_thread", "--check"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, "imported" in done.stdout + done.stderr) == (ExitCode.FINE, True)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_what_an_app_prints_is_no_part_of_a_result(
    folder: Path, retryapp: Callable[..., Any], words: tuple[str, ...]
) -> None:
    """A script that reads stdout found it before the JSON."""
    (folder / "wk_talks.py").write_text("print('hello')\n" + PROGRAM.format(name="talks") + HANDLER)
    shown = retryapp("plan", "-A", "wk_talks", "--acls", *words)
    assert (shown.code, "hello" in shown.out, shown.err) == (ExitCode.FINE, False, "hello\n")


def test_what_a_child_process_prints_is_no_part_of_an_object(folder: Path) -> None:
    """Nor what a library writes to the descriptor itself: a script that reads stdout has JSON, and no more."""
    child = "import os, subprocess\nsubprocess.run(['echo', 'child'], check=True)\nos.write(1, b'library\\n')\n"
    (folder / "wk_child.py").write_text(child + PROGRAM.format(name="child") + HANDLER)
    words = [sys.executable, "-m", "retryapp", "plan", "-A", "wk_child", "--acls", "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=30)
    assert (json.loads(done.stdout)["principal"], done.stderr) == ("User:child", "child\nlibrary\n")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 4), ("150000 100000", 2), ("20000 100000", 1), ("900000 100000", 4), ("odd", 4), (None, 4)],
)
def test_cores_of_a_container(quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its share of the processors counts, where it has a bound; never more than the process may run on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cli_worker.usable_cores(tmp_path / "cpu.max") == cores
