"""What a worker says of its handlers and partitions as plain facts, ready for JSON and for a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import InvalidDurationError
from retryapp.ports import HandlerInfo, PartitionInfo, PartitionLag
from retryapp.web.forecast import SCALES, Outlook
from retryapp.web.records import Facts

ELSEWHERE: Final = "elsewhere"
"""State of a partition of another worker."""

OPEN: Final = "open"
"""State of a partition that can be read."""

DUE_ROWS: Final = 1_000
"""Rows that are due and not fired are counted up to this number for each partition."""


def web_url(url: str | None) -> str | None:
    """Return a worker's address without its last slash; None for what no link may point to."""
    return url.rstrip("/") if url is not None and url.startswith(("http://", "https://")) else None


def handler_facts(info: HandlerInfo) -> Facts:
    """Return what a handler is: policy, topics, bounds."""
    return {
        "group": info.group,
        "main": info.main,
        "function": info.function,
        "policy": info.policy,
        "policy_digest": info.policy_digest,
        "tiers": info.tiers,
        "concurrency": info.concurrency,
        "timeout_ms": info.timeout_ms,
        "topics": dict(info.topics),
        "retry_topics": list(info.retry_topics),
        "partitions": info.partitions,
    }


def policy_facts(info: HandlerInfo) -> dict[str, str]:
    """Return a handler's policy and the digest that records carry."""
    return {"text": info.policy, "digest": info.policy_digest}


def partition_facts(info: PartitionInfo) -> Facts:
    """Return one line of the partition table; numbers of other workers' partitions are None."""
    here = info.state != ELSEWHERE
    return {
        "partition": info.partition,
        "state": info.state,
        "owner_url": web_url(info.owner_url),
        "pending": info.pending if here else None,
        "pending_by_tier": _by_length(info.pending_by_tier) if here else None,
        "next_due_ms": info.next_due_ms if here else None,
        "dead": info.dead if here else None,
        "in_flight": info.in_flight if here else None,
        "release_lag_ms": info.release_lag_ms if here else None,
        "session": info.session if here else None,
        "since_ms": info.since_ms,
        "last_error": info.last_error,
        "last_error_ms": info.last_error_ms,
    }


def lag_facts(info: PartitionInfo, lag: PartitionLag | None, *, due: int | None, here_url: str) -> Facts:
    """Return owner and lags of a partition; None for what is not known here.

    Args:
        info: the partition.
        lag: what the broker says of it; None when it did not, or when the partition is not open here.
        due: rows that are due and not fired, counted up to ``DUE_ROWS``.
        here_url: address of this worker.
    """
    here = info.state != ELSEWHERE
    return {
        "is_here": here,
        "owner_url": web_url(here_url if here else info.owner_url),
        "committed_offset": lag.committed if lag else None,
        "main_lag": lag.main if lag else None,
        "retry_lag": lag.retry if lag else None,
        "redelivery_lag": lag.redelivery if lag else None,
        "due_unfired": due,
        "due_unfired_is_least": due == DUE_ROWS,
    }


def outlook_facts(found: Outlook) -> Facts:
    """Return an outlook as JSON has it; the steps of a scale start now and follow each other."""
    scales: dict[str, Any] = {}
    for scale in SCALES:
        bars = found.scales[scale.name]
        scales[scale.name] = {
            "step_ms": scale.step_ms,
            "count": sum(bar.count for bar in bars),
            "exact": all(bar.exact for bar in bars),
            "bars": [{"start_ms": bar.start_ms, "count": bar.count, "exact": bar.exact} for bar in bars],
        }
    return {
        "now_ms": found.now_ms,
        "total": found.total,
        "exact": found.exact,
        "overdue": asdict(found.overdue),
        "later": asdict(found.later),
        "scales": scales,
    }


def _by_length(by_tier: Mapping[str, int]) -> dict[str, int]:
    """Return counts by tier, the shortest delay first; names that are no delay come last."""

    def length(tier: str) -> tuple[float, str]:
        try:
            return parse_duration_ms(tier), tier
        except InvalidDurationError:
            return float("inf"), tier

    return {tier: by_tier[tier] for tier in sorted(by_tier, key=length)}


def totals(infos: Sequence[PartitionInfo]) -> Facts:
    """Return the sums over the partitions of this worker."""
    here = [item for item in infos if item.state != ELSEWHERE]
    by_tier: dict[str, int] = {}
    for item in here:
        for tier, count in item.pending_by_tier.items():
            by_tier[tier] = by_tier.get(tier, 0) + count
    away = {web_url(item.owner_url) for item in infos if item.state == ELSEWHERE} - {None}
    return {
        "partitions_here": len(here),
        "partitions_open": sum(item.state == OPEN for item in here),
        "pending": sum(item.pending for item in here),
        "pending_by_tier": _by_length(by_tier),
        "next_due_ms": min((item.next_due_ms for item in here if item.next_due_ms is not None), default=None),
        "dead": sum(item.dead for item in here),
        "in_flight": sum(item.in_flight for item in here),
        "workers": sorted(url for url in away if url is not None),
    }
