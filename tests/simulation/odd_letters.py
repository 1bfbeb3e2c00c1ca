"""What happens to dead-letter topics besides letters of ours that their handler gets and commands are about.

Other programs write there: letters of another group, and records that are none. Headers of letters are damaged.
Retention deletes letters. All of that is given, as what the topic has; but a mark is for a letter of ours alone, and
one that waits for a retry does not need its topic any more. A rule has a dead-letter topic of its own, with a handler.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

from retryapp.core.classify import DeadReason, classify
from retryapp.core.decide import Dead
from retryapp.core.hops import Outgoing, after_failure, to_dead_letter
from retryapp.core.record import Origin, Record
from retryapp.core.topology import HandlerTopology
from retryapp.ports import TopicPartition
from simulation.basic import FAULTS_S, more, widened
from simulation.faults import DAMAGED, DELETED, RETAINED, SET_BACK, STOPPED, UNENDED, Fault
from simulation.plan import FEED_S, Plan
from simulation.scripts import HANDLED, VERDICTS

STRANGE: Final = 0x57A6
"""Draws all of this; drawn apart."""
ODD: Final = "odd"
"""A header of such letters: its kind."""
FOREIGN: Final = "of another group"
COUNTLESS: Final = "its count of attempts is damaged"
PLACELESS: Final = "it does not say which record died"
NONE: Final = "no letter at all"
KINDS: Final = (FOREIGN, COUNTLESS, PLACELESS, NONE)
BEYOND: Final = 1_000_000
"""From this offset on they are about records that nobody has sent."""
ATTEMPTS: Final = 3
_FEW: Final = 8
_TOPIC_ID: Final = "simulated"


def strangely(plan: Plan, random: Random) -> Plan:
    """Return the plan with letters that are not as others, with some deleted, or with a second handler of letters."""
    if plan.drop:
        return plan
    if random.random() < 0.35:
        odd = tuple(
            (random.uniform(0.3, FEED_S + 5), random.randrange(plan.partitions), random.choice(KINDS))
            for _ in range(random.randint(1, 5))
        )
        plan = replace(plan, odd_letters=odd)
    if random.random() < 0.35:
        named = tuple(random.choice(HANDLED) for _ in range(random.randint(1, 4)))
        plan = widened(replace(plan, named=named, ruled=True), more(plan, random, (*VERDICTS, "V", "FV", "V"), 6))
    kinds = {fault.kind for fault in plan.faults}
    if random.random() < 0.3 and STOPPED not in kinds:
        times = [random.uniform(1.0, FAULTS_S) for _ in range(random.randint(1, 3))]
        plan = widened(plan, (), tuple(Fault(each_s, RETAINED, 0, 0.0) for each_s in times))
    if plan.commands or plan.in_flight > _FEW or kinds & {STOPPED, UNENDED, DAMAGED}:
        return plan
    kept = tuple(fault for fault in plan.faults if fault.kind != "offsets expire")  # what somebody has set with them
    kind, at_s = random.random(), random.uniform(2.0, FAULTS_S - 4)
    if kind < 0.4:  # what has died before dies once more
        return widened(replace(plan, faults=kept), (), (Fault(at_s, SET_BACK, 0, random.random()),))
    if kind < 0.7:
        return widened(replace(plan, faults=kept, repeats=()), (), (Fault(at_s, DELETED, 0, random.random()),))
    return plan


def append_odd(broker: Any, topology: HandlerTopology, number: int, kind: str) -> None:
    """Write a letter, or what looks like one, on a partition of the dead-letter topic."""
    tp, now_ms = TopicPartition(topology.dlq, number), broker.now_ms()
    offset = BEYOND + broker.logs[tp].end
    record = Record(topology.main, number, offset, now_ms, b"odd", b"%d" % offset, ((ODD, kind.encode()),))
    failed = after_failure(
        None,
        group="others" if kind == FOREIGN else topology.group,
        handler="handler",
        origin=Origin(topology.main, _TOPIC_ID, number, offset),
        origin_timestamp_ms=now_ms,
        attempt=ATTEMPTS,
        started_ms=now_ms,
        failed_ms=now_ms,
        policy_digest="0" * 12,
        failure=classify(ConnectionError("service answered 503")),
        decision=Dead(DeadReason.EXHAUSTED),
    )
    letter, _ = to_dead_letter(record, topology=topology, metadata=failed, max_bytes=1 << 20)
    headers = [each for each in letter.headers if kind != NONE or each[0] == ODD]
    damaged = {COUNTLESS: ("retry-attempt", b"x"), PLACELESS: ("retry-origin", b"orders@")}.get(kind, ("", b""))
    headers = [damaged if name == damaged[0] else (name, value) for name, value in headers]
    broker.append(tp, Outgoing(*tp, record.key, record.value, tuple(headers)))
