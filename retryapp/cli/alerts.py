"""``retryapp alerts``: alert rules for Prometheus, with the limits of whoever asks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from retryapp.cli.console import ExitCode, emit, json_option
from retryapp.core.alerts import RETRY_AGE_BUCKETS_S, Limits, alerts, rules_text
from retryapp.core.durations import format_duration_ms, parse_duration_ms
from retryapp.core.errors import InvalidDurationError

DEFAULTS = Limits()
AGES = ", ".join(format_duration_ms(round(seconds * 1_000)) for seconds in RETRY_AGE_BUCKETS_S)


class _Seconds(click.ParamType):
    """A duration as text, in whole seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return whole seconds, at least one."""
        try:
            return max(1, round(parse_duration_ms(value) / 1_000))
        except InvalidDurationError as error:
            self.fail(str(error), param, ctx)


class _Share(click.ParamType):
    """A share as a percentage: ``1%``, ``0.5%``."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share, above 0 and up to 1."""
        try:
            share = float(str(value).removesuffix("%")) / 100
        except ValueError:
            self.fail(f"{value!r} is no percentage, as 1%", param, ctx)
        if not 0 < share <= 1:
            self.fail(f"{value!r} is not above 0% and up to 100%", param, ctx)
        return share


def _age(_context: click.Context, _parameter: click.Parameter, seconds: int) -> int:
    if seconds not in RETRY_AGE_BUCKETS_S:
        raise click.BadParameter(f"workers count ages up to {AGES}: choose one of these")
    return seconds


def _text(seconds: float) -> str:
    return format_duration_ms(round(seconds * 1_000))


@click.command(name="alerts")
@click.option(
    "--late",
    type=_Seconds(),
    default=_text(DEFAULTS.late_s),
    show_default=True,
    help="How long a waiting record may be overdue.",
)
@click.option(
    "--growth",
    type=click.FloatRange(min=1),
    default=DEFAULTS.growth,
    show_default=True,
    help="How many times as many may wait as an hour ago.",
)
@click.option(
    "--pending",
    type=click.IntRange(min=0),
    default=DEFAULTS.pending,
    show_default=True,
    help="Fewer waiting records than this are never too many.",
)
@click.option(
    "--dead-share",
    type=_Share(),
    default=f"{DEFAULTS.dead_share:.0%}",
    show_default=True,
    help="How many of the finished records may be dead letters.",
)
@click.option(
    "--dead-count",
    type=click.IntRange(min=1),
    default=DEFAULTS.dead_count,
    show_default=True,
    help="Fewer dead letters than this in 15 minutes are never too many.",
)
@click.option(
    "--retry-age",
    type=_Seconds(),
    callback=_age,
    default=_text(DEFAULTS.retry_age_s),
    show_default=True,
    help=f"How long a record may be tried again and again: {AGES}.",
)
@click.option(
    "--rebalances",
    type=click.IntRange(min=0),
    default=DEFAULTS.rebalances,
    show_default=True,
    help="How many rebalances there may be in an hour.",
)
@click.option(
    "--rebalance",
    type=_Seconds(),
    default=_text(DEFAULTS.rebalance_s),
    show_default=True,
    help="How long one may last.",
)
@click.option(
    "--archive-age",
    type=_Seconds(),
    default=_text(DEFAULTS.archive_age_s),
    show_default=True,
    help="How long ago the archive's last round may be.",
)
@json_option
def command(*, as_json: bool, late: int, retry_age: int, rebalance: int, archive_age: int, **more: Any) -> ExitCode:
    """Print alert rules for Prometheus, as a file for its rule_files. Asks nobody.

    The rules add up over the workers of one scrape job: give each consumer group a job of its own. What a handler's
    policy says (its longest wait, what its topics have to keep) comes with the metrics, so the same rules serve all.

    \b
    Examples:
      retryapp alerts
      retryapp alerts --late 5m --dead-share 0.5% --retry-age 7d
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    limits = Limits(late_s=late, retry_age_s=retry_age, rebalance_s=rebalance, archive_age_s=archive_age, **more)
    facts = {"limits": asdict(limits), "alerts": [asdict(alert) for alert in alerts(limits)]}
    emit(facts, rules_text(limits).rstrip("\n"), as_json=as_json)
    return ExitCode.FINE
