"""The pages under ``/retries/`` as Faust views: route, ask, present.

Each address has one method, GET (and HEAD). ``format=json`` gives the same facts as JSON. Every error has one shape
(``errors.PageError``): JSON, or a page with the same words for a browser.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from faust import web

from retryapp.core.errors import RetryAppError
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX, Clock
from retryapp.runtime.view import RuntimeView
from retryapp.web.answers import Answers
from retryapp.web.errors import SOON, PageError, not_found
from retryapp.web.query import Question, question_of
from retryapp.web.render import HTML, JSON, safety_headers, status_text, to_html, to_json

if TYPE_CHECKING:
    import faust
    from faust.types.web import Web

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger(__name__)


class Page(web.View):
    """Checks the query, asks, presents the answer, and refuses in one shape."""

    answers: ClassVar[Answers]
    """Set by ``register`` on a subclass per route, so that two apps in one process do not share a worker."""

    ask: ClassVar[Ask]
    template: ClassVar[str]

    async def get(self, request: web.Request, **match: str) -> web.Response:
        """Answer a GET request."""
        try:
            question = question_of(request.query, match, request.rel_url.raw_path)
            return await self._present(request, question, await type(self).ask(self.answers, question))
        except PageError as error:
            return self._refuse(request, error)
        except RetryAppError as error:  # a table was closed while it was read
            return self._refuse(request, PageError(503, "try-again", str(error), "Ask again in a few seconds", SOON))
        except Exception:  # edge of the process: the log has the traceback, the reader an answer
            logger.exception("retryapp.page_failed", extra={"path": request.rel_url.path})
            hint = "The worker's log has a traceback; retries go on"
            return self._refuse(request, PageError(500, "page-failed", "this page failed", hint))

    async def post(self, request: web.Request, **match: str) -> web.Response:
        """Refuse all other methods."""
        message, hint = f"{request.method} is not possible here", "Pages only show: use GET or HEAD"
        return self._refuse(request, PageError(405, "method-not-allowed", message, hint, {"Allow": "GET, HEAD"}))

    put = patch = delete = options = search = post

    async def _present(self, request: web.Request, question: Question, facts: Facts | bytes) -> web.Response:
        """Write the answer in a thread: a long list takes some 50 ms, in which records would wait."""
        if isinstance(facts, bytes):
            return self.bytes(facts, headers={**safety_headers(), "Content-Type": METRICS_TYPE})
        if self.template:
            facts = {**facts, "broker_silence": self.answers.view.silence()}
        if question.as_json or not self.template:
            return self._respond(await asyncio.to_thread(to_json, facts), JSON)
        shown = {**self._frame(request), **facts, "refresh_s": question.refresh_s}
        return self._respond(await asyncio.to_thread(to_html, self.template, shown), HTML)

    def _refuse(self, request: web.Request, error: PageError) -> web.Response:
        wants_html = request.query.get("format") != "json" and "text/html" in request.headers.get("Accept", "")
        if not wants_html:
            return self._respond(to_json(error.facts), JSON, error)
        frame = {**self._frame(request), "refresh_s": None, "broker_silence": None, "status": status_text(error.status)}
        return self._respond(to_html("error.html", {**frame, **error.facts}), HTML, error)

    def _respond(self, body: str, content_type: str, error: PageError | None = None) -> web.Response:
        headers = {**safety_headers(), **(error.headers if error else {})}
        return self.text(body, content_type=content_type, status=error.status if error else 200, headers=headers)

    def _frame(self, request: web.Request) -> Facts:
        """Return what every page has around its facts."""
        query = {name: value for name, value in request.query.items() if name not in {"format", "refresh", "routed"}}
        return {
            "prefix": PAGES_PREFIX,
            "app_id": self.app.conf.id,
            "now_ms": self.answers.now_ms(),
            "path": request.rel_url.path,
            "query": query,
        }


async def find(answers: Answers, question: Question) -> Facts:
    """Send the reader to the page of a failure id."""
    path = answers.find(question)
    raise PageError(
        303,
        "see-other",
        f"the record is at {path}",
        "Follow the Location header",
        {"Location": f"{path}{'&' if '?' in path else '?'}format=json" if question.as_json else path},
    )


async def slash(answers: Answers, question: Question) -> Facts:
    """Send the reader to the address with a slash at its end, when there is such a handler."""
    if question.main:
        answers.get_handler_or_404(question.main)
    path = question.address(path=f"{question.path}/")
    raise PageError(308, "add-slash", f"the page is at {path}", "Follow the Location header", {"Location": path})


async def health(_answers: Answers, _question: Question) -> Facts:
    """Return that pages are served."""
    return {"ok": True}


async def metrics(answers: Answers, _question: Question) -> bytes:
    """Return the metrics in the Prometheus text format."""
    return answers.view.metrics_text()


async def nothing(_answers: Answers, question: Question) -> Facts:
    """Refuse every other address below ours."""
    raise not_found("no-such-page", f"no page at {question.path}", f"Start at {PAGES_PREFIX}/")


Ask = Callable[[Answers, Question], Awaitable[Facts | bytes]]

ROUTES: Final[tuple[tuple[str, tuple[Ask, str]], ...]] = (
    ("", (slash, "")),
    ("/", (Answers.index, "index.html")),
    ("/health", (health, "")),
    ("/ready", (Answers.ready, "")),
    ("/metrics", (metrics, "")),
    ("/{main}", (slash, "")),
    ("/{main}/", (Answers.handler, "handler.html")),
    ("/{main}/find", (find, "")),
    ("/{main}/partitions", (Answers.partitions, "partitions.html")),
    ("/{main}/pending", (Answers.pending, "pending.html")),
    ("/{main}/pending/{partition}/{offset}", (Answers.pending_record, "pending_record.html")),
    ("/{main}/dead", (Answers.dead, "dead.html")),
    ("/{main}/dead/{partition}/{offset}", (Answers.dead_letter, "dead_letter.html")),
    ("/{rest:.*}", (nothing, "")),
)
"""Addresses below ``PAGES_PREFIX``, in the order in which they are tried; the last one takes what is left.

Each with what to ask and the template that shows it; without one the answer is JSON (or the metrics' text)."""


def register(app: faust.App, view: RuntimeView, *, clock: Clock) -> None:
    """Add the pages to an app.

    Call it once per app, at any time before its web server starts, before or after the app is configured. Faust serves
    pages from before the consumer starts until the end, so ``view`` must answer from the first moment (``ready()``
    False, every partition closed); it is asked on the web server's event loop: the worker's, unless ``web_in_thread``.

    The routes are added in ``App.on_webserver_init``, Faust's own hook, and not by ``app.web.blueprints.add`` in
    ``on_after_configured``: where ``app.web`` is what first asks for the settings (as ``@app.page`` does), Faust makes
    a second web server there and throws away the one that got the blueprint.

    Raises:
        RuntimeError: the app's web server has its pages already.
    """
    if "web" in vars(app) and app.web.blueprints.applied:
        raise RuntimeError("the web server of this app has started: register the pages before")
    blueprint = web.Blueprint("retryapp")
    answers = Answers(view, clock)
    for path, (ask, template) in ROUTES:  # a view class per route: Faust writes name and path into the class
        names: dict[str, Any] = {"answers": answers, "ask": staticmethod(ask), "template": template}
        blueprint.route(PAGES_PREFIX + path, name=f"page{path}")(type("Page", (Page,), names))
    before = app.on_webserver_init
    added = False

    def on_webserver_init(server: Web) -> None:
        nonlocal added
        before(server)
        if not added:  # a worker calls this twice
            added = True
            blueprint.register(app)

    app.on_webserver_init = on_webserver_init  # type: ignore[assignment,method-assign]  # a hook to be overridden
