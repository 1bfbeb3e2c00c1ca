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
    from harness import open_stage

    with ExitStack() as stack:
        yield lambda bootstrap: stack.enter_context(open_stage(bootstrap, tmp_path_factory.mktemp("stage")))


@pytest.fixture
def stage(bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    from harness import open_stage

    with open_stage(bootstrap, tmp_path) as made:
        yield made
