"""Commands through the pages: who may send them, what is refused, what becomes of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from functional.web.server import opened
from functional.web.worker import BASE, GROUP, MAIN, NOW_MS, FakeWorker, dead_metadata

from retryapp.core.control import MAX_COMMAND_BYTES, Edit, Verb
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.hops import to_stopped_row
from retryapp.core.metadata import HELD
from retryapp.core.row_keys import BEFORE_STOPPED, IDENTITY_AT, parse_row_key, row_key
from retryapp.core.rows import SEQUENCE, decode_row, encode_row
from retryapp.kafka import AccessDeniedError
from retryapp.web.access import COOKIE, Operators, Role, parse_operators

TOKEN = "a-secret-of-ann"  # noqa: S105
ANN = parse_operators(f"ann:{hashlib.sha256(TOKEN.encode()).hexdigest()}")
LOCAL = Operators(local=Role.OPERATE)
NAME = f"{GROUP}/{MAIN}@kq8G0bTz/0/10001"
REPLAY = {"verb": "replay", "failure_id": NAME, "why": "mended"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


POSTS = {
    "command": ("send_commands", REPLAY),
    "command/selection": ("send_commands", {"verb": "replay", "why": "x", "failure_ids": [NAME]}),
    "command/handler": ("tell_handler", {"verb": "pause", "why": "x"}),
}


@pytest.mark.parametrize("path", POSTS)
async def test_while_no_broker_answers_nothing_is_sent(worker: FakeWorker, path: str) -> None:
    """It is asked first: the answer says that nothing was sent, and what to do."""
    worker.broker_down = True
    async with opened(worker, Operators(local=Role.ADMIN)) as site:
        status, body, headers = await site.post(POSTS[path][1], path=f"{BASE}/{path}")
    error = json.loads(body)["error"]
    assert (status, error["code"], headers["Retry-After"]) == (503, "no-broker", "2")
    assert "nothing was sent: connection refused" in error["message"]
    assert error["hint"].startswith("Once a broker answers, send it again")
    assert (worker.commands, worker.asked) == ([], [])


@pytest.mark.parametrize("path", POSTS)
async def test_a_right_that_the_worker_lacks_is_named(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Whoever asked again in a few seconds, as the answer said, got the same."""

    def refuse(*_asked: Any, **_more: Any) -> None:
        raise AccessDeniedError("write to topic 'c'", "localhost:9092", "Topic authorization failed. Needed: Write")

    monkeypatch.setattr(worker, POSTS[path][0], refuse)
    async with opened(worker, Operators(local=Role.ADMIN)) as site:
        status, body, headers = await site.post(POSTS[path][1], path=f"{BASE}/{path}")
    error = json.loads(body)["error"]
    assert (status, error["code"], "Retry-After" in headers) == (503, "not-allowed", False)
    assert "Needed: Write. Grant the right: 'retryapp plan" in error["message"]
    assert error["hint"].startswith("This is the worker's login. Once it is put right, ask again")


async def test_a_command_is_sent_and_its_outcome_told(worker: FakeWorker) -> None:
    """As JSON to programs; with the operator's name in the audit."""
    async with opened(worker, ANN) as site:
        status, body, _ = await site.post({**REPLAY, "force": True}, BEARER)
        said = json.loads(body)
        assert (status, said["outcome"], said["verb"], said["text"]) == (200, "done", "replay", "a sentence")
        (command,) = worker.commands
        assert (command.verb, command.failure_id, command.by) == (Verb.REPLAY, NAME, "ann")
        assert (command.why, command.force, command.id) == ("mended", True, said["command"])
        worker.answer = "replayed"
        assert json.loads((await site.post(REPLAY, BEARER))[1])["refused"] == "replayed"
        worker.answer = None
        assert json.loads((await site.post(REPLAY, BEARER))[1])["outcome"] == "queued"
        await site.post({"verb": "reschedule", "failure_id": NAME, "at": "10m"}, BEARER)
        assert worker.commands[-1].due_at_ms == NOW_MS + 600_000
        await site.post({"verb": "hold", "failure_id": NAME, "for": "2d"}, BEARER)
        assert worker.commands[-1].hold_ms == 2 * 86_400_000


async def test_a_held_record_says_so_and_has_a_button_to_release_it(worker: FakeWorker) -> None:
    """In the list and on its page, with the deadline in place of a due time."""
    entry = worker.waiting[0]
    place, row = parse_row_key(entry.key), decode_row(entry.value).held_until(NOW_MS + 1, NOW_MS)
    key, value = row_key(row.due_at_ms, entry.key[IDENTITY_AT:]), encode_row(row)
    worker.waiting[0] = replace(entry, key=key, value=value)
    async with opened(worker, LOCAL) as site:
        page = await site.page(f"{BASE}/pending/{place.partition}/{place.origin_offset}")
        assert ("released at the latest" in page, 'value="release"' in page) == (True, True)
        assert "held back by the operator" in await site.page(f"{BASE}/pending?partition={place.partition}")
        other = parse_row_key(worker.waiting[1].key)
        assert 'value="release"' not in await site.page(f"{BASE}/pending/{other.partition}/{other.origin_offset}")


async def test_a_record_that_was_never_delivered_has_no_last_failure(worker: FakeWorker) -> None:
    """It waits for earlier ones of its key: its page shows no error without a name, and no time of a failure."""
    entry = worker.waiting[0]
    place, row = parse_row_key(entry.key), decode_row(entry.value)
    page = f"{BASE}/pending/{place.partition}/{place.origin_offset}"
    metadata = decode_metadata(row.headers)
    assert metadata is not None
    held = replace(metadata, tier=HELD, attempt=0, delivery=0, history=())
    row = replace(row, headers=encode_metadata(held), hold=SEQUENCE, failure=b"")
    async with opened(worker, LOCAL) as site:
        said = {word: word in await site.page(page) for word in ("Last failure", "First failed")}
        worker.waiting[0] = replace(entry, value=encode_row(row))
        held_page = await site.page(page)
        assert "waits behind earlier records of its key" in await site.page(
            f"{BASE}/pending?partition={place.partition}"
        )
    assert "waits behind earlier records of its key" in held_page
    assert [verb for verb in ("retry-now", "reschedule", "hold", "cancel") if f'value="{verb}"' in held_page] == [
        "hold", "cancel",
    ], "the others would be refused"  # fmt: skip
    assert 'name="state"' not in held_page, "it has none that a command could name"
    assert all(said.values())
    assert "First delivery" in held_page
    assert not any(word in held_page for word in said)


async def test_a_stopped_sequence_says_what_to_do(worker: FakeWorker) -> None:
    """Its record is dead: its page offers a release and leads to its letter, and no other button is there."""
    entry = worker.waiting[0]
    place, metadata = parse_row_key(entry.key), decode_metadata(decode_row(entry.value).headers)
    assert metadata is not None
    row = to_stopped_row(b"k", replace(metadata, due_at_ms=None, tier=None, reason="exhausted"))
    key = row_key(row.due_at_ms, entry.key[IDENTITY_AT:])
    worker.waiting[0] = replace(entry, key=key, value=encode_row(row))
    worker.waiting.sort(key=lambda waiting: waiting.key)
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state == "open"]
    worker.bury(999, replace(metadata, due_at_ms=None, tier=None, reason="exhausted"))
    async with opened(worker, LOCAL) as site:
        page = await site.page(f"{BASE}/pending/{place.partition}/{place.origin_offset}")
        assert f'<a href="{BASE}/dead/{place.partition}/999">Replay or discard its letter</a>' in page
        assert "<h2>Value</h2>" in page
        assert "empty, 0 bytes" not in page, "its row has no value, and its letter does"
        assert "has stopped its sequence" in page
        assert "It is dead (exhausted), and later records" in page
        shown = [verb for verb in ("release", "retry-now", "hold", "cancel") if f'value="{verb}"' in page]
        assert shown == ["release"]
        dead_page = await site.page(f"{BASE}/dead/{place.partition}/999")
        released = f'{BASE}/pending/{place.partition}/{place.origin_offset}?topic_id=kq8G0bTz">released</a>'
        assert f'wait until it is replayed, discarded or <a href="{released}' in dead_page
        assert "Its sequence has stopped" not in await site.page(f"{BASE}/dead/0/238")
        worker.letters[0][-1] = replace(worker.letters[0][-1], mark="handled")
        page = await site.page(f"{BASE}/pending/{place.partition}/{place.origin_offset}")
        assert f'<a href="{BASE}/dead/{place.partition}/999">Its letter</a> was handled' in page
        assert ("discard its letter" in page, 'value="release"' in page) == (False, True)
        dead_page = await site.page(f"{BASE}/dead/{place.partition}/999")
        assert f'wait until it is <a href="{released}' in dead_page
        listed = await site.page(f"{BASE}/pending?after={BEFORE_STOPPED.hex()}")
        assert "dead: its sequence has stopped" in listed
        assert 'data-label="Next attempt"><span class="soft">-</span>' in listed
        assert ">1-1, the last<" in listed, "not the first of all that wait, whose number is known"


async def test_a_replay_may_edit_its_record(worker: FakeWorker) -> None:
    """Programs send an object, with bytes as text or base64; the page's form a value, whose lines end as they did."""
    async with opened(worker, ANN) as site:
        edit = {"idempotency": "new", "value": "/w==", "encoding": "base64", "drop": ["trace"]}
        status, body, _ = await site.post({**REPLAY, "edit": edit}, BEARER)
        assert (status, json.loads(body)["outcome"]) == (200, "done")
        assert worker.commands[-1].edit == Edit.of("new", value=b"\xff", drop=("trace",))
        form = {**REPLAY, "value": '{"a": 1,\r\n "b": 2}', "idempotency": "keep"}
        await site.post(form, {**BEARER, "Accept": "text/html"})
        assert worker.commands[-1].edit == Edit.of("keep", value=b'{"a": 1,\n "b": 2}')


async def test_the_form_of_an_edit_has_key_and_headers(worker: FakeWorker) -> None:
    """What is left empty stays as it was; of a handler that keeps an order the key is not edited."""
    html = {"Accept": "text/html"}
    form = {**REPLAY, "idempotency": "new", "value": "", "key": "", "headers": "", "drop": ""}
    async with opened(worker, LOCAL) as site:
        worker.bury(900, dead_metadata(900), value=b"{}")
        worker.bury(901, dead_metadata(901), value=b"\xff\x00")
        for offset, value in ((900, True), (901, False)):
            shown = await site.page(f"{BASE}/dead/0/{offset}")
            fields = [f'name="{name}"' in shown for name in ("value", "key", "headers", "drop")]
            assert fields == [value, True, True, True]
        lines = {"headers": "tenant=north=1\r\n\r\nempty=", "drop": "trace\r\n span "}
        await site.post({**form, "key": "k-2", **lines}, html)
        assert worker.commands[-1].edit == Edit.of(
            "new", key=b"k-2", headers={"tenant": b"north=1", "empty": b""}, drop=("trace", "span")
        )
        await site.post({**form, "drop": "trace"}, html)
        assert worker.commands[-1].edit == Edit.of("new", drop=("trace",))
        count = len(worker.commands)
        for wrong in ({}, {"headers": "tenant"}, {"headers": "a=1\na=2"}, {"key": "k", "idempotency": ""}):
            assert (await site.post({**form, **wrong}, html))[0] == 400, wrong
        assert len(worker.commands) == count
        worker.infos[0] = replace(worker.infos[0], order="key")
        assert 'name="key"' not in await site.page(f"{BASE}/dead/0/900")


async def test_a_button_sends_no_field_of_another(worker: FakeWorker) -> None:
    """A form has the fields of all its buttons; a program that sends one too many is refused."""
    sent = {"verb": "cancel", "failure_id": NAME, "why": "test", "at": "10m", "for": "2d"}
    async with opened(worker, ANN) as site:
        assert (await site.post(sent, {**BEARER, "Accept": "text/html"}))[0] == 200
        command = worker.commands[-1]
        assert (command.verb, command.due_at_ms, command.hold_ms) == (Verb.CANCEL, None, None)
        assert (await site.post(sent, BEARER))[0] == 400


async def test_a_form_is_answered_with_a_page(worker: FakeWorker) -> None:
    """It says what became of it, and leads to the record."""
    async with opened(worker, LOCAL) as site:
        form = await site.page(f"{BASE}/pending/0/10001")
        assert f'name="failure_id" value="{NAME}"' in form
        state = form.split('name="state" value="')[1].split('"')[0]
        assert state == "r0.a2.d1760000005200"
        sent = {"verb": "retry-now", "failure_id": NAME, "state": state, "why": "", "at": ""}
        status, body, headers = await site.post(sent, {"Accept": "text/html"})
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "retry-now: done" in body
        assert f"{BASE}/find?id=" in body
        assert (worker.commands[0].state, worker.commands[0].by) == (state, "local")


async def test_what_became_of_a_queued_command_can_be_asked(worker: FakeWorker) -> None:
    """The answer says where; there it is pending until a worker has obeyed or refused it."""
    worker.answer = None
    async with opened(worker, LOCAL) as site:
        status, body, _ = await site.post(REPLAY)
        told = json.loads(body)
        assert (status, told["see"]) == (202, f"/retries/api/commands/{MAIN}/0/0")
        assert f'href="/retries/api/commands/{MAIN}/0/1"' in (await site.post(REPLAY, {"Accept": "text/html"}))[1]
        same = {name: told[name] for name in ("main", "verb", "failure_id", "command", "see")}
        for answer, outcome in ((None, "queued"), ("", "done"), ("replayed", "refused")):
            worker.answer = answer
            said = json.loads(await site.page(f"{told['see']}?format=json"))
            assert (said["outcome"], said["refused"]) == (outcome, answer or None)
            assert {name: said[name] for name in same} == same
            page = await site.page(told["see"])
            assert f"replay: {outcome}" in page
            assert ("data-live=" in page) == (answer is None), "it is loaded again until there is an outcome"
        several = {"verb": "discard", "why": "x", "failure_ids": [NAME, f"{NAME}7"]}
        records = json.loads((await site.post(several, path=SELECTION))[1])["records"]
        assert [each["see"].rpartition("/")[2] for each in records] == ["2", "3"]
        for path in ("0/99", "17/0", "x/0"):
            async with site.session.get(f"{site.url}/retries/api/commands/{MAIN}/{path}") as answer:
                assert answer.status == 404


SELECTION = f"{BASE}/command/selection"


async def test_chosen_letters_are_replayed_with_one_reason(worker: FakeWorker) -> None:
    """Each by a command of its own, whose outcome the page says; the form works without script."""
    names = [f"{GROUP}/{MAIN}@kq8G0bTz/0/{offset}" for offset in (300, 301)]
    async with opened(worker, LOCAL) as site:
        form = await site.page(f"{BASE}/dead")
        assert f'<form action="{SELECTION}" method="post"' in form
        assert (
            form.count('type="checkbox" name="failure_ids"')
            == len({*re.findall('name="failure_ids" value="(.+?)"', form)})
            > 40
        )
        sent = [("verb", "replay"), ("why", "mended"), *(("failure_ids", name) for name in names)]
        status, body, _ = await site.post(sent, {"Accept": "text/html"}, SELECTION)
        assert status == 200
        for name, command in zip(names, worker.commands, strict=True):
            assert (command.verb, command.failure_id, command.by, command.why) == ("replay", name, "local", "mended")
            assert f"find?id={quote(name, safe='')}" in body
        assert body.count("a sentence") == 2
        worker.answer = "replayed"
        status, body, _ = await site.post({"verb": "discard", "why": "x", "failure_ids": names}, path=SELECTION)
        said = json.loads(body)
        assert (status, said["verb"], said["done"]) == (200, "discard", False)
        assert [(each["failure_id"], each["outcome"], each["refused"]) for each in said["records"]] == [
            (name, "refused", "replayed") for name in names
        ]
        worker.answer = None
        status, body, _ = await site.post({"verb": "discard", "why": "x", "failure_ids": names[:1]}, path=SELECTION)
        assert (status, json.loads(body)["records"][0]["outcome"]) == (202, "queued")
    async with opened(worker, Operators(local=Role.LOOK)) as site:
        assert "failure_ids" not in await site.page(f"{BASE}/dead")


NAMES = [NAME]
BAD_SELECTIONS: dict[str, Any] = {
    "none": {"verb": "replay", "why": "x"},
    "an empty one": {"verb": "replay", "why": "x", "failure_ids": []},
    "too many": {"verb": "replay", "why": "x", "failure_ids": [f"{NAME}{number}" for number in range(51)]},
    "no list": {"verb": "replay", "why": "x", "failure_ids": NAME},
    "no reason": {"verb": "replay", "why": " ", "failure_ids": NAMES},
    "another verb": {"verb": "cancel", "why": "x", "failure_ids": NAMES},
    "one that is none": {"verb": "replay", "why": "x", "failure_ids": [NAME, "billing"]},
    "another handler's": {"verb": "replay", "why": "x", "failure_ids": [NAME, f"{GROUP}/flights@kq8G0bTz/0/1"]},
    "of no partition": {"verb": "replay", "why": "x", "failure_ids": [NAME, f"{GROUP}/{MAIN}@kq8G0bTz/99/1"]},
}


@pytest.mark.parametrize("name", BAD_SELECTIONS)
async def test_a_selection_that_is_none_is_refused_as_a_whole(worker: FakeWorker, name: str) -> None:
    """Nothing of it is sent."""
    async with opened(worker, LOCAL) as site:
        status, body, _ = await site.post(BAD_SELECTIONS[name], path=SELECTION)
        assert (status, json.loads(body)["error"]["code"]) == (400, "bad-command"), body
        assert worker.commands == []


async def test_a_letter_that_is_chosen_twice_has_one_command(worker: FakeWorker) -> None:
    """A second one would be refused, as if something had gone wrong."""
    async with opened(worker, LOCAL) as site:
        sent = {"verb": "replay", "why": "x", "failure_ids": [NAME, NAME]}
        assert len(json.loads((await site.post(sent, path=SELECTION))[1])["records"]) == 1
        assert len(worker.commands) == 1


ASKERS: dict[str, tuple[Operators, Mapping[str, str], int]] = {
    "without a token": (ANN, {}, 401),
    "a token": (ANN, BEARER, 200),
    "the cookie": (ANN, {"Cookie": f"{COOKIE}={TOKEN}"}, 200),
    "this machine": (LOCAL, {}, 200),
    "a host that is made to point here": (LOCAL, {"Host": "evil.example:6066"}, 403),
    "another site, without a login": (LOCAL, {"Origin": "http://evil.example"}, 403),
    "another site, with the cookie": (ANN, {"Cookie": f"{COOKIE}={TOKEN}", "Sec-Fetch-Site": "cross-site"}, 403),
    "a sandboxed page": (LOCAL, {"Origin": "null"}, 403),
    "another site, on this machine": (LOCAL, {"Origin": "http://127.0.0.1:1"}, 403),
    "a browser that does not say from where": (LOCAL, {"Accept": "text/html,*/*;q=0.8", "Origin": ""}, 403),
}


@pytest.mark.parametrize("asker", ASKERS)
async def test_who_may_send_a_command(worker: FakeWorker, asker: str) -> None:
    """Nobody else; and whoever is refused has changed nothing."""
    operators, headers, expected = ASKERS[asker]
    async with opened(worker, operators) as site:
        status, body, _ = await site.post(REPLAY, headers)
        assert status == expected, body
        assert len(worker.commands) == (expected == 200)


async def test_a_token_in_an_address_is_none(worker: FakeWorker) -> None:
    """It would be in logs and histories."""
    async with opened(worker, ANN) as site:
        status, _, _ = await site.post(REPLAY, path=f"{BASE}/command?token={TOKEN}")
        assert status == 401


BAD: dict[str, tuple[Any, str]] = {
    "no verb": ({"failure_id": NAME}, "bad-command"),
    "a length that is none": ({"verb": "hold", "failure_id": NAME, "for": "long"}, "bad-command"),
    "an unknown verb": ({"verb": "fly", "failure_id": NAME}, "bad-command"),
    "no failure id": ({"verb": "replay"}, "bad-command"),
    "another handler's": ({"verb": "replay", "failure_id": f"{GROUP}/flights@kq8G0bTz/0/1"}, "bad-command"),
    "of no partition": ({**REPLAY, "failure_id": f"{GROUP}/{MAIN}@kq8G0bTz/99/1"}, "bad-command"),
    "no time": ({"verb": "reschedule", "failure_id": NAME}, "bad-command"),
    "a time that is none": ({"verb": "reschedule", "failure_id": NAME, "at": "soon"}, "bad-command"),
    "an edit without a choice of the key": ({**REPLAY, "edit": {"value": "x"}}, "bad-command"),
    "a form's edit without that choice": ({**REPLAY, "value": "x"}, "bad-command"),
    "an edit that is no object": ({**REPLAY, "edit": 7}, "bad-command"),
    "an edit of nothing": ({**REPLAY, "edit": {"idempotency": "keep"}}, "bad-command"),
    "an edit of a record that waits": (
        {"verb": "cancel", "failure_id": NAME, "edit": {"idempotency": "keep", "value": "x"}},
        "bad-command",
    ),
    "a list": ([REPLAY], "bad-body"),
    "much": ({**REPLAY, "why": "x" * MAX_COMMAND_BYTES}, "too-large"),
}


async def test_a_verb_that_is_none_is_refused_with_those_that_are(worker: FakeWorker) -> None:
    """The hint named all fields, and no verb."""
    async with opened(worker, LOCAL) as site:
        error = json.loads((await site.post({**REPLAY, "verb": "retrynow"}))[1])["error"]
    assert error["message"] == "verb='retrynow' is not known"
    assert error["hint"] == "Send retry-now, reschedule, cancel, hold, release, replay, discard or restore"


async def test_a_length_that_is_none_is_refused_with_what_would_be_one(worker: FakeWorker) -> None:
    """A person who had typed it read of fields to send, and that a timedelta may be passed."""
    async with opened(worker, LOCAL) as site:
        body = (await site.post({"verb": "hold", "failure_id": NAME, "for": "long"}))[1]
        error = json.loads(body)["error"]
    assert error["hint"] == "Nothing was done: correct it and send it again"
    assert error["message"].endswith("from 1ms to 3650d")


async def test_a_field_that_is_wrong_is_named(worker: FakeWorker) -> None:
    """The answer was "Field required", or began with a word of the library that checks."""
    async with opened(worker, LOCAL) as site:
        edits = {"value": "x"}, {"idempotency": "keep", "valu": "x"}, {"idempotency": "keep"}
        said = [json.loads((await site.post({**REPLAY, "edit": edit}))[1])["error"]["message"] for edit in edits]
    nothing = "it changes nothing: give a value, a key, headers or drop"
    assert said == ["idempotency: Field required", "valu: Extra inputs are not permitted", nothing]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"verb": "reschedule"}, "'': expected a length with a unit ('10m') or UTC ('2030-01-31T12:00')"),
        ({"verb": "reschedule", "at": "1969-12-31"}, "at: Input should be greater than or equal to 0"),
        ({"verb": "retry-now", "at": "10m"}, "at belongs to reschedule, and to it alone"),
        ({"verb": "cancel", "for": "10m"}, "for belongs to hold alone"),
    ],
)
async def test_a_wrong_time_is_said_in_words_that_can_be_sent(
    worker: FakeWorker, sent: dict[str, str], message: str
) -> None:
    """The answer named due_at_ms, which nobody may send; also where a form was sent without a time."""
    async with opened(worker, LOCAL) as site:
        body = (await site.post({**sent, "failure_id": NAME}))[1]
    assert json.loads(body)["error"]["message"] == message


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_command_is_refused(worker: FakeWorker, name: str) -> None:
    """With a word for programs and a sentence for people."""
    sent, code = BAD[name]
    async with opened(worker, LOCAL) as site:
        status, body, _ = await site.post(sent)
        assert (status in (400, 413), json.loads(body)["error"]["code"]) == (True, code), body
        assert worker.commands == []


async def test_json_is_read_as_such_whatever_its_type_is_said_to_be(worker: FakeWorker) -> None:
    """`curl -d` says that it is a form: the answer was that the verb is not known."""
    async with opened(worker, LOCAL) as site:
        sent: Any = {"data": json.dumps(REPLAY), "headers": {"Content-Type": "application/x-www-form-urlencoded"}}
        async with site.session.post(f"{site.url}{BASE}/command", **sent) as answer:
            assert answer.status == 200, await answer.text()
    assert [command.failure_id for command in worker.commands] == [NAME]


async def test_what_is_null_is_not_there_and_what_cannot_be_read_is_refused(worker: FakeWorker) -> None:
    """As the document of the API says; and no error of ours."""
    json_type = {"Content-Type": "application/json"}
    async with opened(worker, LOCAL) as site:
        assert (await site.post({**REPLAY, "edit": None, "at": None}))[0] == 200
        for body, coding in ((b"[" * 10_000, "identity"), (b'{"verb":' * 2_000, "identity"), (b"{}", "gzip")):
            sent: Any = {"data": body, "headers": {**json_type, "Content-Encoding": coding}}
            async with site.session.post(f"{site.url}{BASE}/command", **sent) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad-body")
