"""``retryapp job``: jobs, which replay, discard or restore many dead letters."""

from __future__ import annotations

from typing import Any

import click

from retryapp.cli._jobs import only_handler, show_job, show_jobs, show_refused, steer_job, watch
from retryapp.cli._options import Place, json_option, place_options
from retryapp.cli._steer import audit_options
from retryapp.cli.console import ExitCode, Group
from retryapp.core.jobs import JobVerb


@click.group(name="job", cls=Group)
def command() -> None:
    """Watch, pause, resume and cancel jobs.

    A job is begun by `dead replay`, `dead discard` or `dead restore` with a filter. The workers do it, so it goes on
    when the terminal is closed. `list`, `show` and `refused` read topics, so they work with all workers down.

    \b
    Examples:
      retryapp job list -A billing
      retryapp job show -A billing 3f9ca81b02 --watch
      retryapp job refused -A billing 3f9ca81b02
      retryapp job pause -A billing 3f9ca81b02 --why "the service is slow"
      retryapp job resume -A billing 3f9ca81b02 --why "it is faster again"
      retryapp job cancel -A billing 3f9ca81b02 --why "wrong cause"
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


@command.command(name="list")
@json_option
@place_options
def list_(*, place: Place, as_json: bool) -> ExitCode:
    """List jobs that have not ended, and the last ones that have."""
    return show_jobs(*only_handler(place), as_json=as_json)


@command.command()
@click.argument("job")
@click.option("--watch", "follow", is_flag=True, help="Keep showing it until it has ended or is paused.")
@json_option
@place_options
def show(*, job: str, follow: bool, place: Place, as_json: bool) -> ExitCode:
    """Show the progress of a job.

    \b
    Exit codes: 0 it is known; with --watch: it has ended and nothing was refused; 1 otherwise.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology = only_handler(place)
    if follow:
        return watch(connection, topology, job, None, as_json=as_json)
    return show_job(connection, topology, job, as_json=as_json)


@command.command()
@click.argument("job")
@json_option
@place_options
def refused(*, job: str, place: Place, as_json: bool) -> ExitCode:
    """Name the letters that a job has refused, and why. Of each partition the first 1,000 have events.

    \b
    Exit codes: 0 the job is known, 1 it is not.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return show_refused(*only_handler(place), job, as_json=as_json)


@command.command()
@click.argument("job")
@audit_options
def pause(*, job: str, place: Place, **options: Any) -> ExitCode:
    """Pause a job. Records that it has replayed already are still tried."""
    return steer_job(place, job, JobVerb.PAUSE, **options)


@command.command()
@click.argument("job")
@audit_options
def resume(*, job: str, place: Place, **options: Any) -> ExitCode:
    """Resume a paused job, also one that paused itself: it tries a few letters first."""
    return steer_job(place, job, JobVerb.RESUME, **options)


@command.command()
@click.argument("job")
@audit_options
def cancel(*, job: str, place: Place, **options: Any) -> ExitCode:
    """End a job. Records that it has replayed already are still tried."""
    return steer_job(place, job, JobVerb.CANCEL, **options)
