"""Several faults at once for a long time, and the memory of a worker that lives through all of it (F24)."""

from __future__ import annotations

import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import psutil
from harness import Worker

from chaos.act import Act
from chaos.clocks import jolt, machine, set_clock
from chaos.network import disturb
from chaos.processes import hold_loop, stop_past_session
from chaos.topics import some_transaction

RECORDS = 48
"""Published before each fault."""
WARM = 0.4
"""Part of the time after which memory should have found its size: caches are full, all code has run."""
MOST_MIB = 64.0
"""What a worker may grow by in the rest of the time. Free pages go back to the system when it has grown by 32 MiB
(`runtime.machine.heap`), and what closed lanes leave in rings waits for the collector, so it rises and falls as much;
a leak of 100 kB for each rebalance would pass this in an hour."""


@dataclass(slots=True)
class Memory:
    """What a process holds for itself alone, over time."""

    process: psutil.Process
    began_s: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start, MiB."""

    def look(self) -> None:
        """Take a sample."""
        held = self.process.memory_full_info().uss / 2**20
        self.samples.append((time.monotonic() - self.began_s, held))

    def told(self) -> dict[str, float]:
        """Return what it came to, by the line of least squares through what was seen once it was warm."""
        late = [each for each in self.samples if each[0] >= WARM * self.samples[-1][0]]
        slope = statistics.linear_regression(*zip(*late, strict=True)).slope
        return {
            "seconds": round(self.samples[-1][0]),
            "mib_first": round(self.samples[0][1], 1),
            "mib_warm": round(late[0][1], 1),
            "mib_last": round(late[-1][1], 1),
            "mib_an_hour": round(slope * 3600, 1),
            "mib_grown": round(slope * (late[-1][0] - late[0][0]), 1),
        }


def soak(act: Act, minutes: float) -> None:
    """One worker lives on, cut off and rebalanced; the others are killed, stopped and held; clocks and transactions."""
    east, west = (machine(act, name) for name in ("east", "west"))
    survivor = act.worker(ready=False, far=True, env=west[1])
    other = act.worker(ready=False, env=east[1])
    act.cast = [survivor, other]
    act.raise_curtain(2)
    memory = Memory(psutil.Process(survivor.pid))

    clock = partial(jolt, files=[east[0], west[0]])
    until_s = time.monotonic() + (minutes * 60 if not act.short else 20)
    with ThreadPoolExecutor(2, thread_name_prefix="faults") as pool:
        while time.monotonic() < until_s:
            if other.ended():
                other = act.worker(ready=False, env=east[1])
                act.cast = [survivor, other]
            act.publish(RECORDS)
            act.busy(4, timeout_s=120)
            beside = act.rng.sample([disturb, clock, some_transaction], act.rng.randrange(1, 3))
            under_way = [pool.submit(fault, act) for fault in beside]
            _harm(act, other, survivor)
            for each in under_way:
                each.result(120)
            act.pause(0.0, 2.0)
            memory.look()
    for file, _ in (east, west):
        set_clock(file, 0)
    assert act.link is not None
    act.link.heal()
    act.settle()
    memory.look()
    if survivor.ended():
        raise AssertionError("the worker that should live through all of it has ended")
    act.notes["memory"] = told = memory.told()
    if told["mib_grown"] > MOST_MIB:
        raise AssertionError(f"memory grows: {told}")


def _harm(act: Act, other: Worker, survivor: Worker) -> None:
    """Do something to a worker; only what does not end it to the one that lives on."""
    what = act.rng.randrange(5)
    if what == 0:
        with act.fault("kill -9"):
            other.kill()
    elif what == 1:
        with act.fault("SIGTERM"):
            other.signal(signal.SIGTERM)
    elif what == 2:
        zombie, owner = act.rng.sample([other, survivor], 2)
        stop_past_session(act, zombie, None if owner.ended() else owner)
    elif what == 3:
        hold_loop(act)
    else:
        act.pause(0.5, 3.0)
