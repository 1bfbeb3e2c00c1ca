"""What people type, or write to a file, that is no text in UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from retryapp.cli import _upkeep
from retryapp.cli._target import connect
from retryapp.core.errors import InvalidSettingError


@pytest.mark.parametrize("raw", ["sasl.password=gehëim".encode("latin-1"), "sasl.password=geheim".encode("utf-16")])
def test_client_properties_in_another_encoding_are_refused_by_name(tmp_path: Path, raw: bytes) -> None:
    """It was told as a fault in retryapp."""
    path = tmp_path / "client.properties"
    path.write_bytes(raw)
    with pytest.raises(InvalidSettingError, match=r"client\.properties.*expected text in UTF-8") as refused:
        connect("b:9092", path)
    assert "geh" not in str(refused.value)


def test_a_byte_order_mark_is_no_part_of_a_property(tmp_path: Path) -> None:
    """Editors of Windows write it; the first property was unknown."""
    path = tmp_path / "client.properties"
    path.write_bytes(b"\xef\xbb\xbfclient.id=me\r\n")
    assert dict(connect("b:9092", path).options) == {"client.id": "me"}


def test_a_key_that_is_no_utf8_is_erased_byte_for_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    erased: list[bytes] = []

    @contextmanager
    def upkeep(*_args: Any) -> Iterator[Any]:
        yield SimpleNamespace(erase=erased.append)

    monkeypatch.setattr(_upkeep, "_upkeep", upkeep)
    CliRunner().invoke(_upkeep.erase, ["--key", "\udcff", "--lake", str(tmp_path)])
    assert erased == [b"\xff"]
