"""Replays many dead letters with real processes: ``python -m tools.measure_replay --letters 100000``.

A real broker has the letters, a real worker replays them by a job of the command line. With ``--kill`` worker and
command line end by SIGKILL in the middle, and others go on. Then marks and copies on the topics say whether each letter
was replayed, and has recovered, exactly once.

With ``--distinct`` each letter has a message, and so a cause, of its own; with ``--commands`` so many control records
come first, most of which cannot be obeyed. Both must leave the worker's memory bounded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.stage import flush, publish
from retryapp.core.control import Command, MarkKind, Verb, mark_of
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.record import Origin
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic
from retryapp.kafka.commands import send_commands
from retryapp.settings import load_settings
from retryapp.stage import Child, Run, wait_for

READY_S: Final = 900.0
COMMAND: Final = [sys.executable, "-m", "retryapp.cli.main"]
TRACE: Final = "".join(
    f'  File "/srv/billing/{name}.py", line {10 * n}, in {name}\n    return {name}(order, delivery)\n'
    for n, name in enumerate(("charge", "send", "post", "request", "connect", "retry", "open"))
)
PROGRAM: Final = """
import faust
from retryapp import Retries, RetryPolicy

app = faust.App("billing", broker="kafka://{bootstrap}", store="rocksdb://")
retries = Retries(app)


@retries.handler("orders", policy=RetryPolicy("5m*2 30m*3 1h"))
async def charge(order: bytes) -> None:
    pass
"""


def word(number: int) -> str:
    """Return a word without digits, which names of causes keep."""
    return "".join("aeiklmnoprst"[number // 12**place % 12] for place in range(6))


def fill(
    connection: KafkaConnection, topology: HandlerTopology, letters: int, partitions: int, *, distinct: bool
) -> None:
    """Write dead letters as workers write them, and offsets of the main topic."""
    topic_id = KafkaAdmin(connection).describe_topics(["orders"])["orders"].topic_id
    producer = connection.client(Producer, linger_ms=50)
    now_ms = time.time_ns() // 1_000_000
    for number in range(letters):
        times_ms = enumerate(range(now_ms + number - 70_000, now_ms + number, 10_000), 1)
        history = tuple(HistoryEntry(n, at_ms, "requests.exceptions.ConnectionError") for n, at_ms in times_ms)
        origin = Origin("orders", topic_id[:8], number % partitions, number)
        metadata = RetryMetadata(
            group="billing", handler="billing.charge", origin=origin, origin_timestamp_ms=now_ms, started_ms=now_ms,
            policy="5f1c2d3e", first_failed_ms=now_ms, last_failed_ms=now_ms, history=history, attempt=7, delivery=7,
            error_type="requests.exceptions.ConnectionError", error_trace=TRACE, fingerprint="5f1c2d3e5f1c2d3e",
            error_message=f"bank {word(number) if distinct else number % 7} has no answer to order {number}",
            reason="exhausted",
        )  # fmt: skip
        place = topology.dlq, number % partitions
        publish(producer, *place, b"key-%d" % (number % 1_000), b"x" * 200, encode_metadata(metadata))
    flush(producer)
    consumer = connection.client(Consumer, group_id="billing", enable_auto_commit=False)
    consumer.commit(offsets=[TopicPartition("orders", n, 0) for n in range(partitions)], asynchronous=False)
    consumer.close()


def check(connection: KafkaConnection, topology: HandlerTopology, letters: int) -> bool:
    """Say what the topics tell of each letter."""
    marks: dict[MarkKind, Counter[str]] = {kind: Counter() for kind in MarkKind}
    for record in read_topic(connection, topology.dlq):
        if (mark := mark_of(record.headers, record.value)) is not None:
            marks[mark.mark][mark.failure_id] += 1
    copies: Counter[str] = Counter()
    for record in read_topic(connection, topology.retry_topics[0]):
        if (metadata := decode_metadata(record.headers)) is not None:
            copies[metadata.failure_id] += 1
    fine = True
    for name, found in (
        ("replayed", marks[MarkKind.REPLAYED]),
        ("recovered", marks[MarkKind.RECOVERED]),
        ("copies", copies),
    ):
        twice = sum(count > 1 for count in found.values())
        fine &= len(found) == letters and not twice
        print(f"{name}: {len(found):,} of {letters:,} records, {twice} more than once", flush=True)
    return fine


class Ground:
    """Broker, worker and command line of one measurement."""

    def __init__(self, run: Run, partitions: int) -> None:
        broker = run.broker(load_settings().cache_dir, heap_mb=768)
        Path(run.folder, "billing.py").write_text(PROGRAM.format(bootstrap=broker.bootstrap))
        self._run, self._workers = run, 0
        self.before = 0
        """Events that have nothing to do with the replay."""
        self.connection = KafkaConnection(broker.bootstrap)
        self.topology = HandlerTopology(group="billing", main="orders")
        self.say("topics", "topics", "create", "-A", "billing", "--create-main", str(partitions)).wait(60.0)

    def say(self, name: str, *words: str) -> Child:
        """Start a command."""
        return self._run.child(name, [*COMMAND, *words], cwd=self._run.folder)

    def worker(self) -> Child:
        """Start a worker."""
        self._workers += 1
        return self.say(f"worker-{self._workers}", "worker", "billing", "--without-web")

    def job(self) -> dict[str, Any]:
        """Return what is known of the job."""
        child = self.say("job", "job", "list", "-A", "billing", "--json")
        child.log_file.write_text("")
        child.wait(60.0)
        jobs = [line for line in child.log.splitlines() if line.startswith("{")]
        found = json.loads(jobs[-1])["jobs"] if jobs else []
        return dict(found[0]) if found else {}

    def recovered(self) -> int:
        """Return how many events of the topic there are: one for each that has succeeded, and few others."""
        consumer = self.connection.client(Consumer, group_id="looks")
        events = self.topology.events
        partitions = consumer.list_topics(events, timeout=10).topics[events].partitions
        ends = [consumer.get_watermark_offsets(TopicPartition(events, n), timeout=10)[1] for n in partitions]
        consumer.close()
        return sum(ends) - self.before


def command(ground: Ground, worker: Child, number: int) -> None:
    """Send so many commands that are refused, and measure how long one that can be obeyed waits behind them."""
    topology, producer = ground.topology, ground.connection.client(Producer, linger_ms=20)
    misplaced = Command(id="m", verb=Verb.CANCEL, failure_id="billing/orders@x/1/0").to_record("", 0).value or b""
    newer = b'{"v": 2, "id": "n", "verb": "cancel"}'
    for each in range(number):
        publish(producer, topology.control, 0, b"k", (misplaced, newer, b"no JSON", b"")[each % 4])
    flush(producer)
    began_s = time.monotonic()
    good = Command(id="good", verb=Verb.CANCEL, failure_id="billing/orders@x/0/0")
    outcome = send_commands(ground.connection, topology, [good], wait_s=READY_S)["good"]
    print(f"{number:,} bad commands; the next: {outcome.refused} after {time.monotonic() - began_s:.1f} s", flush=True)
    _memory(worker)


def _memory(worker: Child) -> None:
    print(f"the worker has {psutil.Process(worker.pid).memory_info().rss / 2**20:.0f} MiB", flush=True)


def measure(ground: Ground, letters: int, *, rate: str | None, kill: bool, commands: int) -> bool:
    """Replay all letters; tell whether all went well."""
    worker = ground.worker()
    words = ["dead", "replay", "-A", "billing", "--all", "--why", "measured", "--yes", "--json"]
    words += ["--rate", rate] if rate else []
    worker.wait_for_line("ready", timeout_s=READY_S)
    _memory(worker)
    if commands:
        command(ground, worker, commands)
    ground.before = ground.recovered()
    terminal = ground.say("replay", *words)
    wait_for(lambda: ground.recovered() > 100, "it has begun", timeout_s=READY_S)
    process, began_s, begun = psutil.Process(worker.pid), time.monotonic(), ground.recovered()
    before_s = process.cpu_times().user
    if kill:
        wait_for(lambda: ground.recovered() > letters // 2, "the half is done", timeout_s=READY_S)
        worker.kill()
        terminal.kill()
        worker = ground.worker()
    wait_for(lambda: ground.recovered() >= letters, "all are done", timeout_s=READY_S, every_s=0.2)
    took_s, some = time.monotonic() - began_s, letters - begun
    if not kill:
        cpu_us = (process.cpu_times().user - before_s) * 1e6 / some
        print(f"{some / took_s:,.0f} letters/s in {took_s:.1f} s; {cpu_us:.0f} us of user time a letter", flush=True)
    wait_for(lambda: ground.job().get("state") == "ended", "the job has ended", timeout_s=60.0, every_s=1.0)
    print(f"job: {ground.job()}", flush=True)
    _memory(worker)
    fine = worker.stop(30.0) == 0
    return check(ground.connection, ground.topology, letters) and fine


def main() -> None:
    """Start, fill, replay, check."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--letters", type=int, default=100_000)
    options.add_argument("--partitions", type=int, default=4)
    options.add_argument("--rate", help="as 1000/s; default: as fast as they are done")
    options.add_argument("--kill", action="store_true", help="kill worker and command line in the middle")
    options.add_argument("--distinct", action="store_true", help="letters with a cause of its own each")
    options.add_argument("--commands", type=int, default=0, help="control records that come first")
    chosen = options.parse_args()
    with Run() as run:
        ground = Ground(run, chosen.partitions)
        fill(ground.connection, ground.topology, chosen.letters, chosen.partitions, distinct=chosen.distinct)
        fine = measure(ground, chosen.letters, rate=chosen.rate, kill=chosen.kill, commands=chosen.commands)
        if not fine:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
