"""Scripts of `tools` as modules, and programs that look like Java."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

LoadTool = Callable[[str], ModuleType]
FakeJava = Callable[[Path, str], Path]


@pytest.fixture
def load_tool(project_root: Path) -> LoadTool:

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{name}_tool", project_root / "tools" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


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
