"""Checks of everything that a worker depends on, without changing it.

The modules are functions from facts to findings. `examine` gathers the facts and runs all of them for ``retryapp
doctor``, `quick_findings` the few that a worker can afford when it starts.
"""

from retryapp.doctor.examine import Report, Subject, examine, quick_findings
from retryapp.doctor.findings import Finding, Severity

__all__ = ["Finding", "Report", "Severity", "Subject", "examine", "quick_findings"]
