"""What is asked of a group's coordinator: the broker that keeps its members and offsets."""

from __future__ import annotations

import threading
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

COORDINATOR_COMING: Final = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Names of errors that mean: the group's coordinator is being chosen or loads (on a new broker too)."""
_PAUSE_S: Final = 0.1


def describe_group(client: AdminClient, group: str, *, timeout_s: float) -> Any:
    """Return a consumer group as its coordinator describes it, once that is there; one that never was is ``dead``.

    To be called before a group's offsets are asked for: where the coordinator is not known yet, the client library
    ends the whole process on that question (a null pointer in librdkafka 2.16, its issue 5040), but not on this one.

    Args:
        client: who asks.
        group: its name.
        timeout_s: how long to ask again while the coordinator is being chosen, in seconds; a single answer may take
            twice as long.

    Raises:
        KafkaException: the broker refuses.
        concurrent.futures.TimeoutError: nobody answers.
    """
    budget_s = timeout_s
    while True:
        (future,) = client.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=timeout_s
        ).values()
        try:
            return future.result(timeout_s * 2)
        except KafkaException as error:
            if error.args[0].name() not in COORDINATOR_COMING or budget_s <= 0:
                raise
        threading.Event().wait(_PAUSE_S)
        budget_s -= _PAUSE_S
