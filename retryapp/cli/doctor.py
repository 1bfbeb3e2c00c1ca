"""``retryapp doctor``: check everything that a worker depends on, without changing it."""

from __future__ import annotations

import time
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
from retryapp.settings import load_settings

ORDER: Final = (Severity.PROBLEM, Severity.WARNING)


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
    """Check everything that a worker depends on, and how to fix what is wrong. Changes nothing.

    Programs, data folder and disk of this machine; brokers and their settings; topics, rights, the group and its
    offsets; the clock. Run it where the workers run, as their user. It is safe while workers run.

    \b
    Exit codes: 0 all is well, 1 a warning or a problem, 2 usage or configuration, 3 no broker answers.

    \b
    Examples:
      retryapp doctor -A billing
      retryapp doctor -A shop.billing:app --write --json
      retryapp doctor --broker localhost:9092 --group billing
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    place = {"--broker": broker, "--group": group, "--client-config": client_config}
    given = [option for option, value in place.items() if value is not None]
    if app_spec is not None:
        if given:
            raise click.UsageError(f"{', '.join(given)}: the application of -A defines it")
        subject = _of_application(load_handlers(app_spec), datadir, write=write)
    else:
        if broker is None or group is None:
            raise click.UsageError("give -A MODULE[:APP], or --broker HOST:PORT with --group NAME")
        options = {} if client_config is None else read_client_config(client_config)
        subject = Subject(
            connection=KafkaConnection(broker, options),
            group=group,
            topologies=None,
            datadir=(datadir or load_settings().datadir) / group,
            write=write,
        )
    report = examine(subject, wall_ms=lambda: time.time_ns() // 1_000_000)
    emit(report_facts(report, subject), report_text(report), as_json=as_json)
    if not report.reachable:
        return ExitCode.ENVIRONMENT
    return ExitCode.FINE if report.clean else ExitCode.FINDING


def _of_application(application: Application, datadir: Path | None, *, write: bool) -> Subject:
    """Return what an application's workers would use, with the folder as the worker chooses it."""
    conf: Any = cast("Any", application).app.conf
    base = Path(conf.datadir)
    if datadir is not None or str(base) == f"{conf.name}-data":  # the user chose none
        base = (datadir or load_settings().datadir) / conf.id
    return Subject(
        connection=application.connection,
        group=conf.id,
        topologies=tuple(application.topologies),
        options=application.plan_options,
        session_timeout_ms=int(conf.broker_session_timeout * 1000),
        datadir=base,
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
    """Return a report for people: all checks, then what to do, the worst first."""
    rows = [(found.severity.value, found.name, found.seen, found.expected) for found in report.findings]
    parts = [table(("", "what", "seen", "expected"), rows)]
    for severity in ORDER:
        parts += [_advice(found) for found in report.findings if found.severity is severity]
    notes = [
        f"  {found.name}: {'. '.join(filter(None, (found.why, found.remedy)))}"
        for found in report.findings
        if found.severity is Severity.NOTE and (found.why or found.remedy)
    ]
    if notes:
        parts.append("\n".join(["notes", *notes]))
    return "\n\n".join([*parts, _summary(report)])


def _advice(found: Finding) -> str:
    expected = f", expected {found.expected}" if found.expected else ""
    lines = [f"{found.severity.value}: {found.name}: {found.seen}{expected}"]
    lines += [f"  {part}" for part in (found.why, found.remedy) if part]
    return "\n".join(lines)


def _summary(report: Report) -> str:
    counts = dict.fromkeys(Severity, 0)
    for found in report.findings:
        counts[found.severity] += 1
    fine, notes = f"{counts[Severity.OK]} ok", counted(counts[Severity.NOTE], "note")
    if report.clean:
        return f"no problems: {fine}, {notes}"
    bad = f"{counted(counts[Severity.PROBLEM], 'problem')}, {counted(counts[Severity.WARNING], 'warning')}"
    return f"{bad}, {notes}, {fine}"
