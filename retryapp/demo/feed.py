"""The feeder: hands flights to the main topic at a steady rate, whatever becomes of them (an open loop).

The record's key is the tail number (none where it is missing), its value the flight as JSON. What counts as fed is what
the broker has acknowledged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from retryapp.core.errors import EnvironmentFault
from retryapp.demo.clock import monotonic_s, wall_ms
from retryapp.demo.data import Flight
from retryapp.kafka import KafkaConnection
from retryapp.kafka.connection import client_log

_TURN_S = 0.01
_FLUSH_S = 30.0


class FeedError(EnvironmentFault):
    """Flights could not be handed to the broker. Operator action: look at the broker's log."""

    def __init__(self, problem: str) -> None:
        """Say what the broker or the client answered."""
        self.problem = problem
        super().__init__(f"could not feed the flights: {problem}")


class Feeder(threading.Thread):
    """Feeds in a thread of its own; `check` raises in the caller what went wrong in it."""

    def __init__(self, connection: KafkaConnection, topic: str, flights: Iterable[Flight], *, rate: float) -> None:
        """Prepare; `start` begins.

        Args:
            connection: the cluster.
            topic: the main topic.
            flights: what to feed, in this order.
            rate: flights a second.
        """
        super().__init__(name="feeder", daemon=True)
        self._producer = Producer(
            connection.client_config(enable_idempotence=True, linger_ms=5, acks="all"), logger=client_log
        )
        self._topic = topic
        self._flights = flights
        self._rate = rate
        self._stopping = threading.Event()
        self._problem: str | None = None
        self.fed_ms: dict[int, int] = {}
        """When each flight was handed to the producer, epoch milliseconds; complete when `finished`."""
        self.partitions: dict[int, int] = {}
        """Partition of each acknowledged flight."""

    @property
    def fed(self) -> int:
        """Number of acknowledged flights."""
        return len(self.partitions)

    @property
    def finished(self) -> bool:
        """True when the thread has begun and ended."""
        return self.ident is not None and not self.is_alive()

    def check(self) -> None:
        """Raise what went wrong.

        Raises:
            FeedError: a flight was refused.
        """
        if self._problem is not None:
            raise FeedError(self._problem)

    def stop(self) -> None:
        """Ask the thread to end and wait for it."""
        self._stopping.set()
        if self.ident is not None:
            self.join(_FLUSH_S)

    def run(self) -> None:
        """Feed until all flights are acknowledged, one is refused, or `stop` is called."""
        try:
            self._feed()
            if self._producer.flush(_FLUSH_S) and not self._stopping.is_set():
                self._problem = f"the broker acknowledged no more within {_FLUSH_S:g} s"
        except Exception as error:  # noqa: BLE001 - the thread's edge: the caller raises it by check()
            self._problem = f"{type(error).__name__}: {error}"

    def _feed(self) -> None:
        began_s = monotonic_s()
        for number, flight in enumerate(self._flights):
            while number >= (monotonic_s() - began_s) * self._rate:
                self._producer.poll(0)
                if self._stopping.wait(_TURN_S):
                    return
            if self._problem is not None:
                return
            self._hand_over(flight)

    def _hand_over(self, flight: Flight) -> None:
        key = None if flight.tailnum is None else flight.tailnum.encode()
        value = flight.model_dump_json().encode()
        self.fed_ms[flight.id] = wall_ms()
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._note(flight.id))
            except BufferError:  # the client's queue is full: wait until the broker takes some
                self._producer.poll(0.1)
            else:
                return

    def _note(self, flight_id: int) -> Any:
        def acknowledged(error: KafkaError | None, message: Message) -> None:
            partition = message.partition()
            if error is not None or partition is None:
                self._problem = f"flight {flight_id}: {error}"
            else:
                self.partitions[flight_id] = partition

        return acknowledged
