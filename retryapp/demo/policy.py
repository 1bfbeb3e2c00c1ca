"""The demo's figures that the worker, the service and the balance must agree on.

The policy survives the worst that the service plans: three planned failures and two in the outage are five, and six
retries allow six. Its longest way is 1 + 2 + 4 + 8 + 8 + 8 s, so that a run of 20,000 flights ends in time.
"""

from __future__ import annotations

POLICY = "1s 2s 4s 8s*3"
"""Text of the policy."""

CONCURRENCY = 64
"""Requests at once in one worker, counted apart for first deliveries and for redeliveries."""

SESSION_TIMEOUT_S = 6.0
"""After so long the group takes a killed worker's partitions away."""

PARTITIONS = 4
"""Of the main topic."""

OUTAGE_S = 8.0
"""Length of the service's outage."""
