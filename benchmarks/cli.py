"""`python -m benchmarks all`, or one workload by its name."""

from __future__ import annotations

import shlex
import shutil
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
from benchmarks.results import Result
from benchmarks.stage import Stage
from benchmarks.worker import ROOT
from benchmarks.workloads import WORKLOADS
from retryapp.core.errors import RetryAppError
from retryapp.stage import ChildFailedError, NotInTimeError

SHARED = ("partitions", "value_bytes", "concurrency", "pin", "log_level", "timeout_s")
"""Fields of the plan that every workload reads."""


def _now() -> datetime:
    return datetime.fromtimestamp(time.time_ns() / 1e9, UTC)


def say(text: str) -> None:
    """Report progress; results go to stdout."""
    click.echo(f"{_now():%H:%M:%S} {text}", err=True)


def run_workloads(names: Sequence[str], plan: Plan, out: Path | None) -> bool:
    """Run workloads on one broker; print each result, and write it at once.

    Returns:
        Whether every workload finished and every target was met.
    """
    known = results.load(out) if out is not None else {}
    met = True
    with Stage(plan, say) as stage:
        for name in names:
            known[name] = result = _run_one(name, stage)
            met = met and result["unfinished"] is None and all(f["met"] is not False for f in result["figures"])
            click.echo(summary(result))
            if out is not None:
                _write(out, {name: known[name] for name in WORKLOADS if name in known}, stage.folder)
    return met


def _run_one(name: str, stage: Stage) -> dict[str, Any]:
    workload = WORKLOADS[name]
    before = machine.look()
    began, began_s = _now(), time.monotonic()
    say(f"{name}: {workload.TITLE}")
    try:
        result = workload.run(stage)
    except (NotInTimeError, ChildFailedError) as error:
        say(f"{name}: DID NOT FINISH: {error}")
        result = Result(unfinished=str(error))
    minutes = (time.monotonic() - began_s) / 60
    after = machine.look()
    idle = max(before["busy_percent"], after["busy_percent"]) <= machine.BUSY_PERCENT
    if not idle:
        say(f"WARNING: the machine was not idle before or after {name}: do not trust these figures")
    cores = "not pinned"
    if stage.cores is not None:
        cores = f"broker and load generator on processor {stage.cores[0]}, worker on {stage.cores[1]}"
    ran = {
        "began": f"{began:%Y-%m-%d %H:%M} UTC",
        "minutes": minutes,
        "version": machine.code_version(),
        "command": shlex.join(["python", "-m", "benchmarks", *_without_out(sys.argv[1:])]),
        "before": before,
        "after": after,
        "idle": idle,
        "machine": machine.describe(),
        "cores": cores,
        "sizes": {field: getattr(stage.plan, field) for field in (*workload.OPTIONS, *SHARED)},
    }
    return {"name": name, "title": workload.TITLE, **asdict(result), "ran": ran}


def _without_out(arguments: Sequence[str]) -> list[str]:
    """Leave out where the page went: it changes nothing, and names a folder of this machine."""
    return [
        argument
        for before, argument in zip(("", *arguments), arguments, strict=False)
        if "--out" not in (before, argument.partition("=")[0])
    ]


def _write(out: Path, by_name: dict[str, dict[str, Any]], folder: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results.save(out, by_name)
    (out / PAGE).write_text(page(by_name))
    for picture in folder.glob("*.png"):
        shutil.copyfile(picture, out / picture.name)


def _command(command: str, text: str, names: Sequence[str]) -> click.Command:
    def run(*, quick: bool, out: Path | None, **sizes: Any) -> int:
        plan = replace(quick_plan() if quick else Plan(), **{k: v for k, v in sizes.items() if v is not None})
        folder = out if out is not None or quick else ROOT / "benchmarks"
        return 0 if run_workloads(names, plan, folder) or quick else 1

    options: list[click.Parameter] = [
        click.Option(["--quick"], is_flag=True, help="Small sizes: proves that it works, figures mean nothing."),
        click.Option(
            ["--out"],
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder for README.md, results.json and the picture. [default: benchmarks; none with --quick]",
        ),
    ]
    used = dict.fromkeys([field for name in names for field in WORKLOADS[name].OPTIONS] + list(SHARED))
    for field in map(Plan.__dataclass_fields__.__getitem__, used):
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
    return click.Command(command, callback=run, params=options, help=text, short_help=text)


@click.group(name="benchmarks", context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure retryapp and its peers.

    Exit codes: 0 all targets met, or --quick; 1 one was missed or did not finish; 3 it could not be run.
    """


for _name, _workload in WORKLOADS.items():
    cli.add_command(_command(_name, f"{_workload.TITLE}.", [_name]))
cli.add_command(_command("all", "Every workload, on one broker.", tuple(WORKLOADS)))


@cli.command(name="page")
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path), default=ROOT / "benchmarks")
def write_page(folder: Path) -> int:
    """Write the page again from results.json."""
    (folder / PAGE).write_text(page(results.load(folder)))
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
