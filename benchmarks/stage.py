"""What the workloads stand on: one broker for all sides, their topics, the load generator, the workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.ledger import Ledger
from benchmarks.machine import Cores, share_cores
from benchmarks.plan import Plan
from benchmarks.records import Wanted, encode
from benchmarks.spec import WorkerSpec
from benchmarks.worker import WorkerProcess
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.settings import load_settings
from retryapp.stage import NotInTimeError, Run, held_to

POLL_S = 0.002
_FLUSH_S = 120.0
_WAKE_TRIES, _WAKE_PAUSE_S = 60, 0.5


class Stage:
    """Broker, folders, names. As a context manager it cleans up."""

    def __init__(self, plan: Plan, *, bootstrap: str | None = None, broker_pid: int | None = None) -> None:
        """Describe it.

        Args:
            plan: sizes and settings.
            bootstrap: an existing broker; None: one is started.
            broker_pid: its process; needed with ``bootstrap``.
        """
        self.plan = plan
        self.cores: Cores = share_cores(pin=plan.pin)
        self._bootstrap = bootstrap or ""
        self._broker_pid = broker_pid
        self._numbers = count(1)
        self._run = Run()
        self.folder = self._run.folder
        self._cleanup = ExitStack()

    def __enter__(self) -> Stage:
        with ExitStack() as cleanup:
            cleanup.enter_context(self._run)
            cleanup.enter_context(held_to(self.cores.broker))
            if not self._bootstrap:
                broker = self._run.broker(load_settings().cache_dir, heap_mb=1024)
                self._bootstrap, self._broker_pid = broker.bootstrap, broker.pid
            self._wake_coordinator()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def connection(self) -> KafkaConnection:
        """The broker."""
        return KafkaConnection(self._bootstrap)

    def _wake_coordinator(self) -> None:
        """Have the broker make its topic of offsets: the first run would wait for it."""
        topic = self.make_topic(self.name("wake"), 1)
        consumer = self.connection.client(Consumer, group_id="wake", enable_auto_commit=False)
        try:
            for left in reversed(range(_WAKE_TRIES)):
                try:
                    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
                    break
                except KafkaException:  # the coordinator is still being made
                    if not left:
                        raise
                    time.sleep(_WAKE_PAUSE_S)
        finally:
            consumer.close()
        self.drop_topics(topic)

    # -- topics -------------------------------------------------------------------------------------------------

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
        """Delete the topics of a run."""
        client = self.connection.client(AdminClient)
        names = [name for name in client.list_topics(timeout=30).topics if name.startswith(prefix)]
        for future in client.delete_topics(names).values() if names else ():
            future.result(60)

    def broker_records(self, prefix: str, *, but: str) -> tuple[int, int]:
        """Count what a run left on its topics, the main topic aside.

        Returns:
            Records, and offsets: transaction markers take one each.
        """
        client = self.connection.client(AdminClient)
        consumer = self.connection.client(
            Consumer,
            group_id="count",
            enable_auto_commit=False,
            isolation_level="read_uncommitted",
            enable_partition_eof=True,
        )
        parts = [
            TopicPartition(name, number, 0)
            for name, topic in client.list_topics(timeout=30).topics.items()
            if name.startswith(prefix) and name != but
            for number in topic.partitions
        ]
        try:
            offsets = sum(consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts)
            consumer.assign(parts)
            ended = records = 0
            while ended < len(parts):
                for message in consumer.consume(10_000, timeout=5):
                    ended += message.error() is not None
                    records += message.error() is None
        finally:
            consumer.close()
        return records, offsets

    def lag(self, group: str, topic: str, *, markers: int = 0) -> int:
        """Return how far a group's committed offsets are behind the topic's ends.

        Args:
            group: consumer group.
            topic: topic.
            markers: offsets at the end of each partition that no consumer commits: 1 after a transaction.
        """
        consumer = self.connection.client(Consumer, group_id=group, enable_auto_commit=False)
        try:
            numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            committed = consumer.committed([TopicPartition(topic, number) for number in numbers], timeout=30)
            ends = {part.partition: consumer.get_watermark_offsets(part, timeout=30)[1] for part in committed}
        finally:
            consumer.close()
        return sum(max(0, ends[part.partition] - max(0, part.offset) - markers) for part in committed)

    # -- load ---------------------------------------------------------------------------------------------------

    def fill(self, topic: str, wanted: Iterable[Wanted]) -> None:
        """Publish as fast as the broker takes it; record n goes to partition n modulo their number."""
        producer = self.connection.client(Producer, acks="all", linger_ms=20)
        for record in wanted:
            self._produce(producer, topic, record)
        self._flush(producer)

    def feed(self, topic: str, wanted: Iterable[Wanted], rate: float) -> dict[int, int]:
        """Publish in an open loop: each record at its slot, whatever becomes of those before it.

        Returns:
            Record number to the moment at which it was meant to be sent, epoch nanoseconds.
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
        self._flush(producer)
        return intended

    def _produce(self, producer: Producer, topic: str, record: Wanted) -> None:
        value = encode(record, self.plan.value_bytes)
        while True:
            try:
                producer.produce(topic, value, b"%d" % record.number, partition=record.number % self.plan.partitions)
            except BufferError:
                producer.poll(0.05)
            else:
                return

    def _flush(self, producer: Producer) -> None:
        if producer.flush(_FLUSH_S):
            raise NotInTimeError(f"the load generator did not finish: all records taken within {_FLUSH_S:g} s")

    # -- workers ------------------------------------------------------------------------------------------------

    def ledger(self, slots: int) -> Ledger:
        """Return a fresh ledger; its file is :meth:`spec`'s."""
        self._ledger_path = self.folder / self.name("ledger")
        return Ledger.create(self._ledger_path, slots)

    def spec(self, group: str, *topics: str, delay_ms: int = 5_000, **more: object) -> WorkerSpec:
        """Return a worker's spec, for the ledger that was made last."""
        fields: dict[str, object] = {"partitions": self.plan.partitions, "concurrency": self.plan.concurrency, **more}
        return WorkerSpec(
            group=group,
            bootstrap=self._bootstrap,
            topics=topics,
            ledger=str(self._ledger_path),
            datadir=str(self.folder / f"data-{group}"),
            delay_ms=delay_ms,
            **fields,  # type: ignore[arg-type]  # the spec checks its own fields
        )

    def worker(
        self, side: str, spec: WorkerSpec, *, level: str | None = None, interpreter: tuple[str, ...] = ()
    ) -> WorkerProcess:
        """Start a worker on its processors."""
        return WorkerProcess(
            self._run,
            self.name(side),
            side,
            spec,
            level=level or self.plan.log_level,
            cores=self.cores.worker,
            broker_pid=self._broker_pid or 0,
            interpreter=interpreter,
        )

    def wait(self, worker: WorkerProcess, reached: Callable[[], bool], what: str, poll_s: float = POLL_S) -> None:
        """Wait until something is so.

        Raises:
            NotInTimeError: it is not so within the plan's time-out.
            ChildFailedError: the worker ended.
        """
        deadline_s = time.monotonic() + self.plan.timeout_s
        while not reached():
            worker.check()
            if time.monotonic() > deadline_s:
                raise NotInTimeError(f"{worker.side} did not finish: {what} within {self.plan.timeout_s:g} s")
            time.sleep(poll_s)


@contextmanager
def cleaned(stage: Stage, *prefixes: str) -> Iterator[None]:
    """Delete a run's topics and folders at its end."""
    try:
        yield
    finally:
        for prefix in prefixes:
            stage.drop_topics(prefix)
            shutil.rmtree(stage.folder / f"data-{prefix}", ignore_errors=True)
