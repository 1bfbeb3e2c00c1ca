"""Rules, verdicts and answers of a real HTTP service, on a real broker: each record ends as the policy says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from harness import Answer, HandlerSpec, Stage, Visit, wait_for
from harness.terminal import retryapp

from retryapp.core.lifecycle import Skipped

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(120)]

PROGRAM = '''
from datetime import UTC, datetime, timedelta

from retryapp import Skip, http_errors, non_retryable, retryable, skippable


class BusyError(Exception):
    """A part of the program is busy."""


class InvalidError(ValueError):
    """An order that nobody can charge."""


class StaleError(Exception):
    """An order that is gone, or not there yet."""


def is_late(delivery: Delivery, error: BaseException) -> bool:
    """Tell whether the order had its chance."""
    return delivery.attempt > 1


POLICY = RetryPolicy(
    "400ms*2",
    on=[
        retryable(BusyError, schedule="150ms*4"),
        skippable(StaleError, when=is_late),
        retryable(StaleError),
        non_retryable(InvalidError, dead_letters="invalid"),
        http_errors("1s"),
    ],
    otherwise="non-retryable",
)


async def act(order: dict, delivery: Delivery) -> None:
    """Do what an order says."""
    facts = {"topic": SPEC["verdicts"], "pid": os.getpid(), **_facts(delivery)}
    async with aiohttp.ClientSession() as session, session.post(SPEC["service"], json=facts) as response:
        if order["do"] == "http":
            response.raise_for_status()
    if order["do"] == "busy" and delivery.attempt <= order["times"]:
        try:
            raise BusyError
        except BusyError as error:
            raise RuntimeError("wrapped") from error
    if order["do"] == "invalid":
        raise InvalidError("no amount")
    if order["do"] == "stale":
        raise StaleError("gone")
    if order["do"] == "skip":
        raise Skip("not ours")
    if order["do"] == "unknown":
        raise LookupError("what is this?")
    if order["do"] == "at" and delivery.attempt == 1:
        raise RetryLater(at=datetime.now(UTC) + timedelta(seconds=0.7))


@retries.handler(SPEC["verdicts"], value=dict, policy=POLICY)
async def charge(order: dict, delivery: Delivery) -> None:
    """Charge an order."""
    await act(order, delivery)


@retries.handler(SPEC["plain"], value=dict, policy="100ms*2; timeout=5s")
async def plain(order: dict, delivery: Delivery) -> None:
    """Fail."""
    raise LookupError("what is this?")
'''

ORDERS: tuple[dict[str, Any], ...] = (
    {"do": "ok"},
    {"do": "busy", "times": 4},
    {"do": "busy", "times": 5},
    {"do": "invalid"},
    {"do": "stale"},
    {"do": "skip"},
    {"do": "unknown"},
    {"do": "at"},
    {"do": "http", "status": 429, "times": 1},
    {"do": "http", "status": 410, "times": 9},
    {"do": "http", "status": 503, "times": 9},
)
TIMES = 4
"""So often each order is sent."""


def answer(visit: Visit) -> Answer:
    """Answer by the order: as often as it says with its status, and ask for half a minute where it is 429."""
    if visit.attempt > visit.facts.get("times", 0) or visit.facts["do"] != "http":
        return Answer()
    return Answer(visit.facts["status"], retry_after="30" if visit.facts["status"] == 429 else None)


def test_each_record_ends_as_its_policy_says(stage: Stage) -> None:
    """Done, skipped or dead on the topic of its rule, after the waits of its rule; ledger, commands and pages agree."""
    stage.service.rule = answer
    topic, plain = stage.main_topic("verdicts"), stage.main_topic("plain")
    stage.program(code=PROGRAM, verdicts=topic, plain=plain)
    stage.handlers = {name: HandlerSpec(topic=name) for name in (topic, plain)}
    worker = stage.worker()
    orders = [{"id": n, **order} for n, order in enumerate(ORDERS * TIMES)]
    stage.produce(topic, orders)
    stage.produce(plain, [{"id": 1}])
    stage.wait_settled(topic)
    stage.wait_settled(plain)
    _check_ends(stage, topic)
    _check_waits(stage, topic)
    assert [metadata.attempt for _, metadata in stage.evidence(plain).dead()] == [3]
    _check_shown(stage, topic)
    assert worker.series("retryapp_skipped_total")[f'handler="{topic}"'] == 2 * TIMES
    assert worker.stop() == 0


def _check_ends(stage: Stage, topic: str) -> None:
    evidence = stage.evidence(topic)
    evidence = replace(evidence, topology=replace(evidence.topology, dead_letters=("invalid",)))
    ends = Counter(
        (json.loads(record.value or b"")["do"], record.topic.removeprefix(evidence.topology.dlq), metadata.reason,
         metadata.attempt)
        for record, metadata in evidence.dead()
    )  # fmt: skip
    assert ends == {
        ("busy", "", "exhausted", 5): TIMES,
        ("invalid", ".invalid", "non-retryable", 1): TIMES,
        ("unknown", "", "non-retryable", 1): TIMES,
        ("http", "", "non-retryable", 1): TIMES,
        ("http", "", "exhausted", 3): TIMES,
    }
    skips = Counter((e.why, e.delivery, e.attempt, e.first_offset) for e in evidence.events(Skipped))
    assert skips == {("gone", 2, 2, None): TIMES, ("not ours", 1, 1, None): TIMES}
    total = stage.evidence(topic).balance()
    assert (total.received, total.skipped, total.dead, total.lost) == (len(ORDERS) * TIMES, 2 * TIMES, 5 * TIMES, 0)
    assert total.done == total.received - total.skipped - total.dead
    assert evidence.repeated_handoffs() == {}


def _check_waits(stage: Stage, topic: str) -> None:
    """Waits from the failure's copy to the next call, by what failed."""
    due = stage.evidence(topic).due_times()
    asked = {
        (m.failure_id, m.attempt + 1): (m.due_at_ms or 0) - m.last_failed_ms for _, m in stage.evidence(topic).retries()
    }
    waits: dict[tuple[str, int], set[int]] = {}
    for visit in stage.service.of(topic):
        if visit.attempt > 1:
            key = visit.failure_id, visit.attempt
            assert visit.at_ms >= due[key], "never early"
            name = visit.facts["do"] + str(visit.facts.get("status", ""))
            waits.setdefault((name, visit.attempt), set()).add(asked[key])
    assert {key: found for key, found in waits.items() if key[0] != "at"} == {
        **{("busy", attempt): {150} for attempt in (2, 3, 4, 5)},
        ("stale", 2): {400},
        ("http429", 2): {1_000},
        ("http503", 2): {400},
        ("http503", 3): {400},
    }
    assert all(0 < wait <= 1_200 for wait in waits["at", 2]), "700, and what the clocks differ by"


def _check_shown(stage: Stage, topic: str) -> None:
    """The command and the pages list the dead letters of the rule among the others."""
    where = ("--broker", stage.bootstrap, "--group", stage.group, "--topic", topic)
    code, found = retryapp(stage, "dead", "list", *where, "--limit", "100")
    assert code == 0
    listed = Counter(letter["topic"].rpartition(".dlq")[2] for letter in found["records"])
    assert listed == {"": 4 * TIMES, ".invalid": TIMES}
    worker = stage.workers[0]

    def pages() -> Counter[str | None]:
        status, body = worker.get(f"/retries/{topic}/dead?format=json&limit=100")
        assert status == 200, body
        return Counter(letter["letters"] for letter in json.loads(body)["records"])

    wait_for(lambda: pages() == {None: 4 * TIMES, "invalid": TIMES}, "the pages show all dead letters")
    status, body = worker.get(f"/retries/{topic}/dead?format=json&limit=100")
    letter = next(each for each in json.loads(body)["records"] if each["letters"])
    path = f"/retries/{topic}/dead/{letter['partition']}/{letter['offset']}"
    status, body = worker.get(f"{path}?letters=invalid&format=json")
    assert (status, json.loads(json.loads(body)["record"]["value"]["text"])["do"]) == (200, "invalid")
