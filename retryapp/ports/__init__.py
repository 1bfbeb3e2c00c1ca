"""The engine's dependencies, as protocols: it awaits nothing else, so Faust and a simulator drive the same code.

Back ends import this package and `retryapp.core`, never each other.
"""

from __future__ import annotations

from retryapp.ports.broker import (
    Acks,
    Committed,
    DestinationReader,
    Flow,
    Sink,
    Standing,
    Stuck,
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
    Row,
    TopicPartition,
)
from retryapp.ports.tables import DeadLetterTable, DeadRow, PendingTable, SeenTable
from retryapp.ports.view import (
    ELSEWHERE,
    LATE_MS,
    PAGES_PREFIX,
    Activity,
    CauseTrends,
    CircuitInfo,
    DeadEntry,
    HandlerInfo,
    PartitionInfo,
    PartitionLag,
    PendingEntry,
)

__all__ = [
    "ELSEWHERE",
    "LATE_MS",
    "PAGES_PREFIX",
    "Acks",
    "Activity",
    "CauseTrends",
    "CircuitInfo",
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
    "PendingEntry",
    "PendingTable",
    "Random",
    "Row",
    "SeenTable",
    "Sink",
    "Standing",
    "Stuck",
    "TopicPartition",
    "TopicReader",
    "Way",
]
