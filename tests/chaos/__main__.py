"""``python -m chaos``: a campaign of real faults."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.campaign import Campaign, Result, Round, rounds
from chaos.disks import leave
from chaos.ground import Ground
from chaos.matrix import FAULTS
from chaos.report import publish, summary
from retryapp.core.errors import EnvironmentFault
from retryapp.guardian import guard
from retryapp.settings import load_settings

ENVIRONMENT = 3


def _chosen(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    known = [fault.id for fault in FAULTS]
    wanted = known if text == "all" else [name.strip() for name in text.split(",")]
    if unknown := set(wanted) - set(known):
        raise click.BadParameter(f"{', '.join(unknown)}: known are {', '.join(known)}")
    return wanted


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--faults", default="all", callback=_chosen, help="Which, as in F1,F4; all of them unless given.")
@click.option("--times", default=1.0, show_default=True, help="How often to do the whole campaign; 0.1 is a tenth.")
@click.option("--minutes", default=600.0, show_default=True, help="No round begins after so many.")
@click.option("--jobs", default=3 * (os.cpu_count() or 1), show_default=True, help="Groups side by side.")
@click.option("--seed", default=None, type=int, help="Of the campaign; drawn unless given, kept by its folder.")
@click.option(
    "--run", "folder", default=Path("build/chaos"), show_default=True,
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    help="Folder of the run: a campaign that is there goes on.",
)  # fmt: skip
@click.option("--again", is_flag=True, help="Do rounds that failed once more.")
@click.option("--short", is_flag=True, help="Do each fault of a round a quarter as often.")
@click.option("--keep", is_flag=True, help="Keep what rounds that passed have left: logs, deliveries, stores.")
@click.option("--publish", "publishes", is_flag=True, help="Write the report of the run into docs/, run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(
    faults: list[str], times: float, minutes: float, jobs: int, seed: int | None, folder: Path,
    again: bool, keep: bool, short: bool, publishes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Do real faults to real workers and brokers; exit 1 when a promise did not hold, 3 when there is no broker."""
    folder.mkdir(parents=True, exist_ok=True)
    if publishes:
        publish(folder)
        return
    guard()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_all)
    planned = list(rounds([fault for fault in FAULTS if fault.id in faults], _seed(folder, seed), times))
    until_s = time.monotonic() + minutes * 60
    try:
        results = _run(planned, folder, jobs, until_s, again=again, keep=keep, short=short)
    except EnvironmentFault as error:
        click.echo(f"retryapp: {error}", err=True)
        sys.exit(ENVIRONMENT)
    total = summary(results)
    if as_json:
        click.echo(json.dumps(total))
    else:
        click.echo("\n".join(total["lines"]))
        click.echo(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    sys.exit(int(total["failed"] > 0))


def _end_all(number: int, _frame: object) -> None:
    """End at once: the guardian ends what this process has started, and the rounds that are over are logged."""
    os._exit(128 + number)


def _seed(folder: Path, wanted: int | None) -> int:
    """Return the seed that a run began with, or begin one."""
    file = folder / "run.json"
    if not file.exists():
        seed = random.SystemRandom().randrange(1 << 32) if wanted is None else wanted
        file.write_text(json.dumps({"seed": seed}))
    return int(json.loads(file.read_text())["seed"])


def _run(
    planned: list[Round], folder: Path, jobs: int, until_s: float, *, again: bool, keep: bool, short: bool
) -> list[Result]:
    cache_dir = load_settings().cache_dir
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    leave(folder)
    shutil.rmtree(folder / "broker", ignore_errors=True)  # rounds share nothing, and thousands of topics slow it down
    with (
        Ground(cache_dir, folder / "broker", links=jobs) as ground,
        Progress(*columns, console=Console(stderr=True)) as bar,
    ):
        campaign = Campaign(folder, cache_dir, ground, keep=keep, short=short)
        known = campaign.finished()
        over = {key for key, result in known.items() if not (again and result["outcome"] == "failed")}
        left = [each for each in planned if each.key not in over]
        task = bar.add_task("rounds", total=len(planned), completed=len(planned) - len(left))

        def begun(key: str) -> None:
            bar.update(task, description=f"rounds, now {key}")

        for alone in (False, True):
            part = [each for each in left if each.fault.alone == alone]
            for result in campaign.run(part, 1 if alone else jobs, until_s, begun):
                bar.advance(task)
                if result["outcome"] != "passed":
                    text = f"{result['key']} {result['outcome']}: {_why(result)}"
                    bar.console.print(text, highlight=False, markup=False)
        known = campaign.finished()
    return [known[each.key] for each in planned if each.key in known]


def _why(result: Result) -> str:
    verdicts = [{**verdict["shown"], "ledger": verdict["ledger"]} for verdict in result.get("verdicts", ())]
    return str(result.get("reason") or result.get("error") or json.dumps(verdicts))


if __name__ == "__main__":
    main()
