"""The ground of all workloads: one broker for all sides, their topics, the load generator, the workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.ledger import Ledger
from benchmarks.machine import held_to, share_cores
from benchmarks.plan import Plan
from benchmarks.records import Wanted, encode
from benchmarks.spec import WorkerSpec
from benchmarks.worker import WorkerProcess
from retryapp.kafka import KafkaAdmin, KafkaConnection, Positions, read_topic
from retryapp.kafka.writer import produce
from retryapp.settings import load_settings
from retryapp.stage import NotInTimeError, Run, wait_for

POLL_S = 0.002
_FLUSH_S = 120.0
_WAKE_S = 30.0
_ASK_S = 30.0


class Stage:
    """Broker, folders, names. As a context manager it cleans up.

    `broker` is the address and the process id of one that runs; None: one is started.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None], *, broker: tuple[str, int] | None = None) -> None:
        self.plan = plan
        self.say = say
        self.cores = share_cores() if plan.pin else None
        self._bootstrap, self._broker_pid = broker or ("", 0)
        self._numbers = count(1)
        self._run = Run()
        self.folder = self._run.folder
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            cleanup.enter_context(self._run)
            cleanup.enter_context(held_to(None if self.cores is None else frozenset(self.cores[:1])))
            if not self._bootstrap:
                broker = self._run.broker(load_settings().cache_dir, heap_mb=1024)
                self._bootstrap, self._broker_pid = broker.bootstrap, broker.pid or 0
            self._wake_coordinator()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def connection(self) -> KafkaConnection:
        return KafkaConnection(self._bootstrap)

    def _wake_coordinator(self) -> None:
        """Have the broker create its topic of offsets: the first run would wait for it."""
        topic = self.make_topic(self.name("wake"), 1)
        consumer = self.connection.client(Consumer, group_id="wake", enable_auto_commit=False)

        def committed() -> bool:
            try:
                consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            except KafkaException:  # the coordinator is being created
                return False
            return True

        try:
            wait_for(committed, "the broker's coordinator commits offsets", timeout_s=_WAKE_S, every_s=0.5)
        finally:
            consumer.close()
        self.drop_topics(topic)

    def name(self, what: str) -> str:
        """Return a fresh name: no run sees another's group, topics or folder."""
        return f"{what.replace('_', '-')}-{next(self._numbers):05d}"

    def make_topic(self, name: str, partitions: int | None = None) -> str:
        """Create a topic and return its name once every partition has a leader."""
        admin = KafkaAdmin(self.connection, timeout_s=60)
        admin.create_main_topic(name, partitions=partitions or self.plan.partitions)
        admin.wait_for_topics([name])
        return name

    def drop_topics(self, prefix: str) -> None:
        client, admin = self.connection.client(AdminClient), KafkaAdmin(self.connection, timeout_s=_ASK_S)
        names = [name for name in admin.topic_names() if name.startswith(prefix)]
        for future in client.delete_topics(names).values() if names else ():
            future.result(60)

    def broker_records(self, prefix: str, *, but: str) -> tuple[int, int]:
        """Count what a run left on its topics, the main topic aside: records, and offsets (markers take one each)."""
        admin = KafkaAdmin(self.connection)
        topics = [name for name in admin.topic_names() if name.startswith(prefix) and name != but]
        records = sum(1 for topic in topics for _ in read_topic(self.connection, topic))
        return records, sum(span.stop for topic in topics for span in admin.offsets(topic).values())

    def lag(self, group: str, topic: str) -> int:
        positions = Positions(self.connection, timeout_s=_ASK_S)
        places = [(topic, number) for number in KafkaAdmin(self.connection).offsets(topic)]
        ends = positions.ends(places, committed=False)
        committed = positions.group_offsets(group, places)
        return sum(max(0, end - (committed[place] or 0)) for place, end in ends.items())

    def fill(self, topic: str, wanted: Iterable[Wanted]) -> None:
        """Publish as fast as the broker takes it; record n goes to partition n modulo their number."""
        producer = self.connection.client(Producer, acks="all", linger_ms=20)
        for record in wanted:
            self._produce(producer, topic, record)
        flush(producer)

    def feed(self, topic: str, wanted: Iterable[Wanted], rate: float) -> dict[int, int]:
        """Publish in an open loop: each record at its slot, regardless of those before it.

        Returns:
            Epoch nanoseconds of each record's slot, by its number.
        """
        producer = self.connection.client(Producer, acks="all", linger_ms=5)
        began_ns = time.time_ns() + 50_000_000
        intended: dict[int, int] = {}
        for index, record in enumerate(wanted):
            slot_ns = began_ns + int(index * 1e9 / rate)
            while (left_ns := slot_ns - time.time_ns()) > 0:
                producer.poll(0)
                time.sleep(min(left_ns / 1e9, 0.001))
            intended[record.number] = slot_ns
            self._produce(producer, topic, record)
        flush(producer)
        return intended

    def _produce(self, producer: Producer, topic: str, record: Wanted) -> None:
        value, partition = encode(record, self.plan.value_bytes), record.number % self.plan.partitions
        produce(producer, topic, value, b"%d" % record.number, partition=partition)

    def ledger(self, slots: int) -> Ledger:
        """Return a fresh ledger; workers started from now on write to it."""
        self._ledger_path = self.folder / self.name("ledger")
        return Ledger.create(self._ledger_path, slots)

    def spec(
        self, group: str, *topics: str, delay_ms: int = 5_000, partitions: int | None = None, **options: Any
    ) -> WorkerSpec:
        """Return a worker's spec, for the ledger that was made last."""
        return WorkerSpec(
            group=group,
            bootstrap=self._bootstrap,
            topics=topics,
            partitions=partitions or self.plan.partitions,
            ledger=str(self._ledger_path),
            datadir=str(self.folder / f"data-{group}"),
            delay_ms=delay_ms,
            concurrency=self.plan.concurrency,
            options=options,
        )

    def worker(
        self, side: str, spec: WorkerSpec, *, level: str | None = None, web_port: int | None = None
    ) -> WorkerProcess:
        """Start a worker on its processor."""
        return WorkerProcess(
            self._run,
            self.name(side),
            side,
            spec,
            level=level or self.plan.log_level,
            cores=None if self.cores is None else frozenset(self.cores[1:]),
            broker_pid=self._broker_pid,
            web_port=web_port,
        )

    def wait(self, worker: WorkerProcess, reached: Callable[[], bool], what: str, poll_s: float = POLL_S) -> None:
        """Wait for a condition within the plan's time-out.

        Raises:
            NotInTimeError: it did not become true.
            ChildFailedError: the worker ended.
        """

        def checked() -> bool:
            if worker.ended():
                raise worker.failure(f"ended with exit code {worker.exit_code}")
            return reached()

        wait_for(checked, f"{worker.name}: {what}", timeout_s=self.plan.timeout_s, every_s=poll_s)


def flush(producer: Producer) -> None:
    if producer.flush(_FLUSH_S):
        raise NotInTimeError(f"the broker did not take all records of the load generator within {_FLUSH_S:g} s")


@contextmanager
def cleaned(stage: Stage, *prefixes: str) -> Iterator[None]:
    """Delete a run's topics and folders at its end."""
    try:
        yield
    finally:
        for prefix in prefixes:
            stage.drop_topics(prefix)
            shutil.rmtree(stage.folder / f"data-{prefix}", ignore_errors=True)
