"""A short campaign of real faults that no other test does: networks, storms, copies, limits, rights, several at once.

`make chaos` does all of them, and for longer (docs/reliability.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from one_broker import RunBroker

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(400)]

FAULTS = ("F2", "F3", "F6", "F7", "F11", "F9", "F10", "F12", "F14", "F18", "F19", "F22", "F24")
SEED = "11"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def told(broker: RunBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the campaign says; the session's broker is asked for first, so that a machine without Java skips."""
    assert broker.pid
    folder = tmp_path_factory.mktemp("chaos")
    done = subprocess.run(
        [
            sys.executable, "-m", "chaos", "--faults", ",".join(FAULTS), "--times", "0.01", "--short",
            "--seed", SEED, "--jobs", "3", "--run", str(folder), "--json",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "said": done.stderr[-6000:]}


@pytest.mark.parametrize("name", FAULTS)
def test_every_promise_held(told: dict[str, Any], name: str) -> None:
    """Nothing lost, early, tried too often, altered or handed on twice."""
    fault = told["faults"][name]
    assert fault["passed"] == 1, told["said"]
    assert fault["injections"] >= 2
    assert fault["records"] > 0
    broken = {count: fault[count] for count in ("lost", "wrong", "early", "over_policy", "altered", "leftover")}
    assert not any(broken.values()), broken
    assert fault["repeats"]["copied"] == 0
