"""What the engine needs from the world, as protocols.

The engine (the retry protocol) awaits nothing but these ports, so that Faust, Spark and a simulator can drive the same
code. Back ends import this module and `retryapp.core`, never each other.

* Time comes from `Clock`, jitter from `Random`.
* `ports.broker` is Kafka's clients, `ports.tables` the local tables.
* `Observer` sees what happened, one record at a time; logs and metrics are observers.
* `WorkerView` is what the web pages may ask a worker.
"""

from __future__ import annotations

from retryapp.ports.broker import (
    Acks,
    Committed,
    DestinationReader,
    Flow,
    Passage,
    Sink,
    Standing,
    TopicReader,
    Way,
)
from retryapp.ports.flow import (
    Clock,
    Event,
    LaneBatch,
    LaneReceipt,
    Observation,
    Observer,
    Random,
    Removal,
    Row,
    TopicPartition,
)
from retryapp.ports.tables import DeadLetterTable, DeadRow, PendingTable, SeenTable
from retryapp.ports.view import (
    PAGES_PREFIX,
    DeadEntry,
    HandlerInfo,
    PartitionInfo,
    PartitionLag,
    PendingEntry,
    WorkerView,
)

__all__ = [
    "PAGES_PREFIX",
    "Acks",
    "Clock",
    "Committed",
    "DeadEntry",
    "DeadLetterTable",
    "DeadRow",
    "DestinationReader",
    "Event",
    "Flow",
    "HandlerInfo",
    "LaneBatch",
    "LaneReceipt",
    "Observation",
    "Observer",
    "PartitionInfo",
    "PartitionLag",
    "Passage",
    "PendingEntry",
    "PendingTable",
    "Random",
    "Removal",
    "Row",
    "SeenTable",
    "Sink",
    "Standing",
    "TopicPartition",
    "TopicReader",
    "Way",
    "WorkerView",
]
