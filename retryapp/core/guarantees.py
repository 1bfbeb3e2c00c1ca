"""What a worker promises of the moves between topics, tables and offsets."""

from __future__ import annotations

from enum import StrEnum


class DeliveryMode(StrEnum):
    """How turns are carried out. The handler's own effects are at least once in both."""

    EXACTLY_ONCE = "exactly_once"
    """In Kafka transactions: no crash, zombie or broker restart makes a copy that a committed reader can see."""
    AT_LEAST_ONCE = "at_least_once"
    """Publish, then changelog, then offsets: nothing is lost, less waiting; a crash or a zombie may make copies."""
