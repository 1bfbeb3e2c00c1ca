"""Real worker processes."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request

from harness.waiting import wait_for
from retryapp.stage import Child


class Worker(Child):
    """A worker in a process of its own, which serves pages."""

    @property
    def url(self) -> str:
        """Address of its pages."""
        return self.wait_for_line(r"pages (http://\S+)/retries/").group(1)

    def get(self, path: str) -> tuple[int, str]:
        """Ask its pages for status and body; the status is 0 where nothing answers."""
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
        assert not self.ended(), f"{self.name} ended with {self.exit_code}: {self.log[-3000:]}"
        return self.get("/retries/ready")[0] == 200

    def wait_ready(self, timeout_s: float = 40.0) -> None:
        """Wait until all its lanes are open."""
        wait_for(self.ready, f"{self.name} is ready", timeout_s=timeout_s, every_s=0.1)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; return the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s:g} s: {self.log[-3000:]}") from None

    def stop(self, timeout_s: float = 20.0) -> int:
        """Send TERM, wait, then kill it; return the exit code."""
        return super().stop(timeout_s)
