"""Who may do what: every address and every role, where a role comes from, and what a role does not see."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import faust
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from functional.web.server import ask, serving
from functional.web.test_jobs import fit
from functional.web.worker import BASE, DEEP, GROUP, MAIN, NOW_MS, FakeWorker, busy_worker, dead_metadata, metadata
from samples import partition

from retryapp.cli._workers import Workers
from retryapp.core.control import Verb
from retryapp.core.errors import InvalidSettingError
from retryapp.core.jobs import JobPart, LetterFilter, Part
from retryapp.lookup.jobs import Order
from retryapp.lookup.previews import Preview
from retryapp.testing import VirtualClock
from retryapp.web import access, peers, register
from retryapp.web.access import COOKIE, MOST_HOOKS, Operators, Role, parse_operators
from retryapp.web.peers import PART, SIGNATURE, Peers
from retryapp.web.views import ACTIONS, ROUTES

TOKENS = {role: f"a-secret-of-{role.name}" for role in Role if role}
ENTRIES = [f"{role.name.lower()}:{hashlib.sha256(token.encode()).hexdigest()}:{role.name.lower()}"
           for role, token in TOKENS.items()]  # fmt: skip
ACCESS = parse_operators(",".join(ENTRIES), proxies="127.0.0.1/32")
ADDRESSES = {path: needs for path, (_, _, needs) in ROUTES} | {path: needs for path, (_, needs) in ACTIONS}
NAME = f"{GROUP}/{MAIN}@kq8G0bTz/0/10001"
HTML = {"Accept": "text/html"}


def bearer(role: Role) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[role]}"} if role else {}


def address_of(path: str) -> str:
    some = path.replace("{main}", MAIN).replace("{rest:.*}", "x/y/z").replace("{job}", "3f9ca81b02")
    some = some.replace("pending/{partition}/{offset}", "pending/0/10001")
    some = some.replace(f"commands/{MAIN}/{{partition}}/{{offset}}", f"commands/{MAIN}/0/0")
    some = some.replace("/journey", f"/journey?id={NAME}")
    return f"/retries{some.replace('dead/{partition}/{offset}', 'dead/0/238')}"


def by_session(request: web.Request) -> tuple[str, str] | None:
    """A login hook of a user: a session of another program's is in a cookie."""
    return {"ann-1": ("ann", "admin"), "bob-2": ("bob", "operate"), "eve-3": ("eve", "look")}.get(
        request.cookies.get("session", "")
    )


SESSIONS = {Role.NONE: "", Role.LOOK: "eve-3", Role.OPERATE: "bob-2", Role.ADMIN: "ann-1"}
HOOKED = Operators(local=Role.NONE, hook=by_session)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("by", ["token", "hook"])
async def test_every_address_and_every_role(worker: FakeWorker, role: Role, by: str) -> None:
    """Whoever has less than an address needs is refused and sees nothing; others are not refused."""
    actions = {path for path, _ in ACTIONS}
    operators, headers, stranger = ACCESS, bearer(role), 401
    if by == "hook":
        operators, headers, stranger = HOOKED, {"Cookie": f"session={SESSIONS[role]}"}, 403
    async with serving(worker, operators) as url:
        for path, needs in ADDRESSES.items():
            sent: Any = {"method": "POST", "json": {}} if path in actions else {}
            status, body = await ask(url, address_of(path), headers, **sent)
            refused = {"login-needed": 401, "role-needed": 403}
            code = json.loads(body)["error"]["code"] if status >= 400 else ""
            assert refused.get(code) == (None if role >= needs else 403 if role else stranger), f"{path} as {role.name}"
    assert worker.commands == []


def test_the_documents_name_the_role_of_each_address() -> None:
    """And leave no page out."""
    text = (Path(__file__).parents[3] / "docs" / "operating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `/retries(\S*)` \| (\w+) \|", text, re.MULTILINE)
    plain = [(re.sub(r"\?.*", "", path).replace("3f9ca81b02", "{job}"), role) for path, role in rows]
    documented = {
        path.replace("orders", "{main}").replace("3/17", "{partition}/{offset}"): role for path, role in plain
    }
    for path, needs in documented.items():
        assert Role[needs.upper()] == ADDRESSES[path], path
    pages = {path for path, (_, template, _) in ROUTES if template and "offset" not in path}
    assert pages | {path for path, _ in ACTIONS} <= documented.keys()


SOURCES: dict[str, tuple[str, str, Mapping[str, str], Role, str]] = {
    # settings of operators and proxies; headers; role and name
    "this machine": ("", "", {}, Role.LOOK, "local"),
    "this machine, where it says so": ("local:admin", "", {}, Role.ADMIN, "local"),
    "this machine, unless said otherwise": ("local", "", {}, Role.OPERATE, "local"),
    "this machine, through a proxy": ("local", "", {"X-Forwarded-For": "192.0.2.7"}, Role.NONE, "anyone"),
    "this machine, through a proxy that says so otherwise": ("local", "", {"Via": "1.1 x"}, Role.NONE, "anyone"),
    "this machine, under another name": ("local", "", {"Host": "evil.example:6066"}, Role.NONE, "anyone"),
    "this machine, under its address": ("local,anyone:look", "", {"Host": "192.0.2.1:6066"}, Role.LOOK, "anyone"),
    "this machine, under no name": ("local", "", {"Host": "[::1"}, Role.NONE, "anyone"),
    "anyone": ("anyone:operate", "", {"X-Forwarded-For": "192.0.2.7"}, Role.OPERATE, "anyone"),
    "anyone, under another name": ("anyone:operate", "", {"Host": "evil.example"}, Role.NONE, "anyone"),
    "a token": (ENTRIES[1], "", bearer(Role.OPERATE), Role.OPERATE, "operate"),
    "a token without a role": (ENTRIES[2].removesuffix(":admin"), "", bearer(Role.ADMIN), Role.OPERATE, "admin"),
    "a token, under another name": (ENTRIES[1], "", {**bearer(Role.OPERATE), "Host": "x"}, Role.OPERATE, "operate"),
    "a cookie": (ENTRIES[0], "", {"Cookie": f"{COOKIE}={TOKENS[Role.LOOK]}"}, Role.LOOK, "look"),
    "a wrong token": (ENTRIES[1], "", {"Authorization": "Bearer guess"}, Role.LOOK, "local"),
    "a hash": (ENTRIES[1], "", {"Authorization": f"Bearer {ENTRIES[1].split(':')[1]}"}, Role.LOOK, "local"),
    "a proxy": ("", "127.0.0.1", {"X-Forwarded-User": "ann", "X-Forwarded-Role": "admin"}, Role.ADMIN, "ann"),
    "a proxy that names no role": ("", "127.0.0.0/8", {"X-Forwarded-User": "ann"}, Role.LOOK, "ann"),
    "a proxy that says none": ("", "127.0.0.1", {"X-Forwarded-User": "ann", "X-Forwarded-Role": "none"}, Role.NONE, ""),
    "a proxy whose word is no role": (
        "anyone:look",
        "127.0.0.1",
        {"X-Forwarded-User": "ann", "X-Forwarded-Role": "admim"},
        Role.LOOK,
        "anyone",
    ),
    "a proxy that names nobody": ("local", "127.0.0.1", {"X-Forwarded-Role": "admin"}, Role.NONE, "anyone"),
    "a forged proxy": ("", "192.0.2.1", {"X-Forwarded-User": "ann", "X-Forwarded-Role": "admin"}, Role.LOOK, "local"),
}


@pytest.mark.parametrize("entries", [ENTRIES[1], "local"])
async def test_a_wrong_token_is_named_where_a_role_is_missing(worker: FakeWorker, entries: str) -> None:
    """Else whoever sent it would look for the role of a token that is known."""
    told = "the token that was sent is none of RETRYAPP_WEB_OPERATORS"
    async with serving(worker, parse_operators(entries)) as url:
        for headers, named in (({"Authorization": "Bearer guess"}, True), ({}, False)):
            _, body = await ask(url, "/retries/orders/command/handler", headers, method="POST", json={})
            error = json.loads(body)["error"]
            assert (told in error["message"], "needs the role admin" in error["message"]) == (named, True), error


@pytest.mark.parametrize("source", SOURCES)
async def test_where_a_role_comes_from(worker: FakeWorker, source: str) -> None:
    """A token, a listed proxy, this machine under a name of its own, or nothing."""
    text, proxies, headers, role, name = SOURCES[source]
    async with serving(worker, parse_operators(text, proxies=proxies)) as url:
        status, body = await ask(url, "/retries/", {**HTML, **headers})
        if role:
            assert f"You are {name} ({role.name.lower()})" in body
        else:
            assert status in (401, 403), body
            assert GROUP not in body.replace(f"retries of {GROUP}", "").replace(f"- {GROUP}", ""), "no facts"


async def ann(_request: web.Request) -> tuple[str, str]:
    return "ann", "admin"


HOOKS: dict[str, tuple[Any, Mapping[str, str], Role, str]] = {
    # hook, headers, role and name; whom it does not know has the role of this machine
    "plain": (by_session, {"Cookie": "session=bob-2"}, Role.OPERATE, "bob"),
    "async": (ann, {}, Role.ADMIN, "ann"),
    "knows nobody": (by_session, {"Cookie": "session=x"}, Role.LOOK, "local"),
    "a token comes first": (ann, bearer(Role.LOOK), Role.LOOK, "look"),
    "under another name": (ann, {"Host": "evil.example"}, Role.NONE, "anyone"),
    "fails": (lambda _request: 1 / 0, {}, Role.NONE, "anyone"),
    "an unknown role": (lambda _request: ("ann", "root"), {}, Role.NONE, "anyone"),
    "a role that is none": (lambda _request: ("ann", "none"), {}, Role.NONE, "anyone"),
    "a name that steers": (lambda _request: ("ann\x1b[0m", "admin"), {}, Role.NONE, "anyone"),
    "something else": (lambda _request: True, {}, Role.NONE, "anyone"),
    "wants the process to end": (lambda _request: sys.exit("no"), {}, Role.NONE, "anyone"),
}


@pytest.mark.parametrize("name", HOOKS)
async def test_a_login_hook_says_who_asks(worker: FakeWorker, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """While it fails nobody has a role, not from this machine either, and the log says so."""
    hook, headers, role, person = HOOKS[name]
    async with serving(worker, parse_operators(ENTRIES[0], hook=hook)) as url:
        status, body = await ask(url, "/retries/", {**HTML, **headers})
        assert (f"You are {person} ({role.name.lower()})" in body, status) == (bool(role), 200 if role else 401)
    failed = hook is not ann and "Cookie" not in headers
    assert any(record.message == "retryapp.login_hook_failed" for record in caplog.records) == failed


async def test_a_hook_that_hangs_holds_no_probe_back(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What everybody may ask does not ask it; pages are refused after a time."""
    monkeypatch.setattr(access, "HOOK_S", 0.2)

    async def hang(_request: web.Request) -> None:
        await asyncio.Event().wait()

    over = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    for hook in (hang, lambda _request: bool(over.wait(20)) and None):
        monkeypatch.setattr(access, "HOOK_S", 0.2)
        async with serving(worker, Operators(hook=hook)) as url:
            assert (await ask(url, "/retries/", HTML))[0] == 403
            monkeypatch.setattr(access, "HOOK_S", 3_600.0)
            for path in ("health", "ready", "login"):
                assert (await ask(url, f"/retries/{path}"))[0] == 200
    over.set()


HANGING = """
import asyncio, threading
from functional.web.server import ask, serving
from functional.web.worker import busy_worker
from retryapp.web import access

async def main():
    async with serving(busy_worker(), access.Operators(hook=lambda _request: threading.Event().wait())) as url:
        print((await ask(url, "/retries/"))[0])

access.HOOK_S = 0.2
asyncio.run(main())
"""


def test_a_hook_that_hangs_keeps_no_process_alive() -> None:
    """A worker that is told to end does not wait for it."""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", HANGING], env=path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "403\n"), done.stderr


async def test_so_many_hooks_run_at_once(worker: FakeWorker) -> None:
    """More readers wait their turn, and take no further threads of the worker."""
    running, most, lock = 0, 0, threading.Lock()

    def slow(_request: web.Request) -> tuple[str, str]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return "ann", "look"

    async with serving(worker, Operators(local=Role.NONE, hook=slow)) as url:
        answers = await asyncio.gather(*(ask(url, "/retries/?format=json") for _ in range(3 * MOST_HOOKS)))
    assert {status for status, _ in answers} == {200}
    assert most <= MOST_HOOKS


async def test_two_users_in_a_proxys_headers_are_none(worker: FakeWorker) -> None:
    """One of them is what the browser has sent."""
    async with serving(worker, parse_operators("", proxies="127.0.0.1")) as url, aiohttp.ClientSession() as session:
        for name in ("X-Forwarded-User", "X-Forwarded-Role"):
            headers = [("X-Forwarded-User", "ann"), ("X-Forwarded-Role", "look"), (name, "admin")]
            async with session.get(f"{url}/retries/", headers=headers) as response:
                assert response.status == 403


async def test_a_known_name_is_one_of_these_pages(worker: FakeWorker) -> None:
    """Of this worker, of this machine, or a listed one; another is named in the refusal."""
    worker.address = "http://worker-1.example:6066"
    async with serving(
        worker, parse_operators("anyone:look", hosts="retries.example, other.example, ::1, [2001:db8::2], 10.0.0.1")
    ) as url:
        for host in ("worker-1.example:6066", "Retries.example", "other.example:80", "localhost", "[2001:db8::1]:6066"):
            assert (await ask(url, "/retries/", {"Host": host}))[0] == 200, host
        status, body = await ask(url, "/retries/", {"Host": "evil.example"})
        assert (status, json.loads(body)["error"]["code"]) == (403, "host-not-known")
        assert "evil.example" in body


WRONG = {
    "operators": ("ann", "ann:12", "local,,bob:xyz", f"ann:{'g' * 64}", f"ann:{'a' * 64}:root", "local:all", "anyone",
                  "anyone:root"),
    "proxies": ("proxy.example",),
    "hosts": ("retries.example:443", "https://retries.example", "*.example", "a b"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_setting_that_says_something_else_is_refused(name: str, value: str) -> None:
    """No role is guessed, and no secret shown; a host that no request names so would have the pages refused."""
    with pytest.raises(InvalidSettingError, match=f"RETRYAPP_WEB_{name.upper()}") as error:
        parse_operators(**{"text": "", "text" if name == "operators" else name: value})
    assert "g" * 64 not in str(error.value)


def test_a_network_with_bits_of_a_host_is_refused_as_that() -> None:
    """It looks like the example."""
    with pytest.raises(InvalidSettingError, match=r"as 10\.0\.0\.0/24: 10\.0\.0\.1/8 has host bits set"):
        parse_operators("", proxies="10.0.0.1/8")


def test_a_hash_in_capitals_is_that_of_the_same_token() -> None:
    """Some tools print them."""
    found = parse_operators(f"ann:{hashlib.sha256(b'word').hexdigest().upper()}:look").owner_of("word")
    assert found is not None
    assert (found.name, found.role) == ("ann", Role.LOOK)


@pytest.mark.parametrize(("path", "form"), list(product(ADDRESSES, ("html", "json"))))
async def test_who_may_only_look_sees_metadata(worker: FakeWorker, path: str, form: str) -> None:
    """No key, value, header or message of any record, on any page: their sizes and places only."""
    secret: Any = {"key": b"secret-key", "value": b"secret-value", "headers": (("secret-name", b"secret-header"),)}
    texts: Any = {"error_message": "no account 'secret-account'", "error_trace": "secret-trace"}
    worker.waiting.clear()
    worker.letters.clear()
    worker.wait(metadata(10_001, **texts), **secret)
    worker.bury(238, dead_metadata(2_119, **texts), **secret)
    wanted = LetterFilter(key="secret-key", message="secret-account", header="a=secret-header", field="/a=secret-value")
    going = Part(job="3f9ca81b02", verb="replay", order=JobPart(verb=Verb.REPLAY, filter=wanted, upto={}))
    worker.remembered = {MAIN: {0: [going]}}
    path = f"{address_of(path)}?format={form}&limit=500"
    async with serving(worker) as url:
        seen = (await ask(url, path, HTML))[1]
    async with serving(worker, Operators()) as url:
        status, body = await ask(url, path, HTML)
        assert "secret-" not in body
        assert status != 200 or len(body) > len(seen) / 3, "and all the rest"


async def test_who_may_only_look_is_told_what_is_hidden(worker: FakeWorker) -> None:
    """By name in JSON, in words on the page; operators see it and no such words."""
    async with serving(worker, ACCESS) as url:
        path = f"{BASE}/pending/0/10001"
        facts = json.loads((await ask(url, f"{path}?format=json", bearer(Role.LOOK)))[1])
        assert facts["hidden"] == ["error_message", "headers", "key", "message", "retry_headers", "value"]
        assert facts["record"]["value"] == {"kind": "hidden", "size_bytes": 143, "shown_bytes": 0, "truncated": True}
        assert facts["record"]["headers"] is None
        assert "Not shown to the role look" in (await ask(url, path, {**HTML, **bearer(Role.LOOK)}))[1]
        _, page = await ask(url, path, {**HTML, **bearer(Role.OPERATE)})
        assert "4711" in page
        assert "Not shown" not in page


async def test_what_another_worker_hides_is_said_to_be_hidden_by_it(worker: FakeWorker) -> None:
    """It does not know who asks without the secret of the group: the page named the operator's role."""
    other = busy_worker()
    other.parts[MAIN] = [partition(0, dead=120)]
    async with serving(other, Operators()) as peer:
        worker.parts[MAIN] = [partition(0, state="elsewhere", owner_url=peer)]
        async with serving(worker, ACCESS) as url:
            _, page = await ask(url, f"{BASE}/dead", {**HTML, **bearer(Role.OPERATE)})
    assert "Not shown by other workers: key, message. Set one <code>RETRYAPP_PEER_SECRET</code>" in page


@pytest.mark.parametrize("role", Role)
async def test_buttons_are_for_those_who_may(worker: FakeWorker, role: Role) -> None:
    """Others see the same facts, as far as they may, and where to log in."""
    fit(worker)
    needs = {
        f"{BASE}/pending/0/10001": Role.OPERATE,
        f"{BASE}/dead/0/238": Role.OPERATE,
        f"{BASE}/jobs/3f9ca81b02": Role.OPERATE,
        f"{BASE}/jobs/new?verb=replay&all=1": Role.OPERATE,
        f"{BASE}/": Role.ADMIN,
    }
    async with serving(worker, ACCESS) as url:
        for path, least in needs.items():
            _, body = await ask(url, path, {**HTML, **bearer(role)})
            assert ('method="post"' in body) == (role >= least), path
            assert ("/retries/login" in body) == (role is Role.NONE), path


async def test_a_job_of_many_letters_needs_an_admin(worker: FakeWorker) -> None:
    """The page counts again: a request may name fewer letters than the job takes, or later ones."""
    topic = f"{GROUP}.{MAIN}.dlq"
    scope = json.dumps({"letters": {"0": 1}, "upto": {"0": {topic: 3_000}}})
    sent = {"verb": "replay", "job": "aa", "why": "x", "filter": '{"reason": "exhausted"}', "scope": scope}
    async with serving(worker, ACCESS) as url:
        for letters, complete, end, role, status in (
            (1_000, True, 3_000, Role.OPERATE, 200),
            (1_000, True, 2_999, Role.OPERATE, 400),
            (1_001, True, 3_000, Role.OPERATE, 403),
            (5, False, 3_000, Role.OPERATE, 403),
            (1_001, False, 3_000, Role.ADMIN, 200),
        ):
            worker.fits = Preview(fitting=Counter({0: letters}), complete=complete, upto={0: {topic: end}})
            begun = len([each for each in worker.asked if isinstance(each[1], Order)])
            got, body = await ask(url, f"{BASE}/command/job", bearer(role), "POST", json=sent)
            assert got == status, body
            assert len([each for each in worker.asked if isinstance(each[1], Order)]) == begun + (status == 200)
            page = (await ask(url, f"{BASE}/jobs/new?verb=replay&all=1", {**HTML, **bearer(role)}))[1]
            assert ('method="post"' in page) == (status != 403)


async def test_who_may_only_look_cannot_probe(worker: FakeWorker) -> None:
    """A search by key would tell which keys there are."""
    async with serving(worker, ACCESS) as url:
        assert (await ask(url, f"{BASE}/dead?key=customer-7", bearer(Role.LOOK)))[0] == 403
        assert (await ask(url, f"{BASE}/dead?key=customer-7", bearer(Role.OPERATE)))[0] == 200
        assert (await ask(url, f"{BASE}/dead?key=", bearer(Role.LOOK)))[0] == 200, "an empty field of the form"
        assert (await ask(url, f"{BASE}/dead?key=&key=customer-7", bearer(Role.LOOK)))[0] == 403, "the last one counts"


async def test_strangers_are_told_whether_a_worker_lives_and_not_more(worker: FakeWorker) -> None:
    """Probes have no token; why a worker is not ready names topics and errors."""
    worker.is_ready = False
    stranger = {"X-Forwarded-For": "192.0.2.7"}
    async with serving(worker, Operators()) as url:
        assert (await ask(url, "/retries/health", stranger))[0] == 200
        status, body = await ask(url, "/retries/ready", stranger)
        assert (status, MAIN in body) == (503, False)
        assert MAIN in (await ask(url, "/retries/ready"))[1]
    async with serving(worker, HOOKED) as url:
        for session, told in (("eve-3", True), ("", False)):
            _, body = await ask(url, "/retries/ready", {**HTML, "Cookie": f"session={session}"})
            assert (MAIN in body) == told, "a login hook knows people, too"


async def test_a_worker_asks_others_with_the_secret_of_the_group(worker: FakeWorker) -> None:
    """Pages of other machines need a token to be looked at, which workers do not have."""
    other, asking = busy_worker(), worker
    other.parts[MAIN] = [partition(0, state="elsewhere"), partition(1, pending=40)]
    for secret, pending in (("s3cret", 43), ("another", 3), ("", 3)):
        guarded = parse_operators("local:look", proxies="127.0.0.1", peer_secret="s3cret")  # noqa: S106
        async with serving(other, guarded) as peer:
            other.address = peer
            asking.parts[MAIN] = [partition(0, pending=3), partition(1, state="elsewhere", owner_url=peer)]
            async with serving(asking, Operators(peer_secret=secret)) as url:
                group = json.loads((await ask(url, f"{BASE}/?format=json"))[1])["handler"]["group"]
                assert (group["pending"], group["silent"]) == (pending, [] if pending == 43 else [peer]), secret
                pages = [(await ask(url, path, HTML))[1] for path in (f"{BASE}/", f"{BASE}/dead")]
                for page in pages:
                    assert (f"{peer} refused to answer this worker" in page) == (pending == 3), secret
                    assert "No answer from" not in page, "it has answered"
                note = (await Workers(None, [url])._ask(NOW_MS)).note
                assert (f"{peer} refused to answer: set one RETRYAPP_PEER_SECRET" in note) == (pending == 3)


async def test_a_signature_is_for_one_worker_and_a_minute(worker: FakeWorker) -> None:
    """Whoever gets one cannot use it elsewhere, or later."""
    signing = Peers(lambda: NOW_MS, "s3cret")
    ours = signing._signature(worker.address + PART, NOW_MS)
    guarded = Operators(local=Role.NONE, peer_secret="s3cret")  # noqa: S106
    async with serving(worker, guarded) as url:
        for signature, status in (
            (ours, 200),
            (ours.upper(), 403),
            (signing._signature("http://127.0.0.1:6067" + PART, NOW_MS), 403),
            (signing._signature(worker.address + PART, NOW_MS - peers.SIGNED_MS - 1), 403),
            (ours.replace(str(NOW_MS), str(NOW_MS + 1)), 403),
            (f"{NOW_MS}:", 403),
            ("\u00fc", 403),
        ):
            assert (await ask(url, PART, {SIGNATURE: signature}))[0] == status, signature
        for other in ("/retries/", f"{PART}?x=1", f"{PART}/{MAIN}/dead"):
            assert (await ask(url, other, {SIGNATURE: ours}))[0] == 403, "it is for one address"


async def test_the_users_cors_is_for_the_users_pages(worker: FakeWorker) -> None:
    """Else any site that they trust could read and command in a reader's name."""
    allowed = faust.web.ResourceOptions(allow_credentials=True, allow_headers="*", expose_headers="*")
    app = faust.App(GROUP, web_cors_options={"http://trusted.example": allowed})
    register(app, worker, clock=VirtualClock(NOW_MS), operators=Operators(local=Role.ADMIN))

    @app.page("/mine/")
    async def mine(view: Any, request: Any) -> Any:
        return view.json({})

    app.web.init_server()
    foreign = {"Origin": "http://trusted.example", "Access-Control-Request-Method": "POST"}
    async with TestClient(TestServer(await app.web.wsgi())) as client:
        assert "Access-Control-Allow-Origin" in (await client.get("/mine/", headers=foreign)).headers
        for method, path in product(("GET", "OPTIONS", "POST"), ("/retries/", f"{BASE}/command")):
            answer = await client.request(method, path, headers=foreign)
            assert not [name for name in answer.headers if name.startswith("Access-Control")]
        assert (await client.post(f"{BASE}/command", headers=foreign, json={})).status == 403


HOSTILE = "\x1b]0;owned\x07\u202e\x9b2J</script><script>alert(1)</script>"


@pytest.mark.parametrize(("path", "form"), list(product(ADDRESSES, ("html", "json"))))
async def test_no_text_of_a_record_steers_a_browser_or_a_terminal(worker: FakeWorker, path: str, form: str) -> None:
    """Wherever it stands: key, value, header, type, message and trace of an error, reason of a pause, deep JSON."""
    raw: Any = {"headers": ((HOSTILE, HOSTILE.encode()),), "key": HOSTILE.encode()}
    texts: Any = {"error_message": HOSTILE, "error_trace": HOSTILE, "error_type": HOSTILE}
    worker.waiting.clear()
    worker.letters.clear()
    for number, value in enumerate((HOSTILE.encode(), DEEP.encode())):
        worker.wait(metadata(10_001 + number, **texts), **raw, value=value)
        worker.bury(238 + number, dead_metadata(2_119 + number, **texts), **raw, value=value)
    worker.parts[MAIN][0] = replace(worker.parts[MAIN][0], paused=HOSTILE, last_error=HOSTILE, circuit_cause=HOSTILE)
    async with serving(worker) as url:
        for address in {address_of(path), address_of(path).replace("10001", "10002").replace("238", "239")}:
            _, body = await ask(url, f"{address}?format={form}", HTML)
            assert not set("\x1b\x07\x9b\u202e") & set(body)
            assert body.startswith("{") or "<script>alert" not in body
