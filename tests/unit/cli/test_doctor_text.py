"""What `retryapp doctor` prints."""

from __future__ import annotations

from retryapp.cli.doctor import report_text
from retryapp.doctor import Finding, Report, Severity


def test_findings_come_before_the_table_of_all_checks() -> None:
    """Problems first, then warnings, notes, and the checks that found nothing among all of them."""
    said = {Severity.OK: "disk", Severity.NOTE: "clock", Severity.WARNING: "brokers", Severity.PROBLEM: "group"}
    findings = [
        Finding(severity=severity, name=name, seen="seen", why=f"why {name}") for severity, name in said.items()
    ]
    text = report_text(Report(findings=tuple(findings), reachable=True))
    order = ["problem: group", "warning: brokers", "clock: why clock", "expected", "1 problem, 1 warning, 1 note, 1 ok"]
    places = [text.index(part) for part in order]
    assert places == sorted(places), text
