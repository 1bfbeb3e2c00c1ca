"""Topic administration and bounded reading, over confluent-kafka.

Faust's own client cannot tell topic ids and settings; this room can, and reads topics without joining the group, so
commands work with all workers down.
"""

from retryapp.kafka.admin import ClusterState, KafkaAdmin, OffsetRange, TopicState
from retryapp.kafka.compare import Problem
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.discovery import find_handlers
from retryapp.kafka.errors import (
    AccessDeniedError,
    CertificateRefusedError,
    ContextRefusedError,
    KafkaRequestError,
    OwnerMismatchError,
    OwnerUnknownError,
    ReplicationTooLowError,
    UnreadableHeaderError,
)
from retryapp.kafka.owner import OwnerMark, check_owner_mark, claim_owner_mark, read_owner_mark, write_owner_mark
from retryapp.kafka.plan import Action, Plan, PlanOptions, PlanStep, apply_plan, ensure_topics, plan_topics
from retryapp.kafka.positions import OpenTransactionError, Positions
from retryapp.kafka.reader import fold_changelog, read_changelog, read_offsets, read_record, read_topic

__all__ = [
    "AccessDeniedError",
    "Action",
    "CertificateRefusedError",
    "ClusterState",
    "ContextRefusedError",
    "KafkaAdmin",
    "KafkaConnection",
    "KafkaRequestError",
    "OffsetRange",
    "OpenTransactionError",
    "OwnerMark",
    "OwnerMismatchError",
    "OwnerUnknownError",
    "Plan",
    "PlanOptions",
    "PlanStep",
    "Positions",
    "Problem",
    "ReplicationTooLowError",
    "TopicState",
    "UnreadableHeaderError",
    "apply_plan",
    "check_owner_mark",
    "claim_owner_mark",
    "ensure_topics",
    "find_handlers",
    "fold_changelog",
    "plan_topics",
    "read_changelog",
    "read_offsets",
    "read_owner_mark",
    "read_record",
    "read_topic",
    "write_owner_mark",
]
