"""Faults of the network between workers and broker (F6), and of the broker itself (F4, F5)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil

from chaos.act import SESSION_S, Act

WHILE_S = (1.0, SESSION_S + 2)
TOXICS: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
    "latency": ({"latency_s": 0.2}, WHILE_S),
    "slow": ({"bytes_per_s": 20_000}, WHILE_S),
    "reset": ({}, (0.0, 0.0)),
    "deaf": ({"down": False}, WHILE_S),
    "dumb": ({"up": False}, WHILE_S),
    "blackhole": ({"up": False, "down": False}, (SESSION_S, SESSION_S + 4)),
    "lost answers": ({"down": False}, (0.05, 0.6)),
    "refused": ({"refuse": True}, WHILE_S),
}
"""What a link does, and for how long: slow ways, one way dead (deaf: writes happen, their answers are lost), both ways
dead for longer than the session, answers lost and then connections reset, new connections refused."""


def cut_off(act: Act, times: int, *, both: bool) -> None:
    """F6: the way to their broker of both workers, or of one (the other takes over), is disturbed again and again."""
    act.cast = [act.worker(far=True), act.worker(far=both)]
    act.raise_curtain(2)
    for _ in range(act.some(times)):
        act.revive(2, far=True)
        act.publish(16)
        act.busy(3)
        disturb(act)
        act.pause(0.0, 1.5)


def disturb(act: Act) -> None:
    """Do one thing, drawn, to the link."""
    assert act.link is not None
    kind = act.rng.choice(list(TOXICS))
    weather, length_s = TOXICS[kind]
    with act.fault(kind):
        act.link.change(**weather)
        if kind in ("reset", "refused"):
            act.link.reset()
        act.publish(8)
        act.pause(*length_s)
        if kind == "lost answers":
            act.link.reset()
        act.link.heal()


@contextmanager
def fault_of_all(acts: Sequence[Act], kind: str) -> Iterator[None]:
    """Note a fault of the broker with each of its groups; at its end all of them have to work again."""
    with ExitStack() as stack:
        for act in acts:
            stack.enter_context(act.fault(kind))
        yield
    for act in acts:
        act.revive(1)
        act.publish(8)
    for act in acts:
        act.busy(2, timeout_s=120, revive=True)


def restart_broker(acts: Sequence[Act], times: int) -> None:
    """F4: the broker ends in good order or by kill -9, while groups work, and while their workers start."""
    broker, rng = acts[0].ground.broker, acts[0].rng
    for act in acts:
        act.raise_curtain(1)
    for _ in range(acts[0].some(times)):
        for act in acts:
            act.publish(24)
            act.busy(2)
        starting = rng.random() < 0.3
        if starting:
            for act in acts:
                act.cast[0].kill()
                act.revive(1)
            acts[0].pause(0.5, 4.0)
        clean = rng.random() < 0.4
        with fault_of_all(acts, f"{'stopped' if clean else 'killed'}{' while workers start' if starting else ''}"):
            (broker.stop if clean else broker.kill)()
            acts[0].pause(0.0, 3.0)
            broker.start()


def pause_broker(acts: Sequence[Act], lengths_s: Sequence[float]) -> None:
    """F5: the broker is paused."""
    pid = acts[0].ground.broker.pid
    if pid is None:
        raise RuntimeError("the broker does not run")
    for act in acts:
        act.raise_curtain(1)
    most: list[float] = []
    for length_s in lengths_s[: acts[0].some(len(lengths_s))]:
        for act in acts:
            act.publish(40)
            act.busy(2)
        with fault_of_all(acts, f"paused for {length_s:g} s"):
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(length_s)
                most += [psutil.Process(act.cast[0].pid).memory_info().rss / 1e6 for act in acts]
            finally:
                os.kill(pid, signal.SIGCONT)
    acts[0].notes["rss_mb_max"] = round(max(most))
