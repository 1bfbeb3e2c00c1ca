"""``retryapp job``: jobs, which replay, discard or restore many dead letters."""

from __future__ import annotations

import re
from typing import Any

import click

from retryapp.cli._jobs import answers, job_text, only_handler, state_text, unknown_job, watch
from retryapp.cli._options import Place, json_option, place_options
from retryapp.cli._output import table
from retryapp.cli._steer import audit_options
from retryapp.cli.console import ExitCode, Group, emit
from retryapp.core.control import JOB_ID
from retryapp.core.jobs import MOST_NAMED, JobVerb
from retryapp.core.text import counted
from retryapp.lookup.jobs import parts_of, passed, progress_of, read_refused, summed, tell_job
from retryapp.runtime.machine.clock import SystemClock


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
    """List jobs that have not ended, also those that wait for a worker, and the last ones that have."""
    jobs = progress_of(*only_handler(place), SystemClock().wall_ms())
    rows = []
    for job, found in jobs.items():
        each = found.whole
        count = each.refused.total() - passed(each)
        rows.append([job, each.verb, state_text(found), f"{each.done:,}", f"{count:,}", each.by, each.why])
    text = table(["job", "", "state", "done", "refused", "by", "why"], rows) if rows else "no jobs"
    emit({"jobs": [found.facts(job) for job, found in jobs.items()]}, text, as_json=as_json)
    return ExitCode.FINE


@command.command()
@click.argument("job")
@click.option("--watch", "follow", is_flag=True, help="Keep showing it until it has ended or is paused.")
@json_option
@place_options
def show(*, job: str, follow: bool, place: Place, as_json: bool) -> ExitCode:
    """Show the progress of a job.

    \b
    Exit codes: 0 it is known; with --watch: it has ended and nothing was refused but
    letters that were done with before; 1 otherwise.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology = only_handler(place)
    if follow:
        return watch(connection, topology, job, None, as_json=as_json)
    found = progress_of(connection, topology, SystemClock().wall_ms()).get(job)
    if found is None:
        return unknown_job(job, as_json=as_json)
    emit(found.details(job), job_text(job, found), as_json=as_json)
    return ExitCode.FINE


@command.command()
@click.argument("job")
@json_option
@place_options
def refused(*, job: str, place: Place, as_json: bool) -> ExitCode:
    """Name the letters that a job has refused or left as they were, and why: of each partition the first 1,000.

    \b
    Exit codes: 0 the job is known, 1 it is not.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology = only_handler(place)
    parts = parts_of(connection, topology).get(job)
    if parts is None:
        return unknown_job(job, as_json=as_json)
    letters, total = read_refused(connection, topology, job, parts).letters, summed(parts).refused.total()
    rows = [[each["failure_id"] or "-", each["refused"], each["text"]] for each in letters]
    text = f"{table(['failure id', 'refused', ''], rows)}\n" if rows else ""
    text += f"{len(letters):,} of {counted(total, 'letter')}, refused or as before; "
    text += f"each partition names its first {MOST_NAMED:,}, until the retention of the events topic deletes them"
    emit({"job": job, "refused": total, "letters": letters}, text, as_json=as_json)
    return ExitCode.FINE


@command.command()
@click.argument("job")
@audit_options
def pause(*, job: str, place: Place, **options: Any) -> ExitCode:
    """Pause a job. Records that it has replayed already are still tried."""
    return _steer(place, job, JobVerb.PAUSE, **options)


@command.command()
@click.argument("job")
@audit_options
def resume(*, job: str, place: Place, **options: Any) -> ExitCode:
    """Resume a paused job, also one that paused itself: it tries a few letters first."""
    return _steer(place, job, JobVerb.RESUME, **options)


@command.command()
@click.argument("job")
@audit_options
def cancel(*, job: str, place: Place, **options: Any) -> ExitCode:
    """End a job. Records that it has replayed already are still tried."""
    return _steer(place, job, JobVerb.CANCEL, **options)


def _steer(place: Place, job: str, verb: JobVerb, *, by: str, why: str, wait_ms: int, as_json: bool) -> ExitCode:
    if not re.fullmatch(JOB_ID, job):
        raise click.UsageError(f"{job!r} is no id of a job")
    told = tell_job(*only_handler(place), job, verb, by=by, why=why, wait_s=wait_ms / 1000)
    if not told:
        emit({"job": job, "found": False}, f"no job {job} goes on", as_json=as_json)
        return ExitCode.FINDING
    return answers({"job": job, "verb": verb}, told, as_json=as_json)
