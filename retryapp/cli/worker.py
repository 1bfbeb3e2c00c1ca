"""``retryapp worker``: Faust's worker of an app with handlers, checked first, in one process or several."""

from __future__ import annotations

import logging
import math
import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from retryapp.cli._app import load_application
from retryapp.cli._options import Parsed, app_option
from retryapp.cli._processes import run_processes, stop_with_parent
from retryapp.cli.console import ExitCode
from retryapp.core.errors import BrokerUnreachableError, NoHandlersError
from retryapp.runtime.machine.early_stop import stopped_early
from retryapp.runtime.machine.place import MAX_WORKERS
from retryapp.settings import load_settings

LOG_LEVELS: Final = ("debug", "info", "warn", "error", "crit")
"""As Faust names them."""

_BROKER_MS: Final = 2_000
"""How long a broker may take to answer until it is said that several processes wait for it."""
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""Where a Linux container reads how much of the machine's processors it may use: microseconds, and of how many."""


def _processes(text: str) -> int:
    if text == "auto":
        return min(usable_cores(), MAX_WORKERS)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise ValueError(f"{text!r}: expected auto, or a number from 1 to {MAX_WORKERS}")
    return int(text)


@click.command(name="worker")
@click.argument("app_argument", metavar="[MODULE[:APP]]", required=False)
@app_option(required=False)
@click.option(
    "--loglevel",
    "-l",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Lowest level of log lines.",
)
@click.option("--without-web", is_flag=True, help="Serve no pages, and no metrics but on --metrics-port.")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    help="First port to try for the metrics alone, at /metrics. [default: RETRYAPP_METRICS_PORT, or none]",
)
@click.option(
    "--processes",
    type=Parsed("processes", _processes),
    metavar="N|auto",
    default=1,
    show_default=True,
    help="Worker processes to run; auto: one per usable core. Processes beyond the number of partitions stay idle.",
)
@click.option("--parent", type=int, hidden=True, help="Process id of the command that started this one.")
@click.option("--check", is_flag=True, hidden=True, help="Check the app, and end.")
def command(
    *,
    app_argument: str | None,
    app_spec: str | None,
    loglevel: str,
    without_web: bool,
    metrics_port: int | None,
    processes: int,
    parent: int | None,
    check: bool,
) -> int:
    """Run a worker of an app: its handlers, its own agents and its pages. Start several for scale.

    Checks the app, then does what 'faust -A MODULE[:APP] worker -l info' does. It logs only a few lines until it is
    ready, with '--loglevel debug' everything. SIGTERM and Ctrl-C stop it within RETRYAPP_GRACE and a few seconds. It is
    not restarted: let systemd, compose or an orchestrator do that.

    With --processes each process has its own folder and port, and its log lines have its process id. One signal stops
    all. When one ends, the others are stopped and its exit code is the command's.

    \b
    Exit codes: 0 stopped, 1 crashed, 2 configuration, 3 environment (broker, topics, disk, port), 4 restart needed.

    \b
    Examples:
      retryapp worker billing
      retryapp worker -A shop.billing:app
      retryapp worker billing --processes auto
      RETRYAPP_GRACE=60s RETRYAPP_DATADIR=/var/lib/billing retryapp worker billing --loglevel warn
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    spec = _one_spec(app_argument, app_spec)
    if metrics_port is not None:
        os.environ["RETRYAPP_METRICS_PORT"] = str(metrics_port)
    words = ["--loglevel", loglevel, *(["--without-web"] if without_web else [])]
    if processes > 1:
        own = [sys.executable, "-m", "retryapp", "worker", "-A", spec, "--parent", str(os.getpid())]
        return run_processes([*own, *words], processes, check=[*own, "--check"])
    with stopped_early(load_settings().log_format):
        if parent is not None:
            stop_with_parent(parent)
        _check(spec)
        if check:
            _prepare(spec)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ExitCode.FINE)  # a thread of the app's may be left, which an interpreter's end waits for
        brief = [] if loglevel == "debug" else ["--quiet"]  # no banner, and a ready line instead of Faust's many
        return _run([*brief, "-A", spec, "worker", *words])


def usable_cores(quota: Path = _QUOTA) -> int:
    """Return how many cores this process may use: those of its affinity, and no more than its container's share."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    try:
        share, period = quota.read_text().split()
        cores = min(cores, math.ceil(int(share) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):  # no such file here, or "max": no bound
        pass
    return max(1, cores)


def _one_spec(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None and argument != option:
        raise click.UsageError(f"two apps are given, {argument} and {option}: give one")
    spec = argument if argument is not None else option
    if spec is None:
        raise click.UsageError("no app is given: 'retryapp worker MODULE[:APP]'")
    return spec


def _check(spec: str) -> None:
    """Refuse what Faust would answer with a traceback, or not at all.

    Raises:
        ConfigurationError: no such app, no `Retries`, or no handlers.
    """
    if not load_application(spec).topologies:
        raise NoHandlersError(spec)


def _prepare(spec: str) -> None:
    """Prepare the app as a worker does: what each process would refuse, or wait for, is said once.

    Raises:
        ConfigurationError: the program is wrong.
        EnvironmentFault: broker or topics are.
    """
    logging.disable(logging.WARNING)  # each process warns
    app = import_module("faust.cli.base").find_app(spec)
    runtime = import_module("retryapp.runtime.worker").runtime_of(app)
    options = runtime.options
    left_ms = options.start_timeout_ms - _BROKER_MS
    runtime.options = replace(options, start_timeout_ms=min(_BROKER_MS, options.start_timeout_ms))
    try:
        runtime.prepare()
    except BrokerUnreachableError as error:
        if left_ms <= 0:
            raise
        click.echo(f"retryapp: waiting for a broker, up to {left_ms / 1_000:.0f} s more: {error}", err=True)
        runtime.options = replace(options, start_timeout_ms=left_ms)
        runtime.prepare()


def _run(arguments: list[str]) -> int:
    faust_cli: Any = import_module("faust.cli.faust").cli  # loads Faust, so only when a worker runs
    faust_cli.main(args=arguments, prog_name="faust", standalone_mode=False)
    return ExitCode.FINE
