"""Faults of the network between workers and broker (F6), and of the broker itself (F4, F5)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
from harness.three_brokers import NODES

from chaos.act import SESSION_S, Act
from chaos.ground import Ground, ThreeGrounds
from retryapp.broker import Broker

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


def load(acts: Sequence[Act], count: int) -> None:
    """Publish so many records to each group, and have some of them under way."""
    for act in acts:
        act.publish(count)
        act.busy(2)


def _alone(acts: Sequence[Act]) -> Broker:
    ground = acts[0].ground
    assert isinstance(ground, Ground)
    return ground.broker


def restart_broker(acts: Sequence[Act], times: int) -> None:
    """F4: the broker ends in good order or by kill -9, while groups work, and while their workers start."""
    broker, rng = _alone(acts), acts[0].rng
    for act in acts:
        act.raise_curtain(1)
    for _ in range(acts[0].some(times)):
        load(acts, 24)
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


def break_nodes(acts: Sequence[Act], times: int) -> None:
    """F25: nodes of a cluster are killed by what they do for the first group, stopped in turn, or stand still."""
    ground, rng = acts[0].ground, acts[0].rng
    assert isinstance(ground, ThreeGrounds)
    brokers = ground.brokers
    group, topic = acts[0].stage.group, acts[0].topic
    ends: dict[str, Callable[[], list[int]]] = {
        "leader": lambda: [brokers.leaders(topic)[0]],
        "group's coordinator": lambda: [brokers.group_coordinator(group)],
        "transactions' coordinator": lambda: [brokers.transaction_coordinator(f"{group}.{topic}.0")],
        "two nodes": lambda: rng.sample(NODES, 2),
        "all nodes": lambda: [*NODES],
    }
    for act in acts:
        act.raise_curtain(1)
    for _ in range(acts[0].some(times)):
        load(acts, 24)
        kind = rng.choice([*ends, "each in turn", "stands still"])
        if kind in ends:
            nodes = ends[kind]()
            with fault_of_all(acts, f"killed: {kind}"):
                brokers.kill(*nodes)
                for act in acts:
                    act.publish(8, flush=False)
                acts[0].pause(0.0, 12.0)
                brokers.start(*nodes)
        elif kind == "each in turn":
            with fault_of_all(acts, "stopped: each in turn"):
                for node in NODES:
                    brokers.stop(node)
                    for act in acts:
                        act.publish(8)
                    acts[0].pause(0.0, 3.0)
                    brokers.start(node)
                    brokers.wait_in_sync()
        else:
            pid = brokers.nodes[rng.choice(NODES)].pid
            assert pid is not None
            with fault_of_all(acts, "a node stands still"):
                os.kill(pid, signal.SIGSTOP)
                acts[0].pause(1.0, 20.0)  # also past the time after which it is out of sync, and missed
                os.kill(pid, signal.SIGCONT)
        brokers.wait_in_sync()


def pause_broker(acts: Sequence[Act], lengths_s: Sequence[float]) -> None:
    """F5: the broker is paused."""
    pid = _alone(acts).pid
    if pid is None:
        raise RuntimeError("the broker does not run")
    for act in acts:
        act.raise_curtain(1)
    most: list[float] = []
    for length_s in lengths_s[: acts[0].some(len(lengths_s))]:
        load(acts, 40)
        with fault_of_all(acts, f"paused for {length_s:g} s"):
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(length_s)
                most += [psutil.Process(act.cast[0].pid).memory_info().rss / 1e6 for act in acts]
            finally:
                os.kill(pid, signal.SIGCONT)
    acts[0].notes["rss_mb_max"] = round(max(most))
