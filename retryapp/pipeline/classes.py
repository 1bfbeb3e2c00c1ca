"""Java's archive of the classes that Spark is made of, with which a session starts a third sooner or more.

A JVM that starts Spark reads, checks and links some twenty thousand classes; Java can keep them in the form in which it
needs them (class data sharing, JEP 350). The archive is of one Java and one installation of PySpark. Java looks at its
head and at the jars' times each time it starts, and does without one that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from retryapp.core.errors import EnvironmentFault
from retryapp.jvm import MINIMUM_JAVA, disk_errors_named, find_java, jar_folder, one_process_at_a_time, spark_jars
from retryapp.pipeline.errors import SparkMissingError

QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Java says on standard output what does not fit, where commands print their JSON."""
ARCHIVE_NAME: Final = "classes.jsa"
"""While it is being made."""
_PATIENCE_S: Final = 900.0


class ClassArchiveError(EnvironmentFault):
    """Java did not write its archive. Operator action: none is needed, everything works without; or another Java."""

    def __init__(self, java: str, problem: str) -> None:
        """Args: java: its folder. problem: what was said."""
        super().__init__(
            f"the Java in {java} wrote no archive of classes: {problem}. Commands work without, and start slower"
        )


def class_archive(cache_dir: Path) -> Path:
    """Return where the archive for this Java and this PySpark lies, or would lie.

    Raises:
        SparkMissingError: PySpark is not installed.
        JavaMissingError: there is no Java of version 17 or newer.
    """
    try:
        import pyspark
    except ImportError as error:
        raise SparkMissingError(str(error)) from error
    spark = Path(pyspark.__path__[0])
    modules = _java() / "lib" / "modules"  # all of Java's own classes
    java = (str(modules), modules.stat().st_mtime_ns if modules.exists() else None)
    return jar_folder(cache_dir, spark_jars()) / f"classes-{_digest(spark, pyspark.__version__)}-{_digest(*java)}.jsa"


def _java() -> Path:
    return find_java(MINIMUM_JAVA).path.resolve().parent.parent


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def sharing_flags(cache_dir: Path) -> str:
    """Return Java's options for a driver of this machine; none where there is no archive."""
    archive = class_archive(cache_dir)
    return " ".join([shlex.quote(f"-XX:SharedArchiveFile={archive}"), *QUIET]) if archive.exists() else ""


def make_class_archive(cache_dir: Path) -> Path:
    """Have Java write the archive, where it is not there yet: a session that does a little of everything.

    Safe to call from several processes at once: one makes it, the others wait. Takes half a minute or more of one
    processor, and some 190 MB.

    Raises:
        ClassArchiveError: Java wrote none.
        SparkMissingError, JavaMissingError, OfflineError, JarDamagedError: what a session needs is not there.
        DiskFullError: the cache cannot be written.
    """
    archive = class_archive(cache_dir)
    if archive.exists():
        return archive
    if not any((_java() / "lib").glob("*/classes*.jsa")):
        raise ClassArchiveError(
            str(_java()), "it has none of its own classes to add to ('java -Xshare:dump' writes it)"
        )
    folder = archive.parent
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with one_process_at_a_time(folder / ".classes-lock"):
            if not archive.exists():
                with tempfile.TemporaryDirectory(prefix=".classes-", dir=folder) as made:
                    _train(cache_dir, Path(made)).replace(archive)
                for older in folder.glob(f"{archive.name.rsplit('-', 1)[0]}-*.jsa"):
                    if older != archive:
                        older.unlink()
    return archive


def _train(cache_dir: Path, folder: Path) -> Path:
    line = [sys.executable, "-m", "retryapp.pipeline.class_training", str(cache_dir), str(folder)]
    variables = {**os.environ, "SPARK_LOCAL_DIRS": str(folder)}
    done = subprocess.run(  # noqa: S603 - ourselves
        line, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
    )
    made = folder / ARCHIVE_NAME
    if done.returncode or not made.exists():
        said = (done.stderr + done.stdout).strip().splitlines()
        raise ClassArchiveError(str(_java()), said[-1] if said else f"exit {done.returncode}")
    return made
