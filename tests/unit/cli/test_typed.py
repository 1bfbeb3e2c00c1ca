"""What people type, or write to a file, that is no text in UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click import BadParameter
from click.testing import CliRunner

from retryapp.cli import _upkeep
from retryapp.cli._options import BROKERS
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


@pytest.mark.parametrize(
    "address",
    [
        "b", "b:9092", "sasl_ssl://b:9092", "plaintext://b", "SSL://[::1]:9092", "[fe80::1%eth0]:9092", "::1",
        "fe80::1%eth0", "ssl://2001:DB8::1", "::ffff:127.0.0.1", "1:2:3:4:5:6:7:8", "b:9092,::1",
    ],
)  # fmt: skip
def test_every_address_that_the_client_takes_is_one(address: str) -> None:
    """Protocols in small letters, and IPv6 without brackets, were refused."""
    assert BROKERS.convert(address, None, None) == address


@pytest.mark.parametrize("text", ["kafka://b:9092", "kafka://::1", "b:port", "b:0", "a:1:2", "::1%", "b:9092:", "b c"])
def test_what_the_client_would_wait_for_is_no_address(text: str) -> None:
    """It takes it for no broker at all, or for one with another name."""
    with pytest.raises(BadParameter, match="expected HOST:PORT"):
        BROKERS.convert(text, None, None)


def test_a_key_that_is_no_utf8_is_erased_byte_for_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    erased: list[bytes] = []

    @contextmanager
    def upkeep(*_args: Any) -> Iterator[Any]:
        yield SimpleNamespace(erase=erased.append)

    monkeypatch.setattr(_upkeep, "_upkeep", upkeep)
    CliRunner().invoke(_upkeep.erase, ["--key", "\udcff", "--lake", str(tmp_path)])
    assert erased == [b"\xff"]
