"""The worker process: a folder and a port of its own, and named errors."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import secrets
import socket
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, cast

import click
import faust
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    TopicAuthorizationFailedError,
)
from faust.exceptions import AlreadyConfiguredWarning
from faust.worker import Worker
from mode.utils.logging import level_number, setup_logging
from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

from retryapp.core.errors import InvalidSettingError, RetryAppError
from retryapp.core.text import with_app
from retryapp.kafka import AccessDeniedError, KafkaRequestError
from retryapp.runtime.app import Runtime
from retryapp.runtime.clients.security import addresses
from retryapp.runtime.machine.early_stop import stopped_early
from retryapp.runtime.machine.place import WorkerPlace, claim_place, free_port, in_url, local_address
from retryapp.runtime.start import BriefStart, MetricsPort, announce, json_logging
from retryapp.settings import Settings, load_settings

FAUST_PORT = 6066
_REFUSALS: Final = (GroupAuthorizationFailedError, InconsistentGroupProtocolError, InvalidSessionTimeoutError)
"""Errors that end a worker, whose last line names them: its group does not take it."""
_LIBRARIES: Final = ("aiokafka.", "faust.", "mode.", "retryapp.runtime.faust.", "retryapp.runtime.worker")
"""The last ones: services of theirs. What ends the process otherwise says so in `retryapp.runtime.app`."""
_PYTHON_THRESHOLDS = (700, 10, 10)
_THRESHOLDS = (20_000, 15, 20)
"""Objects between two looks at the youngest, and looks between two at the older ones. In a burst of 20,000 failures the
looks took 35 us of CPU a record with 3,000 objects, 5 us with 20,000 (15 ms each, on a busy machine)."""
_PYTHON_SWITCH_S = 0.005
_SWITCH_S = 0.0005  # after which a thread that computes lets another one run


def runtime_of(app: Any) -> Runtime | None:
    return getattr(app, "_retryapp_runtime", None)


class RetryWorker(Worker):
    """Faust's worker, for apps with a `Retries`."""

    place: WorkerPlace | None = None
    _metrics_port: int | None = None
    _brief: BriefStart | None = None

    def __init__(self, app: faust.App, *args: Any, **kwargs: Any) -> None:
        _allow_open_files()
        try:
            settings = load_settings()
            with warnings.catch_warnings():  # nothing has used these settings for anything yet
                warnings.simplefilter("ignore", AlreadyConfiguredWarning)
                self.place = _settle(app, settings)
            if settings.metrics_port is not None:
                first = settings.metrics_port + self.place.number - 1
                setting = "RETRYAPP_METRICS_PORT or --metrics-port"
                self._metrics_port = free_port(app.conf.web_bind, first, setting=setting)
        except RetryAppError as exc:
            _leave(exc)
        # Faust's command passes True, whatever the app has set
        super().__init__(app, *args, **{**kwargs, "redirect_stdouts": app.conf.worker_redirect_stdouts})
        if settings.log_format == "json" and self.logging_config is None:
            self.logging_config = json_logging(level_number(self.loglevel), self.logfile)
        runtime = runtime_of(app)
        if runtime is not None and self._metrics_port is not None:
            self.services = [*self.services, MetricsPort(runtime, app.conf.web_bind, self._metrics_port)]

    def execute_from_commandline(self) -> NoReturn:
        """Prepare topics, then run; a named error is one line and its exit code."""
        with stopped_early(load_settings().log_format):
            runtime = runtime_of(self.app)
            if runtime is not None:
                self._prepare(runtime)
            super().execute_from_commandline()

    def _prepare(self, runtime: Runtime) -> None:
        setup_logging(  # before Faust does: the wait for a broker is logged
            loglevel=self.loglevel,
            logfile=self.logfile,
            logging_config=self.logging_config,
            loghandlers=self.loghandlers,
        )
        if self.quiet:
            self._brief = BriefStart()
        try:
            runtime.prepare()
        except RetryAppError as exc:
            _leave(exc)
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    async def stop(self) -> None:
        """Stop; on a signal hand the partitions over before Faust stops to fetch for those that go on meanwhile."""
        runtime = runtime_of(self.app)
        try:
            if runtime is not None and self._signal_stop_time is not None:
                await runtime.leave(runtime.options.grace_ms / 1000)
        finally:
            await super().stop()

    def stop_and_shutdown(self) -> None:
        """Stop; if the group does not take this worker, say why: the client library gives up."""
        try:
            super().stop_and_shutdown()
        except InvalidSessionTimeoutError:
            expected = "the brokers refuse it: set it within their group.min.session.timeout.ms and "
            expected += "group.max.session.timeout.ms ('retryapp doctor -A MODULE' shows them)"
            session = f"{self.app.conf.broker_session_timeout:g} s"
            _leave(InvalidSettingError("broker_session_timeout", session, expected))
        except (GroupAuthorizationFailedError, InconsistentGroupProtocolError) as exc:
            doing, where = f"be a member of group {self.app.conf.id}", addresses(cast("faust.App", self.app))
            if isinstance(exc, GroupAuthorizationFailedError):
                _leave(AccessDeniedError(doing, where, f"{exc}. Needed: Read"))
            remedy = "Stop those, or start again when they have left, or rename the app"
            _leave(KafkaRequestError(doing, where, f"members of it are other programs. {remedy}"))

    def _setup_logging(self) -> None:
        super()._setup_logging()
        last_line, named = LastLine(lambda: self.crash_reason), NamedApp(_app_spec())
        for handler in logging.getLogger().handlers:
            handler.addFilter(last_line)
            handler.addFilter(named)

    async def on_startup_finished(self) -> None:
        """Spare garbage collections that find nothing, and waits of the event loop for threads that compute.

        Full collections walked over all modules, 45 to 110 ms every two seconds under load; at Python's thresholds a
        burst of 50,000 failures spent a fifth of its CPU on them. A thread that computes (a page, a plain function)
        keeps the interpreter for Python's 5 ms each time that the loop has asked the system for something, which a
        retry does many times.
        """
        await super().on_startup_finished()
        if sys.getswitchinterval() == _PYTHON_SWITCH_S:
            sys.setswitchinterval(_SWITCH_S)
        if gc.get_threshold() == _PYTHON_THRESHOLDS:  # else the program has its own reasons
            gc.set_threshold(*_THRESHOLDS)
        gc.collect()
        gc.freeze()
        if (runtime := runtime_of(self.app)) is not None:
            conf = self.app.conf
            pages = f"{conf.canonical_url}/retries/" if conf.web_enabled else None
            host = in_url(conf.web_bind) if _is_loopback(conf.web_bind) else conf.web_host
            metrics = f"http://{host}:{self._metrics_port}/metrics" if self._metrics_port else None
            self.add_future(announce(runtime, pages, metrics, self._end_brief_start))

    def _end_brief_start(self) -> None:
        if self._brief is not None:
            self._brief.end()

    def _setup_spinner_handler(self, logger: logging.Logger, level: int) -> None:
        self.spinner = None  # Faust's sets the root logger to DEBUG

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(0)  # Faust sleeps a second


class LastLine(logging.Filter):
    """Hides errors of the libraries about a refusal, with their tracebacks, unless the worker logs at debug level.

    `crash`: what ends the worker; while it is a refusal, all that the libraries say of their stop comes of it. A topic
    that this login may not use is named by the lane, which goes on.
    """

    def __init__(self, crash: Callable[[], BaseException | None]) -> None:
        super().__init__()
        self._crash = crash

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR or not record.name.startswith(_LIBRARIES):
            return True
        error = record.exc_info[1] if record.exc_info else None
        is_denied = isinstance(error, TopicAuthorizationFailedError) or TopicAuthorizationFailedError in (
            record.args or ()
        )
        is_named = isinstance(error, _REFUSALS) or isinstance(self._crash(), _REFUSALS)
        hides = is_named or (is_denied and record.name.startswith("aiokafka.producer."))
        return not hides or logging.getLogger().isEnabledFor(logging.DEBUG)


class NamedApp(logging.Filter):
    """Has the commands that our log lines suggest name the app that this worker was started with."""

    def __init__(self, spec: str) -> None:
        super().__init__()
        self._spec = spec

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING and record.name.startswith("retryapp"):
            record.msg, record.args = record.getMessage(), ()
            for name, value in vars(record).items():
                if isinstance(value, str):
                    setattr(record, name, with_app(value, self._spec))
        return True


def end_faust_on_named_errors() -> None:
    """Have `faust -A ...` end with one line and the error's exit code if the user's module raises a named error.

    Faust would show a long traceback and exit with 1. Only Faust's own command is changed.
    """
    command = Path(sys.argv[0])
    if sys.excepthook is sys.__excepthook__ and (command.name == "faust" or command.parent.name == "faust"):
        sys.excepthook = _end_named


def refuse_at_discovery(app: faust.App) -> None:
    """Have Faust's `autodiscover` raise what a declaration raises: it logs errors, and goes on without that handler."""
    log = app._on_autodiscovery_error  # noqa: SLF001 - Faust has no public hook

    def refuse(name: str) -> None:
        if isinstance(error := sys.exc_info()[1], RetryAppError):
            raise error
        log(name)

    app._on_autodiscovery_error = refuse  # type: ignore[method-assign]  # noqa: SLF001


def user_line(error: BaseException) -> str:
    """Return file and line of the user's code that an exception came through last; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    ours = str(Path(__file__).parent.parent)
    frames = [at for at in traceback.extract_tb(error.__traceback__) if not at.filename.startswith((ours, "<"))]
    frames = [at for at in frames if not at.filename.startswith(installed)] or frames
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _end_named(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, RetryAppError):
        sys.__excepthook__(kind, error, trace)
        return
    _leave(error, user_line(error))


def _allow_open_files() -> None:
    """Raise this process's limit of open files to the most that its user may have.

    A store takes 10 to 80 files, each partition has two stores or more, and 1,024 is a usual limit to begin with.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the system may have a lower one than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _settle(app: faust.App, settings: Settings) -> WorkerPlace:
    conf = app.conf
    if conf.web_bind == "127.0.0.1" and settings.web_bind != "127.0.0.1":
        conf.web_bind = settings.web_bind
    if conf.web_enabled:
        _refuse_unguarded(app)
    start, url = conf.consumer_auto_offset_reset, conf.canonical_url
    if start not in ("earliest", "latest"):  # the client takes any other as "none", and a new group ends
        raise InvalidSettingError("consumer_auto_offset_reset", start, "expected 'earliest' or 'latest'")
    if url.scheme not in ("http", "https") or not url.host:
        expected = "expected the address of this worker's pages with its scheme, as http://10.0.0.5:6066"
        raise InvalidSettingError("canonical_url", str(url), expected)
    # Faust ends on a shorter one, and its own default of a session is longer than our requests
    conf.broker_request_timeout = max(conf.broker_request_timeout, conf.broker_session_timeout)
    if chosen := str(url) != f"http://{conf.web_host}:{conf.web_port}":
        conf.canonical_url = str(url).rstrip("/")  # type: ignore[assignment]  # the setting takes text; the log appends to it
    base = Path(conf.datadir)
    if str(base) == f"{conf.name}-data":  # the user chose none
        base = settings.datadir / conf.id
    place = claim_place(base)
    conf.datadir = place.path
    shown = "no pages"
    if conf.web_enabled:
        if conf.web_port == FAUST_PORT and not _port_given():
            conf.web_port = free_port(conf.web_bind, settings.web_port + place.number - 1)
        if _is_loopback(conf.web_bind):
            conf.web_host = in_url(conf.web_bind)
        elif conf.web_host == socket.gethostname():  # the user chose none, and others may not know a container's
            conf.web_host = local_address(addresses(app)) or conf.web_host
        if not chosen:
            conf.canonical_url = f"http://{conf.web_host}:{conf.web_port}"  # type: ignore[assignment]  # as above
        shown = f"pages {conf.canonical_url}/retries/"
    elif not chosen:
        # No address, but one name each: Faust keeps what a worker has by what it advertises, and a partition whose
        # owner is not known needs action.
        conf.canonical_url = f"no-pages:{secrets.token_hex(8)}"  # type: ignore[assignment]  # as above
    line = f"{conf.id} worker-{place.number}: data {place.path}, {shown}"
    if settings.log_format == "text":
        # before logging is set up; in one write, so that lines of several processes stay whole
        sys.stderr.write(f"retryapp: {line}\n")
    return place


def _refuse_unguarded(app: faust.App) -> None:
    """Refuse to serve pages to other machines if nobody has said who may do what."""
    runtime, bind = runtime_of(app), app.conf.web_bind
    if runtime is not None and not runtime.options.pages_guarded and not _is_loopback(bind):
        expected = (
            "other machines reach this address: set who may use the pages, in RETRYAPP_WEB_OPERATORS (tokens, as "
        )
        expected += "ann:SHA256, or anyone:look) or Retries(app, login=...), or listen on 127.0.0.1 (docs/operating.md)"
        raise InvalidSettingError("RETRYAPP_WEB_BIND or web_bind", bind, expected)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port_given() -> bool:
    """Return whether Faust's command line was given a port, which may be its default."""
    context = click.get_current_context(silent=True)
    return context is not None and context.params.get("web_port") is not None


def _app_spec() -> str:
    """Return which app Faust's command line was given."""
    context = click.get_current_context(silent=True)
    return "" if context is None else str(context.find_root().params.get("app") or "")


def _leave(error: RetryAppError, where: str = "") -> NoReturn:
    logging.getLogger("retryapp").debug("Worker cannot start", exc_info=error)
    line = with_app(f"{error} ({where})" if where else str(error), _app_spec())
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger("retryapp").critical(line, extra={"exit_code": int(error.exit_code)})
    else:
        sys.stderr.write(f"retryapp: {line}\n")
    raise SystemExit(error.exit_code)
