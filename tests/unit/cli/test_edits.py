"""What `retryapp dead replay` makes of the options of an edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from retryapp.cli import dead
from retryapp.core.control import Edit

NAME = "billing/orders@kq8G0bTz/3/1042"
PLACE = ["replay", "--broker", "127.0.0.1:1"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The edit of each replay of single records that is asked for."""
    edits: list[Any] = []
    monkeypatch.setattr(dead, "steer", lambda *_args, edit, **_options: edits.append(edit))
    return edits


def test_the_options_are_an_edit(sent: list[Any], tmp_path: Path) -> None:
    """Byte for byte from a file; a key beside a failure id is the new one."""
    (tmp_path / "value").write_bytes(b"\xff\r\n")
    words = ["--value-file", str(tmp_path / "value"), "--key", "k2", "--header", "a=b=c", "--drop-header", "trace"]
    raw = ["--value", "\udcff", "--header", "a=\udcfe", "--idempotency", "keep"]  # as Python has what is no UTF-8
    for given in ([*words, "--idempotency", "new"], ["--value", "", "--idempotency", "keep"], raw, []):
        done = CliRunner().invoke(dead.command, [*PLACE, NAME, *given], standalone_mode=False)
        assert done.exception is None, done.exception
    changes: dict[str, Any] = {"value": b"\xff\r\n", "key": b"k2", "headers": {"a": b"b=c"}}
    assert sent == [
        Edit.of("new", **changes, drop=("trace",)),
        Edit.of("keep", value=b""),
        Edit.of("keep", value=b"\xff", headers={"a": b"\xfe"}),
        None,
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([NAME, "--value", "x"], "needs --idempotency keep"),
        ([NAME, "--key", "x"], "needs --idempotency keep"),
        ([NAME, "--idempotency", "keep"], "an edit changes something"),
        ([NAME, NAME, "--value", "x", "--idempotency", "keep"], "an edit is of one record"),
        (["-", "--value", "x", "--idempotency", "keep"], "an edit is of one record"),
        (["--all", "--value", "x", "--idempotency", "keep"], "an edit is of one record"),
        ([NAME, "--cause", "c1-3f9ca81b02", "--value", "x", "--idempotency", "keep"], "not both"),
        ([NAME, "--header", "a", "--idempotency", "keep"], "expected NAME=TEXT"),
        ([NAME, "--value", "x", "--value-file", "-", "--idempotency", "keep"], "exclude each other"),
    ],
)
def test_an_edit_that_is_none_is_a_usage_error(sent: list[Any], words: list[str], problem: str) -> None:
    """Before anything is sent."""
    done = CliRunner().invoke(dead.command, [*PLACE, *words])
    assert (done.exit_code, sent) == (2, [])
    assert problem in " ".join(done.output.replace("│", " ").split())
