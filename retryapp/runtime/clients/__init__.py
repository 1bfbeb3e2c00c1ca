"""Kafka clients of lanes, and what they read and send."""
