"""Pages in a real browser: nothing is cut, readable in light and dark, whole with the keyboard alone, live."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from functional.web.server import Served
from functional.web.test_jobs import fit
from functional.web.test_pages import HTML_PAGES, unknown
from functional.web.worker import BASE, GROUP, MAIN, NOW_MS, FakeWorker, busy_worker, dead_metadata, handler
from harness.browser import LOOKS, open_browser
from samples import partition

from retryapp.core.jobs import PartState

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]


@pytest.fixture
def served() -> Iterator[Served]:
    worker = busy_worker()
    fit(worker)
    with Served(worker) as made:
        yield made


def empty_worker() -> FakeWorker:
    worker = FakeWorker(infos=[handler(partitions=2)])
    worker.parts["shop.orders"] = [partition(0), partition(1)]
    return worker


EMPTY_PAGES = ["/retries/", f"{BASE}/", f"{BASE}/pending", f"{BASE}/dead", f"{BASE}/jobs", f"{BASE}/partitions"]


def cut_off_worker() -> FakeWorker:
    """Return a worker that no broker answers, beside one that does not answer either."""
    worker = busy_worker(peer="http://127.0.0.1:9")
    unknown(worker)
    worker.broker_down = True
    return worker


CUT_OFF_PAGES = [*EMPTY_PAGES, "/retries/flights/", f"{BASE}/dead/1/9"]
"""The last one is refused."""


@pytest.mark.parametrize(
    ("worker", "paths"),
    [(busy_worker(), HTML_PAGES), (empty_worker(), EMPTY_PAGES), (cut_off_worker(), CUT_OFF_PAGES)],
    ids=["busy", "empty", "cut off"],
)
def test_pages_are_whole_on_every_screen(worker: FakeWorker, paths: list[str]) -> None:
    """At 1280 and 390 px, light and dark: nothing wider than the screen, no fault that axe knows, no error."""
    with open_browser() as browser, Served(worker) as served:
        from axe_playwright_python.sync_playwright import Axe

        problems: list[str] = []
        for width, scheme in LOOKS:
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
            page.on("pageerror", lambda error, seen=problems: seen.append(str(error)))
            for path in paths:
                page.goto(f"{served.url}{path}{'&' if '?' in path else '?'}refresh=0")
                where = f"{path} at {width} px, {scheme}"
                if (needed := page.evaluate("document.documentElement.scrollWidth")) > width:
                    problems.append(f"{where} needs {needed} px")
                found = Axe().run(page).response["violations"]
                problems += [f"{where}: {each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]
            page.close()
        assert problems == []


def test_the_overview_is_seen_whole_where_a_worker_is_silent(served: Served) -> None:
    """What is left out, said in four columns, pushed the last ones out and made each row twelve lines high."""
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{served.url}/retries/")
        page.get_by_text("1 of 2 workers").wait_for()
        table = page.get_by_role("region", name="Handlers")
        assert table.evaluate("each => each.scrollWidth - each.clientWidth") == 0
        assert table.evaluate("each => each.clientHeight") < 300


def test_a_long_type_of_error_pushes_no_button_out(served: Served) -> None:
    """The buttons that replay or discard a cause are seen without scrolling its table."""
    row = next(row for rows in served.worker.letters.values() for row in rows if row.cause)
    served.worker.letters[0] = [replace(row, cause="retryapp.core.errors.UndecodableErrorOfALongName: no Order")]
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{served.url}{BASE}/")
        page.get_by_text("UndecodableErrorOfALongName").wait_for()
        buttons = page.get_by_role("link", name="Discard these…").all()
        rights = [box["x"] + box["width"] for button in buttons if (box := button.bounding_box()) is not None]
        assert rights
        assert max(rights) < 1260


@pytest.mark.parametrize("key", [b"\xff" * 32, b"K" * 32, b""])
def test_a_long_key_pushes_no_error_out(served: Served, key: bytes) -> None:
    """A key of 32 bytes that is no text took half of the list, and the errors had to be scrolled to."""
    served.worker.bury(900, dead_metadata(900), key=key, append_ms=NOW_MS)
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{served.url}{BASE}/dead")
        table = page.get_by_role("region", name="Dead letters")
        assert table.evaluate("each => each.scrollWidth - each.clientWidth") == 0
        said = {b"": "empty", b"K" * 32: "K" * 32}.get(key, f"0x{key.hex()}")
        assert table.get_by_text(said, exact=True).count() == 1


FORM = """<form action="{to}" method="post"{more}>
<input name="verb" value="replay"><input name="failure_id" value="{name}"><input name="why" value="x"></form>
<script>document.forms[0].submit()</script>"""
FETCH = "<script>fetch('{to}', {{method: 'POST', mode: 'no-cors', body: new URLSearchParams({fields})}})</script>"
FRAME = '<iframe sandbox="allow-scripts allow-forms" src="/form"></iframe>'
BLOB = "<script>location = URL.createObjectURL(new Blob([`{form}`], {{type: 'text/html'}}))</script>"
FORGED = ("form", "referrer", "format", "text", "fetch", "frame", "again", "blob", "file")


@contextmanager
def other_site(target: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Serve another site's pages, each of which has a browser send a command to `target`."""
    name = f"{GROUP}/{MAIN}@kq8G0bTz/0/10001"
    form = FORM.format(to=target, more="", name=name)
    fields = f"{{verb: 'replay', failure_id: '{name}', why: 'x'}}"
    found = {
        "form": form,
        "referrer": f'<meta name="referrer" content="no-referrer">{form}',
        "format": FORM.format(to=f"{target}?format=json", more="", name=name),
        "text": FORM.format(to=target, more=' enctype="text/plain"', name=name),
        "fetch": FETCH.format(to=target, fields=fields),
        "frame": FRAME,
        "again": FORM.format(to="/moved", more="", name=name),
        "blob": BLOB.format(form=form.replace("</script>", "<\\/script>")),
    }

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(found.get(self.path[1:], "").encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", target)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", found
        finally:
            server.shutdown()
            thread.join(20)


def test_no_other_site_has_a_browser_send_a_command(served: Served, tmp_path: Path) -> None:
    """However it tries; on this machine, where no cookie is needed, and from the same host."""
    with open_browser() as browser, other_site(f"{served.url}{BASE}/command") as (site, pages):
        for way in FORGED:
            page = browser.new_page()
            local = tmp_path / "form.html"
            local.write_text(pages["form"])
            with page.expect_response(lambda found: "/command" in found.url) as sent:
                page.goto(local.as_uri() if way == "file" else f"{site}/{way}", wait_until="commit")
            assert (sent.value.request.method, sent.value.status) == ("POST", 403), way
            page.close()
    assert served.worker.commands == []


def test_a_live_page_keeps_what_is_written(served: Served) -> None:
    """Numbers change under a form while somebody writes in it; our own script is the only one that may run."""
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(f"{served.url}{BASE}/?refresh=1")
        page.get_by_text("135", exact=True).first.wait_for()
        why = page.get_by_label("Why, for the audit")
        why.press_sequentially("ledger mi")
        served.worker.parts["shop.orders"][0] = partition(0, pending=64, dead=200, paused="paused by ann")
        page.get_by_role("button", name="Resume deliveries").wait_for(timeout=10_000)
        why.press_sequentially("grates")
        assert why.input_value() == "ledger migrates"
        assert page.evaluate("document.activeElement.name") == "why"
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
        assert page.evaluate("window.ran") is None


def reload_live(page: Page) -> None:
    """Wait until a live page has put its new content in place."""
    page.evaluate("document.querySelector('main').dataset.old = 'yes'")
    page.locator("main:not([data-old])").wait_for(timeout=10_000)


def test_a_live_page_says_that_it_is_live_no_more_once_its_job_has_ended(served: Served) -> None:
    """And the focus stays, also on what tells it."""
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(f"{served.url}{BASE}/jobs/3f9ca81b02")
        page.get_by_role("link", name="metrics").focus()
        page.locator("footer").get_by_text("live, every 2 s: stop").wait_for()
        served.worker.parts[MAIN] = [part for part in served.worker.parts[MAIN] if part.state == "open"]
        for part in (each[-1] for each in served.worker.remembered[MAIN].values()):
            part.state = PartState.ENDED
        served.worker.known = {"3f9ca81b02": {0: served.worker.remembered[MAIN][0][-1]}}
        page.locator("footer").get_by_role("link", name="live, every 5 s").wait_for(timeout=10_000)
        assert page.evaluate("document.activeElement.textContent") == "metrics"


REFUSALS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "a proxy's login": ({"status": 302, "headers": {"Location": "/login"}}, "another page answers"),
    "another site's login": ({"status": 302, "headers": {"Location": "http://127.0.0.1:9/"}}, "another page answers"),
    "a proxy's login at this address": ({"status": 200, "body": "<h1>Who are you?</h1>"}, "another page answers"),
    "nobody any more": ({"status": 401, "body": "<main>401</main>"}, "the answer is 401"),
    "no role any more": ({"status": 403, "body": "<main>403</main>"}, "the answer is 403"),
    "an error of a proxy": ({"status": 503, "body": "<main>503</main>"}, "the answer is 503"),
    "nothing": (None, "no answer from this worker"),
}


def answering(answer: dict[str, Any] | None) -> Callable[[Route], None]:
    return lambda route: route.abort() if answer is None else route.fulfill(**answer)


def test_a_live_page_says_when_it_is_live_no_longer(served: Served) -> None:
    """What was shown stays, with its time and what is written; it goes on once the worker answers again."""
    with open_browser() as browser:
        for name, (answer, said) in REFUSALS.items():
            page = browser.new_page()
            page.goto(f"{served.url}{BASE}/?refresh=1")
            page.get_by_label("Why, for the audit").fill("ledger migrates")
            side = page.locator("header .side")
            shown = side.inner_text()
            page.route("**/*", answering(answer))
            page.get_by_text(f"{shown}, not live since: {said}").wait_for(timeout=10_000)
            page.wait_for_timeout(1_500)
            assert side.inner_text().count("not live since") == 1, name
            assert page.get_by_text("135", exact=True).first.is_visible(), name
            page.unroute("**/*")
            page.locator("header .side:not(.bad)").wait_for(timeout=10_000)
            assert "not live" not in side.inner_text(), name
            assert page.get_by_label("Why, for the audit").input_value() == "ledger migrates", name
            page.close()


def test_a_live_list_keeps_which_letters_are_chosen(served: Served) -> None:
    """Each box by its letter, also when new ones come before it."""
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(f"{served.url}{BASE}/dead?partition=0&refresh=1")
        boxes = "[...document.querySelectorAll('[name=failure_ids]')].{0}.map(box => box.value)"
        there = page.evaluate(boxes.format("filter(box => true)"))
        page.locator(f"[value='{there[1]}']").check()
        served.worker.bury(9_000, dead_metadata(9_000, last_failed_ms=NOW_MS))
        reload_live(page)
        assert page.evaluate(boxes.format("filter(box => box.checked)")) == [there[1]]
        assert page.evaluate(boxes.format("filter(box => true)"))[1:3] == there[:2]


def test_a_live_page_keeps_what_is_chosen(served: Served) -> None:
    """Of radios, lists to choose from and long texts, in what was unfolded; one form does not take another's."""
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(f"{served.url}{BASE}/dead/0/238?refresh=1")
        page.get_by_text("Edit and replay").click()
        page.locator("[name=value]").fill('{"id": 1}')
        page.locator("[name=idempotency][value=keep]").check()
        page.get_by_label("Why, for the audit").last.fill("mended")
        reload_live(page)
        said = page.evaluate("Object.fromEntries(new FormData(document.querySelector('details form')))")
        assert (said["value"], said["idempotency"], said["why"]) == ('{"id": 1}', "keep", "mended")
        assert page.get_by_label("Why, for the audit").first.input_value() == ""
        assert page.locator("[name=idempotency][value=new]").is_visible()
        page.goto(f"{served.url}{BASE}/dead?refresh=1")
        page.get_by_text("Search and filter").click()
        page.locator("[name=reason]").select_option("crashed")
        page.locator("[name=cause]").focus()
        reload_live(page)
        assert page.locator("[name=reason]").input_value() == "crashed"
        assert page.evaluate("document.activeElement.name") == "cause"


def test_enter_in_a_form_of_several_buttons_sends_nothing(served: Served) -> None:
    """It retried now, or replayed, whatever the field was for; a button that has the focus sends."""
    with open_browser() as browser:
        page = browser.new_page()
        for path, label in ((f"{BASE}/pending/0/10001", "How long, for hold"), (f"{BASE}/dead/0/238", "Why, for the")):
            page.goto(served.url + path)
            page.evaluate("addEventListener('submit', event => { event.preventDefault(); document.title += ' sent' })")
            page.get_by_label(label).first.fill("2h")
            page.keyboard.press("Enter")
            assert not page.title().endswith("sent")
            page.get_by_role("button").first.press("Enter")
            assert page.title().endswith("sent")


def test_without_script_a_live_page_loads_itself_again(served: Served) -> None:
    """By the header that browsers without script obey."""
    with open_browser() as browser:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(f"{served.url}{BASE}/?refresh=1")
        served.worker.parts["shop.orders"][0] = partition(0, pending=64, dead=200, next_due_ms=NOW_MS)
        page.get_by_text("204", exact=True).first.wait_for(timeout=10_000)


def test_a_job_is_begun_with_the_keyboard_alone(served: Served) -> None:
    """From the overview to its start; every stop shows that it has the focus."""
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(f"{served.url}/")

        def reach(words: str) -> None:
            for _ in range(80):
                page.keyboard.press("Tab")
                focus = page.evaluate(
                    "[document.activeElement.innerText || document.activeElement.labels?.[0]?.innerText || '',"
                    " getComputedStyle(document.activeElement).outlineStyle]"
                )
                if focus[0].startswith(words):
                    assert focus[1] != "none", f"{words} does not show its focus"
                    return
            raise AssertionError(f"{words} cannot be reached")

        reach("shop.orders")  # what needs action is a list of its handlers' pages, the worst first
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Why records are dead").wait_for()
        reach("Replay these…")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Replay 700 dead letters?").wait_for()
        reach("Why, for the audit")
        page.keyboard.type("mended")
        reach("Replay 700")
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "/jobs/new" not in url)
        assert served.worker.asked[-1][1].why == "mended"
