"""Masked fields are not shown, not searched and not sent back."""

from __future__ import annotations

import html
import json
from itertools import product
from typing import Any

import aiohttp
import pytest
from functional.web.server import ask, serving
from functional.web.worker import BASE, DEEP, GROUP, MAIN, FakeWorker, dead_metadata, metadata

from retryapp.core.masking import parse_mask


@pytest.mark.parametrize("form", ["html", "json"])
async def test_masked_headers_and_fields_are_shown_to_nobody(worker: FakeWorker, form: str) -> None:
    """Neither of records that wait nor of dead letters; what cannot be looked into is hidden as a whole."""
    values = (
        b'{"card": "secret-card", "open": 1}',
        b'{"card": "secret-card',
        DEEP.encode(),
        b'{"card": "secret-' * 9_000,
        b'\xef\xbb\xbf{"card": "secret-card"}',
        '{"card": "secret-card"}'.encode("utf-16"),
        ' [{"card": "secret-card"}]'.encode("utf-32-be"),
        b'{"in": {"card": "secret-card"}, "in": {}}',
        b'\x00\x00\x01\x86\xa0{"card": "secret-card"}',
        b'7\n{"card": "secret-card"}',
    )
    headers = (("Authorization", b"secret-token"), ("tenant", b"north"))
    for number, value in enumerate(values):
        worker.wait(metadata(500 + number), key=b'{"card": "secret-key"}', value=value, headers=headers)
        worker.bury(500 + number, dead_metadata(600 + number), key=None, value=value, headers=headers)
    async with serving(worker, mask=parse_mask("authorization, /card, /in/card")) as url:
        for number, kind in product(range(len(values)), ("pending", "dead")):
            status, body = await ask(url, f"{BASE}/{kind}/0/{500 + number}?format={form}")
            assert status == 200
            assert "secret-" not in body
            assert "north" in body
            assert (('"kind": "hidden"' if form == "json" else ">hidden, ") in body) == (number > 0)
        assert "***" in (await ask(url, f"{BASE}/pending/0/500?format={form}"))[1]
        for number, key in enumerate(
            (b'\xef\xbb\xbf{"card": "7"}', b'{\n"card": "7"}', '{"card": "7000000"}'.encode("utf-16"))
        ):
            worker.bury(700 + number, dead_metadata(700 + number), key=key)
        for kind in ("pending", "dead"):
            listed = (await ask(url, f"{BASE}/{kind}?format={form}&limit=500"))[1]
            assert "secret-" not in listed, "keys of lists"
            for raw in (b'"card', '"card'.encode("utf-16-le")):
                assert raw.hex() not in listed, "in hexadecimal"
        plain = json.loads((await ask(url, f"{BASE}/dead/1/7?format=json"))[1])["record"]["value"]
        assert plain["kind"] == "null", "what is no JSON is shown"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("header=AUTHORIZATION=secret", 403), ("header=tenant=north", 200), ("field=/card=1", 403),
        ("field=/card/number=1", 403), ("field=/open=1", 200), ("field=/items/*/sku=1", 403), ("field=/items/0=1", 403),
        ("field=/items/0/id=1", 200), ("key={\"card\": 1}", 403), ("key=\"card\": [1", 403), ("key={\"open\": 1}", 200),
        ("key=k1", 200),
    ],
)  # fmt: skip
async def test_nobody_searches_by_what_is_masked(worker: FakeWorker, asked: str, status: int) -> None:
    """Its answer would tell what that is; also a job's."""
    async with serving(worker, mask=parse_mask("authorization, /card, /items/*/sku")) as url:
        for page in ("pending?", "dead?", "jobs/new?verb=replay&"):
            assert (await ask(url, f"{BASE}/{page}{asked}&format=json"))[0] == status


async def test_a_masked_value_is_not_offered_for_an_edit(worker: FakeWorker) -> None:
    """Or it would be replayed with the mask in place of what is masked."""
    value = rb' {"card": "secret-card", "open": "<1>", "half of a pair": "\ud83d"}'.replace(b" ", b"\n", 1)
    worker.bury(500, dead_metadata(600), value=value)
    for mask, offered in (("", True), ("/card", False)):
        async with serving(worker, mask=parse_mask(mask)) as url:
            _, body = await ask(url, f"{BASE}/dead/0/500?format=html")
            assert ('name="value" rows' in body, "parts of its value are masked" in body.lower()) == (
                offered,
                not offered,
            )
            text = html.escape(value.decode(), quote=False).replace('"', "&#34;")
            assert (f'spellcheck="false">\n{text}</textarea>' in body) == offered, "the first line break is not its own"


@pytest.mark.parametrize(
    ("edit", "status"),
    [
        ({"value": '{"card": "***", "open": 1}'}, 400), ({"value": "***"}, 400), ({"key": '{"card": "***"}'}, 400),
        ({"headers": {"Authorization": "***"}}, 400), ({"value": '{"card": "4711", "open": "***"}'}, 200),
        ({"headers": {"tenant": "***"}}, 200), ({"value": '{"card": "*** '}, 200),
    ],
)  # fmt: skip
async def test_a_mask_is_not_taken_as_an_edit(worker: FakeWorker, edit: Any, status: int) -> None:
    """Whoever sends back what they were shown would overwrite what is masked."""
    sent = {"verb": "replay", "failure_id": f"{GROUP}/{MAIN}@kq8G0bTz/0/600", "edit": {"idempotency": "keep", **edit}}
    async with serving(worker, mask=parse_mask("authorization, /card")) as url, aiohttp.ClientSession(url) as client:
        answer = await client.post(f"{BASE}/command", json=sent)
        assert (answer.status, "where something is masked" in await answer.text()) == (status, status == 400)
        assert len(worker.commands) == (status == 200)
