"""``retryapp demo``: the whole path on a real Kafka, with real data."""

from __future__ import annotations

import sys

import click

from retryapp.cli.broker import download_progress
from retryapp.cli.console import ExitCode, emit, json_option, stderr_console
from retryapp.demo.data import TOTAL_FLIGHTS
from retryapp.demo.report import PAGE
from retryapp.demo.run import DEFAULT_RATE, DEFAULT_RECORDS, LEAST_FEED_S, DemoOptions, DemoResult, run_demo
from retryapp.settings import current_settings


@click.command(name="demo")
@click.option(
    "--records",
    type=click.IntRange(1, TOTAL_FLIGHTS),
    default=DEFAULT_RECORDS,
    show_default=True,
    help="Feed so many flights, in the file's order.",
)
@click.option("--all", "all_records", is_flag=True, help=f"Feed all {TOTAL_FLIGHTS:,} flights.")
@click.option(
    "--rate",
    type=click.FloatRange(1, 100_000),
    default=None,
    help=f"Flights a second. [default: {DEFAULT_RATE:g}, less for fewer than {DEFAULT_RATE * LEAST_FEED_S:,.0f}]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Which flights fail at first, how and how often.")
@click.option("--keep", is_flag=True, help="Leave all running at the end, until Ctrl-C, and keep the logs.")
@click.option(
    "--report/--no-report",
    default=True,
    show_default=True,
    help="Let the pipeline on Spark make its report at the end, in RETRYAPP_DATADIR.",
)
@json_option
def command(
    *, records: int, all_records: bool, rate: float | None, seed: int, keep: bool, report: bool, as_json: bool
) -> int:
    """Watch real records fail, wait, come back on time, and end done or dead.

    Starts a Kafka broker, a failing HTTP service and two workers; feeds flights of 2013; kills one worker in mid-run;
    ends with a balance counted from the service's own log and the topics. Takes about a minute for 20,000 flights. Then
    the pipeline on Spark archives and analyses what happened, and the path of its page is printed. Where it cannot, the
    balance stands, and one line says why.

    Exit codes: 0 every flight is done or dead, none lost, none early, no hand-off twice; 1 that is not so, or the
    report counts otherwise; 3 something is missing or failed; 130 interrupted. A report that cannot
    be made changes none.

    \b
    Examples:
      retryapp demo
      retryapp demo --records 6000 --json
      retryapp demo --keep --no-report
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    options = DemoOptions(
        cache_dir=current_settings().cache_dir,
        records=TOTAL_FLIGHTS if all_records else records,
        rate=rate,
        seed=seed,
        keep=keep,
        page=current_settings().datadir / PAGE if report else None,
        live=sys.stdout.isatty() and sys.stderr.isatty(),
    )

    def print_json(result: DemoResult) -> None:
        if as_json:
            emit(result.as_json(), "", as_json=True)

    with download_progress() as progress:
        result = run_demo(options, stderr_console, progress=progress, on_result=print_json)
    return ExitCode.FINE if result.is_in_order else ExitCode.FINDING
