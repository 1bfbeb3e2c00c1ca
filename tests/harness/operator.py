"""What others do to a broker: programs that publish, operators who change offsets, topics, records and rights."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.stage import wait_for


def answered(answers: Mapping[Any, Future[Any]]) -> list[Any]:
    return [answer.result(30) for answer in answers.values()]


class Operator:
    """Somebody with plain clients and all rights."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.connection = KafkaConnection(bootstrap)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.producer = Producer({"bootstrap.servers": bootstrap})

    def publish(self, topic: str, *values: bytes | None, **place: Any) -> None:
        """Publish values that have key, partition, headers and timestamp in common."""
        for value in values:
            self.producer.produce(topic, value, **place)
        assert self.producer.flush(20) == 0, "the broker did not take all records"

    def set_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        KafkaAdmin(self.connection).describe_group(group)  # waits for its coordinator: a new broker has none
        (answer,) = answered(self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))
        assert all(place.error is None for place in answer.topic_partitions)

    def configure(self, topic: str, setting: str, value: str) -> None:
        """Change a setting of a topic, and wait until the broker has it."""
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        answered(self.admin.incremental_alter_configs([resource]))
        admin = KafkaAdmin(self.connection)
        wait_for(lambda: admin.describe_topics([topic])[topic].config[setting] == value, f"{topic} has the {setting}")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        answered(self.admin.delete_topics([topic]))
        wait_for(lambda: topic not in self.admin.list_topics(timeout=10).topics, "it is gone")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        answered(self.admin.delete_records([TopicPartition(topic, partition, before)]))
