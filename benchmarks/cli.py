"""`python -m benchmarks all`, or one workload by its name."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks import machine, results
from benchmarks.plan import Plan, quick_plan
from benchmarks.report import PAGE, page, summary
from benchmarks.results import Result, as_json
from benchmarks.stage import Stage
from benchmarks.worker import ROOT
from benchmarks.workloads import WORKLOADS, Workload
from retryapp.core.errors import RetryAppError
from retryapp.stage import ChildFailedError, NotInTimeError

SHARED = ("partitions", "value_bytes", "concurrency", "pin", "log_level", "timeout_s")
"""Fields of the plan that every workload reads."""


def say(text: str) -> None:
    """Tell a person what goes on; results go to stdout."""
    click.echo(f"{datetime.fromtimestamp(time.time_ns() / 1e9, UTC):%H:%M:%S} {text}", err=True)


def run_workloads(chosen: Sequence[Workload], plan: Plan, out: Path | None) -> bool:
    """Run workloads on one broker, printing each result as it comes and writing it at once.

    Returns:
        Whether every workload finished and every target was met.
    """
    kept = results.load(out) if out is not None else {}
    met = True
    with Stage(plan) as stage:
        for workload in chosen:
            found = _run_one(workload, stage)
            met = met and found["unfinished"] is None and all(f["met"] is not False for f in found["figures"])
            kept[workload.name] = found
            click.echo(summary(found))
            if out is not None:
                _write(out, {w.name: kept[w.name] for w in WORKLOADS if w.name in kept}, stage.folder)
    return met


def _run_one(workload: Workload, stage: Stage) -> dict[str, Any]:
    before = machine.look()
    if not before.idle:
        say(f"WARNING: the machine is not idle ({before.busy_percent:.0f} % busy): do not trust these figures")
    began, began_s = datetime.fromtimestamp(time.time_ns() / 1e9, UTC), time.monotonic()
    say(f"{workload.name}: {workload.title}")
    try:
        result = workload.run(stage, say)
    except (NotInTimeError, ChildFailedError) as error:
        say(f"{workload.name}: DID NOT FINISH: {error}")
        result = Result(name=workload.name, title=workload.title, unfinished=str(error))
    minutes = (time.monotonic() - began_s) / 60
    after = machine.look()
    if before.idle and not after.idle:
        say(f"WARNING: the machine was not idle at the end ({after.busy_percent:.0f} % busy)")
    sizes = asdict(stage.plan)
    result.ran = {
        "began": f"{began:%Y-%m-%d %H:%M} UTC",
        "minutes": minutes,
        "version": _version(),
        "command": shlex.join(["python", "-m", "benchmarks", *_without_out(sys.argv[1:])]),
        "before": asdict(before),
        "after": asdict(after),
        "idle": before.idle and after.idle,
        "machine": machine.describe(),
        "cores": stage.cores.text,
        "sizes": {name: sizes[name] for name in (*workload.options, *SHARED)},
    }
    return as_json(result)


def _without_out(arguments: Sequence[str]) -> list[str]:
    """Leave out where the page went: it changes nothing, and names a folder of this machine."""
    kept, skip = list[str](), False
    for argument in arguments:
        if not (skip or argument == "--out" or argument.startswith("--out=")):
            kept.append(argument)
        skip = argument == "--out"
    return kept


def _write(out: Path, found: dict[str, dict[str, Any]], folder: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results.save(out, found)
    (out / PAGE).write_text(page(found))
    for picture in folder.glob("*.png"):
        shutil.copyfile(picture, out / picture.name)


def _version() -> str:
    """Return the commit that was measured, and whether the tree had changes."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    said = subprocess.run(  # noqa: S603 - all words of the command are ours
        [git, "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "unknown"


def _command(name: str, text: str, chosen: Sequence[Workload]) -> click.Command:
    names = [field for workload in chosen for field in workload.options] + list(SHARED)
    fields = [Plan.__dataclass_fields__[name] for name in dict.fromkeys(names)]

    def run(*, quick: bool, out: Path | None, **given: Any) -> int:
        base = quick_plan() if quick else Plan()
        plan = replace(base, **{name: value for name, value in given.items() if value is not None})
        folder = out if out is not None or quick else ROOT / "benchmarks"
        return 0 if run_workloads(chosen, plan, folder) or quick else 1

    options: list[click.Parameter] = [
        click.Option(["--quick"], is_flag=True, help="Small sizes: proves that it works, figures mean nothing."),
        click.Option(
            ["--out"],
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder for README.md, results.json and the picture. [default: benchmarks; none with --quick]",
        ),
    ]
    for field in fields:
        flag = field.name.replace("_", "-")
        is_switch = isinstance(field.default, bool)
        options.append(
            click.Option(
                [f"--{flag}/--no-{flag}" if is_switch else f"--{flag}"],
                default=None,
                type=bool if is_switch else click.IntRange(min=0) if isinstance(field.default, int) else str,
                help=f"{field.metadata['help']} [default: {field.default}; quick: {field.metadata['quick']}]",
            )
        )
    return click.Command(name, callback=run, params=options, help=text, short_help=text)


@click.group(name="benchmarks", context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure retryapp beside its peers.

    Exit codes: 0 all targets met, or --quick; 1 one was missed or did not finish; 3 it could not be run.
    """


for _workload in WORKLOADS:
    cli.add_command(_command(_workload.name, f"{_workload.title}.", [_workload]))
cli.add_command(_command("all", "Every workload, on one broker.", WORKLOADS))


@cli.command(name="page")
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path), required=False)
def write_page(folder: Path | None) -> int:
    """Write the page again from results.json."""
    where = folder or ROOT / "benchmarks"
    (where / PAGE).write_text(page(results.load(where)))
    return 0


def main() -> None:
    """Run; a fault of the environment is one line and its exit code."""
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except RetryAppError as error:
        click.echo(f"benchmarks: {error}", err=True)
        code = error.exit_code
    sys.exit(code)
