"""Faults of the network between workers and broker (F6), and of the broker itself (F4, F5)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psutil

from chaos.act import SESSION_S, Act
from chaos.proxy import Link


def _link(act: Act) -> Link:
    if act.link is None:
        raise RuntimeError("this round has no link")
    return act.link


def _for_a_while(act: Act, least_s: float = 1.0, most_s: float = SESSION_S + 2) -> None:
    act.publish(8)
    act.pause(least_s, most_s)
    _link(act).heal()


def latency(act: Act) -> None:
    """200 ms each way."""
    _link(act).change(latency_s=0.2)
    _for_a_while(act)


def slow(act: Act) -> None:
    """20 kB/s each way and connection."""
    _link(act).change(bytes_per_s=20_000)
    _for_a_while(act)


def reset(act: Act) -> None:
    """Every connection is reset."""
    _link(act).reset()


def deaf(act: Act) -> None:
    """What the broker sends does not arrive: writes happen, their answers are lost."""
    _link(act).change(down=False)
    _for_a_while(act)


def dumb(act: Act) -> None:
    """What the worker sends does not arrive."""
    _link(act).change(up=False)
    _for_a_while(act)


def blackhole(act: Act) -> None:
    """Nothing gets through, either way, for longer than the session."""
    _link(act).change(up=False, down=False)
    _for_a_while(act, SESSION_S, SESSION_S + 4)


def lost_answers(act: Act) -> None:
    """Answers do not arrive, then the connections are reset: nobody knows what was done."""
    _link(act).change(down=False)
    act.publish(8)
    act.pause(0.05, 0.6)
    _link(act).reset()
    _link(act).heal()


def refused(act: Act) -> None:
    """Connections are reset, and new ones too."""
    _link(act).change(refuse=True)
    _link(act).reset()
    _for_a_while(act)


TOXICS: tuple[Callable[[Act], None], ...] = (
    latency, slow, reset, deaf, dumb, blackhole, lost_answers, refused,
)  # fmt: skip


def cut_off(act: Act, times: int, *, both: bool) -> None:
    """F6: the way of both workers, or of one of two, to their broker is disturbed again and again.

    Args:
        act: the group.
        times: how often.
        both: both workers go through the link, so that the whole group is cut off; else one, and the other takes over.
    """
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
    toxic = act.rng.choice(TOXICS)
    with act.fault(toxic.__name__.replace("_", " ")):
        toxic(act)


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
    """F5: the broker stands still."""
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
