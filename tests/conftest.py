"""What all tests share: a scrubbed environment, and a real broker for those that ask for one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

_KEPT = {"RETRYAPP_TEST_BROKER", "RETRYAPP_CACHE_DIR"}
for _name in [name for name in os.environ if name.startswith(("RETRYAPP_", "FAUST_", "KAFKA_")) and name not in _KEPT]:
    del os.environ[_name]
os.environ.update(TZ="UTC", NO_COLOR="1", COLUMNS="120")
os.environ.pop("FORCE_COLOR", None)

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]  # for `samples`, `harness` and `chaos`; for `tools` and `benchmarks`

if TYPE_CHECKING:
    from one_broker import RunBroker

LONG_FIRST = (
    "tests/pipeline/",
    "tests/simulation/test_histories.py",
    "tests/acceptance/",
    "tests/simulation/",
    "tests/functional/",
    "tests/integration/",
)
"""The order in which files are handed out: what takes long must not begin last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the broker, so that `-m "not broker"` leaves out those; sort by `LONG_FIRST`."""
    for item in items:
        if {"broker", "bootstrap"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("broker")

    def rank(item: pytest.Item) -> int:
        return next((n for n, prefix in enumerate(LONG_FIRST) if item.nodeid.startswith(prefix)), len(LONG_FIRST))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The user's real cache: the jars in it are downloaded once, not once a test run."""
    from retryapp.settings import load_settings

    return load_settings().cache_dir


@pytest.fixture(scope="session", autouse=True)
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder that all processes of the test run share; the run's broker stays while one of them does."""
    from one_broker import joined

    own = tmp_path_factory.getbasetemp()
    folder = own.parent if hasattr(request.config, "workerinput") else own
    with joined(folder):
        yield folder


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of a broker: the one that RETRYAPP_TEST_BROKER names, else :func:`broker`'s."""
    named = os.environ.get("RETRYAPP_TEST_BROKER")
    if named:
        return named
    started: RunBroker = request.getfixturevalue("broker")
    return started.bootstrap


@pytest.fixture(scope="session")
def broker(cache_dir: Path, run_folder: Path) -> RunBroker:
    """The one broker of this test run, on a free port, whose data goes away with it; no test stops or restarts it.

    Where it cannot start (no Java, offline), the tests are skipped on a laptop and fail where CI is set.
    """
    from harness.brokers import skip_without_broker
    from one_broker import run_broker

    with skip_without_broker():
        return run_broker(run_folder, cache_dir)


@pytest.fixture(scope="session")
def prometheus() -> Mapping[str, Path]:
    """The real programs `prometheus` and `promtool`, by name.

    `python tools/prometheus.py` fetches them on Debian. Where they cannot be had the tests are skipped: that the rules
    name metrics and labels which exist is tested without them.
    """
    from tools.prometheus import find

    found = find()
    if found is None:
        pytest.skip("no Prometheus: neither on PATH nor fetched by 'python tools/prometheus.py'")
    return found


WITHOUT_SESSION = {f"tests/pipeline/test_{name}.py" for name in ("crashes", "object_store", "report")}
"""Tests of the pipeline that do not use its Spark session: they may run beside the others."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Run those tests of the pipeline that share a Spark session in one process, one after the other.

    Everything else is handed out by file, in the order of `LONG_FIRST`.
    """
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadFileScheduling

    class ByFileSaveSpark(LoadFileScheduling):  # type: ignore[misc, unused-ignore]  # xdist has no types for it
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "tests/pipeline" if nodeid.startswith("tests/pipeline/") and file not in WITHOUT_SESSION else file

    return ByFileSaveSpark(config, log)
