"""The jobs as `spark-submit` starts them on a cluster: Spark first, with our jars by option, and then the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from delta import rows_of
from history import Group
from quick import INTERPRETED
from samples import dead
from standalone import Cluster

import retryapp.cli.main
from retryapp.jvm import ensure_jars, spark_jars
from retryapp.kafka import KafkaConnection

pyspark = pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")

pytestmark = [pytest.mark.timeout(300), pytest.mark.extended]


def test_spark_submit_archives_and_analyses_on_a_cluster(
    cluster: Cluster, connection: KafkaConnection, cache_dir: Path, tmp_path: Path
) -> None:
    """With the jars alone: Delta's settings come with them, and executors get the jars from the driver."""
    from retryapp.pipeline.java import java_home

    group = Group.with_main(connection, partitions=2)
    for number in range(4):
        group.dead(number % 2, dead(number))
    lake, page = tmp_path / "lake", tmp_path / "report.html"
    home = Path(pyspark.__path__[0])
    jars = ",".join(map(str, ensure_jars(cache_dir, spark_jars())))
    settings = {**cluster.settings, **INTERPRETED}
    line = [str(home / "bin" / "spark-submit"), "--master", cluster.url, "--driver-memory", "512m", "--jars", jars]
    line += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    line += [str(retryapp.cli.main.__file__), "pipeline", "analyse", "--broker", connection.bootstrap]
    line += ["--group", group.topology.group, "--lake", str(lake), "--report", str(page), "--json"]
    variables = {**os.environ, "JAVA_HOME": str(java_home(cache_dir)), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
    facts = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))
    assert (facts["archived"][0]["rows"], facts["journeys"], facts["sound"]) == (4, 4, True)
    assert facts["report"]["totals"]["dead"] == 4
    assert sorted(rows_of(lake / "records", ("partition", "offset"))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(rows_of(lake / "derived" / "journeys", ("failure_id",))) == 4
    assert "</html>" in page.read_text()
