"""Feed flights to the main topic at a steady rate (an open loop); `python -m retryapp.demo.feed` feeds a trickle.

A record's key is the tail number (null where it is missing), its value the flight as JSON. A flight counts as fed when
the broker has acknowledged it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from itertools import chain, repeat
from typing import Final

import click
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from retryapp.core.errors import EnvironmentFault
from retryapp.demo.data import Flight, read_flights
from retryapp.demo.settings import MAIN_TOPIC, DemoSettings
from retryapp.kafka import KafkaConnection
from retryapp.kafka.writer import produce

TRICKLE_PER_S: Final = 5.0
_TURN_S: Final = 0.1


class FeedError(EnvironmentFault):
    """Flights could not be handed to the broker. Operator action: look at the broker's log."""


class Feeder:
    """Hands over what is due each time that `turn` is called; `rate` is flights a second."""

    def __init__(self, connection: KafkaConnection, flights: Iterable[Flight], *, rate: float) -> None:
        self._producer: Producer = connection.client(Producer, enable_idempotence=True, linger_ms=5, acks="all")
        self._flights = iter(flights)
        self._rate = rate
        self._began_s = time.monotonic()
        self._handed_over = 0
        self._exhausted = False
        self._problem: str | None = None
        self.fed: set[int] = set()
        """Ids of the acknowledged flights."""

    @property
    def finished(self) -> bool:
        return self._exhausted and len(self.fed) == self._handed_over

    def turn(self) -> None:
        """Hand over the flights that are due by now; raise `FeedError` if the broker refused one."""
        while not self._exhausted and self._handed_over < (time.monotonic() - self._began_s) * self._rate:
            flight = next(self._flights, None)
            if flight is None:
                self._exhausted = True
            else:
                self._hand_over(flight)
        self._producer.poll(0)
        if self._problem is not None:
            raise FeedError(f"could not feed the flights: {self._problem}")

    def _hand_over(self, flight: Flight) -> None:
        key = None if flight.tailnum is None else flight.tailnum.encode()
        value = flight.model_dump_json().encode()
        self._handed_over += 1
        produce(self._producer, MAIN_TOPIC, value, key, on_delivery=partial(self._acknowledge, flight.id))

    def _acknowledge(self, flight_id: int, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.fed.add(flight_id)
        else:
            self._problem = f"flight {flight_id}: {error}"


@click.command()
def main() -> None:
    """Feed five flights a second, from the first one on, once a worker has created the main topic."""
    connection = KafkaConnection(DemoSettings().broker)
    admin = connection.client(AdminClient)
    while MAIN_TOPIC not in admin.list_topics(timeout=-1).topics:
        time.sleep(_TURN_S)
    feeder = Feeder(connection, chain.from_iterable(read_flights() for _ in repeat(None)), rate=TRICKLE_PER_S)
    try:
        while True:
            feeder.turn()
            time.sleep(_TURN_S)
    except EnvironmentFault as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
