"""Log in and log out with a browser: the cookie, and the page to which a login leads."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from functional.web.server import Outline, opened
from functional.web.test_actions import ANN, REPLAY, TOKEN
from functional.web.worker import BASE, FakeWorker

from retryapp.web.access import COOKIE


async def test_a_browser_logs_in(worker: FakeWorker) -> None:
    """The cookie is for the pages alone, unknown to scripts, and not sent by other sites."""
    async with opened(worker, ANN) as site:
        assert 'type="password"' in await site.page("/retries/login")
        html = {"Accept": "text/html"}
        status, body, headers = await site.post({"token": "guess"}, html, "/retries/login")
        assert (status, "no operator" in body, "Set-Cookie" in headers) == (200, True, False)
        status, _, headers = await site.post({"token": TOKEN}, html, "/retries/login")
        assert (status, headers["Location"]) == (303, "/retries/")
        parts = {part.strip() for part in headers["Set-Cookie"].split(";")}
        assert {f"{COOKIE}={TOKEN}", "HttpOnly", "SameSite=Strict", "Path=/retries"} <= parts


async def test_a_browser_logs_out(worker: FakeWorker) -> None:
    """Any page has the button, where there is a cookie; no other site can press it."""
    async with opened(worker, ANN) as site:
        assert "log out" not in await site.page("/retries/login")
        html = {"Accept": "text/html", "Cookie": f"{COOKIE}={TOKEN}"}
        for path in (f"{BASE}/", "/retries/nosuch"):
            assert 'action="/retries/logout" method="post"' in await site.page(path, html)
        assert (await site.post({}, {**html, "Origin": "http://evil.example"}, "/retries/logout"))[0] == 403
        status, _, headers = await site.post({}, html, "/retries/logout")
        assert (status, headers["Location"]) == (303, "/retries/login")
        assert {f'{COOKIE}=""', "Max-Age=0", "Path=/retries"} <= {
            part.strip() for part in headers["Set-Cookie"].split(";")
        }


@pytest.mark.parametrize(
    ("page", "to"),
    [
        (f"{BASE}/dead?cause=c1-0011223344", f"{BASE}/dead?cause=c1-0011223344"),
        (f"{BASE}/command", "/retries/"),
        ("/retries/logout", "/retries/"),
        ("/retries/login?x", "/retries/"),
        (f"{BASE}/command?x", "/retries/"),
        ("/retries/../other", "/retries/"),
        ("/retries/%2e%2E/other", "/retries/"),
        ("/retries/./login", "/retries/"),
        ("/other", "/retries/"),
        ("http://evil.example/retries/", "/retries/"),
    ],
)
async def test_a_login_leads_to_the_page_that_asked_for_it(worker: FakeWorker, page: str, to: str) -> None:
    """It led to the overview, and a link of an alert had to be opened again."""
    async with opened(worker, ANN) as site:
        here = page if page.startswith("http") else site.url + page
        assert f'name="to" value="{to}"' in await site.page("/retries/login", {"Referer": here})
        forged = {"Referer": f"http://evil.example/{site.url}{BASE}/"}
        assert 'name="to" value="/retries/"' in await site.page("/retries/login", forged)
        sent = {"token": TOKEN, "to": page}
        _, _, headers = await site.post(sent, {"Accept": "text/html"}, "/retries/login")
        assert headers["Location"] == to
        _, body, _ = await site.post({**sent, "token": "guess"}, {"Accept": "text/html"}, "/retries/login")
        assert f'name="to" value="{to}"' in body


async def test_a_login_that_a_form_has_asked_for_leads_back_to_the_form(worker: FakeWorker) -> None:
    """A session had ended meanwhile: the login led to the overview, and the record had to be found again."""
    form = f"{BASE}/dead?cause=c1-0011223344"
    async with opened(worker, ANN) as site:
        html = {"Accept": "text/html", "Referer": site.url + form, "Sec-Fetch-Site": "same-origin"}
        status, body, _ = await site.post(REPLAY, html)
        assert (status, worker.commands, "log in in another tab" in body) == (401, [], True)
        logins = {link for link in Outline(body).links if link.startswith("/retries/login")}
        assert logins == {f"/retries/login?to={quote(form, safe='')}"}
        (login,) = logins
        assert f'name="to" value="{form}"' in await site.page(login, {"Referer": f"{site.url}{BASE}/command"})
        assert 'name="to" value="/retries/"' in await site.page("/retries/login?to=//evil.example/retries/")
