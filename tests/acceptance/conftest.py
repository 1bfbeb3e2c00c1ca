"""Fixtures of the acceptance tests: a stage, which is one test's own service, folder, topics and worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness import Stage

MakeStage = Callable[..., "Stage"]


@pytest.fixture(scope="module")
def make_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeStage]:
    """Make stages that live as long as the test module."""
    from harness import Service
    from harness import Stage as RealStage

    with ExitStack() as stack:

        def make(bootstrap: str) -> Stage:
            service = Service()
            service.start()
            stack.callback(service.stop)
            made = RealStage(bootstrap, tmp_path_factory.mktemp("stage"), service)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def stage(bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage of this test alone."""
    from harness import Service
    from harness import Stage as RealStage

    service = Service()
    service.start()
    made = RealStage(bootstrap, tmp_path, service)
    try:
        yield made
    finally:
        made.close()
        service.stop()
