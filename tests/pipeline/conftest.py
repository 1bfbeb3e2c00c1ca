"""One Spark session for all tests of the pipeline; they run in one process, one after the other."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retryapp.cli.main import run
from retryapp.core.errors import EnvironmentFault
from retryapp.kafka import KafkaConnection

if TYPE_CHECKING:
    from history import CommandLine, Group
    from pyspark.sql import SparkSession
    from stories import Stories

    from retryapp.pipeline.lake import Lake

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for `history`


@pytest.fixture(scope="session")
def spark(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads with our jars; skipped on a laptop that cannot have one, an error where CI is set."""
    from quick import INTERPRETED, QUICK_JVM

    from retryapp.pipeline.session import SessionOptions, java_flags, start_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.extraJavaOptions": java_flags(*QUICK_JVM, f"-Djava.io.tmpdir={folder}"),
        **INTERPRETED,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",  # plans again after each stage, for ten rows
        "spark.default.parallelism": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    options = SessionOptions(cache_dir=cache_dir, master="local[2]", memory="1g", conf=conf)
    try:
        session = start_session(options)
    except EnvironmentFault as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Spark: {error}")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def stories(spark: SparkSession) -> Stories:
    """All histories that tests tell, analysed once."""
    from stories import Stories

    return Stories(spark)


@pytest.fixture
def generating(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, generating code as a user's does."""
    from quick import INTERPRETED

    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")  # else what does not compile is interpreted
    yield spark
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


@pytest.fixture
def connection(bootstrap: str) -> KafkaConnection:
    """The test session's broker."""
    return KafkaConnection(bootstrap)


@pytest.fixture
def group(connection: KafkaConnection) -> Group:
    """A group that has nothing yet."""
    from history import Group

    return Group(connection)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    from retryapp.pipeline.lake import open_lake

    return open_lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def command(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Run a command of the pipeline on that lake, in this process's session: (exit code, JSON)."""

    def call(name: str, *words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = run(["pipeline", name, *words, "--lake", str(tmp_path / "lake"), "--json"])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return call
