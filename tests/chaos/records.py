"""Faults of records: extreme delays (F13), poison (F15), sizes (F16), herds (F17), deploys (F20), the last (F23)."""

from __future__ import annotations

import os
from email.utils import formatdate
from typing import Any

from harness import Answer, Visit, wait_for
from harness.service import fail_first

from chaos.act import Act, now_ms
from chaos.eyes import read

LARGEST = 1_048_588
"""Kafka's default `max.message.bytes`, which the main topic has."""
LATE_MS = 1_500
"""A record that comes alone is no later than this on a busy machine."""


def poison(act: Act, times: int) -> None:
    """F15: values that cannot be read, that are refused, that hang, and that kill their worker, among others."""
    act.stage.service.rule = _hangs
    act.raise_curtain(2)
    for number in range(act.some(times)):
        act.publish(12)
        kind = ("undecodable", "refused", "hangs", "undecodable", "kills its worker")[number % 5]
        with act.fault(kind):
            if kind == "undecodable":
                value = act.rng.choice((b"\xff\xfe", b"{", b"", b"\x00" * 64))
                act.put(value=value, fate="dead", reasons=("undecodable",))
            elif kind == "refused":
                act.put({"reject": True}, fate="dead", reasons=("rejected",))
            elif kind == "hangs":
                act.put({"hangs": True}, fate="dead", reasons=("exhausted",))
            else:
                act.put({"kills": 1, "fail": 0}, fate="dead", reasons=("crashed",))
            act.flush()
            act.pause(0.1, 0.5)
        if kind == "kills its worker":
            _see_it_end(act)
        act.revive(2)


def _see_it_end(act: Act) -> None:
    """Start workers again until a record that ends them is dead; note each end."""
    dead = act.stage.topology(act.topic).dlq
    known, looks = _crashed(act, dead), 0

    def over() -> bool:
        nonlocal looks
        for _ in [worker for worker in act.cast if worker.ended()]:
            with act.fault("a worker ended by a record"):
                pass  # it has just happened
        act.revive(2)
        looks += 1
        return looks % 20 == 0 and _crashed(act, dead) > known

    wait_for(over, "the record that kills is dead", timeout_s=120, every_s=0.03)


def _crashed(act: Act, dead: str) -> int:
    found = read(act.ground.bootstrap, dead)
    return sum(("retry-reason", b"crashed") in (message.headers() or ()) for message in found)


def _hangs(visit: Visit) -> Answer:
    return Answer(after_s=4.0) if visit.facts.get("hangs") else fail_first(visit)


def sizes(act: Act, times: int) -> None:
    """F16: at the largest size that the main topic takes, empty, null, with many headers; all of them fail and wait."""
    act.stage.service.rule = lambda visit: Answer(503 if visit.attempt <= _fails(visit.key) else 200)
    act.raise_curtain(1)
    for number in range(act.some(times)):
        fails = act.rng.randrange(1, 4)
        key: bytes | None = f"f{fails}".encode()
        kind, more = _sized(act, number)
        if kind == "null key and null value":
            key, fails = None, 1  # the service refuses the first attempt of a record without a key
        with act.fault(kind):
            act.put(key=key, fate="dead" if fails == 3 else "done", **more)
            act.flush()
        act.pause(0.05, 0.3)
        act.kill_sometimes(0.05)


def _fails(key: bytes | None) -> int:
    return 1 if key is None else int(key[1:])


def _sized(act: Act, number: int) -> tuple[str, dict[str, Any]]:
    some = tuple((f"h{n % 7}", None if n % 5 == 0 else os.urandom(60)) for n in range(400))
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("empty value", {"value": b""}),
        ("null value", {"value": None}),
        ("null key and null value", {"value": None}),
        ("at the largest size", {"value": os.urandom(LARGEST - 400)}),
        ("large and well compressible", {"value": bytes(LARGEST - 400)}),
        ("many headers", {"value": b"x", "headers": some}),
        ("half a megabyte", {"value": os.urandom(500_000 + act.rng.randrange(1000))}),
    )
    return kinds[number % len(kinds)]


DELAYS = {"0": "done", "0.001": "done", "1": "done", "-5": "any", "4294968": "waiting", "9223372036854775807": "any"}
"""Answers of the service that say when to come again, in seconds, and what becomes of a record then."""


def delays(act: Act, times: int) -> None:
    """F13: the service asks for waits of nothing, of less, of 49.7 days and of more than there is."""
    act.stage.service.rule = lambda visit: (
        Answer(503, retry_after=visit.facts["after"]) if visit.attempt == 1 and "after" in visit.facts else Answer()
    )
    act.raise_curtain(1)
    for number in range(act.some(times)):
        text = list(DELAYS)[number % len(DELAYS)]
        with act.fault(f"come again after {text} s"):
            act.put({"after": text}, fate=DELAYS[text])
            act.flush()
        act.resting += DELAYS[text] == "waiting"


def herd(act: Act, count: int) -> None:
    """F17: all are due in the same second while the service takes its time; a worker is killed in the middle of it."""
    at_s = now_ms() // 1000 + 25

    def rule(visit: Visit) -> Answer:
        if visit.attempt == 1:
            return Answer(503, retry_after=formatdate(at_s, usegmt=True))
        return Answer(503 if visit.attempt <= int(visit.facts["fail"]) else 200, after_s=0.3)

    act.stage.service.rule = rule
    act.raise_curtain(2)
    for _ in range(count):
        act.put({"fail": 1 + (act.published % 10 == 0)}, fate="done")
    act.flush()
    with act.fault("all due in one second"):
        wait_for(lambda: any(v.attempt > 1 for v in act.stage.service.visits), "they are due", timeout_s=90)
    act.pause(0.5, 3.0)
    with act.fault("kill -9 in the herd"):
        act.rng.choice(act.cast).kill()
    act.revive(2)


def alone(act: Act, times: int) -> None:
    """F23: one record at a time where nothing else moves: it comes when due, though nothing else wakes the worker."""
    act.raise_curtain(1)
    late: list[int] = []
    for _ in range(act.some(times)):
        act.pause(0.0, 2.0)
        seen = len(act.stage.service.finished)
        with act.fault("the last record"):
            act.put({"fail": 2}, fate="done")
            act.flush()
            wait_for(lambda seen=seen: len(act.stage.service.finished) >= seen + 3, "it is done", timeout_s=30)  # type: ignore[misc]
        late += [v.at_ms - (v.due_at_ms or 0) for v in act.stage.service.visits[-2:]]
    act.notes["late_ms_max"] = max(late)
    if max(late) > LATE_MS:
        raise AssertionError(f"a record that came alone was {max(late)} ms late")


POLICIES = ("300ms 600ms", "2s 1s", "1s 4s", "300ms 5s")


def deploy(act: Act, times: int) -> None:
    """F20: workers with another policy take over, at once or one by one, while rows of the former wait."""
    act.raise_curtain(2)
    for _ in act.turns(times, 2, 20, 8):
        policy = act.rng.choice(POLICIES)
        with act.fault(f"policy {policy}"):
            act.program(policy=policy)
            leaving = list(act.cast)
            for worker in leaving[: act.rng.randrange(1, 3)]:
                act.end(worker, 0.3)
                act.revive(2)
        act.publish(8)
    act.program()
