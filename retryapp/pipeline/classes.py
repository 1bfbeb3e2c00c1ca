"""Java's archive of the classes that Spark is made of, with which a session starts sooner.

A JVM that starts Spark reads, checks and links some twenty thousand classes; Java can keep them in the form in which it
needs them (class data sharing, JEP 350). An archive is of one Java and one set of jars, which its name tells. Java
looks at its head and at the jars' times each time it starts, and does without one that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from retryapp.core.errors import EnvironmentFault
from retryapp.jvm import disk_errors_named, jar_folder, one_process_at_a_time, spark_jars
from retryapp.pipeline.errors import SparkMissingError
from retryapp.pipeline.java import own_home

ARCHIVE_NAME: Final = "classes.jsa"
"""While it is being made."""
_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java says on standard output what does not fit, where commands print their JSON."""
_STAGING: Final = ".classes-"
_PATIENCE_S: Final = 900.0


class ClassArchiveError(EnvironmentFault):
    """Java did not write its archive. Operator action: none is needed, everything works without; or another Java."""

    def __init__(self, java: str, problem: str) -> None:
        """Args: java: its folder. problem: what was said."""
        super().__init__(
            f"the Java in {java} wrote no archive of classes: {problem}. Commands work without, and start slower"
        )


def class_archive(cache_dir: Path) -> Path:
    """Return where the archive for this Java and these jars of Spark lies, or would lie.

    Raises:
        SparkMissingError: PySpark is not installed.
        JavaMissingError: there is no Java of version 17 or newer.
    """
    try:
        import pyspark
    except ImportError as error:
        raise SparkMissingError(str(error)) from error
    spark = Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0])
    jars = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (spark / "jars").glob("*.jar"))
    java = own_home()
    modules = java / "lib" / "modules"  # all of Java's own classes
    upgraded_ns = modules.stat().st_mtime_ns if modules.exists() else None
    name = "-".join(("classes", _digest(spark), _digest(java), _digest((jars, upgraded_ns))))
    return jar_folder(cache_dir.absolute(), spark_jars()) / f"{name}.jsa"


def _digest(part: object) -> str:
    return hashlib.sha256(repr(part).encode()).hexdigest()[:12]


def sharing_flags(cache_dir: Path) -> str:
    """Return Java's options for a driver of this machine; none where there is no archive."""
    archive = class_archive(cache_dir)
    return " ".join([shlex.quote(f"-XX:SharedArchiveFile={archive}"), *_QUIET]) if archive.exists() else ""


def make_class_archive(cache_dir: Path) -> Path:
    """Have Java write the archive, where it is not there yet: a session that does a little of everything.

    Safe to call from several processes at once: one makes it, the others wait. Takes a minute of one processor, and
    some 200 MB. Archives of the same folders of Java and Spark from before an upgrade are removed.

    Raises:
        ClassArchiveError: Java wrote none.
        SparkMissingError, JavaMissingError: what a session needs is not there.
        DiskFullError, FolderUnusableError: the cache cannot be written.
    """
    archive = class_archive(cache_dir)
    if archive.exists():
        return archive
    java = own_home()
    if not any((java / "lib").glob("*/classes*.jsa")):
        raise ClassArchiveError(str(java), "it has none of its own classes to add to ('java -Xshare:dump' writes it)")
    folder = archive.parent
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with one_process_at_a_time(folder / ".lock-of-classes"):
            if not archive.exists():
                for left in folder.glob(f"{_STAGING}*"):  # by one that was killed
                    shutil.rmtree(left, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=_STAGING, dir=folder, ignore_cleanup_errors=True) as made:
                    _train(cache_dir.absolute(), Path(made), java).replace(archive)
                for older in folder.glob(f"{archive.stem.rsplit('-', 1)[0]}-*.jsa"):
                    if older != archive:
                        older.unlink()
    return archive


def _train(cache_dir: Path, folder: Path, java: Path) -> Path:
    line = [sys.executable, "-m", "retryapp.pipeline.class_training", str(cache_dir), str(folder)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    try:
        done = subprocess.run(  # noqa: S603 - ourselves
            line,
            env={**variables, "SPARK_LOCAL_DIRS": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ClassArchiveError(str(java), f"it took more than {_PATIENCE_S:.0f} s") from error
    made = folder / ARCHIVE_NAME
    if done.returncode or not made.exists():
        said = [text for text in (done.stdout + done.stderr).strip().splitlines() if "Skipping " not in text]
        raise ClassArchiveError(str(java), said[-1] if said else f"exit {done.returncode}")
    return made
