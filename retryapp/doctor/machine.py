"""This machine: programs and libraries, ports, the data folder and the room in it. Looks; leaves nothing behind."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from confluent_kafka import libversion

from retryapp.core.errors import JavaMissingError
from retryapp.doctor.findings import Finding, Severity, mebibytes, note, ok
from retryapp.jvm import MINIMUM_JAVA, find_java

DISTRIBUTION: Final = "retryapp"
LIBRARIES: Final = ("faust-streaming", "aiokafka", "confluent-kafka", "rocksdict")
"""Those whose insides a worker depends on: a version outside of the tested range is worth a warning."""

PORTS_TRIED: Final = 200
"""How many ports a worker tries."""

FEW_BYTES: Final = 256 << 20
"""Below it a start is likely to fail: a store's write-ahead log alone may take 64 MiB."""
SCARCE_BYTES: Final = 1 << 30
"""Below it a backlog of some hours may not fit."""


def judge_programs() -> Iterator[Finding]:
    """Say which Python, libraries and Java are here."""
    yield ok("python", f"{platform.python_version()} ({sys.platform}, {platform.machine()})", "3.11 or newer")
    wanted = _requirements()
    for name in LIBRARIES:
        have = _version(name)
        found = ok(f"library {name}", have or "-", wanted.get(name, ""))
        if have is None or not fits(have, wanted.get(name, "")):
            found = Finding(
                name=f"library {name}",
                severity=Severity.PROBLEM if have is None else Severity.WARNING,
                seen=have or "not installed",
                expected=wanted.get(name, ""),
                why="workers reach into its insides, which other versions may change",
                remedy=f"pip install '{name}{wanted.get(name, '')}'",
            )
        yield found
    yield ok("library librdkafka", libversion()[0])
    yield _java()


def _java() -> Finding:
    expected = f"{MINIMUM_JAVA} or newer, for 'retryapp broker' only"
    try:
        java = find_java()
    except JavaMissingError as error:
        return note("java", error.found or "none", expected=expected, why="workers do without")
    return ok("java", f"{java.major} ({java.path})", expected)


def _requirements() -> dict[str, str]:
    """Return library → range of versions, as our own distribution declares them."""
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    ranges: dict[str, str] = {}
    for line in declared:
        name, _, rest = line.partition(";")[0].partition("[")
        found = re.match(r"([A-Za-z0-9_.-]+?)\s*((?:[<>=!~].*)?)$", (name + rest.partition("]")[2]).strip())
        if found is not None:
            ranges.setdefault(found.group(1).lower(), found.group(2))
    return ranges


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def fits(version: str, wanted: str) -> bool:
    """Return whether a version is in a range of ``>=`` and ``<`` bounds.

    >>> fits("0.15.3", ">=0.15.3,<0.16"), fits("0.16.0", "<0.16,>=0.15.3")
    (True, False)
    """
    have = _numbers(version)
    for bound in filter(None, wanted.split(",")):
        if bound.startswith(">=") and have < _numbers(bound[2:]):
            return False
        if bound.startswith("<") and not bound.startswith("<=") and have >= _numbers(bound[1:]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def judge_ports(host: str, first: int | None) -> Iterator[Finding]:
    """Say which port a worker that starts now would get for its pages.

    Args:
        host: address that pages listen on.
        first: the first port to try; None: the app serves no pages.
    """
    if first is None:
        yield ok("web port", "the app serves no pages")
        return
    last = min(first + PORTS_TRIED, 65_536) - 1
    free = next((port for port in range(first, last + 1) if _is_free(host, port)), None)
    if free == first:
        yield ok("web port", f"{free} on {host} is free")
    elif free is not None:
        yield ok("web port", f"{free} on {host} is free; {first} to {free - 1} are in use")
    else:
        yield Finding(
            name="web port",
            severity=Severity.PROBLEM,
            seen=f"none of {first} to {last} on {host} is free",
            expected="a free port",
            why="no worker starts",
            remedy="Set RETRYAPP_WEB_PORT to another range, or correct RETRYAPP_WEB_BIND",
        )


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def judge_room(base: Path) -> Iterator[Finding]:
    """Say whether a worker can make and fill its folder below `base`; makes nothing.

    Args:
        base: where the ``worker-N`` folders of the group are, or will be.
    """
    there = nearest(base)
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if not writable:
        yield Finding(
            name="data folder",
            severity=Severity.PROBLEM,
            seen=f"{there} {'cannot be written by this user' if there.is_dir() else 'is no folder'}",
            expected="a folder that workers can write",
            why="no worker starts",
            remedy="Give the user the right, or set RETRYAPP_DATADIR",
        )
    else:
        yield ok("data folder", f"{base}{'' if there == base.absolute() else ' (not made yet)'}")
    yield judge_disk(there)


def judge_disk(folder: Path) -> Finding:
    """Say how much room the disk of an existing folder has."""
    free = shutil.disk_usage(folder).free
    expected = f"{mebibytes(SCARCE_BYTES)} or more"
    if free >= SCARCE_BYTES:
        return ok("disk", f"{mebibytes(free)} free", expected)
    return Finding(
        name="disk",
        severity=Severity.PROBLEM if free < FEW_BYTES else Severity.WARNING,
        seen=f"{mebibytes(free)} free",
        expected=expected,
        why="a store that cannot be written closes its lane: the partition stands still until there is room",
        remedy=f"Make room on the disk of {folder}, or set RETRYAPP_DATADIR",
    )


def nearest(path: Path) -> Path:
    """Return a path, or the nearest of its parents that exists."""
    absolute = path.absolute()
    return next(candidate for candidate in (absolute, *absolute.parents) if candidate.exists())
