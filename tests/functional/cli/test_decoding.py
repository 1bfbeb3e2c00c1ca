"""Commands with ``-A`` show and search what the application's decoder makes of values; without it, bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

FAR_MS = 4_000_000_000_000
SOURCE = """
    import faust
    from retryapp import Retries

    app = faust.App("{group}", broker="kafka://{broker}", store="memory://")

    def decode(data, about):
        print("decoding")
        if not data.startswith(b"\\0"):
            return None
        return {{"name": data[1:].decode(), "of": [about.topic, str(about.field), dict(about.headers)]}}

    retries = Retries(app, decoder=decode)

    @retries.handler("{main}", policy="5m*2 30m*3 1h")
    async def charge(order): ...
"""


@pytest.fixture
def decoding_app(shop, group, tmp_path: Path) -> str:
    """A user's module with a decoder, of the shop's group."""
    place = {"group": shop.topology.group, "broker": shop.operator.bootstrap, "main": shop.topology.main}
    (tmp_path / f"{group}.py").write_text(textwrap.dedent(SOURCE).format(**place))
    return group


@pytest.mark.parametrize("kind", ["pending", "dead"])
def test_values_are_shown_and_searched_decoded(retryapp: Callable, shop, decoding_app: str, kind: str) -> None:
    """``--raw`` has the bytes, and a command without the application shows them."""
    put = (lambda *at, **more: shop.wait(*at, FAR_MS, **more)) if kind == "pending" else shop.bury
    put(0, 1, value=b"\0ann")
    put(0, 2, value=b"\0\xff")
    put(1, 3, value=b'{"name": "ann"}')
    identity = shop.failure_id(0, 1)
    shown = retryapp(kind, "show", "-A", decoding_app, identity)
    assert "value (binary, 4 bytes), decoded" in shown.out
    assert '"name": "ann"' in shown.out
    as_json = retryapp(kind, "show", "-A", decoding_app, identity, "--json")
    assert (as_json.out.count("\n"), "decoding" in as_json.err) == (1, True), "what a decoder prints is no result"
    value = as_json.json["value"]
    headers = '{"trace": "t-1"}' if kind == "dead" else "{}"
    assert value["decoded"]["text"] == f'{{"name": "ann", "of": ["{shop.topology.main}", "value", {headers}]}}'
    assert retryapp(kind, "show", "-A", decoding_app, identity, "--raw").out == "\0ann"
    assert retryapp(kind, "show", "-A", decoding_app, identity, "--raw", "--json").out == "\0ann"
    bytes_alone = retryapp(kind, "show", *shop.place, identity)
    assert "00000000  00 61 6e 6e" in bytes_alone.out
    assert "decoded" not in bytes_alone.out
    failed = retryapp(kind, "show", "-A", decoding_app, shop.failure_id(0, 2)).out
    assert "value (binary, 2 bytes), decoder failed: UnicodeDecodeError: " in failed
    assert "00000000  00 ff" in failed
    for place, expected in ((("-A", decoding_app), {(0, 1), (1, 3)}), (shop.place, {(1, 3)})):
        found = retryapp(kind, "list", *place, "--field", "/name=ann", "--json").json
        names = {shop.failure_id(*at) for at in expected}
        assert {record["failure_id"] for record in found["records"]} == names
        assert found["undecoded"] == (place[0] == "-A")
    listed = retryapp(kind, "list", "-A", decoding_app, "--field", "/name=ann").out
    assert "The decoder failed for 1 value: not searched" in listed


def test_a_job_says_that_it_does_not_decode(retryapp: Callable, shop, decoding_app: str) -> None:
    """It counts and takes what its workers find in values as they were sent."""
    shop.bury(0, 1, value=b"\0ann")
    note = "the app's decoder is not asked"
    preview = ("dead", "replay", "--preview", "-A", decoding_app)
    by_field = retryapp(*preview, "--field", "/name=ann", "--json")
    assert (by_field.json["preview"]["letters"], note in by_field.err) == (0, True)
    by_key = retryapp(*preview, "--key", "k", "--json")
    assert (by_key.json["preview"]["letters"], note in by_key.err) == (1, False)
