"""How large each workload is, and how often it is run. Every field is an option of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


def _size(default: Any, text: str, quick: Any = None) -> Any:
    return field(default=default, metadata={"help": text, "quick": default if quick is None else quick})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes. The defaults are the full run's; :func:`quick_plan` has those for development."""

    pairs: int = _size(10, "Counted pairs of a ratio, in turn.", 1)
    warmups: int = _size(1, "Pairs before them that are not counted.", 0)
    rounds: int = _size(3, "Rounds of the peers' table.", 1)
    repeats: int = _size(3, "Runs of what is not a ratio.", 1)
    partitions: int = _size(8, "Partitions of each topic.")
    value_bytes: int = _size(1024, "Size of each value.")
    concurrency: int = _size(1, "Handler runs at once in our worker; the peers have 1.")
    pin: bool = _size(True, "Broker and worker each on a processor of its own.")
    log_level: str = _size("warn", "Log level of Faust's workers, ours and the peers'.")
    timeout_s: int = _size(600, "A run that takes longer did not finish.", 120)
    happy_records: int = _size(300_000, "Records with nothing failing.", 20_000)
    burst_records: int = _size(50_000, "Records that all fail once.", 2_000)
    burst_delay_ms: int = _size(5_000, "Their delay.", 2_000)
    burst_warmup: int = _size(2_000, "Records that fail once before the burst, not counted.", 200)
    lateness_rate: int = _size(1_000, "Retries a second.")
    lateness_s: int = _size(90, "How long they are fed.", 8)
    lateness_longest_s: int = _size(30, "Delays are uniform from 1 s to this.", 3)
    healthy_rate: int = _size(5_000, "Healthy records a second.", 1_000)
    healthy_s: int = _size(20, "How long they are fed in each run; the first quarter is not counted.", 6)
    healthy_pending: int = _size(100_000, "Records that wait meanwhile.", 2_000)
    held_keys: int = _size(1_000, "Keys with a record that waits, of a handler that keeps them in order.", 50)
    list_records: int = _size(30_000, "Records of each run with a handler of lists, and without.", 1_000)
    list_size: int = _size(100, "Records of one list.", 20)
    list_call_ms: int = _size(1, "What each call waits for its service there.")
    healthy_firing: int = _size(50_000, "Records that become due at one moment in mid-flow.", 1_000)
    recovery_pending: int = _size(200_000, "Records that wait when the local store is lost.", 5_000)
    memory_small: int = _size(10_000, "Waiting records at the first look.", 500)
    memory_large: int = _size(1_000_000, "Waiting records at the second look.", 5_000)
    replayed: int = _size(100_000, "Dead letters that a job replays.", 1_000)
    replay_pace: int = _size(1_000, "Replays a second of the job with a rate.", 100)
    paced_s: int = _size(20, "How long that job takes.", 5)
    shown_waiting: int = _size(1_000_000, "Records that wait while pages are read.", 2_000)
    shown_dead: int = _size(1_000_000, "Dead letters meanwhile.", 2_000)
    reads: int = _size(100, "Readings of each page.", 5)
    many_partitions: int = _size(256, "Partitions of each handler.", 8)
    many_handlers: int = _size(3, "Handlers.")


def quick_plan() -> Plan:
    """Return the sizes for development: they prove that the workloads work, their figures mean nothing."""
    fields = Plan.__dataclass_fields__.values()
    return replace(Plan(), **{f.name: f.metadata["quick"] for f in fields})
