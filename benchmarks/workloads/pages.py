"""Pages: how long they take beside a million records, and what it costs the retries that somebody reads them."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle
from typing import Any, Final
from urllib.error import HTTPError

from confluent_kafka import Producer

from benchmarks.ledger import Ledger
from benchmarks.records import Wanted
from benchmarks.results import Result, figure
from benchmarks.runs import Run, Runs, attempt, each, healthy, void
from benchmarks.stage import Stage, cleaned, flush
from benchmarks.stats import pair_ratios, percentile, turn_order
from benchmarks.worker import WorkerProcess
from benchmarks.workloads.waiting import DAY_MS
from retryapp.broker.probe import free_ports
from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin
from retryapp.kafka.writer import produce

TITLE = "Pages beside what waits and what is dead"
OPTIONS = ("pairs", "shown_waiting", "shown_dead", "reads", "lateness_s")
READERS: Final = {"none": None, "live": 2.0, "restless": 0.0}
"""Seconds between two pages of each reader; a live page asks again every two seconds."""
_CAUSES = (("app.LedgerError", "HTTP 503: maintenance"), ("app.AddressError", "no such postcode 'N1'"))
_FIRST_OFFSET = 1_000_000_000
"""Of what waits and what is dead: the flows' records have lower ones."""
_FLOW_RATE = 200
_WARM_S = 5
_SHORTEST_MS, _LONGEST_MS = 500, 2_000
_SEED = 20130101


def run(stage: Stage) -> Result:
    """Have two workers read what is there; read each page; then let retries go on, with each reader in turn."""
    plan = stage.plan
    took_ms, flows = _measured(stage)
    late = {reader: each(runs, "p99") for reader, runs in flows.items()}
    return Result(
        figures=[
            figure("p99 of all pages", "ms", [percentile([*chain(*took_ms.values())], 0.99)], most=300.0),
            *(figure(f"p99 of {name}", "ms", [percentile(times, 0.99)]) for name, times in took_ms.items()),
            figure("lateness p99 with a live page / with none", "x", pair_ratios(late["live"], late["none"]), most=1.1),
            figure("lateness p99 with a restless reader / with none", "x", pair_ratios(late["restless"], late["none"])),
            *(figure(f"lateness p99, reader: {reader}", "ms", values) for reader, values in late.items()),
        ],
        notes=[
            f"{plan.shown_waiting:,} records wait for a day, and {plan.shown_dead:,} are dead, in one handler with two "
            f"workers. Each page is read {plan.reads} times, one at a time, from one of the two, by HTTP.",
            f"Lateness: {_FLOW_RATE} records a second for {plan.lateness_s} s, each fails once and waits 0.5 to 2 s. "
            "A live page loads the pages one after the other, one every two seconds; a restless reader never rests.",
            "Runs in which a record of these flows was lost, early or delivered too often: "
            f"{sum(map(void, flows.values()))}.",
        ],
        samples={f"lateness p99, reader: {reader}": values for reader, values in late.items()},
    )


def _measured(stage: Stage) -> tuple[dict[str, list[float]], dict[str, Runs]]:
    """Return the milliseconds of each page's readings, and the flows beside each reader."""
    plan, group = stage.plan, stage.name("pages")
    warm, flow = plan.partitions + _FLOW_RATE * _WARM_S, _FLOW_RATE * plan.lateness_s
    numbers = iter(range(warm, warm + flow * plan.pairs * len(READERS), flow))
    with stage.ledger(warm + flow * plan.pairs * len(READERS)) as ledger, cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        spec = stage.spec(group, topic, delay_ms=_SHORTEST_MS)
        stage.fill(topic, healthy(plan.partitions))
        with stage.worker("ours", spec) as worker:
            stage.wait(worker, lambda: stage.lag(group, topic) == 0, "the topics are there", 0.25)
        stage.say(f"writing {plan.shown_waiting:,} rows and {plan.shown_dead:,} dead letters")
        _fill(stage, group, topic)
        ports = free_ports(2)
        with ExitStack() as workers:
            for number, port in enumerate(ports):
                own = replace(spec, datadir=f"{spec.datadir}/{number}")
                worker = workers.enter_context(stage.worker("ours", own, web_port=port))
            web = _Web(ports[0], topic)
            stage.wait(worker, partial(web.has, plan.shown_waiting, plan.shown_dead), "the overview has all", 1.0)
            pages = web.pages()
            took_ms = {name: [web.get(path) for _ in range(plan.reads)] for name, path in pages.items()}
            _flow(stage, worker, ledger, topic, range(plan.partitions, warm))
            flows: dict[str, Runs] = {reader: [] for reader in READERS}
            for number in range(plan.pairs):
                for reader in turn_order(number, tuple(READERS)):
                    first = next(numbers)
                    one = partial(_flow, stage, worker, ledger, topic, range(first, first + flow))
                    with web.read(list(pages.values()), READERS[reader]):
                        label = f"round {number + 1}/{plan.pairs} reader {reader}"
                        flows[reader].append(attempt(stage, label, one))
    return took_ms, flows


def _fill(stage: Stage, group: str, topic: str) -> None:
    """Write rows that are due within a day, and dead letters, to their topics, as workers do."""
    plan, topology = stage.plan, HandlerTopology(group=group, main=topic)
    topic_id = KafkaAdmin(stage.connection).describe_topics([topic])[topic].topic_id
    producer, now_ms = stage.connection.client(Producer, linger_ms=50), time.time_ns() // 1_000_000
    for number in range(plan.shown_waiting + plan.shown_dead):
        partition, key = number % plan.partitions, b"key-%d" % (number % 1_000)
        error_type, message = _CAUSES[number % len(_CAUSES)]
        metadata = RetryMetadata(
            group=group, handler="benchmarks.peers.ours.handle", policy="p", attempt=1, delivery=1,
            origin=Origin(topic, topic_id, partition, _FIRST_OFFSET + number), origin_timestamp_ms=now_ms,
            started_ms=now_ms, first_failed_ms=now_ms, last_failed_ms=now_ms, error_type=error_type,
            error_message=message, fingerprint=error_type,
        )  # fmt: skip
        if number < plan.shown_waiting:
            due_ms = now_ms + DAY_MS // 24 + number * DAY_MS // plan.shown_waiting
            headers = encode_metadata(replace(metadata, due_at_ms=due_ms, tier="5m"))
            row = encode_row(PendingRow(key, b"x" * 200, headers, due_ms, now_ms, 1, 1))
            produce(producer, topology.pending_changelog, row, identity_of(metadata.origin), partition=partition)
        else:
            headers = encode_metadata(replace(metadata, reason="exhausted"))
            produce(producer, topology.dlq, b"x" * 200, key, partition=partition, headers=list(headers))
    flush(producer)


@dataclass(frozen=True, slots=True)
class _Web:
    """The pages of one worker."""

    port: int
    topic: str

    def get(self, path: str) -> float:
        """Read a page; return milliseconds."""
        began_s = time.monotonic()
        self._read(path)
        return (time.monotonic() - began_s) * 1_000

    def _read(self, path: str) -> bytes:
        address = f"http://127.0.0.1:{self.port}/retries/{path}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return bytes(answer.read())

    def _facts(self, path: str) -> Any:
        return json.loads(self._read(f"{path}{'&' if '?' in path else '?'}format=json"))

    def has(self, waiting: int, dead: int) -> bool:
        """Tell whether the overview has so many of the whole group."""
        try:
            facts = self._facts("")
        except OSError:  # it does not listen yet
            return False
        group = facts["handlers"][0]["group"] if facts["handlers"] else {}
        return (group.get("pending"), group.get("dead")) == (waiting, dead) and not group["unknown_partitions"]

    def _finds(self, path: str) -> bool:
        try:
            self._read(path)
        except HTTPError:  # another worker has it
            return False
        return True

    def pages(self) -> dict[str, str]:
        """Return the addresses of all kinds of pages; those of one record are of records that this worker has."""
        main = self.topic
        waiting, dead = (self._facts(f"{main}/{name}?limit=50")["records"] for name in ("pending", "dead"))
        rows = [f"{main}/pending/{each['partition']}/{each['origin_offset']}" for each in waiting]
        letters = [f"{main}/dead/{each['partition']}/{each['offset']}" for each in dead]
        row, letter = (next(filter(self._finds, paths)) for paths in (rows, letters))
        return {
            "overview": "", "handler": f"{main}/", "partitions": f"{main}/partitions", "waiting": f"{main}/pending",
            "500 that wait": f"{main}/pending?limit=500", "waiting, one key": f"{main}/pending?key=key-7",
            "dead": f"{main}/dead", "500 that are dead": f"{main}/dead?limit=500",
            "dead, one key": f"{main}/dead?key=key-7", "metrics": "metrics",
            "one that waits": row, "one that is dead": letter,
        }  # fmt: skip

    @contextmanager
    def read(self, paths: list[str], rest_s: float | None) -> Iterator[None]:
        """Read page after page while the body runs, with so many seconds between two; None: read none."""
        stop = threading.Event()

        def read_on() -> None:
            for path in cycle(paths):
                self.get(path)
                if stop.wait(rest_s):
                    return

        reader = threading.Thread(target=read_on)
        if rest_s is not None:
            reader.start()
        try:
            yield
        finally:
            stop.set()
            if rest_s is not None:
                reader.join()


def _flow(stage: Stage, worker: WorkerProcess, ledger: Ledger, topic: str, numbers: range) -> Run:
    """Feed records that fail once, until all came back."""
    rng = random.Random(_SEED)  # noqa: S311 - the same delays in every run, no secret
    waits = {number: rng.randint(_SHORTEST_MS, _LONGEST_MS) for number in numbers}
    stage.feed(topic, (Wanted(number, 1, wait) for number, wait in waits.items()), _FLOW_RATE)
    stage.wait(worker, lambda: not ledger.balance(waits, runs=2).lost, "all came back", 0.25)
    late_ms = [ledger.lateness_ms(number, wait_ms) for number, wait_ms in waits.items()]
    return Run({"p50": percentile(late_ms, 0.5), "p99": percentile(late_ms, 0.99)}, ledger.balance(waits, runs=2))
