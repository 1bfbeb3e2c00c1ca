"""Fetch Prometheus, which tests alert rules and dashboard: ``python tools/prometheus.py``, for the Makefile.

1. If its programs are on ``PATH`` or were fetched before, exit without output.
2. On Debian (``apt-get``, ``dpkg-deb``) fetch the package of Prometheus, checked by its signatures, and keep the
   programs in the cache folder. Nothing is installed, no service starts, no right is needed.
3. Elsewhere print what is missing. The tests that need it are then skipped.
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
"""Timeout of each step: a machine without network must not delay its tests."""
PATIENCE = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15"]
DOWNLOAD_MB = 20
"""Size of the package in megabytes, rounded up; package lists are extra where the machine has none."""


def folder() -> Path:
    return load_settings().cache_dir / "prometheus"


def find() -> dict[str, Path] | None:
    """Return the programs by name, or None when one is missing."""
    found: dict[str, Path] = {}
    for name in PROGRAMS:
        cached, on_path = folder() / name, shutil.which(name)
        if not cached.is_file() and on_path is None:
            return None
        found[name] = cached if on_path is None or cached.is_file() else Path(on_path)
    return found


def main() -> int:
    """Run the three steps; programs that cannot be had are reported, which is no error."""
    if find() is not None:
        return 0
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        _report("install Prometheus, so that its programs are on PATH")
        return 0
    print(
        f"retryapp: fetching Prometheus (at most {DOWNLOAD_MB} MB, Debian's package), for alerts and dashboard",
        flush=True,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="retryapp-prometheus-") as place:
            _unpack(dpkg, _download(apt, Path(place)))
    except (OSError, subprocess.SubprocessError, tarfile.TarError, LookupError) as error:
        _report(f"fetching it failed ({error})")
    return 0


def _report(problem: str) -> None:
    print(f"retryapp: the tests of alerts and dashboard need Prometheus: {problem}", file=sys.stderr)


def _download(apt: str, place: Path) -> Path:
    """Download the package with the machine's own package lists, or with lists made for this."""
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
    """Put the programs into the cache, each whole or not at all."""
    done = subprocess.run([dpkg, "--fsys-tarfile", str(package)], check=True, capture_output=True)
    folder().mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        for name in PROGRAMS:
            content = files.extractfile(f"./usr/bin/{name}")
            if content is None:
                raise LookupError(name)
            with tempfile.NamedTemporaryFile(dir=folder(), delete=False) as partial:
                shutil.copyfileobj(content, partial)
            Path(partial.name).chmod(0o755)
            Path(partial.name).replace(folder() / name)


if __name__ == "__main__":
    sys.exit(main())
