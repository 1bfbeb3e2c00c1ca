"""Faults of processes: stopped past their session, killed, joining and leaving, stopped at awkward moments, starved."""

from __future__ import annotations

import contextlib
import resource
import signal
import time

import psutil
from harness import Worker, wait_for

from chaos.act import SESSION_S, Act
from retryapp.stage import NotInTimeError

GRACE_S = 5.0
"""What the program leaves a handler on SIGTERM."""
EXIT_S = GRACE_S + 10.0
"""A worker that was asked to end has ended by then."""


def stand_still(act: Act, times: int) -> None:
    """F2: one of two workers is stopped past its session under load and goes on as a zombie."""
    act.raise_curtain(2)
    for _ in act.turns(times, 2, 24, act.rng.randrange(1, 12)):
        zombie, other = act.rng.sample(act.cast, 2)
        stop_past_session(act, zombie, other)
        act.publish(12)
        act.pause(0.2, 2.0)


def stop_past_session(act: Act, zombie: Worker, other: Worker | None) -> None:
    """Stop a worker until the other one has its partitions; now and then for less than its session."""
    short = act.rng.random() < 0.2
    with act.fault("stopped for less than its session" if short else "stopped past its session"):
        opened = act.opened(other) if other else 0
        zombie.signal(signal.SIGSTOP)
        try:
            if short or other is None:
                act.pause(0.2, SESSION_S - 1)
            else:
                with contextlib.suppress(NotInTimeError):  # where it has all partitions already it opens none
                    wait_for(
                        lambda: act.opened(other) != opened or other.ended(), "takes over", timeout_s=2 * SESSION_S + 2
                    )
                act.publish(8)
                act.pause(0.1, 1.0)
        finally:
            zombie.signal(signal.SIGCONT)


def storm(act: Act, changes: int, every_s: float) -> None:
    """F3: workers join, leave, and are killed, one every two seconds."""
    act.raise_curtain(2)
    for _ in range(act.some(changes)):
        began_s = time.monotonic()
        act.publish(8)
        act.cast = [worker for worker in act.cast if not worker.ended()]
        if len(act.cast) < 2 or (len(act.cast) < 4 and act.rng.random() < 0.5):
            with act.fault("a worker joins"):
                act.cast.append(act.worker())
        else:
            leaving = act.cast.pop(act.rng.randrange(len(act.cast)))
            by_term = act.rng.random() < 0.7
            with act.fault("a worker leaves (SIGTERM)" if by_term else "a worker is killed"):
                (leaving.terminate if by_term else leaving.kill)()
        time.sleep(max(0.0, every_s - (time.monotonic() - began_s)))
    act.revive(2)


def ask_to_end(act: Act, times: int) -> None:
    """F21: SIGTERM during start-up, with full queues, during recovery, twice; two starts at once; SIGINT."""
    took: list[float] = []
    for number in range(act.some(times)):
        act.publish(12)
        kind = act.rng.choice(("start-up", "load", "recovery", "twice", "double start", "SIGINT"))
        if kind == "recovery":
            act.app_options = {"datadir": str(act.folder / f"data{number}")}
            act.program()
        with act.fault(f"SIGTERM: {kind}" if kind not in ("double start", "SIGINT") else kind):
            ends(act, kind, took)
    act.notes["exit_s_max"] = round(max(took), 2)
    act.raise_curtain(1)


def ends(act: Act, kind: str, took: list[float]) -> None:
    """Start a worker (or two) and have it end, at a moment that the kind says."""
    workers = [act.worker() for _ in range(2 if kind == "double start" else 1)]
    if kind == "start-up":
        act.pause(0.3, 3.0)
    elif kind == "recovery":
        wait_for(lambda: "Starting" in workers[0].log or workers[0].ended(), "it starts", timeout_s=60)
        act.pause(0.0, 2.0)
    else:
        wait_for(lambda: any(map(act.opened, workers)), "lanes open", timeout_s=60)
        act.pause(0.0, 1.0)
    began_s = time.monotonic()
    for worker in workers:
        worker.signal(signal.SIGINT if kind == "SIGINT" else signal.SIGTERM)
        if kind == "twice":
            act.pause(0.0, 0.5)
            worker.signal(signal.SIGTERM)
    for worker in workers:
        # before Python has its handlers, the signal's own default ends the process: nothing has begun by then
        if worker.wait(EXIT_S) not in (0, -signal.SIGTERM, -signal.SIGINT):
            raise worker.failure(f"ended with {worker.exit_code} ({kind})")
    took.append(time.monotonic() - began_s)


def starve(act: Act, times: int) -> None:
    """F18: out of file handles, out of memory, the event loop held for longer than the session."""
    act.unheard = True
    act.raise_curtain(2)
    for _ in act.turns(times, 2, 16, 3, revive=True):
        act.rng.choice((limit, limit, hold_loop))(act)
        act.publish(8)


def limit(act: Act) -> None:
    """Take the right to open files, or to more memory, from a worker for some seconds; it may end of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(act.rng.choice(act.cast).pid)
        kind, which, size = act.rng.choice(
            (
                ("no file handles", resource.RLIMIT_NOFILE, process.num_fds()),
                ("no memory", resource.RLIMIT_AS, process.memory_info().vms + act.rng.choice((0, 1 << 20, 8 << 20))),
            )
        )
        soft, hard = process.rlimit(which)
        with act.fault(kind):
            process.rlimit(which, (size, hard))
            act.publish(16)
            act.pause(1.0, 4.0)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(which, (soft, hard))


def hold_loop(act: Act) -> None:
    """A careless handler holds the event loop for longer than the session."""
    with act.fault("event loop held"):
        act.put({"fail": 1, "blocks_s": SESSION_S + 2}, fate="done")
        act.flush()
        act.pause(SESSION_S + 1, SESSION_S + 3)
