"""Facts of a report as an analysis of some thousand records leaves them."""

from __future__ import annotations

from typing import Any

from retryapp.core.causes import template_of
from retryapp.pipeline.report.facts import build

NOON_MS = 1_900_000_000_000
MINUTE_MS, DAY_MS = 60_000, 86_400_000
EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"quoted\" {{ 7 * 7 }} ]]>"


def _row(names: str, *values: Any, **more: Any) -> dict[str, Any]:
    """Return a row of the group's main topic, from names with spaces between and their values."""
    return {"group": "billing", "main": "orders", **dict(zip(names.split(), values, strict=True)), **more}


def facts(*, text: str = "HTTP 503 from https://payments.example.org/charge", **changes: Any) -> dict[str, Any]:
    """Return facts; ``text`` stands wherever a record has a say."""
    outage = "from_ms to_ms records share usual is_over causes"
    funnel = "attempt tier succeeded retried dead waiting share cumulative"
    two_days_ago = NOON_MS - 2 * DAY_MS
    ledger = (
        "partition from_offset to_offset cut_offset received done first_try_ok skipped recovered pending dead failed "
        "lost extra uncounted gaps overlaps"
    )
    tables: dict[str, Any] = {
        "version": 2,
        "now_ms": NOON_MS,
        "since_ms": None,
        "analysed_ms": NOON_MS - MINUTE_MS,
        "groups": ["billing"],
        "broker": "kafka-1:9092",
        "client_config": None,
        "lake": "/data/lake",
        "in_all": {"causes": 31, "outages": 2, "funnel": 4, "offenders": 1_400, "deadly_keys": 784, "failures": 0},
        "causes": [_cause(number, text) for number in range(7)],
        "outages": [
            _row(
                outage, NOON_MS - 9 * MINUTE_MS, NOON_MS - 2 * MINUTE_MS, 1_840, 0.87, 0.02, False,
                [{"fingerprint": "a0ffee", "error_type": "shop.errors.PaymentsDown", "records": 1_840,
                  "template": ""}],
            ),
            _row(
                outage, two_days_ago, two_days_ago + 90_000, 64, 0.4, 0.01, True,
                [{"fingerprint": "a1", "error_type": "TimeoutError", "records": 64, "template": "timed out"}],
            ),
        ],
        "offenders": [
            _row(
                "key_hash records failures dead pending last_seen_ms example", f"{number}f" * 32, 12 - number,
                40 - number, 6 - number, number, NOON_MS, f"billing/orders@kq8G0bTz/0/{number}",
            )
            for number in range(3)
        ],
        "timeline": [
            {
                "fingerprint": fingerprint,
                "from_ms": NOON_MS - n * 15 * MINUTE_MS,
                "length_ms": 15 * MINUTE_MS,
                "failures": 5 + (n * 7) % 11 + (160 if n in (3, 4) and fingerprint == "f0f0f0" else 0),
            }
            for n in range(60)
            for fingerprint in ("f0f0f0", "f1f1f1", "f2f2f2", None)
        ],
        "retention": [
            _row(
                "topic retention_ms was_deleted dead gone within_day within_week next_loss_ms",
                "billing.orders.dlq", 30 * DAY_MS, False, 431, 12, 37, 120, NOON_MS + 3_600_000,
            )
        ],
        "funnel": [
            _row(funnel, *row, entered=sum(row[2:5]), replayed=False)
            for row in (
                (1, None, 98_000, 1_900, 100, 0, 0.98, 0.98),
                (2, "1m", 1_200, 650, 50, 20, 0.63, 0.992),
                (3, "5m", 390, 220, 40, 35, 0.6, 0.996),
                (4, "1h", 90, 0, 130, 8, 0.4, 0.9966),
            )
        ],
        "lateness": [
            _row("tier attempts p50_ms p90_ms p99_ms max_ms early", tier, n, p, p * 3, p * 9, p * 12, 0)
            for tier, n, p in ((None, 3_000, 38), ("1m", 1_900, 35), ("5m", 650, 41), ("1h", 220, 900))
        ],
        "cost": [
            _row(
                "records recovered pending dead discarded superseded skipped attempts handler_ms attempts_on_dead "
                "handler_ms_on_dead attempts_per_recovered minutes_per_recovered wait_p50_ms wait_p90_ms",
                2_000, 1_680, 62, 431, 0, 0, 0, 4_900, 5_400_000, 1_200, 2_000_000, 2.92, 0.054, 62_000, 370_000,
            )
        ],
        "ledger": [
            _row(
                ledger, number, 0, 52_000, 52_000, 50_000, 49_840, 49_000, 0, 840, 31, 215, 1_000, 0, 0, 0, 0, 0,
            )
            for number in range(2)
        ],
        "checks": [
            _check("journeys.failure_id is unique", "error", 0, "holds"),
            _check("no attempt was early", "error", 2, "attempts that began before they were due", "0/7 0 2 -41"),
            _check("records can be read", "warn", 3, "records in quarantine", text),
        ],
    }  # fmt: skip
    tables |= changes
    return build(tables, tables["cost"])


def _check(name: str, severity: str, failures: int, text: str, *examples: str) -> dict[str, Any]:
    return {"name": name, "severity": severity, "failures": failures, "text": text, "examples": list(examples)}


def _cause(number: int, text: str) -> dict[str, Any]:
    types = (
        "shop.errors.PaymentsDown", "TimeoutError", "pydantic_core.ValidationError", "KeyError", text, "OSError", "E",
    )  # fmt: skip
    return _row(
        "fingerprint reason template error_type failures records dead discarded pending recovered",
        f"f{number}" * 3, "exhausted", template_of(text), types[number],
        2_000 // (number + 1), 900 // (number + 1), 300 // (number + 1) ** 2, 12 * number,
        30 // (number + 1), 500 // (number + 1),
        before=0, change="new" if number == 0 else None, decision="open", who=None, note=None, decided_ms=None,
        until_ms=None, cause_id=f"c1-{number:010x}",
        first_seen_ms=NOON_MS - (number + 1) * DAY_MS // 2,
        last_seen_ms=NOON_MS - number * MINUTE_MS,
        examples=[{"failure_id": f"billing/orders@kq8G0bTz/0/{number}", "message": text}],
    )  # fmt: skip
