"""Facts of a report as an analysis of some thousand records leaves them."""

from __future__ import annotations

from typing import Any

from retryapp.pipeline.report.facts import build

NOON_MS = 1_900_000_000_000
MINUTE_MS, DAY_MS = 60_000, 86_400_000
EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"quoted\" {{ 7 * 7 }} ]]>"


def facts(*, text: str = "HTTP 503 from https://payments.example.org/charge", **changes: Any) -> dict[str, Any]:
    """Return facts; ``text`` stands wherever a record has a say."""
    where = {"group": "billing", "main": "orders"}
    tables: dict[str, Any] = {
        "version": 1,
        "now_ms": NOON_MS,
        "analysed_ms": NOON_MS - MINUTE_MS,
        "groups": ["billing"],
        "in_all": {"causes": 31, "outages": 2, "offenders": 3},
        "causes": [_cause(where, number, text) for number in range(7)],
        "outages": [
            {
                **where,
                "fingerprint": "a0ffee",
                "error_type": "shop.errors.PaymentsDown",
                "from_ms": NOON_MS - 9 * MINUTE_MS,
                "to_ms": NOON_MS - 2 * MINUTE_MS,
                "failures": 1_840,
                "peak_per_minute": 412,
                "usual_per_minute": 3.0,
            },
            {
                **where,
                "fingerprint": "a1",
                "error_type": "TimeoutError",
                "from_ms": NOON_MS - 2 * DAY_MS,
                "to_ms": NOON_MS - 2 * DAY_MS + 90_000,
                "failures": 64,
                "peak_per_minute": 40,
                "usual_per_minute": 2.0,
            },
        ],
        "offenders": [
            {
                **where,
                "key_hash": f"{number}f" * 32,
                "records": 12 - number,
                "failures": 40 - number,
                "dead": 6 - number,
                "pending": number,
                "last_seen_ms": NOON_MS,
                "example": f"billing/orders@kq8G0bTz/0/{number}",
            }
            for number in range(3)
        ],
        "timeline": [
            {
                "fingerprint": fingerprint,
                "from_ms": NOON_MS - n * 15 * MINUTE_MS,
                "length_ms": 15 * MINUTE_MS,
                "failures": 5
                + (n * 7 + len(str(fingerprint))) % 11
                + (160 if n in (3, 4) and fingerprint == "f0f0f0" else 0),
            }
            for n in range(60)
            for fingerprint in ("f0f0f0", "f1f1f1", "f2f2f2", None)
        ],
        "retention": [
            {
                **where,
                "topic": "billing.orders.dlq",
                "retention_ms": 30 * DAY_MS,
                "dead": 431,
                "gone": 12,
                "within_day": 37,
                "within_week": 120,
                "next_loss_ms": NOON_MS + 3_600_000,
            }
        ],
        "funnel": [
            _attempt(where, *row)
            for row in (
                (1, None, 98_000, 1_900, 100, 0, 0.98, 0.98),
                (2, "1m", 1_200, 650, 50, 20, 0.63, 0.992),
                (3, "5m", 390, 220, 40, 35, 0.6, 0.996),
                (4, "1h", 90, 0, 130, 8, 0.4, 0.9966),
            )
        ],
        "lateness": [
            {
                **where,
                "tier": tier,
                "attempts": n,
                "p50_ms": p,
                "p90_ms": p * 3,
                "p99_ms": p * 9,
                "max_ms": p * 12,
                "early": 0,
            }
            for tier, n, p in ((None, 3_000, 38), ("1m", 1_900, 35), ("5m", 650, 41), ("1h", 220, 900))
        ],
        "cost": [
            {
                **where,
                "records": 2_000,
                "recovered": 1_680,
                "dead": 431,
                "attempts": 4_900,
                "handler_ms": 5_400_000,
                "attempts_on_dead": 1_200,
                "handler_ms_on_dead": 2_000_000,
                "attempts_per_recovered": 2.92,
                "minutes_per_recovered": 0.054,
                "wait_p50_ms": 62_000,
                "wait_p90_ms": 370_000,
            }
        ],
        "ledger": [
            {
                **where,
                "partition": number,
                "from_offset": 0,
                "to_offset": 52_000,
                "cut_offset": 52_000,
                "received": 50_000,
                "done": 49_840,
                "first_try_ok": 49_000,
                "skipped": 0,
                "recovered": 840,
                "pending": 31,
                "dead": 215,
                "failed": 1_000,
                "lost": 0,
                "extra": 0,
                "uncounted": 0,
                "gaps": 0,
                "overlaps": 0,
            }
            for number in range(2)
        ],
        "checks": [
            {
                "name": "journeys.failure_id is unique",
                "severity": "error",
                "failures": 0,
                "text": "holds",
                "examples": [],
            },
            {
                "name": "no attempt was early",
                "severity": "error",
                "failures": 2,
                "text": "attempts that began before they were due",
                "examples": ["billing/orders@kq8G0bTz/0/7 0 2 -41"],
            },
            {
                "name": "records can be read",
                "severity": "warn",
                "failures": 3,
                "text": "records in quarantine",
                "examples": [text],
            },
        ],
    }
    return build({**tables, **changes})


def _cause(where: dict[str, Any], number: int, text: str) -> dict[str, Any]:
    types = (
        "shop.errors.PaymentsDown",
        "TimeoutError",
        "pydantic_core.ValidationError",
        "KeyError",
        text,
        "OSError",
        "E",
    )
    return {
        **where,
        "fingerprint": f"f{number}" * 3,
        "error_type": types[number],
        "failures": 2_000 // (number + 1),
        "records": 900 // (number + 1),
        "dead": 300 // (number + 1) ** 2,
        "pending": 30 // (number + 1),
        "recovered": 500 // (number + 1),
        "first_seen_ms": NOON_MS - (number + 1) * DAY_MS // 2,
        "last_seen_ms": NOON_MS - number * MINUTE_MS,
        "examples": [{"failure_id": f"billing/orders@kq8G0bTz/0/{number}", "message": text}],
    }


def _attempt(where: dict[str, Any], attempt: int, tier: str | None, *numbers: float) -> dict[str, Any]:
    names = ("succeeded", "retried", "dead", "waiting", "share", "cumulative")
    found = dict(zip(names, numbers, strict=True))
    entered = found["succeeded"] + found["retried"] + found["dead"]
    return {**where, "replayed": False, "attempt": attempt, "tier": tier, "entered": entered, **found}
