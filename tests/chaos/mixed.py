"""Several faults at once from one seed, also for long (F24), and the bar: how soon due records come after kill -9."""

from __future__ import annotations

import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import psutil
from harness import wait_for

from chaos.act import SESSION_S, Act, now_ms
from chaos.clocks import Machines, jolt
from chaos.network import disturb
from chaos.processes import hold_loop, stop_past_session
from chaos.topics import some_transaction

MANY = 200_000
BAR_S = 5.0
"""Beyond the group's session time-out."""
WARM = 0.4
"""Part of a soak after which memory should have found its size: caches are full, all code has run."""
MOST_MIB = 64.0
"""What a worker may grow by in the rest of a soak. Free pages go back to the system when it has grown by 32 MiB
(`runtime.machine.heap`), and what closed lanes leave in rings waits for the collector, so it rises and falls by as
much; a leak of 100 kB for each rebalance would pass this in an hour."""

Fault = Callable[[Act], object]


@contextmanager
def faults_beside(act: Act, machines: Machines, records: int, again: Callable[[], bool]) -> Iterator[Iterator[None]]:
    """Yield turns, as long as `again` says; in each, faults of network, clocks and transactions are under way."""
    faults: list[Fault] = [disturb, partial(jolt, files=machines.clocks), some_transaction]

    def turns() -> Iterator[None]:
        while again():
            machines.revive()
            act.publish(records)
            act.busy(2, timeout_s=120)
            under_way = [pool.submit(fault, act) for fault in act.rng.sample(faults, act.rng.randrange(1, 3))]
            yield
            for future in under_way:
                future.result(120)

    with ThreadPoolExecutor(2, thread_name_prefix="faults") as pool:
        yield turns()
    machines.mend()


def combine(act: Act, times: int) -> None:
    """F24: a fault of a process, and one or two of network, clock and transactions, at a time."""
    left = iter(range(act.some(times)))
    with faults_beside(act, Machines(act, far=True), 16, lambda: next(left, None) is not None) as turns:
        for _ in turns:
            act.rng.choice((_stop, _kill, _kill_and_lose, _term, hold_loop))(act)


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


def soak(act: Act, minutes: float) -> None:
    """F24: the first worker lives on, cut off and rebalanced, and may not grow; the other one is ended."""
    machines = Machines(act, far=True)
    survivor = act.cast[0]
    process, began_s = psutil.Process(survivor.pid), time.monotonic()
    samples: list[tuple[float, float]] = []

    def sample() -> None:
        samples.append((time.monotonic() - began_s, process.memory_full_info().uss / 2**20))

    length_s = 20 if act.short else minutes * 60
    with faults_beside(act, machines, 48, lambda: time.monotonic() < began_s + length_s) as turns:
        for _ in turns:
            act.rng.choice((_kill_other, _term_other, _stop, hold_loop, lambda act: act.pause(0.5, 3.0)))(act)
            act.pause(0.0, 2.0)
            sample()
    assert act.link is not None
    act.link.heal()
    act.settle()
    sample()
    if survivor.ended():
        raise AssertionError("the worker that should live through all of it has ended")
    act.notes["memory"] = memory = _growth(samples)
    if memory["mib_grown"] > MOST_MIB:
        raise AssertionError(f"memory grows: {memory}")


def _kill_other(act: Act) -> None:
    with act.fault("kill -9"):
        act.cast[1].kill()


def _term_other(act: Act) -> None:
    with act.fault("SIGTERM"):
        act.cast[1].signal(signal.SIGTERM)


def _growth(samples: list[tuple[float, float]]) -> dict[str, float]:
    """Return sizes and growth by the line of least squares through the samples (seconds, MiB) once it was warm."""
    late = [sample for sample in samples if sample[0] >= WARM * samples[-1][0]]
    slope = statistics.linear_regression(*zip(*late, strict=True)).slope
    return {
        "seconds": round(samples[-1][0]),
        "mib_first": round(samples[0][1], 1),
        "mib_warm": round(late[0][1], 1),
        "mib_last": round(late[-1][1], 1),
        "mib_an_hour": round(slope * 3600, 1),
        "mib_grown": round(slope * (late[-1][0] - late[0][0]), 1),
    }


def many_waiting(act: Act, kills: int) -> None:
    """The bar: 200,000 wait; one of two workers is killed; something is due on each partition all the time."""
    act.raise_curtain(2)
    for _ in range(MANY):
        act.put({"waits": "6h"}, fate="waiting")
        if act.published % 2000 == 0:
            act.flush()
    act.flush()
    act.resting = MANY
    evidence = act.stage.evidence(act.topic)
    wait_for(lambda: evidence.waiting() >= MANY, f"{MANY:,} wait", timeout_s=900, every_s=5)
    beyond: list[float] = []
    for number in range(kills):
        act.raise_curtain(2)
        for _ in range(40):  # ten seconds of records that become due, on all partitions
            act.publish(act.partitions * 2, fail=1)
            time.sleep(0.1)
        victim = act.cast[number % 2]
        with act.fault("kill -9 with 200,000 waiting"):
            victim.kill()
            killed_ms = now_ms()
        beyond.append(_first_due(act, victim.pid, killed_ms) - SESSION_S)
    act.notes["beyond_session_s"] = [round(seconds, 2) for seconds in beyond]
    if max(beyond) > BAR_S:
        raise AssertionError(f"first due record after kill -9: {beyond} s beyond the session time-out")


def _first_due(act: Act, dead: int, killed_ms: int) -> float:
    """Return how many seconds after a kill a due record of the killed worker's partitions ran."""
    visits = act.stage.service.visits
    mine = {int(v.failure_id.rsplit("/", 2)[1]) for v in visits[-400:] if v.pid == dead}

    def seconds() -> float:
        for visit in visits[-2000:]:
            here = int(visit.failure_id.rsplit("/", 2)[1]) in mine
            if here and visit.attempt == 2 and visit.pid != dead and visit.at_ms > killed_ms:
                return (visit.at_ms - killed_ms) / 1000
        return 0.0

    return wait_for(seconds, "a due record of a killed worker's partition runs", timeout_s=60)
