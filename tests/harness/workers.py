"""Real worker processes."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from harness.forks import fork
from retryapp.stage import Child, wait_for


def ask(url: str, sent: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Ask a page for status and body, or send it JSON; the status is 0 where nothing answers."""
    try:
        body = None if sent is None else json.dumps(sent).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=5 if sent is None else 15) as answer:  # noqa: S310 - our own http address
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Worker(Child):
    """A worker in a process of its own, which serves pages."""

    @property
    def url(self) -> str:
        return self.wait_for_line(r"pages (http://\S+)/retries/").group(1)

    def get(self, path: str) -> tuple[int, str]:
        return ask(self.url + path)

    def post(self, path: str, sent: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send its pages JSON; return status and answer."""
        status, body = ask(self.url + path, sent)
        return status, json.loads(body)

    def series(self, metric: str) -> dict[str, float]:
        """Return the series of a metric of its pages: labels, as they are written there, and value."""
        found = re.findall(rf"^{metric}(?:{{(.*)}})? (\S+)$", self.get("/retries/metrics")[1], re.MULTILINE)
        return {labels: float(value) for labels, value in found}

    def wait_ready(self, timeout_s: float = 40.0) -> None:

        def ready() -> bool:
            if self.ended():
                raise self.failure(f"ended with {self.exit_code}")
            return self.get("/retries/ready")[0] == 200

        wait_for(ready, f"{self.name} is ready", timeout_s=timeout_s, every_s=0.1)

    @override
    def start(self) -> Self:
        """Fork `python -m faust`; start anything else, and what needs an interpreter of its own."""
        if self._command[1:3] != ["-m", "faust"] or any(name.startswith("PYTHON") for name in self._env):
            return super().start()
        self._family = []
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **self._env}
        with self.log_file.open("ab") as output, Path(os.devnull).open() as nothing:
            files = [nothing.fileno(), output.fileno(), output.fileno()]
            self._process = fork(self._command[2:], files, cwd=self._cwd, env=env)
        return self

    @override
    def stop(self, timeout_s: float = 20.0) -> int:
        return super().stop(timeout_s)
