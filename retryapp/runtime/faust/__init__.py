"""Faust's consumer, agents and transport, extended."""
