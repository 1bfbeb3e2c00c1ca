"""The broker of a campaign, with listeners that only links lead to."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Self

from harness.markers import dropped_markers
from harness.three_brokers import ThreeBrokers

from chaos.proxy import Link
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
LONG_SESSION = {"broker.session.timeout.ms": "90000"}
"""For a broker that is paused: one that is shut out of its cluster has no leaders, and drops commit markers."""


class Ground:
    """A broker and its links. As a context manager it is started and closed."""

    def __init__(
        self,
        cache_dir: Path,
        folder: Path,
        *,
        links: int = 0,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        plain, controller, *ports = free_ports(2 + 2 * links)
        pairs = list(zip(ports[:links], ports[links:], strict=True))
        listeners = _listeners(plain, controller, pairs)
        self.broker = Broker(
            cache_dir, port=plain, data=folder, heap_mb=768, settings={**SETTINGS, **listeners, **settings}
        )
        self._links = [Link(front, behind) for front, behind in pairs]
        self._free: queue.SimpleQueue[Link] = queue.SimpleQueue()
        self._running = ExitStack()

    @property
    def bootstrap(self) -> str:
        """Address without a link: for the campaign's own clients, and workers without network faults."""
        return self.broker.bootstrap

    def dropped_markers(self, group: str) -> int:
        """Return how often the broker dropped commit markers of a group."""
        return dropped_markers(self.broker, group)

    @contextmanager
    def link(self) -> Iterator[Link]:
        """Lend a link to one round; it is healed when it comes back."""
        link = self._free.get(timeout=600)
        try:
            yield link
        finally:
            link.heal()
            self._free.put(link)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for link in self._links:
                self._free.put(stack.enter_context(link))
            stack.callback(self.broker.stop)
            self.broker.start()
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


class ThreeGrounds:
    """Three brokers that are one cluster, for a crowd. As a context manager they are started and closed."""

    def __init__(self, cache_dir: Path, folder: Path, **_: object) -> None:
        self.brokers = ThreeBrokers(cache_dir, folder, settings={"group.min.session.timeout.ms": "1000"})
        self.bootstrap = self.brokers.bootstrap

    def dropped_markers(self, group: str) -> int:
        """Return how often the brokers dropped commit markers of a group."""
        return sum(dropped_markers(broker, group) for broker in self.brokers.nodes.values())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.brokers.close)
            self.brokers.start()
            self.brokers.wait_in_sync()
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


def _listeners(plain: int, controller: int, links: list[tuple[int, int]]) -> dict[str, str]:
    names = [f"LINK{number}" for number in range(len(links))]
    inside = [f"{name}://{LOOPBACK}:{behind}" for name, (_, behind) in zip(names, links, strict=True)]
    shown = [f"{name}://{LOOPBACK}:{front}" for name, (front, _) in zip(names, links, strict=True)]
    own = f"PLAINTEXT://{LOOPBACK}:{plain}"
    return {
        "listeners": ",".join([own, *inside, f"CONTROLLER://{LOOPBACK}:{controller}"]),
        "advertised.listeners": ",".join([own, *shown]),
        "controller.quorum.voters": f"{NODE_ID}@{LOOPBACK}:{controller}",
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names)),
    }
