"""Topic administration and bounded reading over confluent-kafka, without joining a group."""

from retryapp.kafka.admin import ClusterState, KafkaAdmin, TopicState, reach
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.discovery import (
    GroupMissingError,
    dead_letter_topics,
    find_handlers,
    group_missing,
    with_dead_letters,
)
from retryapp.kafka.errors import AccessDeniedError, ContextRefusedError, KafkaRequestError, LoginRefusedError
from retryapp.kafka.plan import Action, Plan, PlanOptions, PlanStep, ensure_topics, grow_topics, plan_topics
from retryapp.kafka.positions import Positions
from retryapp.kafka.reader import first_times, fold_changelog, read_keys, read_offsets, read_record, read_topic

__all__ = [
    "AccessDeniedError",
    "Action",
    "ClusterState",
    "ContextRefusedError",
    "GroupMissingError",
    "KafkaAdmin",
    "KafkaConnection",
    "KafkaRequestError",
    "LoginRefusedError",
    "Plan",
    "PlanOptions",
    "PlanStep",
    "Positions",
    "TopicState",
    "dead_letter_topics",
    "ensure_topics",
    "find_handlers",
    "first_times",
    "fold_changelog",
    "group_missing",
    "grow_topics",
    "plan_topics",
    "reach",
    "read_keys",
    "read_offsets",
    "read_record",
    "read_topic",
    "with_dead_letters",
]
