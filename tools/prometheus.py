"""Get Prometheus, with which the alert rules are tested: ``python tools/prometheus.py``, for the Makefile.

1. Where ``prometheus`` and ``promtool`` are on ``PATH`` or were fetched before, end without output.
2. Where Debian's packages can be had (``apt-get``, ``dpkg-deb``), fetch the one of Prometheus, checked by its
   signatures, and keep its two programs in the cache folder. Nothing is installed, no service starts, no right is
   needed.
3. Elsewhere say what is missing. The tests that need it are then skipped.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from retryapp.settings import load_settings

PROGRAMS = ("prometheus", "promtool")
PACKAGE = "prometheus"
LONGEST_S = 120
"""Longest time for each of the steps: a machine without network must not hold its tests up."""
PATIENCE = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15"]
DOWNLOAD_MB = 20
"""The package, in megabytes, rounded up; where the machine has no lists of packages, these come on top."""


def folder() -> Path:
    """Where the programs are kept."""
    return load_settings().cache_dir / "prometheus"


def find() -> dict[str, Path] | None:
    """Return the programs, or None when one is missing."""
    kept = {name: folder() / name for name in PROGRAMS}
    if all(path.is_file() for path in kept.values()):
        return kept
    found = {name: shutil.which(name) for name in PROGRAMS}
    return {name: Path(path) for name, path in found.items() if path} if all(found.values()) else None


def main() -> int:
    """Run the three steps; what is missing is told and is no error.

    Returns:
        0.
    """
    if find() is not None:
        return 0
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        _tell("install Prometheus (its programs prometheus and promtool have to be on PATH)")
        return 0
    print(
        f"retryapp: fetching Prometheus (at most {DOWNLOAD_MB} MB, Debian's package), for the alert rules", flush=True
    )
    try:
        with tempfile.TemporaryDirectory(prefix="retryapp-prometheus-") as place:
            _unpack(dpkg, _download(apt, Path(place)))
    except (OSError, subprocess.SubprocessError, tarfile.TarError, LookupError) as error:
        _tell(f"fetching it failed ({error})")
    return 0


def _tell(what: str) -> None:
    print(f"retryapp: the tests that run the alert rules need Prometheus: {what}", file=sys.stderr)


def _download(apt: str, place: Path) -> Path:
    """Download the package by the machine's own lists, or by lists made for this."""
    try:
        return _fetch([apt], place)
    except subprocess.CalledProcessError:
        for name in ("state/lists/partial", "cache/archives/partial"):
            (place / name).mkdir(parents=True)
        status = Path("/var/lib/dpkg/status")
        own = [apt, "-o", f"Dir::State={place / 'state'}", "-o", f"Dir::Cache={place / 'cache'}"]
        own += ["-o", f"Dir::State::status={status}", "-o", "APT::Sandbox::User=root"]
        subprocess.run([*own, *PATIENCE, "-qq", "update"], check=True, cwd=place, timeout=LONGEST_S)
        return _fetch(own, place)


def _fetch(apt: list[str], place: Path) -> Path:
    command = [*apt, *PATIENCE, "-qq", "-o", "APT::Sandbox::User=root", "download", PACKAGE]
    subprocess.run(command, check=True, cwd=place, capture_output=True, timeout=LONGEST_S)
    return next(place.glob(f"{PACKAGE}_*.deb"))


def _unpack(dpkg: str, package: Path) -> None:
    """Put the two programs into the cache, each whole or not at all."""
    told = subprocess.run([dpkg, "--fsys-tarfile", str(package)], check=True, capture_output=True)
    folder().mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(told.stdout)) as files:
        for name in PROGRAMS:
            content = files.extractfile(f"./usr/bin/{name}")
            if content is None:
                raise LookupError(name)
            with tempfile.NamedTemporaryFile(dir=folder(), delete=False) as made:
                shutil.copyfileobj(content, made)
            Path(made.name).chmod(0o755)
            Path(made.name).replace(folder() / name)


if __name__ == "__main__":
    sys.exit(main())
