"""The command `retryapp`, as an operator runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.forks import fork
from harness.stage import Stage


def retryapp(stage: Stage, *words: str, names: list[str] | None = None) -> tuple[int, dict[str, Any]]:
    """Run it; return its exit code and what it says for programs. `names` are given on stdin, a line each."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in ("stdin", "stdout", "stderr")]
        files[0].write("\n".join(names or ()))
        files[0].seek(0)
        line, env = ["retryapp", *words, "--json"], {**os.environ, **stage.env}
        code = fork(line, [file.fileno() for file in files], cwd=stage.folder, env=env).wait()
        for file in files:
            file.seek(0)
        said = files[1].read().splitlines()
        assert said, files[2].read()
        answer: dict[str, Any] = json.loads(said[-1])
        return code, answer


def begin(stage: Stage, *words: str) -> subprocess.Popen[str]:
    """Start it as a shell does: it loads everything, and gets signals."""
    line = [str(Path(sys.executable).with_name("retryapp")), *words, "--json"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(line, text=True, cwd=stage.folder, env={**os.environ, **stage.env}, **pipes)
