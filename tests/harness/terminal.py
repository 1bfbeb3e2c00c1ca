"""The command `retryapp`, as an operator runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.stage import Stage


def retryapp(stage: Stage, *words: str, names: list[str] | None = None) -> tuple[int, dict[str, Any]]:
    """Run it; return its exit code and what it says for programs. `names` are given on stdin, a line each."""
    terminal = begin(stage, *words)
    said, problem = terminal.communicate("" if names is None else "\n".join(names))
    assert said, problem
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return terminal.returncode, answer


def begin(stage: Stage, *words: str) -> subprocess.Popen[str]:
    line = [str(Path(sys.executable).with_name("retryapp")), *words, "--json"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(line, text=True, cwd=stage.folder, env={**os.environ, **stage.env}, **pipes)
