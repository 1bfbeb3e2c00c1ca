"""``retryapp pipeline compact | expire | vacuum | rebuild | erase | register``: a lake in shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retryapp.cli._analyse import say_waiting
from retryapp.cli._spark import interruptible, lake_options, length_ms, spark_session, upkeep_wait_option
from retryapp.cli._target import reach, read_client_config
from retryapp.cli.console import ExitCode, emit, json_option
from retryapp.kafka import KafkaConnection
from retryapp.lookup.instants import utc_text
from retryapp.pipeline.remains import find_remains
from retryapp.pipeline.session import SessionOptions
from retryapp.runtime.clock import SystemClock

if TYPE_CHECKING:
    from retryapp.pipeline.upkeep import Upkeep

DAY_MS = 86_400_000
_day = click.DateTime(["%Y-%m-%d"])


@contextmanager
def _upkeep(lake: str, session: SessionOptions, wait_s: float = 0.0) -> Iterator[Upkeep]:
    with spark_session(session) as spark, interruptible(spark) as stopped:
        from retryapp.pipeline.lake import open_lake
        from retryapp.pipeline.upkeep import Upkeep

        now_ms = SystemClock().wall_ms
        opened = open_lake(spark, lake)
        yield Upkeep(spark, opened, now_ms=now_ms, wait_s=wait_s, on_wait=say_waiting, stopped=stopped)


@click.command()
@click.option("--since", type=_day, help="Only days from then on, in UTC. [default: all]")
@upkeep_wait_option
@lake_options
@json_option
def compact(*, since: datetime | None, lake: str, session: SessionOptions, wait_s: float, as_json: bool) -> None:
    """Join the small files that runs leave; daily is enough. Readers go on meanwhile, archive runs wait."""
    with _upkeep(lake, session, wait_s) as upkeep:
        counts = upkeep.compact(None if since is None else since.date())
    emit(
        counts, f"{counts['removed']:,} files became {counts['added']:,}; vacuum removes the old ones", as_json=as_json
    )


@click.command()
@click.option(
    "--older-than",
    "age_ms",
    metavar="LENGTH",
    required=True,
    callback=length_ms,
    help="Age of the youngest day to go ('400d').",
)
@upkeep_wait_option
@lake_options
@json_option
def expire(*, age_ms: int, lake: str, session: SessionOptions, wait_s: float, as_json: bool) -> None:
    """Delete whole days of the archive; vacuum then removes their files. Archive runs are waited for, and wait."""
    before = date.fromisoformat(utc_text(SystemClock().wall_ms() - age_ms)[:10])
    with _upkeep(lake, session, wait_s) as upkeep:
        rows = upkeep.expire(before)
    emit({"before": before.isoformat(), "rows": rows}, f"{rows:,} rows before {before} deleted", as_json=as_json)


@click.command()
@click.option(
    "--older-than",
    "hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    help="Hours since a file was removed from the table; readers of older versions fail.",
)
@upkeep_wait_option
@lake_options
@json_option
def vacuum(*, hours: int, lake: str, session: SessionOptions, wait_s: float, as_json: bool) -> None:
    """Remove the files that no longer belong to the archive. Archive runs are waited for, and wait."""
    with _upkeep(lake, session, wait_s) as upkeep:
        upkeep.vacuum(hours)
    emit({"hours": hours}, f"files out of use for {hours} hours are removed", as_json=as_json)


@click.command()
@click.option("--from", "since", type=_day, required=True, help="First day, in UTC.")
@upkeep_wait_option
@lake_options
@json_option
def rebuild(*, since: datetime, lake: str, session: SessionOptions, wait_s: float, as_json: bool) -> None:
    """Read archived records anew from their own bytes: after an upgrade that reads more than the one before."""
    with _upkeep(lake, session, wait_s) as upkeep:
        rows = upkeep.rebuild(since.date())
    emit({"rows": rows}, f"{rows:,} rows were read anew", as_json=as_json)


@click.command()
@click.option("--key", help="The records' key, as text (UTF-8).")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the key's bytes: it then stands in no list of processes and no shell history.",
)
@click.option("--resume", is_flag=True, help="End the erasures that died in the middle; their keys are not needed.")
@click.option("--broker", metavar="HOST:PORT", help="List what of the key is still on topics there: with --group.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Whose topics to look at; may be repeated.")
@click.option(
    "--client-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with librdkafka properties for --broker.",
)
@upkeep_wait_option
@lake_options
@json_option
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
) -> ExitCode:
    """Erase every record of a key from the lake: rows, log, quarantine, change data and reports.

    Records of the key that are still on topics and arrived until now are not archived later. The topics themselves keep
    them until their retention ends; --broker and --group list them with that date. Readers of older versions of the
    table fail afterwards. Archive runs and analyses are waited for, each as long as --wait says.
    """
    if (key is not None) + (key_file is not None) + resume != 1:
        raise click.UsageError("give one of --key, --key-file and --resume")
    if resume:
        if broker is not None or groups or client_config is not None:
            raise click.UsageError("--broker, --group and --client-config need the key: topics do not know its hash")
        _resume_erasures(lake, session, wait_s, as_json=as_json)
        return ExitCode.FINE
    if bool(groups) != (broker is not None):
        raise click.UsageError("--broker and --group go together")
    raw = key_file.read_bytes() if key_file is not None else (key or "").encode()
    options = {} if client_config is None else read_client_config(client_config)
    admin = None if broker is None else reach(KafkaConnection(broker, options))
    with _upkeep(lake, session, wait_s) as upkeep:
        erased = upkeep.erase(raw)
    remains = [] if admin is None else [part for group in groups for part in find_remains(admin, group, raw)]
    lines = [f"{erased.rows:,} rows erased; what is still on topics is not archived any more"]
    for part in remains:
        until = "for ever" if part.expires_ms is None else f"until {utc_text(part.expires_ms)}"
        lines.append(f"  {part.topic} keeps {part.records:,} of its records {until}")
    facts = {"rows": erased.rows, "key_hash": erased.key_hash, "remains": [asdict(part) for part in remains]}
    emit(facts, "\n".join(lines), as_json=as_json)
    return ExitCode.FINE


def _resume_erasures(lake: str, session: SessionOptions, wait_s: float, *, as_json: bool) -> None:
    with _upkeep(lake, session, wait_s) as upkeep:
        resumed = upkeep.resume_erasures()
    lines = [f"{each.rows:,} rows of the key with the hash {each.key_hash} erased" for each in resumed]
    facts = {"erasures": [{"rows": each.rows, "key_hash": each.key_hash} for each in resumed]}
    emit(facts, "\n".join(lines) or "no erasure was left in the middle", as_json=as_json)


@click.command()
@click.option("--database", required=True, help="Name in Spark's catalog; made where it is missing.")
@lake_options
@json_option
def register(*, database: str, lake: str, session: SessionOptions, as_json: bool) -> None:
    """Make the tables known to a catalog by name, with their column comments."""
    with _upkeep(lake, session) as upkeep:
        names = upkeep.register(database)
    emit({"tables": names}, "\n".join(names), as_json=as_json)
