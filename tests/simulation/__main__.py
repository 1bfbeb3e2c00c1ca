"""`python -m simulation`: fresh histories, planted faults, or one history by its number."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from contextlib import suppress

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulation.campaign import Summary, hunt_everywhere, in_a_row, minimise, of_all_ranges, run_everywhere
from simulation.drawing import draw_plan
from simulation.history import History
from simulation.mutants import MUTANTS
from simulation.plan import RANGE_SEEDS

_SHOWN = 10
"""Failures that are told one by one."""


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", default=10_000, show_default=True, help="How many histories; for --mutants: at most for each.")
@click.option("--first", default=None, type=int, help="First seed; unless given, some of all ranges are drawn.")
@click.option("--where", default="True", help="Run only those of them whose `plan` fulfils this expression of Python.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--mutants", is_flag=True, help="Plant faults into the protocol, each of which must be found.")
@click.option("--replay", default=None, type=int, help="Run one seed, make it as small as it gets and show it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(
    seeds: int, first: int | None, where: str, jobs: int, mutants: bool, replay: int | None, as_json: bool
) -> None:
    """Run simulated histories of the retry protocol; exit 1 when one fails, or a planted fault is not found."""
    if replay is not None:
        sys.exit(_replay(replay))
    sys.exit(_mutants(seeds, jobs, as_json) if mutants else _simulate(seeds, first, where, jobs, as_json))


def _replay(seed: int) -> int:
    plan = draw_plan(seed)
    result = History(plan).run()
    click.echo(plan)
    if result.violation is None:
        click.echo(f"holds; digest {result.digest}")
        return 0
    click.echo(f"\n{result.violation}\n\nThe smallest that breaks it:\n")
    small = minimise(plan)
    click.echo(small)
    click.echo(f"\n{History(small).run().violation}")
    return 1


def _simulate(seeds: int, first: int | None, where: str, jobs: int, as_json: bool) -> int:
    start = secrets.randbelow(RANGE_SEEDS) if first is None else first
    chunks = of_all_ranges(start, seeds) if first is None else in_a_row(first, seeds)
    summary, began_s = Summary(), time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _bar() as bar, suppress(KeyboardInterrupt):  # then it tells of those that have ended
        task = bar.add_task(f"histories from {start}", total=seeds)
        for part in run_everywhere(chunks, jobs, where):
            summary.add(part)
            bar.advance(task, part.passed + len(part.failed) + part.passed_over)
            for seed, violation in part.failed[:_SHOWN]:
                bar.console.print(f"seed {seed}: {violation}", highlight=False)
    took_s, ran = time.monotonic() - began_s, summary.passed + len(summary.failed)
    told = {
        "first": start,
        "passed": summary.passed,
        "failed": [{"seed": seed, "violation": violation} for seed, violation in summary.failed],
        "repeated_calls": summary.repeated,
        "steps": summary.steps,
        "not_reached": summary.missed,
        "seconds": round(took_s, 1),
        "reached": dict(sorted(summary.reached.items())),
    }
    if as_json:
        click.echo(json.dumps(told))
    else:
        click.echo(f"{ran / took_s * 60:,.0f} histories a minute, {summary.steps / max(1, ran):,.0f} steps each")
        click.echo(f"{summary.repeated} handler calls repeated")
        if summary.missed and not summary.passed_over:
            click.echo(f"not reached: {', '.join(summary.missed)}")
        for seed, violation in summary.failed[:_SHOWN]:
            click.echo(f"seed {seed}: {violation}\n  again: make simulate ARGS='--replay {seed}'")
        click.echo(f"{summary.passed} passed, {len(summary.failed)} failed")
    return int(bool(summary.failed) or ran + summary.passed_over < seeds)


def _mutants(seeds: int, jobs: int, as_json: bool) -> int:
    found: dict[str, tuple[int, str] | None] = {}
    with _bar() as bar:
        task = bar.add_task("planted faults", total=len(MUTANTS))
        for name, what in hunt_everywhere(seeds, jobs):
            found[name] = what
            bar.advance(task)
    missed = [name for name, what in found.items() if what is None]
    if as_json:
        click.echo(json.dumps({name: what and {"seed": what[0], "violation": what[1]} for name, what in found.items()}))
    else:
        for mutant in MUTANTS:
            what = found[mutant.name]
            click.echo(f"{mutant.name}: {f'seed {what[0]}: {what[1]}' if what else 'NOT FOUND'}")
        click.echo(f"{len(found) - len(missed)} found, {len(missed)} missed")
    return int(bool(missed))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts is part of a history
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    main()
