"""The broker of a campaign, with listeners that only links lead to."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from chaos.proxy import Link, Network
from retryapp.broker import Broker
from retryapp.broker.config import NODE_ID
from retryapp.broker.probe import LOOPBACK, free_ports

SETTINGS = {
    "group.min.session.timeout.ms": "1000",  # so that a worker that is gone is missed soon, and kills are cheap
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # rights are taken away by topic
    "transaction.max.timeout.ms": "900000",
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "group.max.size": "64",
}


class Ground:
    """A broker and its links. As a context manager it is started and closed."""

    def __init__(self, cache_dir: Path, folder: Path, *, links: int = 0, heap_mb: int = 768) -> None:
        plain, controller, *ports = free_ports(2 + 2 * links)
        self._fronts, behind = ports[:links], ports[links:]
        self.network = Network()
        self.broker = Broker(
            cache_dir, port=plain, data=folder, heap_mb=heap_mb, settings=self._settings(plain, controller, behind)
        )
        self._behind = behind
        self._free: queue.SimpleQueue[Link] = queue.SimpleQueue()

    def _settings(self, plain: int, controller: int, behind: list[int]) -> Mapping[str, str]:
        links = list(zip((f"LINK{n}" for n in range(len(behind))), self._fronts, behind, strict=True))
        inside = [f"PLAINTEXT://{LOOPBACK}:{plain}", *(f"{name}://{LOOPBACK}:{port}" for name, _, port in links)]
        shown = [f"PLAINTEXT://{LOOPBACK}:{plain}", *(f"{name}://{LOOPBACK}:{port}" for name, port, _ in links)]
        names = ["PLAINTEXT", "CONTROLLER", *(name for name, _, _ in links)]
        return {
            **SETTINGS,
            "listeners": ",".join([*inside, f"CONTROLLER://{LOOPBACK}:{controller}"]),
            "advertised.listeners": ",".join(shown),
            "controller.quorum.voters": f"{NODE_ID}@{LOOPBACK}:{controller}",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        }

    @property
    def bootstrap(self) -> str:
        """Address without a link: for the campaign's own clients, and workers without network faults."""
        return self.broker.bootstrap

    @contextmanager
    def link(self) -> Iterator[Link]:
        """Lend a link to one round; it is healed when it comes back."""
        link = self._free.get(timeout=600)
        try:
            yield link
        finally:
            link.heal()
            self._free.put(link)

    def __enter__(self) -> Ground:
        self.network.__enter__()
        try:
            self.broker.start()
            for front, target in zip(self._fronts, self._behind, strict=True):
                self._free.put(self.network.add(front, target))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.close()
        self.network.__exit__()
