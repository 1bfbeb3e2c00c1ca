"""Alert rules for Prometheus over the metrics of workers and of the archive: what to be woken for, and what to do then.

Every rule adds up over the workers of one scrape job, so a job is to be one consumer group. The rules use nothing that
a Prometheus of 2.7 lacks (subqueries), and no metric of anybody else.

Traps that the expressions go round:

* a counter that is first seen with a 1 has no increase: kinds of dead letters are compared with what was there before;
* ``increase`` of a histogram's count and of one of its buckets are extrapolated apart, so their difference is not zero
  where nothing happened: the difference is made first;
* servers write the bound of a bucket as ``86400.0`` or as ``86400``;
* a worker that is gone leaves no series at all: it is looked for by what was there within a day.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final

from retryapp.core.durations import format_duration_ms
from retryapp.core.values import keyword_value_type

RETRY_AGE_BUCKETS_S: Final = (
    1.0, 10.0, 60.0, 600.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 1_209_600.0, 2_592_000.0,
)  # fmt: skip
"""Bounds of ``retryapp_retry_age_seconds``, in seconds: 1 s to 10 m, 1 h, 4 h, 12 h, 1 d, 3 d, 7 d, 14 d, 30 d. The
limit of an age is one of them."""

LATEST_P99_S: Final = 30
"""The histogram of lateness ends at 60 s, so a quantile beyond that is not told."""

GROUP_NAME: Final = "retryapp"
"""Name of the rule group."""


class Urgency(StrEnum):
    """The label ``severity``."""

    CRITICAL = "critical"
    """Somebody has to get up."""
    WARNING = "warning"
    """It can wait for the morning."""


@keyword_value_type
class Limits:
    """Where the rules draw the line."""

    late_s: int = 60
    """Seconds that a waiting record may be overdue, and that deliveries may be late (the slowest in a hundred)."""
    growth: float = 2.0
    """How much more may wait than an hour ago, as a factor."""
    pending: int = 1_000
    """Fewer waiting records than this are never too many."""
    dead_share: float = 0.01
    """Share of finished records that may be dead letters."""
    dead_count: int = 5
    """Fewer dead letters than this within 15 minutes are never too many."""
    retry_age_s: int = 86_400
    """Seconds for which a record may be tried again and again; one of ``RETRY_AGE_BUCKETS_S``."""
    rebalances: int = 10
    """Rebalances in an hour."""
    rebalance_s: int = 60
    """Seconds that one may last."""
    archive_age_s: int = 3_600
    """Seconds since the archive's last round; far less than what the shortest retention keeps."""


@keyword_value_type
class Alert:
    """One rule."""

    name: str
    """In the label ``alertname``."""
    expr: str
    """What is true of each result that it has."""
    hold: str
    """How long that has to be so, as Prometheus writes times; ``0m``: at once."""
    urgency: Urgency
    summary: str
    """One line; ``{{ $labels.handler }}`` and the like are filled in by Prometheus."""
    meaning: str
    """What is wrong."""
    action: str
    """What to do about it."""


BY: Final = "by (job, handler)"
WHO: Final = "{{ $labels.job }}, {{ $labels.handler }}"


def _text(seconds: float) -> str:
    return format_duration_ms(round(seconds * 1_000))


def alerts(limits: Limits | None = None) -> tuple[Alert, ...]:
    """Return the rules.

    Args:
        limits: where they draw the line; the defaults unless given.

    Raises:
        ValueError: the limit of an age is no bound of the histogram.
    """
    chosen = limits or Limits()
    if chosen.retry_age_s not in RETRY_AGE_BUCKETS_S:
        raise ValueError(f"retry_age_s={chosen.retry_age_s} is none of {RETRY_AGE_BUCKETS_S}")
    return (*_firing(chosen), *_dead(chosen), *_group(chosen), *_state(), _archive(chosen))


def _firing(limits: Limits) -> tuple[Alert, ...]:
    late, age = _text(limits.late_s), _text(limits.retry_age_s)
    late_p99_s = min(limits.late_s, LATEST_P99_S)
    pending = f"sum {BY} (retryapp_pending_records)"
    return (
        Alert(
            name="RetryAppRecordsOverdue",
            expr=f"time() - min {BY} (retryapp_oldest_due_timestamp_seconds) > {limits.late_s}",
            hold="2m",
            urgency=Urgency.CRITICAL,
            summary=f"{WHO}: a waiting record is overdue by {{{{ $value | humanizeDuration }}}}",
            meaning=f"The oldest record that waits was due more than {late} ago and has not been fired.",
            action="Look at 'Due, not fired' and 'Last error' on the partitions page. A lane that is not open: its "
            "last error says why. Open lanes: the handler is slower than what comes due, give it more concurrency= or "
            "more workers.",
        ),
        Alert(
            name="RetryAppDeliveriesLate",
            expr=f"histogram_quantile(0.99, sum by (job, handler, le) (rate(retryapp_lateness_seconds_bucket[10m]))) "
            f"> {late_p99_s}",
            hold="10m",
            urgency=Urgency.WARNING,
            summary=f"{WHO}: retries reach the handler up to {{{{ $value | humanizeDuration }}}} late",
            meaning=f"One retry in a hundred begins more than {_text(late_p99_s)} after it was due.",
            action="Records are fired in time and wait for the handler. Look at 'Redelivery lag' and 'Oldest in "
            "flight': make the handler faster, or raise concurrency=.",
        ),
        Alert(
            name="RetryAppPendingGrowing",
            expr=f"{pending} > {limits.pending}\n"
            f"and\n"
            f"{pending} > {limits.growth:g} * (sum {BY} (retryapp_pending_records offset 1h)\n"
            f"  or 0 * max {BY} (retryapp_partitions offset 1h))",
            hold="15m",
            urgency=Urgency.WARNING,
            summary=f"{WHO}: {{{{ $value }}}} records wait, many more than an hour ago",
            meaning=f"More than {limits.pending} records wait, and more than {limits.growth:g} times as many as an "
            "hour ago: more fail than recover.",
            action="'retryapp pending list' has the last error of each. Most often one service is down: what waits "
            "comes back by itself once it is up.",
        ),
        Alert(
            name="RetryAppRetriesLastLong",
            expr=f"sum {BY} (increase((retryapp_retry_age_seconds_count\n"
            f'  - ignoring (le) retryapp_retry_age_seconds_bucket{{le=~"{limits.retry_age_s}(\\\\.0)?"}})[1h:1m])) > 0',
            hold="0m",
            urgency=Urgency.WARNING,
            summary=f"{WHO}: a record was tried again more than {age} after its first failure",
            meaning=f"Within the last hour an attempt ended more than {age} after its record had failed first.",
            action="Look at 'retryapp pending list' for what it is. A shorter schedule or max_elapsed= ends such "
            "records sooner; where the policy means it so, raise the limit: 'retryapp alerts --retry-age'.",
        ),
        Alert(
            name="RetryAppSchedulerStopped",
            expr=f"time() - min {BY} (retryapp_scheduler_last_run_timestamp_seconds) > 180",
            hold="1m",
            urgency=Urgency.CRITICAL,
            summary=f"{WHO}: nobody has looked for what is due for {{{{ $value | humanizeDuration }}}}",
            meaning="An open lane has not looked for what is due for three minutes; it does so once a minute at least.",
            action="If RetryAppClockDoubted fires too, mend the clock. Else the worker's process hangs: note its stack "
            "(py-spy dump), then restart it. Its partitions move, and nothing is lost.",
        ),
    )


def _dead(limits: Limits) -> tuple[Alert, ...]:
    kind = "by (job, handler, reason, error)"
    dead = f"sum {BY} (rate(retryapp_dead_total[15m]))"
    return (
        Alert(
            name="RetryAppFirstDeadLetterOfKind",
            expr=f"max {kind} (retryapp_dead_kinds_total) > 0\n"
            f"unless\n"
            f"max {kind} (max_over_time(retryapp_dead_kinds_total[1d] offset 15m)) > 0",
            hold="0m",
            urgency=Urgency.WARNING,
            summary=f"{WHO}: first dead letter with {{{{ $labels.reason }}}}, {{{{ $labels.error }}}}",
            meaning="A dead letter with a reason and a type of error that no worker had counted in the day before. It "
            "ends by itself after 15 minutes.",
            action="'retryapp dead list' and 'retryapp dead show' have the record and its traceback. A new kind after "
            "a deploy is most often a fault of the deploy.",
        ),
        Alert(
            name="RetryAppDeadLetterRate",
            expr=f"{dead}\n"
            f"  / ({dead} + sum {BY} (rate(retryapp_succeeded_total[15m]))) > {limits.dead_share:g}\n"
            f"and\n"
            f"sum {BY} (increase(retryapp_dead_total[15m])) >= {limits.dead_count}",
            hold="5m",
            urgency=Urgency.CRITICAL,
            summary=f"{WHO}: {{{{ $value | humanizePercentage }}}} of records end as dead letters",
            meaning=f"More than {limits.dead_share * 100:g} % of the records that were finished within 15 minutes are "
            f"dead letters, {limits.dead_count} at least.",
            action="Find out what they have in common: retryapp_dead_kinds_total has reasons and types of errors, and "
            "equal causes have an equal retry-fingerprint. Mend that first; dead letters stay for their retention.",
        ),
    )


def _group(limits: Limits) -> tuple[Alert, ...]:
    partitions = f"max {BY} (retryapp_partitions)"
    return (
        Alert(
            name="RetryAppRebalancesFrequent",
            expr=f"max by (job) (increase(retryapp_rebalance_seconds_count[1h])) > {limits.rebalances}",
            hold="5m",
            urgency=Urgency.WARNING,
            summary="{{ $labels.job }}: {{ $value | humanize }} rebalances within an hour",
            meaning=f"The group was shared out anew more than {limits.rebalances} times within an hour; everything "
            "stands still each time.",
            action="Look for workers that end and start again, or whose process stands still for longer than "
            "broker_session_timeout (swap, a stopped machine, a handler that blocks the event loop).",
        ),
        Alert(
            name="RetryAppRebalanceLong",
            expr=f"max by (job) (retryapp_rebalancing_seconds) > {limits.rebalance_s}",
            hold="0m",
            urgency=Urgency.WARNING,
            summary="{{ $labels.job }}: a rebalance goes on for {{ $value | humanizeDuration }}",
            meaning=f"A rebalance has lasted for more than {_text(limits.rebalance_s)}; nothing is delivered "
            "meanwhile.",
            action="One member does not answer: 'retryapp doctor' tells the group's state and hosts. Stop the worker "
            "that hangs; the others go on after the session time-out.",
        ),
        Alert(
            name="RetryAppNoWorker",
            expr=f"max {BY} (max_over_time(retryapp_partitions[1d]))\nunless\n{partitions}",
            hold="5m",
            urgency=Urgency.CRITICAL,
            summary=f"{WHO}: no worker tells of it any more",
            meaning="Within the last day workers had this handler, and now none has, or none can be scraped.",
            action="Start them; 'retryapp worker' says by its exit code why it does not. After a handler was taken "
            "away on purpose this ends by itself within a day.",
        ),
        Alert(
            name="RetryAppLanesClosed",
            expr=f"sum {BY} (retryapp_lanes_open) < {partitions}",
            hold="5m",
            urgency=Urgency.CRITICAL,
            summary=f"{WHO}: only {{{{ $value }}}} lanes are open",
            meaning="Fewer lanes are open than there are partitions: some partitions stand still.",
            action="The partitions page has each lane's owner, state and last error. No owner: a worker is missing or "
            "not scraped. Idle or opening for long: the last error says why.",
        ),
        Alert(
            name="RetryAppLaneFailures",
            expr=f"sum {BY} (increase(retryapp_lane_failures_total[15m])) > 5",
            hold="5m",
            urgency=Urgency.WARNING,
            summary=f"{WHO}: lanes have failed {{{{ $value | humanize }}}} times within 15 minutes",
            meaning="Lanes close with errors and open again, and again.",
            action="The log line retryapp.lane_failed has the error. Most often it is the broker, or a disk that is "
            "full.",
        ),
    )


def _state() -> tuple[Alert, ...]:
    return (
        Alert(
            name="RetryAppChangelogBehind",
            expr=f'sum {BY} (retryapp_table_behind_offsets{{table="pending"}}) > 0',
            hold="10m",
            urgency=Urgency.WARNING,
            summary=f"{WHO}: {{{{ $value }}}} offsets of changelogs are yet to be read",
            meaning="Lanes have been reading their changelogs for ten minutes: nothing of these partitions is retried "
            "until they are through.",
            action="If the number falls, wait. If it stands, look at the broker and at 'Last error'. To be faster next "
            "time keep the workers' disks (RETRYAPP_DATADIR) from one start to the next.",
        ),
        Alert(
            name="RetryAppRetentionShort",
            expr=f"min by (job, handler, topic) (retryapp_topic_retention_seconds)\n"
            f"  < on (job, handler) group_left () max {BY} (retryapp_retention_needed_seconds)",
            hold="0m",
            urgency=Urgency.CRITICAL,
            summary=f"{WHO}: {{{{ $labels.topic }}}} keeps records for {{{{ $value | humanizeDuration }}}} only",
            meaning="A retry or redelivery topic keeps records for less than the allowed downtime plus the longest "
            "wait. Records may be deleted before they come back, and the next start of a worker is refused.",
            action="Somebody has changed retention.ms. 'retryapp plan' says what it has to be, with the command that "
            "sets it.",
        ),
        Alert(
            name="RetryAppClockDoubted",
            expr="min by (job, instance) (retryapp_clock_trusted) == 0\n"
            "and\n"
            "sum by (job, instance) (retryapp_lanes_open) > 0",
            hold="5m",
            urgency=Urgency.CRITICAL,
            summary="{{ $labels.job }}, {{ $labels.instance }}: fires nothing, its clock and the broker's do not agree",
            meaning="A worker with open lanes has not trusted its clock for five minutes, and fires nothing.",
            action="Run NTP on that machine and on the brokers; 'retryapp doctor --write' measures the difference.",
        ),
        Alert(
            name="RetryAppHandlerHangs",
            expr=f"max {BY} (retryapp_orphaned_runs) > 0",
            hold="15m",
            urgency=Urgency.WARNING,
            summary=f"{WHO}: {{{{ $value }}}} runs of the handler hang",
            meaning="Runs that were given up (their time-out had passed) still go on. At a limit no new run begins.",
            action="Give the calls in the handler time-outs of their own; a restart of the worker ends the threads.",
        ),
    )


def _archive(limits: Limits) -> Alert:
    last = "max by (job, group) (max_over_time(retryapp_pipeline_last_round_timestamp_seconds[1d]))"
    return Alert(
        name="RetryAppArchiveStandsStill",
        expr=f"time() - {last} > {limits.archive_age_s}",
        hold="5m",
        urgency=Urgency.WARNING,
        summary="{{ $labels.job }}, {{ $labels.group }}: archived last {{ $value | humanizeDuration }} ago",
        meaning=f"No round of 'retryapp pipeline archive' has ended in order for {_text(limits.archive_age_s)}: it "
        "hangs, fails, or does not run. After a day without one this ends by itself.",
        action="Its last lines say why; start it again, it goes on where it was. "
        "retryapp_pipeline_loss_timestamp_seconds has until when: then retention takes what is not archived.",
    )


def rules_text(limits: Limits | None = None) -> str:
    """Return the rules as a file for Prometheus' ``rule_files`` (YAML).

    Args:
        limits: where they draw the line; the defaults unless given.
    """
    lines = [
        "# Alert rules for the workers of retryapp. One scrape job for each consumer group.",
        "groups:",
        f"  - name: {GROUP_NAME}",
        "    rules:",
    ]
    for alert in alerts(limits):
        lines += [f"      - alert: {alert.name}", "        expr: |-"]
        lines += [f"          {line}" for line in alert.expr.splitlines()]
        lines += [
            f"        for: {alert.hold}",
            "        labels:",
            f"          severity: {alert.urgency.value}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.meaning)}",
            f"          action: {json.dumps(alert.action)}",
        ]
    return "\n".join(lines) + "\n"
