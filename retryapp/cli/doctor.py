"""``retryapp doctor``: check everything that a worker depends on, without changing it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from retryapp.cli._app import load_handlers
from retryapp.cli._options import app_option, json_option
from retryapp.cli._output import table
from retryapp.cli.console import ExitCode, emit
from retryapp.core.text import counted
from retryapp.doctor import Finding, Report, Severity, Subject, examine
from retryapp.runtime.machine.clock import SystemClock
from retryapp.settings import load_settings


@click.command(name="doctor")
@app_option(required=True)
@click.option(
    "--write",
    is_flag=True,
    help="Also write one record to an events topic, in a transaction that is aborted: compares clocks, tries rights.",
)
@json_option
def command(*, app_spec: str, write: bool, as_json: bool) -> ExitCode:
    """Check everything that a worker depends on, and how to fix what is wrong. Changes nothing.

    Variables, data folder and disk of this machine; brokers and their settings; topics, rights, the group and its
    offsets; the clock. Run it where the workers run, as their user. It is safe while workers run.

    \b
    Exit codes: 0 all is well, 1 a warning or a problem, 2 usage or configuration, 3 no broker answers.

    \b
    Examples:
      retryapp doctor -A billing
      retryapp doctor -A shop.billing:app --write --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    subject = _subject(app_spec, write=write)
    report = examine(subject, wall_ms=SystemClock().wall_ms)
    facts = {
        "bootstrap": subject.connection.bootstrap,
        "group": subject.group,
        "reachable": report.reachable,
        "ok": report.clean,
        "findings": list(report.findings),
    }
    emit(facts, report_text(report), as_json=as_json)
    if not report.reachable:
        return ExitCode.ENVIRONMENT
    return ExitCode.FINE if report.clean else ExitCode.FINDING


def _subject(app_spec: str, *, write: bool) -> Subject:
    """Return what the workers would use, with the data folder that they would choose."""
    application = load_handlers(app_spec)
    conf: Any = application.app.conf
    base = Path(conf.datadir)
    if str(base) == f"{conf.name}-data":  # the user chose none
        base = load_settings().datadir / conf.id
    return Subject(
        connection=application.connection,
        group=conf.id,
        topologies=application.topologies,
        options=application.plan_options,
        session_timeout_ms=int(conf.broker_session_timeout * 1000),
        datadir=base,
        write=write,
    )


def report_text(report: Report) -> str:
    """Return a report for people: what to do, the worst first, then all checks."""
    parts = list[str]()
    for severity in (Severity.PROBLEM, Severity.WARNING):
        parts += [_advice(finding) for finding in report.findings if finding.severity is severity]
    notes = [
        f"  {finding.name}: {'. '.join(filter(None, (finding.why, finding.remedy)))}"
        for finding in report.findings
        if finding.severity is Severity.NOTE and (finding.why or finding.remedy)
    ]
    if notes:
        parts.append("\n".join(["notes", *notes]))
    rows = [(finding.severity.value, finding.name, finding.seen, finding.expected) for finding in report.findings]
    return "\n\n".join([*parts, table(("", "what", "seen", "expected"), rows), _summary(report)])


def _advice(finding: Finding) -> str:
    expected = f", expected {finding.expected}" if finding.expected else ""
    lines = [f"{finding.severity.value}: {finding.name}: {finding.seen}{expected}"]
    lines += [f"  {part}" for part in (finding.why, finding.remedy) if part]
    return "\n".join(lines)


def _summary(report: Report) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    fine, notes = f"{counts[Severity.OK]} ok", counted(counts[Severity.NOTE], "note")
    if report.clean:
        return f"no problems: {fine}, {notes}"
    bad = f"{counted(counts[Severity.PROBLEM], 'problem')}, {counted(counts[Severity.WARNING], 'warning')}"
    return f"{bad}, {notes}, {fine}"
