"""F12: clocks of workers jump and drift, live, each machine's by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from harness import Worker

from chaos.act import Act

_PROGRAM = """\
import time
_file, _true_ns, _true_s, _seen = {file!r}, time.time_ns, time.time, [0.0, 0]

def _ahead_ns():
    now = time.monotonic()
    if now - _seen[0] > 0.05:
        try:
            with open(_file) as text:
                _seen[:] = [now, int(text.read() or 0)]
        except (OSError, ValueError):
            _seen[0] = now
    return _seen[1]

time.time_ns = lambda: _true_ns() + _ahead_ns()
time.time = lambda: _true_s() + _ahead_ns() / 1e9
"""
"""What Python runs first in a worker: its clock is off by what a file says now."""

JUMPS_S = {
    "+1 h": 3600.0,
    "-1 h": -3600.0,
    "+1 s (leap)": 1.0,
    "-1 s (leap)": -1.0,
    "+5 s": 5.0,
    "-5 s": -5.0,
    "+40 days": 40 * 86_400.0,
    "-10 years": -3650 * 86_400.0,
}


def set_clock(file: Path, ahead_s: float) -> None:
    partial = file.with_suffix(".new")
    partial.write_text(str(int(ahead_s * 1e9)))
    partial.replace(file)


class Machines:
    """Two workers on machines with clocks of their own; with `far` the first one's way to the broker is the link."""

    def __init__(self, act: Act, *, far: bool = False) -> None:
        self._act = act
        self._far = far
        self._folders = [act.folder / name for name in ("east", "west")]
        self.clocks = [folder / "ahead_ns" for folder in self._folders]
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
            (folder / "sitecustomize.py").write_text(_PROGRAM.format(file=str(folder / "ahead_ns")))
        self.mend()
        act.cast = [self._start(0), self._start(1)]
        act.raise_curtain(2)

    def _start(self, number: int) -> Worker:
        path = os.pathsep.join([str(self._folders[number]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        return self._act.worker(far=self._far and number == 0, env={"PYTHONPATH": path})

    def revive(self) -> None:
        """Start workers that ended again, each on its machine."""
        for number, worker in enumerate(self._act.cast):
            if worker.ended():
                self._act.cast[number] = self._start(number)

    def mend(self) -> None:
        for file in self.clocks:
            set_clock(file, 0)


def jolt(act: Act, files: Sequence[Path]) -> None:
    """Set one of several machines' clocks, drawn, by one of the jumps, under load."""
    kind = act.rng.choice(list(JUMPS_S))
    act.publish(8)
    with act.fault(f"clock {kind}"):
        set_clock(act.rng.choice(files), JUMPS_S[kind])
        act.pause(0.2, 1.5)


def jump(act: Act, times: int) -> None:
    """F12: the clocks of two machines jump and drift under load; a worker is killed now and then."""
    machines = Machines(act)
    for _ in range(act.some(times)):
        machines.revive()
        act.publish(16)
        act.busy(2)
        if act.rng.random() < 0.2:
            file = act.rng.choice(machines.clocks)
            with act.fault("drift of 1 %"):
                for step in range(40):
                    set_clock(file, step * 0.0005)
                    time.sleep(0.05)
        else:
            jolt(act, machines.clocks)
        if act.rng.random() < 0.15:
            act.rng.choice(act.cast).kill()
    machines.mend()
