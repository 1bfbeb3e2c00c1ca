"""Looking at everything that a worker depends on, without changing it: machine, stores, cluster, topics, rights, clock.

What is asked of the world and what is judged about it are apart: :mod:`cluster` and :mod:`stores` gather facts, the
other modules are functions from facts to findings. :func:`examine` does all of it for ``retryapp doctor``;
:func:`quick_findings` is the part that a worker can afford at its start.
"""

from retryapp.doctor.acls import Acl, acl_commands, needed_acls
from retryapp.doctor.examine import Report, Subject, examine, quick_findings
from retryapp.doctor.findings import Finding, Severity

__all__ = [
    "Acl",
    "Finding",
    "Report",
    "Severity",
    "Subject",
    "acl_commands",
    "examine",
    "needed_acls",
    "quick_findings",
]
