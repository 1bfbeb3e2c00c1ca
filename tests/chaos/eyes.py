"""The verifier's own eyes: topics and offsets, read with a plain client. Nothing here comes from retryapp.

What it knows of the format is what `docs/how-it-works.md` promises to any reader. Bytes are compared in
the form that the logs have: base64 text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

PATIENCE_S = 30.0
ROW_IDENTITY_BYTES = 21

Place = tuple[int, int]
"""Partition and offset in the main topic: which record it is."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A record of ours on a retry or dead-letter topic, or an event of success."""

    station: str
    topic: str
    partition: int
    offset: int
    at_ms: int
    """When the broker took it."""
    origin: Place
    attempt: int
    delivery: int
    due_ms: int | None = None
    reason: str = ""
    content: Any = None
    """Key, value, and the headers that are not ours."""


@dataclass(frozen=True, slots=True)
class Told:
    """All that the topics of one handler say."""

    copies: list[Copy]
    waiting: int
    """Rows that the changelog still has."""
    unsettled: int
    """Records of the consumed topics that the group's offsets have not passed."""
    damaged: list[str]
    """Records of ours that this reader does not understand."""


@dataclass(frozen=True, slots=True)
class Input:
    """A record as the broker acknowledged it to the producer."""

    place: Place
    id: str
    fate: str
    """`done`, `dead`, `waiting` or `any`."""
    content: Any
    timestamp_ms: int
    reasons: tuple[str, ...] = ()
    """Why it may be dead; any reason where empty."""


@dataclass(slots=True)
class Run:
    """One run of the handler, as the service saw it."""

    place: Place
    attempt: int
    begun_ms: int
    content: Any
    timestamp_ms: int
    answered_ms: int | None = None
    status: int = 0


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that was done."""

    kind: str
    at_ms: int
    until_ms: int
    copies: list[list[Any]] = field(default_factory=list)
    """Records that it put on our topics: topic, partition, offset."""


def read(bootstrap: str, topic: str) -> Iterator[Message]:
    """Read a topic as a committed reader, from its first kept record to its last stable one."""
    consumer = _consumer(bootstrap, "verifier")
    try:
        partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        left = set(partitions)
        while left:
            message = consumer.poll(PATIENCE_S)
            if message is None:
                raise TimeoutError(f"{topic} cannot be read to its end within {PATIENCE_S:g} s")
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            elif not message.error().retriable():
                raise KafkaException(message.error())
    finally:
        consumer.close()


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the group's offsets of a topic; 0 where it has none."""
    consumer = _consumer(bootstrap, group)
    try:
        offsets = consumer.committed([TopicPartition(topic, n) for n in range(partitions)], timeout=PATIENCE_S)
    finally:
        consumer.close()
    return {place.partition: max(0, place.offset) for place in offsets}


def look(facts: dict[str, Any]) -> Told:
    """Read every topic of a round.

    `facts`: its `bootstrap`, `group`, `main`, `partitions`, and the topics `retry`, `dlq`, `events`, `changelog`.
    """
    bootstrap = facts["bootstrap"]
    copies: list[Copy] = []
    damaged = []
    unsettled = 0
    for station in ("main", "retry", "dlq"):
        topic = facts[station]
        passed = committed(bootstrap, facts["group"], topic, facts["partitions"]) if station == "main" else {}
        for message in read(bootstrap, topic):
            unsettled += station == "main" and message.offset() >= passed[message.partition()]
            try:
                if station != "main":
                    copies.append(_copy(station, message))
            except (KeyError, ValueError) as error:
                damaged.append(f"{topic}[{message.partition()}]@{message.offset()}: {error!r}")
    for message in read(bootstrap, facts["events"]):
        event = json.loads(message.value())
        if event["kind"] == "succeeded":
            copies.append(_at(message, "succeeded", event["origin"], event["attempt"], event["delivery"]))
    rows: dict[bytes, bool] = {}
    for message in read(bootstrap, facts["changelog"]):
        if message.key() is not None and len(message.key()) == ROW_IDENTITY_BYTES:
            rows[message.key()] = message.value() is not None
    return Told(copies, sum(rows.values()), unsettled, damaged)


def _at(message: Message, station: str, origin: str, attempt: int, delivery: int, **more: Any) -> Copy:
    at = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
    return Copy(station, *at, _place(origin), attempt, delivery, **more)


def _place(text: str) -> Place:
    _, partition, offset = text.rsplit("/", 2)
    return int(partition), int(offset)


def _copy(station: str, message: Message) -> Copy:
    pairs = message.headers() or []
    ours = {name: (raw or b"").decode("ascii") for name, raw in pairs if name.startswith("retry-")}
    value = None if ours.get("retry-null-value") == "1" else message.value()
    foreign = [[name, b64(raw)] for name, raw in pairs if not name.startswith("retry-")]
    return _at(
        message,
        station,
        ours["retry-origin"],
        int(ours["retry-attempt"]),
        int(ours.get("retry-delivery", ours["retry-attempt"])),
        due_ms=int(ours["retry-due-ms"]) if "retry-due-ms" in ours else None,
        reason=ours.get("retry-reason", ""),
        content=[b64(message.key()), b64(value), foreign],
    )


def b64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def lines(file: Path) -> Iterator[dict[str, Any]]:
    """Read a file of JSON objects, one a line."""
    if file.exists():
        with file.open() as text:
            yield from (json.loads(line) for line in text)


def _content(line: dict[str, Any]) -> Any:
    return [line["key"], line["value"], line["headers"]]


def inputs(folder: Path) -> list[Input]:
    return [
        Input(
            (line["partition"], line["offset"]), line["id"], line["fate"], _content(line), line["timestamp_ms"],
            tuple(line["reasons"]),
        )
        for line in lines(folder / "input.jsonl")
    ]  # fmt: skip


def runs(folder: Path) -> list[Run]:
    """Read the deliveries log, in order of arrival."""
    by_visit: dict[int, Run] = {}
    for line in lines(folder / "deliveries.jsonl"):
        if "status" in line:
            run = by_visit[line["visit"]]
            run.answered_ms, run.status = line["answered_ms"], line["status"]
        else:
            by_visit[line["visit"]] = Run(
                _place(line["failure_id"]), line["attempt"], line["begun_ms"], _content(line), line["timestamp_ms"]
            )
    return list(by_visit.values())


def injections(folder: Path) -> list[Injection]:
    return [Injection(**line) for line in lines(folder / "injections.jsonl")]
