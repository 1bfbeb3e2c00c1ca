"""What the engine needs from the world, as protocols.

The engine (the retry protocol) awaits nothing but these ports, so that Faust, Spark and a simulator can drive the same
code. Back ends import this module and `retryapp.core`, never each other.

* Time comes from `Clock`, jitter from `Random`.
* `LaneTransport` is Kafka as one lane sees it; `PendingTable` and `DeadLetterTable` are the local stores.
* `ports.broker` is what stands behind a transport: acknowledgements, readings, stores on a disk.
* `Observer` is told what happened, one record at a time; logs and metrics are observers.
* `WorkerView` is what the web pages may ask a worker.
"""

from __future__ import annotations

from retryapp.ports.broker import (
    Acks,
    Committed,
    DeadLetterStore,
    Flow,
    Passage,
    PendingStore,
    SeenStore,
    Sink,
    Standing,
    TopicReader,
    Way,
)
from retryapp.ports.flow import (
    Clock,
    DeadLetterTable,
    DeadRow,
    Event,
    LaneBatch,
    LaneReceipt,
    LaneTransport,
    Observation,
    Observer,
    PendingTable,
    Random,
    Removal,
    Row,
    SeenTable,
    Source,
    TopicPartition,
)
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
    "DeadLetterStore",
    "DeadLetterTable",
    "DeadRow",
    "Event",
    "Flow",
    "HandlerInfo",
    "LaneBatch",
    "LaneReceipt",
    "LaneTransport",
    "Observation",
    "Observer",
    "PartitionInfo",
    "PartitionLag",
    "Passage",
    "PendingEntry",
    "PendingStore",
    "PendingTable",
    "Random",
    "Removal",
    "Row",
    "SeenStore",
    "SeenTable",
    "Sink",
    "Source",
    "Standing",
    "TopicPartition",
    "TopicReader",
    "Way",
    "WorkerView",
]
