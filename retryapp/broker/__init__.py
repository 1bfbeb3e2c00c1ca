"""A real single-node Apache Kafka for development and tests; on loopback only."""

from retryapp.broker.kept import KeptBroker, broker_status, start_kept_broker, stop_kept_broker
from retryapp.broker.node import Broker, BrokerFailedError

__all__ = ["Broker", "BrokerFailedError", "KeptBroker", "broker_status", "start_kept_broker", "stop_kept_broker"]
