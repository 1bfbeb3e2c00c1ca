"""``retryapp worker``: Faust's worker of an app with handlers, checked first, restarted when asked for."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from retryapp.cli._app import Application, app_option, load_application
from retryapp.cli._supervisor import Supervisor
from retryapp.cli.console import ExitCode
from retryapp.core.errors import NoHandlersError, PortTakenError
from retryapp.runtime.place import free_port
from retryapp.settings import load_settings

LOG_LEVELS: Final = ("debug", "info", "warn", "error", "crit")
"""As Faust names them."""


@click.command(name="worker")
@click.argument("app_argument", metavar="[MODULE[:APP]]", required=False)
@app_option(required=False)
@click.option(
    "--loglevel",
    "-l",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Least level of log lines.",
)
@click.option(
    "--datadir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of local state, instead of RETRYAPP_DATADIR; each worker locks the first free worker-N in it.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Port of the pages. [default: the first free one from RETRYAPP_WEB_PORT on]",
)
@click.option("--without-web", is_flag=True, help="Serve no pages and no metrics.")
@click.option(
    "--restart",
    is_flag=True,
    help="Start the worker again when it crashes or asks for it, after 1 s to 30 s. Exit codes 0 and 2 end it.",
)
def command(
    *,
    app_argument: str | None,
    app_spec: str | None,
    loglevel: str,
    datadir: Path | None,
    port: int | None,
    without_web: bool,
    restart: bool,
) -> int:
    """Run a worker of an app: its handlers, its own agents and its pages. Start several for scale.

    The same as 'faust -A MODULE[:APP] worker -l info', with the app checked first. SIGTERM and Ctrl-C stop it within
    RETRYAPP_GRACE and a few seconds.

    \b
    Exit codes: 0 stopped, 1 crashed, 2 configuration, 3 environment (broker, topics, disk, port), 4 start me again.

    \b
    Examples:
      retryapp worker billing
      retryapp worker -A shop.billing:app --restart
      RETRYAPP_GRACE=60s retryapp worker billing --loglevel warn --datadir /var/lib/billing
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    spec = _one_spec(app_argument, app_spec)
    if port is not None and without_web:
        raise click.UsageError("--port and --without-web: give one of them")
    options = _faust_options(loglevel, port=port, without_web=without_web)
    if datadir is not None:
        os.environ["RETRYAPP_DATADIR"] = str(
            datadir.absolute()
        )  # read when the worker takes its place; the child's too
    if restart:
        return _supervise(spec, loglevel, port=port, without_web=without_web)
    _check(spec, port)
    return _run(["-A", spec, "worker", *options])


def _one_spec(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None and argument != option:
        raise click.UsageError(f"two apps are named, {argument} and {option}: give one of them")
    spec = argument if argument is not None else option
    if spec is None:
        raise click.UsageError("say which app to run: 'retryapp worker MODULE[:APP]'")
    return spec


def _faust_options(loglevel: str, *, port: int | None, without_web: bool) -> list[str]:
    options = ["--loglevel", loglevel]
    if without_web:
        options.append("--without-web")
    if port is not None:
        options += ["--web-port", str(port)]
    return options


def _check(spec: str, port: int | None) -> None:
    """Refuse by name what Faust would tell in a traceback, or not at all.

    Raises:
        ConfigurationError: no such app, no `Retries`, no handlers, or a setting that cannot be used.
        PortTakenError: the port that was asked for.
    """
    settings = load_settings()
    application = load_application(spec)
    if not application.topologies:
        _discover(spec, application)
    if port is not None:
        try:
            free_port(settings.web_bind, port, attempts=1)
        except PortTakenError as error:
            remedy = "Stop what listens there, or leave --port out: the next free one is taken then"
            raise PortTakenError(settings.web_bind, port, remedy) from error


def _discover(spec: str, application: Application) -> None:
    """Look for handlers where Faust's ``autodiscover`` would find them.

    Raises:
        NoHandlersError: there are none.
    """
    import_module("faust.cli.base").find_app(spec)
    if not application.topologies:
        raise NoHandlersError(spec)


def _run(arguments: list[str]) -> int:
    """Run Faust's own command line in this process."""
    faust_cli: Any = import_module("faust.cli.faust").cli  # loads Faust, so only when a worker runs
    faust_cli.main(args=arguments, prog_name="faust", standalone_mode=False)
    return ExitCode.FINE


def _supervise(spec: str, loglevel: str, *, port: int | None, without_web: bool) -> int:
    words = [sys.executable, "-m", "retryapp.cli.main", "worker", "-A", spec, "--loglevel", loglevel]
    if without_web:
        words.append("--without-web")
    if port is not None:
        words += ["--port", str(port)]
    return Supervisor(words, say=lambda line: click.echo(f"retryapp: {line}", err=True)).run()
