"""One round's act: a group on its stage, under load, with faults that are written down as they are done."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from harness import HandlerSpec, Service, Stage, Worker, wait_for

from chaos.eyes import b64
from chaos.ground import Ground, ThreeGrounds
from chaos.proxy import Link
from retryapp.ledger import take_ledger
from retryapp.ledger.journey import Fault

WAITS_MS = (300, 600)
POLICY = "300ms 600ms"
SESSION_S = 3.0
"""How long a worker may be silent; three times what the broker is set to allow."""
ENDLESS = 1_000
"""For `max_crashes`: where faults kill workers, no record is to blame."""
SETTLE_S = 120.0
FROM_COPIES = {Fault.TWICE, Fault.AHEAD, Fault.COUNTS}
"""What the ledger finds where records of ours are there twice: no fault of the group's."""
FROM_LOST_COMMITS = {Fault.GAP}
"""What it finds besides where the broker has taken back the copy of a failure, and kept its row."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Act:
    """One group under load, and the faults done to it. As a context manager it opens and closes its stage."""

    ground: Ground | ThreeGrounds
    folder: Path
    rng: random.Random
    waits_ms: tuple[int, ...] = WAITS_MS
    policy: str = POLICY
    partitions: int = 2
    concurrency: int = 8
    value: str = "dict"
    timeout: str = "30s"
    max_crashes: int = ENDLESS
    link: Link | None = None
    """Way of the workers that are started with `far=True`."""
    app_options: dict[str, Any] = field(default_factory=dict)
    unheard: bool = False
    """A fault keeps handlers from reaching the service: attempts fail of which the deliveries log knows nothing."""
    short: bool = False
    """Do each fault less often."""
    truncated: bool = False
    """Retry records were deleted by a fault: their content is not missed."""
    copied: bool = False
    """The broker took back commits: copies and repeats follow from that, and are counted."""
    strangers: bool = False
    """Somebody else copied records of ours, which the ledger has to find: nothing may follow from that."""
    stage: Stage = field(init=False)
    topic: str = field(init=False)
    published: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    """Figures of the scenario's own."""
    cast: list[Worker] = field(default_factory=list)
    """Workers that should be there; `revive` replaces those that ended."""
    resting: int = 0
    """Rows that still wait at the end, by intent."""
    _visited: int = 0
    """Visits before the last records were published."""
    _producer: Producer = field(init=False)

    def __enter__(self) -> Act:
        self.folder.mkdir(parents=True, exist_ok=True)
        service = Service(log=self.folder / "deliveries.jsonl")
        service.start()
        self.stage = Stage(self.ground.bootstrap, self.folder, service)
        self.topic = self.stage.main_topic(partitions=self.partitions)
        self._producer = Producer(
            {
                "bootstrap.servers": self.ground.bootstrap,
                "enable.idempotence": True,  # it must not make copies of its own
                "message.max.bytes": 2_000_000,
                "linger.ms": 5,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self.program()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.stage.workers:
            worker.kill()
        self.stage.service.stop()

    def program(self, **more: Any) -> None:
        """Write the program that the next worker runs."""
        policy = more.pop("policy", self.policy)
        handler = HandlerSpec(
            topic=self.topic, policy=policy, value=self.value, concurrency=self.concurrency, timeout=self.timeout,
            max_crashes=self.max_crashes,
        )  # fmt: skip
        self.stage.program(
            handler,
            app_options={"datadir": str(self.folder / "data"), **self.app_options},
            partitions=self.partitions,
            session_timeout_s=SESSION_S,
            **more,
        )

    def worker(self, *, far: bool = False, env: Mapping[str, str] | None = None) -> Worker:
        """Start a worker, which need not be ready; with `far` its only way to the broker is the link."""
        way = {"STAGE_BOOTSTRAP": f"127.0.0.1:{self.link.port}"} if far and self.link else {}
        return self.stage.worker(f"life{len(self.stage.workers)}", ready=False, env={**way, **(env or {})})

    def revive(self, count: int = 2, **how: Any) -> None:
        """See that so many workers are there, as a process manager does; those that are new need not be ready."""
        self.cast = [worker for worker in self.cast if not worker.ended()]
        while len(self.cast) < count:
            self.cast.append(self.worker(**how))

    def raise_curtain(self, count: int = 2, **how: Any) -> None:
        """Start workers and wait until all are ready."""
        self.revive(count, **how)
        for worker in self.cast:
            worker.wait_ready(60)

    def publish(self, count: int, *, flush: bool = True, **facts: Any) -> None:
        """Publish records: a quarter each fails never, once, twice, always; or as `fail` says."""
        self._visited = self.visits
        for _ in range(count):
            fails = int(facts.get("fail", self.published % 4))
            self.put({"fail": fails, **facts}, fate="dead" if fails > len(self.waits_ms) else "done")
        if flush:
            self.flush()

    def put(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        fate: str,
        reasons: tuple[str, ...] = (),
        value: bytes | None = None,
        key: bytes | None = b"k",
        headers: tuple[tuple[str, bytes | None], ...] = (("trace", b"\x00\xff"),),
        producer: Producer | None = None,
    ) -> None:
        """Publish one record, and note what has to become of it once the broker has it.

        `facts` are its value, as JSON; without them `value` is. `fate` is `done`, `dead`, `waiting` or `any`; `reasons`
        say why it may be dead, empty: any.
        """
        name, at_ms = f"r{self.published}", now_ms()
        number = self.published % self.partitions
        self.published += 1
        raw = json.dumps({"id": name, **facts}).encode() if facts is not None else value

        def noted(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                raise RuntimeError(f"{name} was not taken: {error}")
            self._write(
                "input",
                partition=message.partition(), offset=message.offset(), timestamp_ms=at_ms,
                id=name, fate=fate, reasons=reasons, key=b64(key), value=b64(raw),
                headers=[(header, b64(content)) for header, content in headers],
            )  # fmt: skip

        (producer or self._producer).produce(
            self.topic,
            raw,
            key=key,
            headers=list(headers),
            partition=number,
            on_delivery=noted,
            timestamp=at_ms,  # the report of a batch that was sent again has that of its last record
        )

    def wider(self) -> None:
        """Publish to one partition more, once the broker shows it."""
        self.partitions += 1
        wait_for(
            lambda: len(self._producer.list_topics(self.topic, 10).topics[self.topic].partitions) == self.partitions,
            f"{self.topic} has {self.partitions} partitions",
        )

    def flush(self) -> None:
        if self._producer.flush(120) != 0:
            raise RuntimeError("the broker did not take all records")

    @contextmanager
    def fault(self, kind: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Note a fault that lasts as long as the block; more facts can be put into what is yielded."""
        at_ms = now_ms()
        yield facts
        self._write("injections", kind=kind, at_ms=at_ms, until_ms=now_ms(), **facts)

    def _write(self, name: str, **fact: Any) -> None:
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(fact) + "\n")

    def turns(self, times: int, workers: int, publish: int, busy: int, *, revive: bool = False) -> Iterator[int]:
        """Yield numbers of turns, each with its workers there, records published and some under way."""
        for number in range(self.some(times)):
            self.revive(workers)
            self.publish(publish)
            self.busy(busy, revive=revive)
            yield number

    def end(self, worker: Worker, kill: float) -> None:
        """Kill a worker with this probability, else stop it in good order."""
        if self.rng.random() < kill:
            worker.kill()
        else:
            worker.stop(30)

    def kill_sometimes(self, share: float) -> None:
        """Kill the only worker with this probability, and start another one."""
        if self.rng.random() < share:
            self.cast[0].kill()
            self.revive(1)

    def some(self, times: int) -> int:
        """Return how often to do what a whole round does so many times."""
        return max(2, times // 4) if self.short else times

    @property
    def visits(self) -> int:
        return len(self.stage.service.visits)

    def busy(self, more: int, timeout_s: float = 150.0, *, revive: bool = False) -> None:
        """Wait until so many runs have begun since the last records were published, maybe before this call.

        With `revive` workers that end meanwhile are started again.
        """
        count = len(self.cast)

        def begun() -> bool:
            if revive:
                self.revive(count)
            return self.visits >= self._visited + more

        wait_for(begun, f"{more} more runs begin", timeout_s=timeout_s)

    def pause(self, least_s: float, most_s: float) -> None:
        """Let time pass: it is the fault's length, or its place in the course of things."""
        time.sleep(self.rng.uniform(least_s, most_s))

    def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Wait until nothing is under way; what ends meanwhile is started again."""
        evidence, rests = self.stage.evidence(self.topic), (0, self.resting, 0)
        least = max(1, len(self.cast))

        def still() -> bool:
            self.revive(least)
            return (evidence.unsettled(), evidence.waiting(), evidence.unsettled()) == rests

        wait_for(still, f"{self.topic} is at rest", timeout_s=timeout_s, every_s=0.5)

    def opened(self, worker: Worker) -> int:
        return worker.log.count("retryapp.lane_opened")

    def verdict(self) -> dict[str, Any]:
        """Have the verifier judge, in a process of its own; add what the ledger says.

        Copies, and failures that are gone, are excused where the broker dropped markers of commits that it had
        acknowledged, by its log or its segments.
        """
        if dropped := self.ground.dropped_markers(self.stage.group):
            self.copied = True
            self.notes["transactions whose markers the broker dropped"] = dropped
        topology = self.stage.topology(self.topic)
        (retry,) = topology.retry_topics
        facts = {
            "bootstrap": self.ground.bootstrap, "group": self.stage.group, "main": self.topic, "retry": retry,
            "partitions": self.partitions, "dlq": topology.dlq, "events": topology.events,
            "changelog": topology.pending_changelog, "waits_ms": self.waits_ms,
            "single": not self.copied, "truncated": self.truncated, "unheard": self.unheard,
        }  # fmt: skip
        (self.folder / "round.json").write_text(json.dumps(facts))
        done = subprocess.run(
            [sys.executable, "-m", "chaos.verify", str(self.folder)],
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        if not done.stdout:
            raise RuntimeError(f"the verifier ended with {done.returncode}: {done.stderr[-2000:]}")
        verdict: dict[str, Any] = json.loads(done.stdout)
        ledger = take_ledger(self.stage.connection, topology)
        excused = FROM_COPIES if self.copied or self.strangers else set()
        excused |= FROM_LOST_COMMITS if dropped else set()
        verdict["ledger"] = [str(problem) for problem in ledger.problems if problem.fault not in excused][:12]
        return {**verdict, "notes": self.notes}
