"""Brokers of some tests alone, with settings of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from retryapp.broker import Broker
from retryapp.core.errors import EnvironmentFault
from retryapp.guardian import guard


@contextmanager
def skip_without_broker() -> Iterator[None]:
    """Skip the test where a broker cannot start (no Java, offline) on a laptop; fail where CI is set."""
    try:
        yield
    except EnvironmentFault as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no broker: {error}")


@contextmanager
def running_broker(cache_dir: Path, **options: Any) -> Iterator[Broker]:
    """Run a broker whose data goes away with it; skip the test where none can start. For the options see `Broker`."""
    guard()
    with TemporaryDirectory(prefix="retryapp-broker-", ignore_cleanup_errors=True) as folder:
        broker = Broker(cache_dir, **{"data": Path(folder), **options})
        try:
            with skip_without_broker():
                broker.start()
            yield broker
        finally:
            broker.stop()
