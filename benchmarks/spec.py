"""The settings of a worker process, passed in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

VARIABLE = "RETRYAPP_BENCH_SPEC"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker's group, topics and settings; the same fields for every side."""

    group: str
    bootstrap: str
    topics: tuple[str, ...]
    """Main topics; a handler each. Peers have one."""
    partitions: int
    ledger: str
    datadir: str
    delay_ms: int
    """Wait of a record that names none."""
    concurrency: int
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of our handlers besides these."""

    @property
    def retry_topic(self) -> str:
        """The retry topic of the peers that need one."""
        return f"{self.group}-retry"

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


def load_spec() -> WorkerSpec:
    return WorkerSpec(**json.loads(os.environ[VARIABLE]))
