"""What a worker process is told, through one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

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
    delay_ms: int = 5_000
    """Wait of a record that names none."""
    concurrency: int = 1

    @property
    def retry_topic(self) -> str:
        """The retry topic of the peers that need one."""
        return f"{self.group}-retry"

    def environment(self) -> dict[str, str]:
        """Return the variable to start the worker with."""
        return {VARIABLE: json.dumps(asdict(self))}


def load_spec() -> WorkerSpec:
    """Read this process's spec."""
    told = json.loads(os.environ[VARIABLE])
    return WorkerSpec(**{**told, "topics": tuple(told["topics"])})


def folder_of(spec: WorkerSpec) -> Path:
    """Return the folder of the worker's state, made if it is missing."""
    folder = Path(spec.datadir)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
