"""Topic ids as Kafka prints them."""

from __future__ import annotations

from confluent_kafka import Uuid

from retryapp.kafka.admin import url_safe_topic_id


def test_a_topic_id_never_holds_a_slash():
    """The client library prints plain base64; a slash would split a failure id."""
    uuid = Uuid(-5, 7_777_777_777_777)
    assert "/" in str(uuid)
    assert url_safe_topic_id(uuid) == str(uuid).replace("/", "_").replace("+", "-")
