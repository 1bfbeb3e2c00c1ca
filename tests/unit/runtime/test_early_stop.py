"""SIGTERM before a worker has begun: processes that its app has forked are no workers."""

from __future__ import annotations

import signal
import subprocess
import sys

FORKS = """
import os, signal, time
from retryapp.runtime.machine.early_stop import stopped_early

reading, writing = os.pipe()
with stopped_early("text"):
    child = os.fork()
    if child == 0:
        os.write(writing, b"1")  # a signal that comes before Python has ended its fork is lost
        time.sleep(30)
        os._exit(1)
    os.read(reading, 1)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_child_that_the_app_forks_ends_by_the_signal() -> None:
    """It said that a worker was stopped, and ended as if all was well; its parent still does."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (f"{-signal.SIGTERM}\n", 0)
    assert done.stderr == "retryapp: stopped by SIGTERM before the worker had begun\n"
