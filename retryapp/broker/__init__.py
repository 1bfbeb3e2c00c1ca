"""A real single-node Apache Kafka for development and tests; on loopback only."""

from retryapp.broker.node import Broker

__all__ = ["Broker"]
