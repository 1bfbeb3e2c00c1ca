"""``plan`` and ``topics create`` for a user's module, on a real broker."""

from __future__ import annotations

import pytest
from harness import wait_for
from harness.operator import Operator


def test_from_nothing_to_topics_that_are_fine(retryapp, module, bootstrap):
    """A missing main topic is a finding; it is created on request; then all topics are as required."""
    first = retryapp("plan", "-A", module)
    assert first.code == 1
    assert f"orders-{module} does not exist" in first.out
    assert f"(kafka-topics.sh --bootstrap-server {bootstrap} --create --topic orders-{module} " in first.out
    assert "1 of 1 topic prevents the application from starting" in first.out
    assert "\npolicy 5m*2 30m*3 1h; timeout=5m\nretries 50/s in the whole group\n" in first.out

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
    assert retryapp("dead", "list", "-A", module, "--topic", "other").code == 2

    (letters,) = (topic for topic in made.json["created"] if topic.endswith(".dlq"))
    Operator(bootstrap).delete_topic(letters)
    for words in ("dead list", "causes"):  # they showed that nothing is dead
        gone = retryapp(*words.split(), "-A", module, "--json")
        assert (gone.code, gone.json["error"]["type"]) == (3, "TopicMissingError"), (words, gone)


def test_what_a_handler_publishes_to_is_created_on_request_and_may_come_later(retryapp, module, bootstrap, tmp_path):
    """As main topics are; else ours are there all the same, and the missing one is a finding with the commands."""
    program, out = tmp_path / f"{module}.py", f"receipts-{module}"
    program.write_text(program.read_text().replace("rate_limit=", f'publishes=["{out}"], rate_limit='))
    made = retryapp("topics", "create", "-A", module, "--create-main", 3)
    assert made.code == 0
    assert f"created {out}" in made.out
    plan = retryapp("plan", "-A", module, "--json").json
    assert [each["partitions"] for each in plan["topics"] if each["role"] == "published"] == [3]

    Operator(bootstrap).delete_topic(out)
    wait_for(lambda: retryapp("plan", "-A", module).code == 1, "the topic is gone")
    missing = retryapp("topics", "create", "-A", module)
    assert missing.code == 1
    assert "6 topics are as required" in missing.out
    assert f"{out} does not exist. The handler of orders-{module} publishes to it" in missing.out
    assert f"--topic {out} --partitions N, or 'retryapp topics create -A {module} --create-main N')" in missing.out


def test_the_plan_says_why(retryapp, module):
    """Of each setting; the retry topic's retention does not follow from the policy."""
    done = retryapp("plan", "-A", module, "--create-main", 1, "--why")
    assert "what waits is in the changelog" in done.out
    topics = {
        topic["role"]: topic for topic in retryapp("plan", "-A", module, "--create-main", 1, "--json").json["topics"]
    }
    assert topics["retry"]["config"]["retention.ms"] == str(7 * 24 * 3_600_000)
    missing = retryapp("plan", "-A", module, "--json")
    assert [(topic["role"], topic["action"]) for topic in missing.json["topics"]] == [("main", "missing")]


@pytest.mark.parametrize("words", [("pending", "list"), ("pipeline", "archive")])
def test_no_broker_is_an_environment_error_said_once(retryapp, words):
    """Exit code 3, within seconds, with the address and without the client's own chatter."""
    done = retryapp(*words, "--broker", "127.0.0.1:1", "--group", "g")
    assert done.code == 3
    assert "127.0.0.1:1" in done.err
    assert "refused" in done.err
    assert len(done.err.strip().splitlines()) == 1
