"""Faults of topics.

Truncated and compacted changelogs (F9), expired records (F10), main topics that grow (F11), copies (F14), rights that
are taken away (F19), aborted and hanging transactions (F22).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)
from harness import wait_for
from harness.operator import Operator, answered

from chaos.act import Act
from chaos.eyes import ROW_IDENTITY_BYTES, committed, read
from retryapp.kafka import KafkaAdmin

ASK_S = 30.0


def _delete_before(operator: Operator, topic: str, offsets: dict[int, int]) -> None:
    for number, offset in offsets.items():
        if offset > 0:
            operator.delete_records(topic, number, offset)


def _ends(act: Act, topic: str) -> dict[int, int]:
    return {number: kept.stop for number, kept in KafkaAdmin(act.stage.connection).offsets(topic).items()}


def shrink_changelog(act: Act, times: int) -> None:
    """F9: the changelog is truncated behind its last live row, or compacted to the bone, and a worker recovers."""
    act.raise_curtain(1)
    changelog, operator = act.stage.topology(act.topic).pending_changelog, Operator(act.ground.bootstrap)
    for number in range(act.some(times)):
        act.publish(24)
        kind = act.rng.choice(("truncated while nothing waits", "compacted", "truncated behind what waits"))
        if kind == "truncated while nothing waits":
            act.settle()
        else:
            act.busy(12)
        with act.fault(f"changelog {kind}"):
            if kind == "compacted":
                operator.configure(changelog, "segment.ms", "200")
                operator.configure(changelog, "min.cleanable.dirty.ratio", "0.001")
                act.publish(24)
                act.pause(1.0, 4.0)
            else:
                operator.configure(changelog, "cleanup.policy", "compact,delete")  # else Kafka refuses to cut it
                _delete_before(operator, changelog, _behind_live(act, changelog))
                operator.configure(changelog, "cleanup.policy", "compact")
            act.cast[0].kill()
            if act.rng.random() < 0.6:
                act.app_options = {"datadir": str(act.folder / f"data{number}")}
                act.program()
            act.revive(1)
        act.publish(4)
        act.busy(2)


def _behind_live(act: Act, changelog: str) -> dict[int, int]:
    """Return from where the changelog is needed: the first record of a row that still waits, or its end.

    Partition 0 is left alone: its first record says whose the topic is, and without it no worker starts.
    """
    ends = {number: end for number, end in _ends(act, changelog).items() if number > 0}
    rows: dict[tuple[int, bytes], int | None] = {}
    for message in read(act.ground.bootstrap, changelog):
        if len(message.key()) == ROW_IDENTITY_BYTES:
            rows[message.partition(), message.key()] = None if message.value() is None else message.offset()
    for (number, _), offset in rows.items():
        if offset is not None and number in ends:
            ends[number] = min(ends[number], offset)
    return ends


def expire(act: Act, times: int) -> None:
    """F10: retention deletes the retry topic, and of the main topic what the group has passed, while records wait."""
    act.truncated = True
    act.raise_curtain(1)
    operator = Operator(act.ground.bootstrap)
    (retry,) = act.stage.topology(act.topic).retry_topics
    for number in act.turns(times, 1, 24, 12):
        with act.fault("expired: main"):
            passed = committed(operator.bootstrap, act.stage.group, act.topic, act.partitions)
            _delete_before(operator, act.topic, passed)
        if number % 2:
            with act.fault("expired: retry"):
                _delete_before(operator, retry, _ends(act, retry))
        act.kill_sometimes(0.4)


def grow(act: Act, times: int) -> None:
    """F11: the main topic grows under load; later our topics do too, and the workers are started again."""
    act.raise_curtain(2)
    owned = act.stage.topology(act.topic).owned
    for _ in act.turns(times, 2, 16, 4):
        with act.fault("main topic grows"):
            _grow(act, [act.topic])
            act.wider()
            act.publish(16)  # also where nothing of ours is yet
            act.pause(0.5, 3.0)
        with act.fault("our topics follow, workers start again"):
            _grow(act, owned)
            act.program()
            for worker in act.cast:
                act.end(worker, 0.5)
            act.revive(2)
        act.publish(8)
        act.busy(4)


def _grow(act: Act, topics: Sequence[str]) -> None:
    count = act.partitions + (1 if act.topic in topics else 0)
    admin = Operator(act.ground.bootstrap).admin  # one that nothing names has no answers
    answered(admin.create_partitions([NewPartitions(topic, count) for topic in topics]))


def take_rights(act: Act, times: int) -> None:
    """F19: the right to a topic, to the group or to transactions is taken away for some seconds."""
    admin = Operator(act.ground.bootstrap).admin
    act.raise_curtain(1)
    for _ in act.turns(times, 1, 16, 2, revive=True):
        what, where, name = act.rng.choice(_rights(act))
        acls = [_acl(where, name, permission) for permission in (AclPermissionType.ALLOW, AclPermissionType.DENY)]
        every = AclBindingFilter(
            where, name, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        with act.fault(f"no right to {what}"):
            answered(admin.create_acls(acls))
            act.pause(1.0, 5.0)
            answered(admin.delete_acls([every]))
        act.revive(1)


def _acl(where: ResourceType, name: str, permission: AclPermissionType) -> AclBinding:
    kind = ResourcePatternType.PREFIXED if where == ResourceType.TRANSACTIONAL_ID else ResourcePatternType.LITERAL
    return AclBinding(where, name, kind, "User:ANONYMOUS", "*", AclOperation.ALL, permission)


def _rights(act: Act) -> list[tuple[str, ResourceType, str]]:
    ours = act.stage.topology(act.topic)
    topics = {
        "retry": ours.retry_topics[0], "dead-letter": ours.dlq, "changelog": ours.pending_changelog,
        "events": ours.events,
    }  # fmt: skip
    return [
        *((f"the {name} topic", ResourceType.TOPIC, topic) for name, topic in topics.items()),
        ("its group", ResourceType.GROUP, act.stage.group),
        ("its transactions", ResourceType.TRANSACTIONAL_ID, act.stage.group),
    ]


def copy_records(act: Act, times: int) -> None:
    """F14: somebody else publishes records of the retry topic once more, byte for byte: nothing may run of it."""
    act.strangers = True
    act.raise_curtain(1)
    (station,) = act.stage.topology(act.topic).retry_topics
    for _ in act.turns(times, 1, 16, 12):
        found = list(read(act.ground.bootstrap, station))
        if not found:
            continue
        again = act.rng.sample(found, min(4, len(found)))
        with act.fault("copied: retry records") as facts:
            facts["copies"] = copies = []
            producer = Producer({"bootstrap.servers": act.ground.bootstrap})
            for message in again:
                producer.produce(
                    station, message.value(), key=message.key(), headers=message.headers(),
                    partition=message.partition(),
                    on_delivery=lambda _e, m, copies=copies: copies.append([m.topic(), m.partition(), m.offset()]),
                )  # fmt: skip
            producer.flush(30)
        act.kill_sometimes(0.3)


def abort(act: Act, times: int) -> None:
    """F22: the main topic is written in transactions, of which some abort and some hang until the broker ends them."""
    act.raise_curtain(2)
    for number in range(act.some(times)):
        ABORTS[number % len(ABORTS)](act)
        act.publish(4)
        act.pause(0.0, 0.5)


def _transaction(act: Act, name: str, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": act.ground.bootstrap,
            "transactional.id": f"input-{act.stage.group}-{name}",
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(ASK_S)
    producer.begin_transaction()
    return producer


def _junk(act: Act, producer: Producer) -> None:
    for number in range(8):
        junk = json.dumps({"id": f"aborted{number}", "fail": 0}).encode()
        producer.produce(act.topic, junk, key=b"aborted", partition=number % act.partitions)
    producer.flush(30)


def _aborted(act: Act) -> None:
    with act.fault("transaction aborted"):
        producer = _transaction(act, "aborts")
        _junk(act, producer)
        producer.abort_transaction(ASK_S)


def _committed(act: Act) -> None:
    with act.fault("transaction open for a while, then committed"):
        producer = _transaction(act, "commits")
        for _ in range(8):
            fails = act.published % 4
            act.put({"fail": fails}, fate="dead" if fails == 3 else "done", producer=producer)
        producer.flush(30)
        act.publish(4)
        act.pause(0.2, 2.0)
        producer.commit_transaction(ASK_S)


def _hanging(act: Act) -> None:
    with act.fault("transaction left open until the broker ended it"):
        producer = _transaction(act, f"hangs{act.published}", 2_000)
        _junk(act, producer)
        act.publish(8)  # for committed readers they are after it
        seen = act.visits
        producer.poll(0)
        time.sleep(2.5)
        wait_for(
            lambda: act.visits >= seen + 8 or all(worker.ended() for worker in act.cast),
            "what came after it is delivered",
            timeout_s=60,
        )
        with contextlib.suppress(KafkaException):  # fenced by the broker: that is what was wanted
            producer.abort_transaction(5)


ABORTS: tuple[Callable[[Act], Any], ...] = (_aborted, _committed, _aborted, _hanging, _aborted, _committed)


def some_transaction(act: Act) -> None:
    """Do one of them, drawn."""
    act.rng.choice(ABORTS)(act)
