"""``retryapp doctor``: everything that a worker depends on, looked at without changing it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import click

from retryapp.cli._app import Application, app_option, load_handlers
from retryapp.cli._output import table
from retryapp.cli._target import read_client_config
from retryapp.cli.console import ExitCode, emit, json_option
from retryapp.doctor import Finding, Report, Severity, Subject, examine
from retryapp.doctor.findings import counted
from retryapp.kafka import KafkaConnection
from retryapp.runtime.store import FORMAT_VERSION
from retryapp.settings import Settings, load_settings

PROTOCOL: Final = "faust"
"""Name under which workers join the group; a test holds it to the runtime's."""
ORDER: Final = (Severity.PROBLEM, Severity.WARNING)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to look when no application says it."""

    broker: str | None
    group: str | None
    client_config: Path | None

    @property
    def given(self) -> list[str]:
        named = {"--broker": self.broker, "--group": self.group, "--client-config": self.client_config}
        return [option for option, value in named.items() if value is not None]


@click.command(name="doctor")
@app_option(required=False)
@click.option("--broker", metavar="HOST:PORT", help="Bootstrap address, instead of -A.")
@click.option("--group", metavar="NAME", help="Consumer group = the Faust app's id, with --broker.")
@click.option(
    "--client-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with librdkafka properties for --broker, name=value a line (security.protocol, sasl.username).",
)
@click.option(
    "--datadir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of local state, instead of RETRYAPP_DATADIR.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Also write one record to an events topic, in a transaction that is aborted: compares clocks, tries rights.",
)
@json_option
def command(
    *,
    app_spec: str | None,
    broker: str | None,
    group: str | None,
    client_config: Path | None,
    datadir: Path | None,
    write: bool,
    as_json: bool,
) -> ExitCode:
    """Look at everything that a worker depends on, and say what to do about what is wrong. Changes nothing.

    Programs, ports, disk and local stores of this machine; brokers and their settings; topics, rights, the group and
    its offsets; the clock. Run it where the workers run, as their user. It is safe beside running workers.

    \b
    Exit codes: 0 nothing found, 1 a warning or a problem, 2 usage or configuration, 3 no broker answers.

    \b
    Examples:
      retryapp doctor -A billing
      retryapp doctor -A shop.billing:app --write --json
      retryapp doctor --broker localhost:9092 --group billing
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    place = _Place(broker, group, client_config)
    settings = load_settings()
    if app_spec is not None:
        if place.given:
            raise click.UsageError(f"{', '.join(place.given)}: the application of -A says that itself")
        subject = _of_application(load_handlers(app_spec), settings, datadir, write=write)
    else:
        subject = _of_place(place, settings, datadir, write=write)
    report = examine(subject, wall_ms=_wall_ms)
    emit(report_facts(report, subject), report_text(report), as_json=as_json)
    if not report.reachable:
        return ExitCode.ENVIRONMENT
    return ExitCode.FINE if report.clean else ExitCode.FINDING


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _of_application(application: Application, settings: Settings, datadir: Path | None, *, write: bool) -> Subject:
    """Return what an application's workers would use: folder and port as the worker chooses them."""
    app: Any = cast("Any", application).app
    worker = import_module("retryapp.runtime.worker")  # loads Faust, so only when an application is named
    conf = app.conf
    base = Path(conf.datadir)
    if datadir is not None or str(base) == f"{conf.name}-data":  # the user chose none
        base = (datadir or settings.datadir) / conf.id
    bind = settings.web_bind if conf.web_bind == "127.0.0.1" else conf.web_bind
    port = settings.web_port if conf.web_port == worker.FAUST_PORT else conf.web_port
    return Subject(
        connection=application.connection,
        group=conf.id,
        topologies=tuple(application.topologies),
        options=application.plan_options,
        session_timeout_ms=int(conf.broker_session_timeout * 1000),
        datadir=base,
        web_bind=bind,
        web_port=port if conf.web_enabled else None,
        store_format=FORMAT_VERSION,
        protocols=frozenset({PROTOCOL}),
        write=write,
    )


def _of_place(place: _Place, settings: Settings, datadir: Path | None, *, write: bool) -> Subject:
    """Return a group without its application: the topics tell its handlers.

    Raises:
        click.UsageError: no cluster or no group is named.
    """
    if place.broker is None or place.group is None:
        raise click.UsageError("say where to look: -A MODULE[:APP], or --broker HOST:PORT with --group NAME")
    options = {} if place.client_config is None else read_client_config(place.client_config)
    connection = KafkaConnection(place.broker, options)
    return Subject(
        connection=connection,
        group=place.group,
        topologies=None,
        datadir=(datadir or settings.datadir) / place.group,
        web_bind=settings.web_bind,
        web_port=settings.web_port,
        store_format=FORMAT_VERSION,
        protocols=frozenset({PROTOCOL}),
        write=write,
    )


def report_facts(report: Report, subject: Subject) -> dict[str, Any]:
    """Return a report for programs."""
    return {
        "bootstrap": subject.connection.bootstrap,
        "group": subject.group,
        "reachable": report.reachable,
        "ok": report.clean,
        "findings": list(report.findings),
    }


def report_text(report: Report) -> str:
    """Return a report for people: all that was looked at, then what to do, the worst first."""
    rows = [(found.severity.value, found.name, found.seen, found.expected) for found in report.findings]
    parts = [table(("", "what", "seen", "expected"), rows)]
    for severity in ORDER:
        parts += ["".join(_advice(found)) for found in report.findings if found.severity is severity]
    notes = [found for found in report.findings if found.severity is Severity.NOTE and (found.why or found.remedy)]
    if notes:
        parts.append("notes\n" + "\n".join(f"  {found.name}: {_words(found)}" for found in notes))
    return "\n\n".join([*parts, _summary(report)])


def _advice(found: Finding) -> list[str]:
    wanted = f", expected is {found.expected}" if found.expected else ""
    lines = [f"{found.severity.value}: {found.name}: {found.seen}{wanted}"]
    if found.why:
        lines.append(f"\n  {found.why}")
    if found.remedy:
        lines.append(f"\n  {found.remedy}")
    return lines


def _words(found: Finding) -> str:
    return ". ".join(part for part in (found.why, found.remedy) if part)


def _summary(report: Report) -> str:
    counts = dict.fromkeys(Severity, 0)
    for found in report.findings:
        counts[found.severity] += 1
    if report.clean:
        return f"nothing found: {counts[Severity.OK]} as they have to be, {counted(counts[Severity.NOTE], 'note')}"
    return (
        f"{counted(counts[Severity.PROBLEM], 'problem')}, {counted(counts[Severity.WARNING], 'warning')}, "
        f"{counted(counts[Severity.NOTE], 'note')}, {counts[Severity.OK]} as they have to be"
    )
