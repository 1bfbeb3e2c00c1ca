"""Brokers of some tests alone, with settings of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from retryapp.broker import Broker
from retryapp.core.errors import EnvironmentFault


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
def running_broker(
    cache_dir: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """Run a broker whose data goes away with it; skip the test where none can start."""
    started = Broker(cache_dir, port=port, settings=settings)
    try:
        with skip_without_broker():
            started.start()
        yield started
    finally:
        started.close()
