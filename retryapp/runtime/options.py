"""The user's options for the runtime, and the Faust settings that we change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from retryapp.kafka import PlanOptions

SETTINGS: Mapping[str, tuple[Any, str]] = {
    "stream_wait_empty": (False, "Faust's wait has no bound; ours has"),
    "broker_commit_every": (10**9, "commits in the middle of fetching stall it"),
    "broker_commit_interval": (0.25, "fewer repeats after a crash"),
    "broker_session_timeout": (15.0, "seconds until a killed worker's partitions move"),
    "broker_request_timeout": (30.0, "a request to a dead broker must not take minutes"),
    "broker_rebalance_timeout": (30.0, "a rebalance must not wait minutes for a hanging worker"),
    "consumer_metadata_max_age_ms": (10_000, "a topic that has grown is noticed within 10 s, not 5 minutes"),
    "topic_disable_leader": (True, "the leader topic is not used"),
    "web_bind": ("127.0.0.1", "pages that others reach need a login"),
    "web_tables_enabled": (False, "shows table contents without a login"),
    "web_router_enabled": (False, "not used"),
}
"""Faust settings that we change unless the user has decided: ours and why."""
HEARTBEAT_S: Final = 3.0  # Faust's own `broker_heartbeat_interval`
HEARTBEATS: Final = 4  # in a session, at least, if the user has decided on the session only


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """What the user decides about the runtime."""

    grace_ms: int = 25_000
    """How long handlers may run on after SIGTERM."""
    drain_ms: int = 5_000
    """How long handlers may run on when a rebalance takes their partition."""
    start_timeout_ms: int = 60_000
    """How long a start waits for a broker."""
    plan: PlanOptions = field(default_factory=PlanOptions)
    admin_options: Mapping[str, str] = field(default_factory=dict)
    """librdkafka properties for the administration client, in addition to the app's credentials."""
    pages_guarded: bool = False
    """It is said who may reach the pages from other machines."""
