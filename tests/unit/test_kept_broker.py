"""The end of a broker that no process here has started."""

from __future__ import annotations

import subprocess
import sys

import psutil

from retryapp.broker.kept import _gone


def test_a_process_that_nobody_collects_is_gone() -> None:
    """As in a container whose first process collects no orphans."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    process = psutil.Process(child.pid)
    try:
        assert _gone(process, 20)
        assert process.status() == psutil.STATUS_ZOMBIE
    finally:
        child.wait()


def test_a_process_that_goes_on_is_not() -> None:
    """The wait is bounded."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        assert not _gone(psutil.Process(child.pid), 0.1)
