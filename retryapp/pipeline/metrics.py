"""What to alert on of the archive, for Prometheus; each round that ends in order brings it up to date."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from retryapp.core.errors import InvalidSettingError, PortTakenError


class PipelineMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "retryapp", "subsystem": "pipeline", "registry": self.registry}
        lost = "Ranges that were not read, or are in doubt, and that nobody has acknowledged."
        ended = "When a round last ended in order."
        self._gaps = Gauge("unacknowledged_gaps", lost, ("group",), **ours)
        self._last_round = Gauge("last_round_timestamp_seconds", ended, ("group",), **ours)

    def round_ended(self, group: str, *, ended_ms: int, gaps: int) -> None:
        """Record a round that ended in order, and the gaps of the group that nobody has acknowledged."""
        self._gaps.labels(group).set(gaps)
        self._last_round.labels(group).set(ended_ms / 1_000)

    @contextmanager
    def served(self, address: str, port: int) -> Iterator[int]:
        """Serve them over HTTP; yields the port, which is another one for 0."""
        try:
            server, thread = start_http_server(port, address, registry=self.registry)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                expected = f"expected an address of this machine, and a port that this user may have: {error.strerror}"
                raise InvalidSettingError("--metrics-bind, --metrics-port", f"{address}, {port}", expected) from error
            raise PortTakenError(address, port, "Choose another one: --metrics-port") from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
