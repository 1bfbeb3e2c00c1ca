"""Metrics, logs and what the pages remember."""
