"""``retryapp pipeline expire | vacuum | gaps | erase``: maintain a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from retryapp.cli._options import BROKERS, LENGTH, WORDS, json_option, pipeline_client_config, typed_bytes
from retryapp.cli._output import instant, table
from retryapp.cli._spark import lake_job, lake_options, print_waiting, wait_option
from retryapp.cli._target import connect
from retryapp.cli.console import emit, stderr_console
from retryapp.core.durations import format_duration_ms
from retryapp.core.text import counted
from retryapp.kafka import reach
from retryapp.lookup.instants import utc_text
from retryapp.pipeline.remains import Remains, find_remains
from retryapp.pipeline.session import SessionOptions
from retryapp.runtime.machine.clock import SystemClock

if TYPE_CHECKING:
    from retryapp.pipeline.upkeep import Upkeep

R = TypeVar("R")


def _upkeep_options(function: Callable[..., R]) -> Callable[..., R]:
    wait = wait_option("10m", "How long to wait for others who write to the same table ('2h').")
    return wait(lake_options(json_option(function)))


@contextmanager
def _upkeep(lake: str, session: SessionOptions, wait_s: float) -> Iterator[Upkeep]:
    with lake_job(lake, session) as (opened, stopped):
        from retryapp.pipeline.upkeep import Upkeep

        now_ms = SystemClock().wall_ms
        yield Upkeep(opened, now_ms=now_ms, wait_s=wait_s, on_wait=print_waiting, stopped=stopped)


@click.command()
@click.option(
    "--older-than", "age_ms", metavar="LENGTH", required=True, type=LENGTH,
    help="Age of the youngest day to delete ('400d').",
)  # fmt: skip
@_upkeep_options
def expire(*, age_ms: int, lake: str, session: SessionOptions, wait_s: float, as_json: bool) -> None:
    """Delete whole days of the archive; vacuum then removes their files. Waits for archive runs, and they wait."""
    before = date.fromisoformat(utc_text(SystemClock().wall_ms() - age_ms)[:10])
    with _upkeep(lake, session, wait_s) as upkeep:
        rows = upkeep.expire(before)
    emit(
        {"before": before.isoformat(), "rows": rows}, f"{counted(rows, 'row')} before {before} deleted", as_json=as_json
    )


@click.command()
@click.option(
    "--older-than", "age_ms", metavar="LENGTH", type=LENGTH, default="7d", show_default=True,
    help="Since a file was removed from the table; readers of older versions fail.",
)  # fmt: skip
@_upkeep_options
def vacuum(*, age_ms: int, lake: str, session: SessionOptions, wait_s: float, as_json: bool) -> None:
    """Remove the files that no longer belong to the archive. Waits for archive runs, and they wait."""
    with _upkeep(lake, session, wait_s) as upkeep:
        upkeep.vacuum(age_ms)
    emit({"age_ms": age_ms}, f"files unused for {format_duration_ms(age_ms)} removed", as_json=as_json)


@click.command()
@click.option(
    "--acknowledge", "names", metavar="GAP|TOPIC", multiple=True,
    help="A loss that is known, or a topic for all of its losses until now; may be repeated.",
)  # fmt: skip
@click.option("--note", type=WORDS, default="", help="Why it needs no more attention; shown with the gap.")
@lake_options
@json_option
def gaps(*, names: tuple[str, ...], note: str, lake: str, session: SessionOptions, as_json: bool) -> None:
    """List the offsets that were not archived, or are in doubt; acknowledge some.

    'analyse' and 'report' fail because of a gap until it is acknowledged; afterwards they show it as a warning.
    """
    now_ms = SystemClock().wall_ms()
    with lake_job(lake, session) as (opened, _):
        from retryapp.pipeline.gaps import Gaps

        known = Gaps(opened)
        known.acknowledge(names, now_ms=now_ms, note=note)
        rows = known.rows()
    columns = ("gap", "topic", "partition", "from_offset", "to_offset", "reason", "note")
    shown = [
        (*(str("" if row[name] is None else row[name]) for name in columns), instant(row["acknowledged_ms"], now_ms))
        for row in rows
    ]
    headings = ("gap", "topic", "partition", "from offset", "to", "reason", "note", "acknowledged")
    text = table(headings, shown) if rows else "nothing was lost"
    emit({"gaps": rows}, text, as_json=as_json)


@click.command()
@click.option("--key", help="The records' key, as its bytes are typed: text in UTF-8.")
@click.option(
    "--key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the key's bytes, a line end at its end too; keeps the key out of shell history and process lists.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Finish the erasures that were interrupted; their keys are not needed.")
@click.option(
    "--broker",
    type=BROKERS,
    metavar="HOST:PORT",
    help="List the key's records that are still on topics; needs --group.",
)
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Group whose topics to list; may be repeated.")
@pipeline_client_config
@_upkeep_options
def erase(
    *,
    key: str | None,
    key_file: Path | None,
    resume: bool,
    broker: str | None,
    groups: tuple[str, ...],
    client_config: Path | None,
    lake: str,
    session: SessionOptions,
    wait_s: float,
    as_json: bool,
) -> None:
    """Erase every record of a key from the lake: rows, former versions of them, and everything derived from them.

    Records of the key that have failed until now are not archived later, though they are still on topics or wait. One
    on the main topic that fails from now on is: erase again then. The topics themselves keep them until their retention
    ends; --broker and --group list them with that date. Readers of older versions of the table fail afterwards. Archive
    runs and analyses are waited for, each as long as --wait says.
    """
    if (key is not None) + (key_file is not None) + resume != 1:
        raise click.UsageError("give one of --key, --key-file and --resume")
    if resume:
        if broker is not None or groups or client_config is not None:
            raise click.UsageError("--broker, --group and --client-config need the key")
        with _upkeep(lake, session, wait_s) as upkeep:
            resumed = upkeep.resume_erasures()
        lines = [
            f"{counted(erased.rows, 'row')} of the key with the hash {erased.key_hash} erased" for erased in resumed
        ]
        emit({"erasures": resumed}, "\n".join(lines) or "no interrupted erasure found", as_json=as_json)
        return
    if bool(groups) != (broker is not None):
        raise click.UsageError("--broker and --group go together")
    raw = key_file.read_bytes() if key_file is not None else typed_bytes(key or "")
    if key_file is not None and raw.endswith((b"\n", b"\r")):
        stderr_console.print("the key ends with a line end, as the file does", highlight=False)
    remains = list[Remains]()  # found first: an error or Ctrl-C there must not hide that rows were erased
    if broker is not None:
        admin = reach(connect(broker, client_config))
        found = [part for group in sorted(set(groups)) for part in find_remains(admin, group, raw)]
        remains = list(dict.fromkeys(found))  # two groups may have one main topic
    with _upkeep(lake, session, wait_s) as upkeep:
        erased = upkeep.erase(raw)
    later = "what has failed of the key so far will not be archived; what fails from now on will be: erase again then"
    lines = [f"{counted(erased.rows, 'row')} erased; {later}"]
    for part in remains:
        until = "without a limit" if part.expires_ms is None else f"until {utc_text(part.expires_ms)}"
        until = "until it has an outcome" if part.waiting else until
        lines.append(f"  {part.topic} keeps {counted(part.records, 'record')} of the key {until}")
    emit({**asdict(erased), "remains": remains}, "\n".join(lines), as_json=as_json)
