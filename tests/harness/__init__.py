"""What the acceptance tests share: a user's program, an outside service, worker processes, and committed readers."""

from harness.evidence import Evidence
from harness.service import Answer, Gate, Service, Visit
from harness.stage import HandlerSpec, Stage, open_stage
from harness.workers import Worker
from retryapp.stage import wait_for

__all__ = [
    "Answer", "Evidence", "Gate", "HandlerSpec", "Service", "Stage", "Visit", "Worker", "open_stage", "wait_for",
]  # fmt: skip
