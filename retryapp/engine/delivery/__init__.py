"""Deliveries: one run of a handler becomes one turn."""
