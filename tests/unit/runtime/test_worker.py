"""The worker process."""

from __future__ import annotations

import gc
import json
import logging
import re
import resource
import runpy
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import faust
import pytest
from aiokafka.errors import InconsistentGroupProtocolError, InvalidSessionTimeoutError
from faust.exceptions import AlreadyConfiguredWarning
from faust.worker import Worker
from mode.utils.logging import setup_logging

from retryapp import Retries
from retryapp.core.errors import InvalidSettingError, RetryAppError
from retryapp.kafka import AccessDeniedError
from retryapp.runtime import worker as worker_module
from retryapp.runtime.machine.place import local_address
from retryapp.runtime.worker import NamedApp, RetryWorker, _leave, _settle, user_line
from retryapp.settings import load_settings
from retryapp.web.figures import web_url


@pytest.mark.parametrize(
    ("before", "after"),
    [(((700, 10, 10), 0.005), ((20_000, 15, 20), 0.0005)), (((900, 10, 10), 0.02), ((900, 10, 10), 0.02))],
    ids=["python", "own"],
)
async def test_the_interpreter_is_set_for_retries_that_are_on_time(
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[tuple[int, int, int], float],
    after: tuple[tuple[int, int, int], float],
) -> None:
    """No walk over all modules, and no 5 ms for a thread that computes at each step; a program's own settings stay."""
    told: list[str] = []

    async def finished(_self: Worker) -> None:
        told.append("finished")

    monkeypatch.setattr(Worker, "on_startup_finished", finished)
    tracked, thresholds, interval_s = len(gc.get_objects()), gc.get_threshold(), sys.getswitchinterval()
    try:
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])
        worker = RetryWorker.__new__(RetryWorker)
        worker.app = faust.App("plain")
        await RetryWorker.on_startup_finished(worker)
        assert told == ["finished"]
        assert len(gc.get_objects()) < tracked / 10
        assert (gc.get_threshold(), sys.getswitchinterval()) == (after[0], pytest.approx(after[1]))
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval_s)


@pytest.mark.parametrize("wanted", [True, False])
def test_what_a_handler_prints_is_logged_unless_the_app_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """The command of Faust has the setting overruled."""
    assert made(monkeypatch, worker_redirect_stdouts=wanted)["redirect_stdouts"] is wanted


def made(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> dict[str, Any]:
    """Make a worker of an app with these settings; return what Faust's own is given."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(worker_module, "_settle", lambda _app, _settings: None)
    monkeypatch.setattr(Worker, "__init__", lambda self, app, **options: given.update(options, self=self, app=app))
    monkeypatch.setattr(RetryWorker, "logging_config", {}, raising=False)
    monkeypatch.setattr(RetryWorker, "app", None, raising=False)
    RetryWorker(faust.App("plain", **settings), redirect_stdouts=True)
    return given


def test_lines_in_json_go_to_the_log_file_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With `--logfile` they went to stderr, and the file stayed empty."""
    file, root = tmp_path / "billing.log", logging.getLogger()
    monkeypatch.setenv("RETRYAPP_LOG_FORMAT", "json")
    monkeypatch.setattr(worker_module, "_settle", lambda _app, _settings: None)
    before = root.handlers[:], root.level
    try:
        worker = RetryWorker(faust.App("plain"), loglevel="INFO", logfile=str(file))
        setup_logging(loglevel="INFO", logfile=worker.logfile, logging_config=worker.logging_config)
        logging.getLogger("billing").info("charged")
        root.handlers[0].close()
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    assert json.loads(file.read_text())["message"] == "charged"


@pytest.mark.parametrize("refusal", [None, ValueError("not allowed to raise maximum limit")])
def test_a_worker_may_have_as_many_files_open_as_its_user(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception | None
) -> None:
    """With the 1,024 that many systems begin with, the stores of some dozens of partitions do not open."""
    limits: list[Any] = []

    def limit(_what: int, limits_: Any) -> None:
        limits.append(limits_)
        if refusal is not None:
            raise refusal

    monkeypatch.setattr(resource, "getrlimit", lambda _what: (1_024, 524_288))
    monkeypatch.setattr(resource, "setrlimit", limit)
    assert made(monkeypatch)
    assert limits == [(524_288, 524_288)]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import json\n\n\ndef f():\n    json.loads('')\n\n\nf()\n", 5),
        ("from retryapp import RetryPolicy\n\nRetryPolicy('5parsecs')\n", 3),
        ("\ndef f(:\n", 2),
    ],
)
def test_the_users_own_line_is_named(tmp_path: Path, source: str, line: int) -> None:
    """Not that of the library in which the error was raised."""
    path = tmp_path / "billing.py"
    path.write_text(source)
    with pytest.raises((ValueError, SyntaxError, RetryAppError)) as caught:
        runpy.run_path(str(path))
    assert user_line(caught.value) == f"{path}, line {line}"


def test_what_a_running_worker_logs_names_the_app_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Operators copy commands out of a log; what a record's error says itself stays, and so do the user's own lines."""
    monkeypatch.setattr(caplog.handler, "filters", [NamedApp("shop.billing:app")])
    told = "no topic: run 'retryapp topics grow -A MODULE'"
    logging.getLogger("retryapp.events").warning("retryapp.lane_failed", extra={"error_message": told})
    logging.getLogger("retryapp.runtime.app").warning("%s, 100 %%", told)
    logging.getLogger("billing").warning(told)
    lane, line, theirs = caplog.records
    assert vars(lane)["error_message"] == "no topic: run 'retryapp topics grow -A shop.billing:app'"
    assert line.getMessage() == "no topic: run 'retryapp topics grow -A shop.billing:app', 100 %"
    assert theirs.getMessage() == told


def test_what_a_worker_suggests_names_the_app_that_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    """It can be run as it is printed, also where Faust's own command has started the worker."""
    context = click.Context(click.Command("faust"))
    context.params["app"] = "shop.billing"
    with context, pytest.raises(SystemExit):
        _leave(AccessDeniedError("join", "b:9092", "no right"))
    assert "'retryapp plan -A shop.billing --acls'" in capsys.readouterr().err


def settled(monkeypatch: pytest.MonkeyPatch, folder: Path, operators: str = "", **settings: Any) -> Any:
    """Return an app's settings after a worker has chosen its folder, and the port 6070."""
    monkeypatch.setattr("retryapp.runtime.worker.free_port", lambda *_: 6070)
    monkeypatch.setenv("RETRYAPP_WEB_OPERATORS", operators)
    monkeypatch.setenv("TMPDIR", str(folder))
    app = faust.App("billing", datadir=str(folder / "data"), **settings)
    Retries(app)
    with warnings.catch_warnings():  # as where it is called
        warnings.simplefilter("ignore", AlreadyConfiguredWarning)
        _settle(app, load_settings()).lock.close()
    return app.conf


@pytest.mark.parametrize(
    ("bind", "operators", "refused"),
    [
        ("127.0.0.1", "", False),
        ("::1", "local:admin", False),
        ("localhost", "", False),
        ("0.0.0.0", "", True),  # noqa: S104 - not bound
        ("0.0.0.0", "local:admin", True),  # noqa: S104 - the same
        ("192.0.2.1", "", True),
        ("billing.example", "", True),
    ],
)
def test_pages_that_others_reach_need_somebody_who_may(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bind: str, operators: str, refused: bool
) -> None:
    """Else everybody there could look: the worker ends with one line that says what to set."""
    ctx = pytest.raises(InvalidSettingError, match="RETRYAPP_WEB_OPERATORS") if refused else nullcontext()
    with ctx as error:
        settled(monkeypatch, tmp_path, operators, web_bind=bind)
    if refused:
        assert error.value.exit_code == 2
        assert "RETRYAPP_WEB_BIND or web_bind=" in str(error.value)
    settled(monkeypatch, tmp_path, "anyone:look", web_bind=bind)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("consumer_auto_offset_reset", "newest"),
        ("consumer_auto_offset_reset", "none"),
        ("canonical_url", "ops.example.com:8080"),
        ("canonical_url", "//ops.example.com"),
    ],
)
def test_a_setting_of_faust_that_no_worker_can_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, value: str
) -> None:
    """A new group's workers ended in a traceback at the first; with the second no other worker could ask this one."""
    with pytest.raises(InvalidSettingError, match=rf"setting {setting}='?{value}'?: expected"):
        settled(monkeypatch, tmp_path, **{setting: value})


def test_a_port_that_was_asked_for_is_used_if_it_is_fausts_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`faust worker --web-port 6066` led to 6067: it looked like none, and the check before the start held its lock."""
    context = click.Context(click.Command("worker"))
    context.params["web_port"] = 6066
    with context:
        assert settled(monkeypatch, tmp_path).web_port == 6066
    assert settled(monkeypatch, tmp_path).web_port == 6070


@pytest.mark.parametrize(("session_s", "request_s"), [(60.0, 60.0), (20.0, 30.0)])
def test_a_long_session_needs_no_second_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session_s: float, request_s: float
) -> None:
    """Faust's consumer ended in a traceback where a request may end before a session, also one from the environment."""
    assert settled(monkeypatch, tmp_path, broker_session_timeout=session_s).broker_request_timeout == request_s
    monkeypatch.setenv("BROKER_SESSION_TIMEOUT", str(session_s))
    assert settled(monkeypatch, tmp_path).broker_request_timeout == request_s


def test_a_worker_advertises_the_address_from_which_it_reaches_the_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other containers do not know its host name; what the user has chosen stays, as an address behind a proxy."""
    bind: Any = {"web_bind": "0.0.0.0", "operators": "anyone:look", "broker": "kafka://127.0.0.2:9092"}  # noqa: S104
    assert str(settled(monkeypatch, tmp_path, **bind).canonical_url) == "http://127.0.0.1:6070"
    assert str(settled(monkeypatch, tmp_path, web_host="w1", **bind).canonical_url) == "http://w1:6070"
    own = "https://retries.example/w1"
    for given in (own, f"{own}/"):  # the line that names the pages had two slashes, and its link led nowhere
        assert str(settled(monkeypatch, tmp_path, canonical_url=given, **bind).canonical_url) == own
    assert str(settled(monkeypatch, tmp_path).canonical_url) == "http://127.0.0.1:6070"
    assert local_address("nowhere.invalid:9092") is None


@pytest.mark.parametrize(("bind", "host"), [("localhost", "localhost"), ("::1", "[::1]"), ("127.0.0.3", "127.0.0.3")])
def test_a_worker_advertises_the_loopback_address_that_it_listens_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bind: str, host: str
) -> None:
    """Nothing listens on the address from which it reaches the broker."""
    conf = settled(monkeypatch, tmp_path, web_bind=bind, broker="kafka://127.0.0.2:9092")
    assert str(conf.canonical_url) == f"http://{host}:6070"


def test_a_worker_without_pages_advertises_no_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others' pages would ask it, show it as silent, and lead readers there. What the user has chosen stays."""
    names = {str(settled(monkeypatch, tmp_path, web_enabled=False).canonical_url) for _ in range(2)}
    assert len(names) == 2, "Faust keeps what a worker has by this name: two of one name were one worker"
    assert [web_url(name) for name in names] == [None, None]
    own = "https://retries.example/w1"
    assert str(settled(monkeypatch, tmp_path, web_enabled=False, canonical_url=own).canonical_url) == own


@pytest.mark.parametrize(
    ("refused", "code", "text"),
    [
        (InvalidSessionTimeoutError, 2, r"setting broker_session_timeout='0\.5 s': the brokers refuse it"),
        (InconsistentGroupProtocolError, 3,
         "group billing on b:9092: members .* other programs.*start again when"),
    ],
)  # fmt: skip
def test_what_the_brokers_refuse_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: type[Exception],
    code: int,
    text: str,
) -> None:
    """One line with what to do; a traceback and exit code 1 have a supervisor start the worker again and again."""

    def stop(_self: Worker) -> None:
        raise refused

    monkeypatch.setattr(Worker, "stop_and_shutdown", stop)
    worker = RetryWorker.__new__(RetryWorker)
    worker.app = faust.App("billing", broker="kafka://b:9092", broker_session_timeout=0.5)
    with pytest.raises(SystemExit) as end:
        worker.stop_and_shutdown()
    assert end.value.code == code
    assert re.search(text, capsys.readouterr().err)
