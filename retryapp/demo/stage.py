"""What a run stands on: broker, service and workers, and the folder of what they write.

Everything is a child of this process and ends with it: `close` undoes whatever `open` had done, also half-way.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from retryapp.broker import Broker
from retryapp.broker.probe import free_ports
from retryapp.core.policy import RetryPolicy
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.demo.clock import monotonic_s
from retryapp.demo.policy import OUTAGE_S, PARTITIONS, POLICY
from retryapp.demo.processes import Child, stop_all
from retryapp.demo.settings import DEFAULT_GROUP, MAIN_TOPIC, PREFIX
from retryapp.jvm import Progress
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.kafka.connection import client_log
from retryapp.web.answers import PREFIX as PAGES

WORKERS = 2
READY_TIMEOUT_S = 60.0
MAX_UNASKED_ENDS = 5
"""A worker that ends by itself is started again so often, in all."""

_POLL_S = 0.1


class Stage:
    """Broker, service and workers of one run."""

    def __init__(self, folder: Path, *, cache_dir: Path, seed: int, outage_after: int) -> None:
        """Describe the stage; nothing is started.

        Args:
            folder: for data, state and logs.
            cache_dir: where the broker's jars are.
            seed: of the service's faults.
            outage_after: number of the request that begins the outage.
        """
        self.folder = folder
        self.logs = folder / "logs"
        self.visits = folder / "visits.jsonl"
        self.topology = HandlerTopology(
            DEFAULT_GROUP, MAIN_TOPIC, Tiers.PER_DELAY, RetryPolicy(POLICY).schedule.nominal_delays_ms
        )
        self.unasked_ends: list[str] = []
        """Workers that ended by themselves, with their exit codes."""
        self._broker = Broker(cache_dir, data=folder / "broker", log=self.logs / "broker.log")
        self._seed = seed
        self._outage_after = outage_after
        self._service: Child | None = None
        self._service_url = ""
        self._pages: list[str] = []
        self._workers: list[Child] = []
        self._killed: set[int] = set()

    @property
    def connection(self) -> KafkaConnection:
        """How to reach the broker."""
        return KafkaConnection(self._broker.bootstrap)

    @property
    def service_url(self) -> str:
        """Base address of the service; empty before it runs."""
        return self._service_url

    @property
    def pages(self) -> Sequence[str]:
        """Addresses of the workers' pages."""
        return self._pages

    def open_broker(self, progress: Progress | None = None) -> None:
        """Start the broker and make the main topic."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self._broker.start(progress=progress)
        admin = KafkaAdmin(self.connection)
        admin.create_main_topic(MAIN_TOPIC, partitions=PARTITIONS)
        admin.wait_for_topics([MAIN_TOPIC])

    def open_service(self) -> None:
        """Start the service and learn its address."""
        options = {
            "--port": "0",
            "--log": str(self.visits),
            "--seed": str(self._seed),
            "--outage-after": str(self._outage_after),
            "--outage-seconds": str(OUTAGE_S),
        }
        command = [sys.executable, "-m", "retryapp.demo.service", *(word for pair in options.items() for word in pair)]
        self._service = Child("service", command, log=self.logs / "service.log")
        self._service.start()
        self._service_url = self._service.wait_for(r"^listening on (http://\S+)", timeout_s=READY_TIMEOUT_S)

    def open_workers(self) -> None:
        """Start the workers; returns at once."""
        for number, port in enumerate(free_ports(WORKERS), start=1):
            self._pages.append(f"http://127.0.0.1:{port}{PAGES}/")
            self._workers.append(self._worker(f"worker-{number}", port))
        for worker in self._workers:
            worker.start()

    def await_workers(self) -> None:
        """Wait until the group is complete and all topics are there.

        Raises:
            ChildFailedError: a worker ended, or was not ready in time.
        """
        admin = AdminClient(self.connection.client_config(), logger=client_log)
        topics = KafkaAdmin(self.connection)
        deadline_s = monotonic_s() + READY_TIMEOUT_S
        while not (self._is_complete(admin) and set(self.topology.owned) <= set(topics.topic_names())):
            for worker in self._workers:
                if worker.pid is None:
                    raise worker.failure(f"ended with exit code {worker.exit_code} before it was ready")
            if monotonic_s() > deadline_s:
                raise self._workers[0].failure(f"was not ready within {READY_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)

    def kill_worker(self, number: int) -> None:
        """End a worker with SIGKILL; `number` counts from 0."""
        self._killed.add(number)
        self._workers[number].kill()

    def restart_worker(self, number: int) -> None:
        """Start a killed worker again, on its own folder."""
        self._killed.discard(number)
        self._workers[number].start()

    def check(self) -> None:
        """Look after the children: a worker that ended by itself is started again, anything else raises.

        Raises:
            ChildFailedError: broker or service ended, or workers end again and again.
        """
        if self._service is not None and self._service.pid is None:
            raise self._service.failure(f"ended with exit code {self._service.exit_code} in mid-run")
        if self._broker.pid is None:
            raise Child("broker", [], log=self._broker.log).failure("ended in mid-run")
        for number, worker in enumerate(self._workers):
            if worker.pid is None and number not in self._killed:
                self.unasked_ends.append(f"{worker.name} (exit code {worker.exit_code})")
                if len(self.unasked_ends) > MAX_UNASKED_ENDS:
                    raise worker.failure(f"ends by itself again and again, last with exit code {worker.exit_code}")
                worker.start()

    def stop_workers(self) -> None:
        """Ask the workers to end, and wait."""
        self._killed.update(range(len(self._workers)))
        stop_all(self._workers)

    def close(self, *, keep_logs: bool) -> None:
        """End everything and remove what was written; with `keep_logs` only the broker's files."""
        children = [*self._workers, *([self._service] if self._service is not None else [])]
        try:
            stop_all(children)
        finally:
            self._broker.stop()
            if keep_logs:  # logs, log of deliveries and the workers' state are evidence; the broker's files are large
                shutil.rmtree(self.folder / "broker", ignore_errors=True)
            else:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _worker(self, name: str, port: int) -> Child:
        return Child(
            name,
            [sys.executable, "-m", "faust", "-A", "retryapp.demo", "worker", "-l", "info"],
            log=self.logs / f"{name}.log",
            env={
                f"{PREFIX}BROKER": self._broker.bootstrap,
                f"{PREFIX}GROUP": self.topology.group,
                f"{PREFIX}SERVICE_URL": self._service_url,
                f"{PREFIX}WORKER": name,
                "RETRYAPP_DATADIR": str(self.folder / name),
                "RETRYAPP_WEB_PORT": str(port),
                "TMPDIR": str(self.folder),  # their port locks go away with the run: its ports are drawn anew each time
            },
        )

    def _is_complete(self, admin: AdminClient) -> bool:
        """Tell whether all workers are in the group and it is not rebalancing."""
        with suppress(KafkaException, TimeoutError):  # the coordinator is not there yet, or is slow: asked again
            asked = admin.describe_consumer_groups([self.topology.group], request_timeout=5)
            group = asked[self.topology.group].result(10)
            return group.state == ConsumerGroupState.STABLE and len(group.members) == WORKERS
        return False
