"""Real worker processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.waiting import wait_for

_PAGES = re.compile(r"pages (http://\S+)/retries/")


@dataclass(slots=True)
class Worker:
    """`faust -A app worker -l info` in a process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def log(self) -> str:
        """All that it has said."""
        return self.log_file.read_text(errors="replace")

    @property
    def url(self) -> str:
        """Address of its pages."""
        found = wait_for(lambda: _PAGES.search(self.log) or self.ended(), f"{self.name} names its pages")
        assert isinstance(found, re.Match), f"{self.name} ended: {self.log}"
        return found.group(1)

    def ended(self) -> bool:
        """Tell whether the process has ended."""
        return self.process.poll() is not None

    def get(self, path: str) -> tuple[int, str]:
        """Ask its pages.

        Returns:
            Status and body; 0 where nobody answers.
        """
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - our own http address
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def ready(self) -> bool:
        """Tell whether it says that all its lanes are open."""
        assert not self.ended(), f"{self.name} ended with {self.process.returncode}: {self.log[-3000:]}"
        return self.get("/retries/ready")[0] == 200

    def wait_ready(self, timeout_s: float = 40.0) -> None:
        """Wait until all its lanes are open."""
        wait_for(self.ready, f"{self.name} is ready", timeout_s=timeout_s, every_s=0.1)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would, with everything that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self, timeout_s: float = 20.0) -> int:
        """Send TERM and wait.

        Returns:
            The exit code.
        """
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end.

        Returns:
            The exit code.
        """
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s:g} s: {self.log[-3000:]}") from None


def start_worker(name: str, folder: Path, env: Mapping[str, str], *options: str) -> Worker:
    """Start a worker of the app in `folder`."""
    log_file = folder / f"{name}.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info", *options],
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Worker(name, process, log_file)


def run_faust(folder: Path, env: Mapping[str, str], *arguments: str, timeout_s: float = 60.0) -> tuple[int, str]:
    """Run another command of the app to its end.

    Returns:
        Exit code and all output.
    """
    result = subprocess.run(
        [sys.executable, "-m", "faust", "-A", "app", *arguments],
        cwd=folder,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
    )
    return result.returncode, result.stdout.decode(errors="replace")


def write_spec(folder: Path, spec: Mapping[str, object]) -> None:
    """Put the user's program and its spec into a folder."""
    (folder / "app.py").write_text(Path(__file__).with_name("user_app.py").read_text())
    (folder / "spec.json").write_text(json.dumps(spec))
