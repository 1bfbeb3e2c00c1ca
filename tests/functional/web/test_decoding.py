"""Keys and values that a user's decoder decodes, on pages, in the API and in searches."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any

import faust
import pytest
from confluent_kafka.serialization import SerializationContext
from functional.web.server import ask, opened, serving
from functional.web.test_lists import walk
from functional.web.worker import BASE, GROUP, MAIN, FakeWorker, dead_metadata, metadata
from html5lib import HTMLParser as HTMLParser5

from retryapp import Retries
from retryapp.core.masking import parse_mask
from retryapp.lookup import decoding
from retryapp.lookup.decoding import Decoding
from retryapp.web import lists
from retryapp.web.access import Operators, Role


def decode(data: bytes, _about: SerializationContext) -> Any:
    """Decode a made-up format: a zero, and fields with zeros between; anything else is none of it."""
    if data[:1] != b"\x00":
        return None
    name, card = data[1:].split(b"\x00")
    return {"name": name.decode(), "card": card.decode()}


def encode(name: str, card: str = "secret-card") -> bytes:
    return b"\x00" + b"\x00".join((name.encode(), card.encode()))


MORE_THAN_THREADS = (os.cpu_count() or 1) + 5
"""More than an event loop has for calls of its own."""
TRACES = ("secret", b"secret".hex(), b"secret".hex(" "), "c2VjcmV0")
"""The beginning of a masked field as text, in hexadecimal, and in base64 at the right place."""


async def record_of(url: str, path: str) -> Any:
    status, body = await ask(url, f"{path}?format=json")
    assert status == 200, body
    return json.loads(body)["record"]


@pytest.mark.parametrize("kind", ["pending", "dead"])
async def test_a_decoded_value_is_shown_before_its_bytes(worker: FakeWorker, kind: str) -> None:
    """On the page and in the API; what the decoder leaves is shown as without one."""
    worker.wait(metadata(500), key=b"customer-7", value=encode("ann"))
    worker.bury(500, dead_metadata(600), key=encode("key"), value=encode("ann"))
    async with serving(worker, decoding=Decoding(decode)) as url:
        record = await record_of(url, f"{BASE}/{kind}/0/500")
        assert json.loads(record["value"]["decoded"]["text"]) == {"name": "ann", "card": "secret-card"}
        assert record["value"]["kind"] == "binary"
        assert ("decoded" in record["key"]) == (kind == "dead")
        page = (await ask(url, f"{BASE}/{kind}/0/500?format=html"))[1]
        HTMLParser5(strict=True).parse(page)
        decoded, sent = page.index("&#34;name&#34;: &#34;ann&#34;"), page.index("00000000  00 61 6e 6e")
        assert page.index("decoded: JSON") < decoded < page.index("As it was sent") < sent


@pytest.mark.parametrize("kind", ["pending", "dead"])
@pytest.mark.parametrize("form", ["html", "json"])
async def test_what_a_decoder_raises_is_shown_beside_the_bytes(worker: FakeWorker, kind: str, form: str) -> None:
    """The page is there all the same; markup in it is text."""

    def fail(_data: bytes, _about: SerializationContext) -> str:
        raise ValueError("no <schema> 7")

    worker.wait(metadata(500), key=None, value=b"\x00\xff")
    worker.bury(500, dead_metadata(600), key=None, value=b"\x00\xff")
    async with serving(worker, decoding=Decoding(fail)) as url:
        status, body = await ask(url, f"{BASE}/{kind}/0/500?format={form}")
        assert status == 200
        schema = "&lt;schema&gt;" if form == "html" else "<schema>"
        assert f"decoder failed: ValueError: no {schema} 7" in body
        assert ("00000000  00 ff" if form == "html" else '"base64": "AP8="') in body


async def test_decoders_that_hang_hold_up_no_page_without_payloads(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait for them: they have threads of their own, and neither the event loop nor those of pages."""
    loop, began, over = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hang(_data: bytes, _about: SerializationContext) -> str:
        loop.call_soon_threadsafe(began.set)
        over.wait()
        return "late"

    monkeypatch.setattr(decoding, "LIMIT_S", 3_600.0)
    worker.bury(500, dead_metadata(600), key=None, value=b"\x00\xff")
    async with serving(worker, decoding=Decoding(hang)) as url:
        asked = [asyncio.create_task(record_of(url, f"{BASE}/dead/0/500")) for _ in range(MORE_THAN_THREADS)]
        try:
            await began.wait()
            for path in ("/retries/health", "/retries/", f"{BASE}/dead?format=html"):
                assert (await ask(url, path))[0] == 200
        finally:
            over.set()
        assert {(await each)["value"]["decoded"]["text"] for each in asked} == {"late"}


async def test_nothing_is_decoded_for_who_may_not_see_it(worker: FakeWorker) -> None:
    """Who only looks sees sizes; a damaged row is not the user's value."""
    asked: list[bytes] = []

    def note(data: bytes, _about: SerializationContext) -> None:
        asked.append(data)

    worker.bury(500, dead_metadata(600), key=encode("key"), value=encode("ann"))
    damaged = worker.wait(metadata(501), key=None, value=b"{}")
    worker.waiting[-1] = type(damaged)(partition=damaged.partition, key=damaged.key, value=b"no row")
    async with serving(worker, Operators(local=Role.LOOK), decoding=Decoding(note)) as url:
        assert (await record_of(url, f"{BASE}/dead/0/500"))["value"]["kind"] == "hidden"
    async with serving(worker, decoding=Decoding(note)) as url:
        assert (await record_of(url, f"{BASE}/pending/0/501"))["damaged"]
    assert asked == []


@pytest.mark.parametrize("form", ["html", "json"])
async def test_masked_fields_are_masked_in_what_is_decoded(worker: FakeWorker, form: str) -> None:
    """And bytes of which they are a part are hidden, in lists too: in hexadecimal they could be read."""
    worker.wait(metadata(500), key=encode("key"), value=encode("ann"))
    worker.bury(500, dead_metadata(600), key=encode("key"), value=encode("ann"))
    worker.bury(501, dead_metadata(601), key=b"customer-7", value=b'{"name": "bob", "card": "secret-card"}')
    async with serving(worker, mask=parse_mask("/card"), decoding=Decoding(decode)) as url:
        for kind in ("pending", "dead"):
            listed = (await ask(url, f"{BASE}/{kind}?format={form}&limit=500"))[1]
            shown = (await ask(url, f"{BASE}/{kind}/0/500?format={form}"))[1]
            assert not [trace for trace in TRACES for body in (listed, shown) if trace in body]
            assert "ann" in shown
            assert "***" in shown
        assert "customer-7" in listed, "a key that is text is shown"
        plain = (await ask(url, f"{BASE}/dead/0/501?format={form}"))[1]
        assert ("bob" in plain, "secret" in plain) == (True, False), "what the decoder leaves is masked as without it"


@pytest.mark.parametrize(
    "found", ["card: secret-card", b"\xffsecret-card", '{"card": "secret-card"', "secret " * 10_000]
)
async def test_a_decoded_text_without_fields_is_hidden_where_fields_are_masked(worker: FakeWorker, found: Any) -> None:
    """Nobody can say which part of it is one of them; nor which part of an error's text."""
    worker.bury(500, dead_metadata(600), key=None, value=encode("ann"))

    def fail(_data: bytes, _about: SerializationContext) -> Any:
        raise ValueError(found)

    for decoder in (lambda _data, _about: found, fail):
        async with serving(worker, mask=parse_mask("/card"), decoding=Decoding(decoder)) as url:
            for form in ("html", "json"):
                body = (await ask(url, f"{BASE}/dead/0/500?format={form}"))[1]
                assert not [trace for trace in TRACES if trace in body]


async def test_what_a_decoder_shows_is_not_offered_for_an_edit(worker: FakeWorker) -> None:
    """An edit is of the bytes that were sent, if those are text: nothing writes JSON over another format."""
    worker.bury(500, dead_metadata(600), value=encode("ann"))
    worker.bury(501, dead_metadata(601), value=b"YW5u")
    known = Decoding(lambda data, _about: {"name": "ann"} if data == b"YW5u" else decode(data, _about))
    async with serving(worker, decoding=known) as url:
        page = (await ask(url, f"{BASE}/dead/0/500?format=html"))[1]
        assert 'name="value" rows' not in page
        assert "What the decoder shows is not what was sent" in page
        text = (await ask(url, f"{BASE}/dead/0/501?format=html"))[1]
        assert "Value as it was sent" in text
        assert 'spellcheck="false">\nYW5u</textarea>' in text
    async with serving(worker, mask=parse_mask("/card"), decoding=known) as url:
        assert 'name="value" rows' not in (await ask(url, f"{BASE}/dead/0/501?format=html"))[1]


async def test_a_search_by_field_looks_into_what_is_decoded(worker: FakeWorker) -> None:
    """Also a JSON value that the decoder leaves; a masked field is not searched."""
    worker.wait(metadata(500), key=None, value=encode("ann"))
    worker.wait(metadata(501), key=None, value=b'{"name": "ann"}')
    worker.bury(500, dead_metadata(600), value=encode("ann"))
    worker.bury(501, dead_metadata(601), value=b'{"name": "ann"}')
    worker.bury(502, dead_metadata(602), value=encode("bob"))
    for known, expected in ((Decoding(decode), {500, 501}), (None, {501})):
        async with opened(worker, decoding=known) as site:
            waiting = await walk(site, f"{BASE}/pending?field=/name=ann&format=json")
            dead = await walk(site, f"{BASE}/dead?field=/name=ann&format=json")
            assert {record["origin_offset"] for record in waiting} == expected
            assert {record["offset"] for record in dead} == expected
    async with serving(worker, mask=parse_mask("/card"), decoding=Decoding(decode)) as url:
        for page in ("pending", "dead"):
            assert (await ask(url, f"{BASE}/{page}?field=/card=secret-card&format=json"))[0] == 403


@pytest.mark.parametrize(
    ("mask", "key", "status"), [("/card", "0x00ff", 403), ("", "0x00ff", 200), ("/card", "x", 200)]
)
async def test_a_search_by_a_key_that_may_be_decoded_is_refused_where_fields_are_masked(
    worker: FakeWorker, mask: str, key: str, status: int
) -> None:
    """Its preview had *** in place of the key, and a job of this preview took nothing."""
    async with serving(worker, mask=parse_mask(mask), decoding=Decoding(decode)) as url:
        for page in ("pending?", "dead?", "jobs/new?verb=replay&"):
            assert (await ask(url, f"{BASE}/{page}key={key}&format=json"))[0] == status
        scope = {"letters": {"0": 1}, "upto": {"0": {f"{GROUP}.{MAIN}.dlq": 3}}}
        sent = {"verb": "replay", "job": "aa", "why": "x", "filter": {"key": key}, "scope": scope}
        assert (await ask(url, f"{BASE}/command/job", method="POST", json=sent))[0] == status


@pytest.mark.parametrize("kind", ["pending", "dead"])
async def test_a_search_that_decodes_is_bounded(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A slow decoder ends a page early, which says how many it has looked at; the next one goes on, up to the end."""
    monkeypatch.setattr(lists, "READ_S", 0.0)
    for number in range(5):
        worker.wait(metadata(500 + number), key=None, value=encode("ann"))
        worker.bury(500 + number, dead_metadata(600 + number), value=encode("ann"))
    async with opened(worker, decoding=Decoding(decode)) as site:
        first = await site.facts(f"{BASE}/{kind}?field=/name=ann")
        assert first["next"] is not None
        assert first["scanned"] < 10
        found = await walk(site, f"{BASE}/{kind}?field=/name=ann&format=json")
        assert len(found) == len({record["failure_id"] for record in found}) == 5


@pytest.mark.parametrize("kind", ["pending", "dead"])
async def test_a_search_says_what_it_could_not_decode(worker: FakeWorker, kind: str) -> None:
    """And finds the others."""
    worker.waiting.clear()
    worker.wait(metadata(500), key=None, value=b"\x00ann")
    worker.bury(500, dead_metadata(600), value=b"\x00ann")
    async with serving(worker, decoding=Decoding(decode)) as url:
        facts = json.loads((await ask(url, f"{BASE}/{kind}?field=/name=ann&format=json"))[1])
        assert facts["undecoded"] == 1
        page = (await ask(url, f"{BASE}/{kind}?field=/name=ann&format=html"))[1]
        assert "The decoder failed for 1 value: no field was looked for in it." in page
        assert "The decoder failed" not in (await ask(url, f"{BASE}/{kind}?format=html"))[1]


async def test_the_preview_of_a_job_says_that_it_does_not_decode(worker: FakeWorker) -> None:
    """Its workers compare what was sent: its count is what it will take."""
    for known, by, said in (
        (Decoding(decode), "field=/name=ann", True),
        (Decoding(decode), "key=k", False),
        (None, "field=/name=ann", False),
    ):
        async with serving(worker, decoding=known) as url:
            address = f"{BASE}/jobs/new?verb=replay&{by}"
            assert json.loads((await ask(url, f"{address}&format=json"))[1])["undecoded"] == said
            assert ("A job looks for fields in JSON" in (await ask(url, f"{address}&format=html"))[1]) == said


def test_the_decoder_of_an_app_is_that_of_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands use the same one."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("retryapp.retries.web.register", lambda *_app, **facts: given.update(facts))
    retries = Retries(faust.App(GROUP), decoder=decode)
    assert given["decoding"] is retries.decoding is not None
    assert Retries(faust.App(GROUP)).decoding is None
