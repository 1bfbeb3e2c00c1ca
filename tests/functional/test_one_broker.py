"""The broker of a test run: one for all its processes, and gone when the last of them is, however it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import wait_for

from retryapp.guardian import is_alive

PROCESS = """
import json, subprocess, sys, time
from pathlib import Path
from one_broker import joined, run_broker
from retryapp.guardian import guard
guard()
swept = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
with joined(Path(sys.argv[1])):
    broker = run_broker(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps([swept.pid, broker.bootstrap, broker.pid, str(broker.data)]), flush=True)
    time.sleep(100)
"""


@pytest.mark.extended
@pytest.mark.broker
@pytest.mark.parametrize("keeper_is_killed", [False, True], ids=["both are killed", "the keeper is killed"])
def test_two_processes_have_one_broker_until_both_are_killed(
    bootstrap: str, tmp_path: Path, cache_dir: Path, project_root: Path, keeper_is_killed: bool
) -> None:
    """The second one finds the first one's; it stays while one of them is left, or until its keeper is killed."""
    assert bootstrap, "the session's is asked for first, so that a machine without Java skips"
    run: list[subprocess.Popen[bytes]] = []

    def start() -> list[Any]:
        command = [sys.executable, "-c", PROCESS, str(tmp_path), str(cache_dir)]
        run.append(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=project_root / "tests"))
        assert run[-1].stdout is not None
        return list(json.loads(run[-1].stdout.readline()))

    try:
        (swept, *first), (_, *second) = start(), start()
        assert first == second
        _, pid, data = first
        broker, marked = psutil.Process(pid), psutil.Process(swept)
        run[0].kill()
        run[0].wait()
        wait_for(lambda: not is_alive(marked), "the first one's guardian has swept")
        with pytest.raises(psutil.TimeoutExpired):
            broker.wait(0.5)
        if keeper_is_killed:
            keeper = broker.parent()
            assert keeper is not None
            assert "one_broker.py" in " ".join(keeper.cmdline())
            keeper.kill()
            wait_for(lambda: not is_alive(broker) and not Path(data).exists(), "nothing is left of the broker")
    finally:
        for process in run:
            process.kill()
            process.communicate()
    wait_for(lambda: not is_alive(broker) and not Path(data).exists(), "nothing is left of the broker")
