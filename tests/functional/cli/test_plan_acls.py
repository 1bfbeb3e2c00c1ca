"""``plan --acls``: what it prints, and a real cluster that grants exactly this."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness import Worker, wait_for
from harness.operator import Operator, answered
from harness.rights import CLOSED, KINDS, grant, rights_of_people
from harness.secured import PASSWORD, USER, SecuredBroker, secured_broker

from retryapp.broker.probe import free_ports
from retryapp.cli._target import connect
from retryapp.core.headers import decode_metadata
from retryapp.core.lifecycle import Succeeded, decode_event
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import AccessDeniedError, KafkaAdmin, KafkaConnection, group_missing, read_topic
from retryapp.pipeline.sources import Life, find_sources

ALL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.fixture(scope="module")
def secured(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker on which users have what they are granted; operators come without a login."""
    with secured_broker(cache_dir, tmp_path_factory.mktemp("certificates"), CLOSED) as broker:
        yield broker


def write_app(folder: Path, group: str, bootstrap: str, *publishes: str) -> None:
    """Write a user's module that is called as its group; negative ids are rejected, odd ones fail once.

    An order with a "to" is published there.
    """
    source = f"""
        import faust
        from retryapp import Delivery, Reject, Retries, RetryPolicy

        app = faust.App(
            "{group}",
            broker="kafka://{bootstrap}",
            store="rocksdb://",
            broker_credentials=faust.SASLCredentials(username="{USER}", password="{PASSWORD}", mechanism="PLAIN"),
        )
        retries = Retries(app, start_timeout="10s")

        @retries.handler("orders-{group}", value=dict, policy=RetryPolicy("200ms"), publishes={list(publishes)})
        async def charge(order: dict, delivery: Delivery) -> None:
            if order["id"] < 0:
                raise Reject("negative")
            if order["id"] % 2 and delivery.attempt == 1:
                raise ValueError("odd")
            if "to" in order:
                delivery.publish(order["to"], order)
    """
    (folder / f"{group}.py").write_text(textwrap.dedent(source))


def commands(shown: str) -> list[str]:
    """Return the lines for kafka-acls.sh."""
    return [line for line in shown.splitlines() if line.startswith("kafka-acls.sh ")]


def test_rights_are_printed_without_a_broker(retryapp, group, tmp_path):
    """As a table with reasons, as commands, and as JSON; all the same rights."""
    write_app(tmp_path, group, "127.0.0.1:1")
    shown = retryapp("plan", "-A", group, "--acls")
    assert shown.code == 0
    for words in (f"{group}.*", f"orders-{group}", "DescribeConfigs", "hand-offs", "--resource-pattern-type prefixed"):
        assert words in shown.out
    lines = commands(shown.out)
    assert len(lines) == 5
    assert all(f"--allow-principal User:{USER} " in line for line in lines), "the workers' login"
    assert all("--bootstrap-server 127.0.0.1:1 --command-config FILE --add " in line for line in lines)
    assert "FILE has the properties of a login that may grant rights" in shown.out
    assert "is a guess" not in shown.out
    assert PASSWORD not in shown.out

    source = (tmp_path / f"{group}.py").read_text()
    other = source.replace('start_timeout="10s"', 'admin_options={"sasl.username": "admin"}')
    (tmp_path / f"{group}_admin.py").write_text(other)
    assert commands(retryapp("plan", "-A", f"{group}_admin", "--acls").out) == lines, "not the administration client's"

    report = retryapp("plan", "-A", group, "--acls", "--principal", "User:CN=billing", "--json").json
    assert report["principal"] == "User:CN=billing"
    assert [line.replace("User:CN=billing", f"User:{USER}") for line in report["commands"]] == lines
    assert {acl["resource"] for acl in report["acls"]} == set(KINDS)
    assert {acl["resource"] for acl in report["acls"] if not acl["needed"]} == {"Cluster"}
    created = retryapp("plan", "-A", group, "--acls", "--create-main", 3, "--json").json
    assert len(created["acls"]) == len(report["acls"]) + 1

    assert "--principal goes with --acls" in retryapp("plan", "-A", group, "--principal", "User:x").err


def test_a_principal_that_nobody_knows_is_a_guess(retryapp, module, bootstrap):
    """Without a login, or with a certificate alone, the group's name stands in for it, and the output says so."""
    shown = retryapp("plan", "-A", module, "--acls")
    assert (
        f"User:{module} is a guess: the app has no login with a name. Name the workers' with --principal." in shown.out
    )
    assert all(f"--bootstrap-server {bootstrap} --add " in line for line in commands(shown.out))
    assert "is a guess" not in retryapp("plan", "-A", module, "--acls", "--principal", "User:CN=billing").out


def test_topics_that_handlers_publish_to(retryapp, group, tmp_path):
    """Those that are declared; that there may be others, the output says."""
    write_app(tmp_path, group, "127.0.0.1:1")
    before = retryapp("plan", "-A", group, "--acls")
    assert f"{group}.charge may publish (delivery.publish)" in before.out
    report = retryapp("plan", "-A", group, "--acls", "--json").json
    assert (report["may_publish"], report["publishes"]) == ([f"{group}.charge"], [])
    write_app(tmp_path, f"{group}2", "127.0.0.1:1", "receipts")
    shown = retryapp("plan", "-A", f"{group}2", "--acls")
    assert "may publish" not in shown.out
    assert [line for line in commands(shown.out) if "--topic receipts" in line and "--operation Write" in line]
    declared = retryapp("plan", "-A", f"{group}2", "--acls", "--json").json
    assert (declared["may_publish"], declared["publishes"]) == ([], ["receipts"])
    rights = {acl["operation"]: acl["needed"] for acl in declared["acls"] if acl["name"] == "receipts"}
    assert rights == {"Describe": True, "DescribeConfigs": False, "Write": True}


@pytest.fixture
def worker(group: str, tmp_path: Path) -> Iterator[Worker]:
    """The worker of the module, yet to be started; it ends with the test."""
    command = [sys.executable, "-m", "retryapp.cli.main", "worker", group]
    env = {"RETRYAPP_WEB_PORT": str(free_ports(1)[0])}
    made = Worker("worker", command, cwd=tmp_path, log_file=tmp_path / "worker.log", env=env)
    yield made
    made.kill()
    print(made.log[-6000:])  # noqa: T201 - for the failure report


@pytest.mark.broker
@pytest.mark.extended
def test_a_worker_with_exactly_these_rights_works(retryapp, secured, group, tmp_path, worker):
    """The needed rights alone: topics, a success, a retry, a dead letter; it publishes once it may."""
    main, out = f"orders-{group}", f"payments-{group}"
    write_app(tmp_path, group, secured.sasl)
    connection, operator = KafkaConnection(secured.plain), Operator(secured.plain)
    admin = KafkaAdmin(connection)
    for topic in (main, out):
        admin.create_main_topic(topic, partitions=2)
    admin.wait_for_topics([main, out])
    refused = retryapp("doctor", "-A", group, "--json")
    assert refused.code == 1
    assert "Topic authorization failed" in json.dumps(refused.json)
    for words in ("dead list", "top"):  # they showed no dead letters, and no members
        hidden = retryapp(*words.split(), "-A", group, "--json")
        assert (hidden.code, hidden.json["error"]["type"]) == (3, "AccessDeniedError"), (words, hidden)

    acls = retryapp("plan", "-A", group, "--acls", "--json").json["acls"]
    grant(operator, [acl for acl in acls if acl["needed"]])
    worker.start()

    def send(number: int, **more: str) -> None:
        operator.publish(main, json.dumps({"id": number, **more}).encode(), partition=number % 2)

    for number in (1, 2, -3, 4):
        send(number)
    topology = HandlerTopology(group=group, main=main)

    def dead() -> list[str]:
        assert not worker.ended(), worker.log[-3000:]
        if topology.dlq not in admin.describe_topics([topology.dlq]):
            return []
        found = (decode_metadata(record.headers) for record in read_topic(connection, topology.dlq))
        return [metadata.error_message for metadata in found if metadata]

    def succeeded() -> int:
        if topology.events not in admin.describe_topics([topology.events]):
            return 0
        events = (decode_event(record.value or b"") for record in read_topic(connection, topology.events))
        return sum(isinstance(event, Succeeded) for event in events)

    wait_for(lambda: (len(dead()), succeeded()) == (1, 1), "one retried record succeeded and one is dead")
    send(6, to=out)
    wait_for(lambda: len(dead()) == 2, "it may not publish")
    assert any("may not describe it" in message for message in dead())
    write_app(tmp_path, f"{group}_declared", secured.sasl, out)
    declared = retryapp("plan", "-A", f"{group}_declared", "--acls", "--json").json["acls"]
    grant(operator, [acl for acl in declared if acl["name"] == out])
    wait_for(lambda: send(8, to=out) or any(read_topic(connection, out)), "it is published", every_s=0.5)

    grant(operator, [acl for acl in acls if not acl["needed"]])
    fine = retryapp("doctor", "-A", group, "--write", "--json")
    found = {finding["name"]: finding for finding in fine.json["findings"]}
    assert found["rights"]["severity"] == found["rights on transactions"]["severity"] == "ok", found
    assert "rights on the cluster" not in found
    assert found[f"group {group}"]["seen"].startswith("stable, 1 member")
    assert fine.code == 0, fine.out
    admin.grow(main, 3)
    assert retryapp("topics", "grow", "-A", group, "--json").json["error"]["type"] == "AccessDeniedError"
    grant(operator, rights_of_people("grow", billing=group))
    assert retryapp("topics", "grow", "-A", group).code == 0
    assert "AuthorizationFailed" not in worker.log
    assert "retryapp.lane_failed" not in worker.log


@pytest.mark.broker
@pytest.mark.extended
def test_each_missing_right_is_reported(retryapp, secured, group, tmp_path):
    """The doctor names it, or fails to do what needs it; nothing of it passes as fine."""
    main = f"orders-{group}"
    write_app(tmp_path, group, secured.sasl)
    acls = [acl for acl in retryapp("plan", "-A", group, "--acls", "--json").json["acls"] if acl["needed"]]
    admin, operator = KafkaAdmin(KafkaConnection(secured.plain)), Operator(secured.plain)
    admin.create_main_topic(main, partitions=1)
    admin.wait_for_topics([main])
    grant(operator, acls)
    assert retryapp("topics", "create", "-A", group).code == 0
    for left_out in acls:
        if left_out["operation"] in {"Create", "Describe"}:
            continue  # nothing is left to create; reading and writing include describing
        answered(operator.admin.delete_acls([ALL]))
        grant(operator, [acl for acl in acls if acl != left_out])
        done = retryapp("doctor", "-A", group, "--write", "--json")
        assert done.code == 1, (left_out, done.out)
        problems = json.dumps([finding for finding in done.json["findings"] if finding["severity"] == "problem"])
        assert "authorization failed" in problems or "not allowed" in problems, (left_out, problems)
        if left_out["resource"] == "TransactionalId":
            assert "rights on transactions" in problems


@pytest.mark.broker
@pytest.mark.extended
def test_people_need_the_rights_that_the_docs_name(retryapp, secured, group, tmp_path, worker):
    """With the rights to look, each command that steers is refused and says why; with those to steer, it is obeyed."""
    main, operator = f"orders-{group}", Operator(secured.plain)
    admin = KafkaAdmin(KafkaConnection(secured.plain))
    write_app(tmp_path, group, secured.sasl)
    admin.create_main_topic(main, partitions=1)
    admin.wait_for_topics([main])
    grant(operator, retryapp("plan", "-A", group, "--acls", "--json").json["acls"])
    worker.start()
    for number in range(3):
        operator.publish(main, json.dumps({"id": number - 3}).encode())
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    answered(
        operator.admin.alter_user_scram_credentials([UserScramCredentialUpsertion("olga", scram, PASSWORD.encode())])
    )
    login = {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", "username": "olga", "password": PASSWORD}
    config = tmp_path / "olga.properties"
    config.write_text(
        "".join(f"{'security' if name == 'protocol' else 'sasl'}.{name}={value}\n" for name, value in login.items())
    )

    def run(*words: str) -> Any:
        return retryapp(*words, "--broker", secured.sasl, "--group", group, "--client-config", config, "--json")

    assert "grant this login DESCRIBE on the group's topics" in run("dead", "list").json["error"]["message"]
    dlq = HandlerTopology(group=group, main=main).dlq
    known = Life(topic=dlq, topic_id="before", group=group, main=main, station="dlq", next=(0,))
    with pytest.raises(AccessDeniedError, match=f"could not describe topic {dlq} .* Needed: Describe"):
        find_sources(KafkaAdmin(connect(secured.sasl, config)), group, [known])
    look, steer = (rights_of_people(to, billing=group, orders=main) for to in ("look", "steer"))
    closed = f"{group}x.orders.pending.changelog"
    admin.create_main_topic(closed, partitions=1)
    shown = {"resource": "Topic", "name": closed, "pattern": "literal", "operation": "Describe"}
    grant(operator, [*look, shown], "olga")
    wait_for(lambda: len(run("dead", "list").json.get("records", ())) == 3, "three are dead")
    names = [each["failure_id"] for each in run("dead", "list").json["records"]]
    looks = (
        "pending list",
        "dead list",
        f"dead show {names[0]}",
        "causes",
        "handler show",
        "outage show",
        "job list",
        "ledger",
    )
    for words in looks:
        told = run(*words.split())
        assert told.code == 0, (words, told)
    missing = str(group_missing(KafkaAdmin(connect(secured.sasl, config)), f"{group}xy"))
    assert missing.endswith(f". Groups that have some: {group}")  # also where this login may not read another one's
    commands = (f"dead replay {names[0]}", f"pending hold {names[1]}", "handler pause", "dead discard --all --yes")
    for words in commands:
        told = run(*words.split(), "--why", "measured")
        assert (told.code, told.json["error"]["type"]) == (3, "AccessDeniedError"), (words, told)
    grant(operator, steer, "olga")
    replayed, held, paused, discarded = (run(*words.split(), "--why", "measured").json for words in commands)
    assert [each["outcome"] for each in replayed["outcomes"]] == ["done"]
    assert [each["refused"] for each in held["outcomes"]] == ["not-waiting"]
    assert [each["outcome"] for each in paused["partitions"]] == ["done"]
    assert discarded["state"] == "ended"
    assert discarded["done"] >= 2, "the replayed one is dead again, or not yet"
