"""``retryapp demo``: the whole path on a real Kafka, with real data."""

from __future__ import annotations

import click

from retryapp.cli._options import json_option
from retryapp.cli.broker import download_progress
from retryapp.cli.console import ExitCode, emit, stderr_console
from retryapp.demo.data import TOTAL_FLIGHTS
from retryapp.demo.report import PAGE
from retryapp.demo.run import DEFAULT_RECORDS, run_demo
from retryapp.settings import load_settings


@click.command(name="demo")
@click.option(
    "--records",
    type=click.IntRange(1, TOTAL_FLIGHTS),
    default=DEFAULT_RECORDS,
    show_default=True,
    help="Feed the first N flights of the file.",
    metavar="N",
)
@click.option("--no-report", is_flag=True, help="Make no report with the pipeline on Spark.")
@json_option
def command(*, records: int, no_report: bool, as_json: bool) -> int:
    """Watch real records fail, wait, come back on time, and end done or dead.

    Starts a Kafka broker, a failing HTTP service and two workers; feeds flights of 2013; kills one worker in mid-run;
    ends with a balance by the service's own log and the ledger of the topics. Takes about a minute for 20,000 flights.
    Then the pipeline on Spark archives and analyses what happened and writes its report to RETRYAPP_DATADIR; if it
    cannot, one line says why.

    Exit codes: 0 every flight is done or dead, none lost, none early, no hand-off twice; 1 otherwise, or the report
    differs; 3 something is missing or failed; 130 interrupted. A report that cannot be made changes none.

    \b
    Examples:
      retryapp demo
      retryapp demo --records 6000 --json
      retryapp demo --no-report
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    settings = load_settings()
    page = None if no_report else settings.datadir / PAGE
    with download_progress() as progress:
        result = run_demo(records, stderr_console, cache_dir=settings.cache_dir, page=page, progress=progress)
    if as_json:
        emit(result.as_json(), "", as_json=True)
    return ExitCode.FINE if result.is_in_order else ExitCode.FINDING
