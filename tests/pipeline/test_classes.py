"""Java's archive of Spark's classes: used where it fits, done without where it does not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from retryapp.cli.main import run as retryapp
from retryapp.jvm import find_java, jar_folder, spark_jars
from retryapp.pipeline.classes import ClassArchiveError, class_archive, make_class_archive, sharing_flags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(name="archive")
def written(class_archive: Path | None) -> Path:
    """The archive; a Java without one of its own classes, as trimmed runtimes are, cannot add to it."""
    if class_archive is None:
        pytest.skip(f"the Java in {find_java().path} writes no archive of classes")
    return class_archive


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells which files a process has mapped")
def test_a_session_uses_it(spark: SparkSession, archive: Path) -> None:
    """The JVM has the file in its memory, which it has only where all of it fits."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    mapped = {Path(each.path) for each in psutil.Process(pid).memory_maps()}
    assert archive in mapped


def test_prepare_tells_where_it_is(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is there by now, so nothing is made."""
    before = archive.stat().st_mtime_ns
    assert retryapp(["pipeline", "prepare", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["class_archive"] == str(archive)
    assert len(said["jars"]) == len(spark_jars().jars)
    assert archive.stat().st_mtime_ns == before


@pytest.mark.parametrize("content", [b"", b"garbage " * 1_000])
def test_java_does_without_one_that_is_damaged(tmp_path: Path, content: bytes) -> None:
    """And says nothing of it, least of all where commands print their JSON."""
    pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
    cache = tmp_path / "a cache"
    assert sharing_flags(cache) == ""
    place = class_archive(cache)
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    flags = sharing_flags(cache).replace("'", "").split(" -")
    words = [flags[0], *(f"-{flag}" for flag in flags[1:])]
    done = subprocess.run([find_java().path, *words, "-version"], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "shared" not in done.stderr.splitlines()[0]


@pytest.mark.parametrize(("has_own", "said"), [(True, "JAVA_GATEWAY_EXITED"), (False, "java -Xshare:dump")])
def test_a_java_that_writes_none(
    has_own: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    """It is named with what it said; nothing is left behind, and no command needs the archive."""
    pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        '#!/bin/sh\ncase "$1" in -version) echo \'openjdk version "17.0.1"\' >&2;; *) exit 7;; esac\n', encoding="utf-8"
    )
    program.chmod(0o755)
    if has_own:
        (home / "lib" / "server").mkdir(parents=True)
        (home / "lib" / "server" / "classes.jsa").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))
    cache = tmp_path / "cache"
    folder = jar_folder(cache, spark_jars())
    folder.mkdir(parents=True)
    for jar in jar_folder(cache_dir, spark_jars()).glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    with pytest.raises(ClassArchiveError, match="Commands work without") as raised:
        make_class_archive(cache)
    assert said in str(raised.value)
    assert {path.name for path in folder.iterdir() if path.suffix != ".jar"} <= {".classes-lock", ".lock"}
