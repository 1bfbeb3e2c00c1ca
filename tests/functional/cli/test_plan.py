"""``plan`` and ``topics create`` for a user's module, on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from harness import wait_for

from retryapp.core.rows import PendingRow, encode_row, row_key
from retryapp.kafka import KafkaAdmin, KafkaConnection


def clean_up(client: AdminClient, topic: str, policy: str) -> None:
    """Set a topic's clean-up policy."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in client.incremental_alter_configs([resource]).values():
        future.result(20)


def deleted(client: AdminClient, upto: TopicPartition) -> bool:
    """Delete the records before an offset; False while the topic's policy does not allow it."""
    try:
        for future in client.delete_records([upto]).values():
            future.result(20)
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.POLICY_VIOLATION:
            raise
        return False
    return True


def test_from_nothing_to_topics_that_are_fine(retryapp, module):
    """A missing main topic is a finding; it is created on request; then all topics are as required."""
    first = retryapp("plan", "-A", module)
    assert first.code == 1
    assert f"orders-{module} does not exist" in first.out
    assert "6 of 6 topics prevent the application from starting" in first.out

    refused = retryapp("topics", "create", "-A", module, "--json")
    assert refused.code == 3
    assert refused.json["error"]["type"] == "TopicMissingError"

    asked = retryapp("plan", "-A", module, "--create-main", 3, "--json")
    assert asked.code == 0
    assert len(asked.json["to_create"]) == 6

    made = retryapp("topics", "create", "-A", f"{module}:app", "--create-main", 3, "--json")
    assert made.code == 0
    assert made.json["created"] == asked.json["to_create"]
    assert made.json["ok"] is True

    again = retryapp("topics", "create", "-A", module, "--json")
    assert (again.code, again.json["created"]) == (0, [])
    fine = retryapp("plan", "-A", module)
    assert fine.code == 0
    assert "all topics are as required" in fine.out
    assert retryapp("pending", "list", "-A", module).out.strip() == "nothing waits"
    assert retryapp("dead", "list", "-A", module, "--topic", f"orders-{module}").out.strip() == "no dead letters"
    other = retryapp("dead", "list", "-A", module, "--topic", "other")
    assert other.code == 2
    assert f"orders-{module}" in other.err


def test_the_plan_says_why(retryapp, module):
    """Retention is the downtime plus the longest wait, in words."""
    done = retryapp("plan", "-A", module, "--create-main", 1, "--why")
    assert "all workers may be down for 7d, plus the longest wait of 1h" in done.out
    assert "7d1h" in done.out
    topics = {topic["role"]: topic for topic in retryapp("plan", "-A", module, "--json").json["topics"]}
    assert topics["retry"]["config"]["retention.ms"] == str((7 * 24 + 1) * 3_600_000)
    assert (topics["main"]["action"], topics["retry"]["action"]) == ("missing", "blocked")


def test_a_mismatch_is_a_finding_with_its_remedy(retryapp, bootstrap, module):
    """The plan names topic, setting, both values and what to do."""
    admin = KafkaAdmin(KafkaConnection(bootstrap))
    main, retry = f"orders-{module}", f"{module}.orders-{module}.retry"
    admin.create_main_topic(main, partitions=2)
    admin.create_main_topic(retry, partitions=1)
    admin.wait_for_topics([main, retry])
    done = retryapp("plan", "-A", module)
    assert done.code == 1
    assert f"{retry} has partitions=1, needed is 2" in done.out
    assert f"kafka-topics.sh --alter --topic {retry} --partitions 2" in done.out
    assert f"{retry} has message.timestamp.type=CreateTime, needed is LogAppendTime" in done.out
    assert retryapp("topics", "create", "-A", module).code == 3
    assert set(admin.describe_topics([retry, f"{module}.orders-{module}.dlq"])) == {retry}


def test_a_changelog_that_lost_its_owner_mark_can_be_adopted(retryapp, bootstrap, module):
    """Its first record was deleted by hand; what is left may be anybody's, until somebody has looked."""
    retryapp("topics", "create", "-A", module, "--create-main", 1)
    changelog = f"{module}.orders-{module}.pending.changelog"
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(changelog, key=row_key(1, 1, 1), value=encode_row(PendingRow(None, b"", (), 1)), partition=0)
    assert producer.flush(20) == 0
    client = AdminClient({"bootstrap.servers": bootstrap})
    clean_up(client, changelog, "delete")  # records of a compacted topic are not deleted by offset
    wait_for(lambda: deleted(client, TopicPartition(changelog, 0, 1)), "the new policy holds and the mark is gone")
    clean_up(client, changelog, "compact")
    admin = KafkaAdmin(KafkaConnection(bootstrap))
    wait_for(
        lambda: admin.describe_topics([changelog])[changelog].config["cleanup.policy"] == "compact", "it is as it was"
    )

    found = retryapp("plan", "-A", module)
    assert found.code == 1
    assert "retryapp topics create --adopt" in found.out
    refused = retryapp("topics", "create", "-A", module, "--json")
    assert refused.code == 3
    assert refused.json["error"]["type"] == "OwnerUnknownError"
    assert "retryapp topics create --adopt" in refused.json["error"]["message"]

    assert retryapp("topics", "create", "-A", module, "--adopt").code == 0
    assert retryapp("topics", "create", "-A", module).code == 0
    assert retryapp("plan", "-A", module).code == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{0}:nope", "has no 'nope'"),
        ("{0}:plain", "Retries"),
        ("{0}x", "no module"),
        ("broken", "broken.py, line 1"),
        ("needs", "needs.py, line 1"),
        ("policy", "5parsecs"),
        ("empty", "no handlers"),
    ],
)
def test_an_application_that_cannot_be_had_is_named(retryapp, module, tmp_path, spec, message):
    """Exit code 2, one line, no traceback."""
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "needs.py").write_text("import surely_not_there\n")
    (tmp_path / "policy.py").write_text("from retryapp import RetryPolicy\nRetryPolicy('5parsecs')\n")
    empty = "import faust\nfrom retryapp import Retries\napp = faust.App('empty')\nretries = Retries(app)\n"
    (tmp_path / "empty.py").write_text(empty)
    done = retryapp("plan", "-A", spec.format(module))
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_no_broker_is_an_environment_error_said_once(retryapp):
    """Exit code 3, within seconds, with the address and without the client's own chatter."""
    done = retryapp("pending", "list", "--broker", "127.0.0.1:1", "--group", "g")
    assert done.code == 3
    assert "127.0.0.1:1" in done.err
    assert "refused" in done.err
    assert len(done.err.strip().splitlines()) == 1
