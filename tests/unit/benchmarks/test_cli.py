"""What a result says of how it was made."""

from __future__ import annotations

import pytest

from benchmarks.cli import _without_out


@pytest.mark.parametrize("out", [["--out", "folder"], ["--out=folder"], []])
def test_the_command_is_told_without_the_folder(out: list[str]) -> None:
    """It changes no figure, and a page names no folder of the machine that made it."""
    assert _without_out(["happy", *out, "--pairs", "3"]) == ["happy", "--pairs", "3"]
