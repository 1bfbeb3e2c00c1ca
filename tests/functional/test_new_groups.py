"""Groups that nobody has seen, on brokers that have just started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.brokers import running_broker

ASK = """
import sys
from retryapp.kafka import KafkaConnection, Positions
positions = Positions(KafkaConnection(sys.argv[1]), timeout_s=45)  # a busy broker is slow to make its topic of offsets
for number in range(5):
    found = positions.group_offsets(f"nobody{number}", [("orders", partition) for partition in range(8)])
    assert set(found.values()) == {None}

"""


@pytest.mark.broker
@pytest.mark.extended
def test_offsets_of_a_group_before_there_is_a_coordinator(cache_dir: Path) -> None:
    """There are none. The client library ended the process instead, by a null pointer (librdkafka issue 5040)."""
    with running_broker(cache_dir) as broker:
        asked = subprocess.run(
            [sys.executable, "-c", ASK, broker.bootstrap], capture_output=True, text=True, timeout=100, check=False
        )
    assert asked.returncode == 0, asked.stderr
