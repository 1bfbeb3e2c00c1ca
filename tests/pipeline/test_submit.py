"""The archive job as `spark-submit` starts it: Spark first, with our jars by option, and then the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from delta import rows_of
from history import Group
from quick import QUICK_JVM
from samples import dead

import retryapp.cli.main
from retryapp.core.topology import HandlerTopology
from retryapp.jvm import ensure_jars, spark_jars
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.classes import sharing_flags
from retryapp.pipeline.session import java_flags

pyspark = pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def test_spark_submit_archives_to_delta(
    connection: KafkaConnection, topology: HandlerTopology, cache_dir: Path, tmp_path: Path
) -> None:
    """With the jars alone: Delta's settings come with them."""
    from retryapp.pipeline.java import java_home

    group = Group(connection, topology)
    group.make(partitions=1)
    for number in range(3):
        group.dead(0, dead(number))
    lake = tmp_path / "lake"
    jars = ",".join(map(str, ensure_jars(cache_dir, spark_jars())))
    line = [str(Path(pyspark.__path__[0], "bin", "spark-submit")), "--master", "local[1]", "--driver-memory", "512m"]
    line += ["--jars", jars, "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    line += ["--conf", f"spark.driver.defaultJavaOptions={sharing_flags(cache_dir)}"]
    line += ["--conf", f"spark.driver.extraJavaOptions={java_flags(*QUICK_JVM)}", str(retryapp.cli.main.__file__)]
    line += ["pipeline", "archive", "--broker", connection.bootstrap, "--group", topology.group]
    line += ["--lake", str(lake), "--json"]
    variables = {**os.environ, "JAVA_HOME": str(java_home(cache_dir)), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
    facts = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))
    assert facts["groups"][0]["rows"] == 3
    assert sorted(rows_of(lake / "records", ("offset",))) == [(0,), (1,), (2,)]
