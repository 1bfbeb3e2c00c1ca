"""Several faults at once from one seed (F24), and the bar: how soon due records come after kill -9, with many."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from harness import wait_for

from chaos.act import SESSION_S, Act, now_ms
from chaos.clocks import jolt, machine, set_clock
from chaos.network import disturb
from chaos.processes import hold_loop, stop_past_session
from chaos.topics import some_transaction

MANY = 200_000
BAR_S = 5.0
"""Beyond the group's session time-out."""


def combine(act: Act, times: int) -> None:
    """F24: a fault of a process, one of the network and one of a clock or of transactions, two or three at a time."""
    machines = [machine(act, name) for name in ("east", "west")]

    def new(number: int) -> None:
        act.cast[number] = act.worker(ready=False, far=number == 0, env=machines[number][1])

    act.cast = [act.worker(ready=False, far=n == 0, env=env) for n, (_, env) in enumerate(machines)]
    act.raise_curtain(2)

    clock = partial(jolt, files=[file for file, _ in machines])
    with ThreadPoolExecutor(2, thread_name_prefix="faults") as pool:
        for _ in range(act.some(times)):
            for number, worker in enumerate(act.cast):
                if worker.ended():
                    new(number)
            act.publish(16)
            act.busy(2, timeout_s=120)
            beside = act.rng.sample(
                [disturb, clock if act.rng.random() < 0.5 else some_transaction], act.rng.randrange(1, 3)
            )
            under_way = [pool.submit(fault, act) for fault in beside]
            act.rng.choice(_PROCESS_FAULTS)(act)
            for each in under_way:
                each.result(120)
    for file, _ in machines:
        set_clock(file, 0)


def _stop(act: Act) -> None:
    zombie, other = act.rng.sample(act.cast, 2)
    stop_past_session(act, zombie, None if other.ended() else other)


def _kill(act: Act) -> None:
    with act.fault("kill -9"):
        act.rng.choice(act.cast).kill()


def _kill_and_lose(act: Act) -> None:
    with act.fault("kill -9 of both, stores lost"):
        for worker in act.cast:
            worker.kill()
        shutil.rmtree(act.folder / "data", ignore_errors=True)


def _term(act: Act) -> None:
    with act.fault("SIGTERM"):
        act.rng.choice(act.cast).signal(signal.SIGTERM)


_PROCESS_FAULTS: tuple[Callable[[Act], None], ...] = (_stop, _kill, _kill_and_lose, _term, hold_loop)


def many_waiting(act: Act, kills: int) -> None:
    """The bar: 200,000 wait; one of two workers is killed; something is due on each partition all the time."""
    act.raise_curtain(2)
    for _ in range(MANY):
        act.put({"parks": "6h"}, fate="waiting")
        if act.published % 2000 == 0:
            act.flush()
    act.flush()
    act.resting = MANY
    evidence = act.stage.evidence(act.topic)
    wait_for(lambda: evidence.waiting() >= MANY, f"{MANY:,} wait", timeout_s=900, every_s=5)
    beyond: list[float] = []
    for number in range(kills):
        act.revive(2)
        for worker in act.cast:
            worker.wait_ready(90)
        for _ in range(40):  # ten seconds of records that become due, on all partitions
            act.publish(act.partitions * 2, fail=1)
            time.sleep(0.1)
        victim = act.cast[number % 2]
        with act.fault("kill -9 with 200,000 waiting"):
            victim.kill()
            killed_ms = now_ms()
        beyond.append(_first_due(act, victim.pid, killed_ms) - SESSION_S)
    act.notes["beyond_session_s"] = [round(each, 2) for each in beyond]
    if max(beyond) > BAR_S:
        raise AssertionError(f"first due record after kill -9: {beyond} s beyond the session time-out")


def _first_due(act: Act, dead: int, killed_ms: int) -> float:
    """Return how many seconds after a kill a due record of the killed worker's partitions ran."""
    visits = act.stage.service.visits
    mine = {int(v.failure_id.rsplit("/", 2)[1]) for v in visits[-400:] if v.pid == dead}

    def found() -> float:
        for visit in visits[-2000:]:
            here = int(visit.failure_id.rsplit("/", 2)[1]) in mine
            if here and visit.attempt == 2 and visit.pid != dead and visit.at_ms > killed_ms:
                return (visit.at_ms - killed_ms) / 1000
        return 0.0

    return wait_for(found, "a due record of a killed worker's partition runs", timeout_s=60)
