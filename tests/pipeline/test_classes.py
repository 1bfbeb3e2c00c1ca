"""Java's archive of Spark's classes: used where it fits, done without where it does not."""

from __future__ import annotations

import json
import os
import shlex
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

SEVENTEEN = """#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit
"""
"""A Java of which only the version is asked for."""


@pytest.fixture(name="archive")
def written(cache_dir: Path) -> Path:
    """The archive, which ``make test`` makes; trimmed runtimes of Java have none of their own classes to add to."""
    pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
    archive = class_archive(cache_dir)
    if not archive.exists():
        pytest.skip("no archive of classes: 'retryapp pipeline prepare' makes it, or says why this Java cannot")
    return archive


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells which files a process has mapped")
def test_a_session_uses_it(spark: SparkSession, archive: Path) -> None:
    """The JVM has the file in its memory, which it has only where all of it fits."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    mapped = {Path(each.path) for each in psutil.Process(pid).memory_maps()}
    assert archive.resolve() in mapped


def test_prepare_tells_where_it_is(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is there by now, so nothing is made."""
    before = archive.stat().st_mtime_ns
    assert retryapp(["pipeline", "prepare", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["class_archive"] == str(archive)
    assert len(said["jars"]) == len(spark_jars().jars)
    assert archive.stat().st_mtime_ns == before


def test_an_upgrade_asks_for_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The name tells Java and the jars apart, so that an archive which Java would not take is never looked for."""
    pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
    spark, java = tmp_path / "spark", tmp_path / "java"
    jar, modules = spark / "jars" / "core.jar", java / "lib" / "modules"
    for file in (jar, modules, java / "bin" / "java"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SEVENTEEN, encoding="utf-8")
    (java / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(spark))
    monkeypatch.setenv("JAVA_HOME", str(java))
    seen = [class_archive(tmp_path)]
    for upgraded in (jar, modules):
        os.utime(upgraded, ns=(1, 1))
        seen.append(class_archive(tmp_path))
    assert len(set(seen)) == len(seen)
    assert len({path.name.rsplit("-", 1)[0] for path in seen}) == 1, "the older ones would not be found and removed"
    shim = tmp_path / "java-for-spark" / "bin" / "java"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'{SEVENTEEN}exec "{java}/bin/java" "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(shim.parent.parent))
    assert class_archive(tmp_path) == seen[-1], "a session would look elsewhere than 'prepare' has written"


def said_on_start(flags: str, *more: str) -> str:
    """Start Java, and return what it writes where commands print their JSON."""
    words = [find_java().path, *shlex.split(flags), *more, "-version"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_java_says_nothing_of_one_that_does_not_fit(archive: Path, cache_dir: Path, tmp_path: Path) -> None:
    """As where the jars are others than those that it was made of."""
    other = ("-cp", str(tmp_path))
    if find_java().major == 17:  # where it was seen
        assert "shared archive" in said_on_start(f"-XX:SharedArchiveFile={archive}", *other), "it has nothing to say"
    assert said_on_start(sharing_flags(cache_dir), *other) == ""


@pytest.mark.parametrize("content", [b"", b"garbage " * 1_000])
def test_java_does_without_one_that_is_damaged(tmp_path: Path, content: bytes) -> None:
    """And without a word."""
    pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
    cache = tmp_path / "a cache"
    assert sharing_flags(cache) == ""
    place = class_archive(cache)
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    assert said_on_start(sharing_flags(cache)) == ""


@pytest.mark.parametrize(("has_own", "said"), [(True, "JAVA_GATEWAY_EXITED"), (False, "java -Xshare:dump")])
def test_a_java_that_writes_none(
    has_own: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    """It is named with what it said; nothing is left behind, and no command needs the archive."""
    pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"{SEVENTEEN}exit 7\n", encoding="utf-8")
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
    assert {path.name for path in folder.iterdir() if path.suffix != ".jar"} <= {".lock-of-classes", ".lock"}
