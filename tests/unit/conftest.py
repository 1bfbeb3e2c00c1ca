"""Programs that look like Java."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FakeJava = Callable[[Path, str], Path]


@pytest.fixture
def fake_java() -> FakeJava:
    """Write a program into a folder's `bin` that answers `-version` as Java does, and else repeats its words."""

    def write(folder: Path, version: str) -> Path:
        program = folder / "bin" / "java"
        program.parent.mkdir(parents=True)
        line = f'openjdk version "{version}" 2024-01-16 LTS'
        program.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'{line}\' >&2 || echo "$@"\n')
        program.chmod(0o755)
        return program

    return write
