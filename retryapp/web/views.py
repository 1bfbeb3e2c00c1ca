"""The pages under ``/retries/`` as Faust views.

Addresses that show have one method, GET (and HEAD); two are sent something (`actions`). ``format=json`` gives the same
facts as JSON. Every error has one shape (``errors.PageError``): JSON, or a page with the same words for a browser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiohttp.typedefs import Handler
from aiohttp.web import HTTPFound, Request, StreamResponse, middleware
from faust import web

from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX, Clock
from retryapp.runtime.view import RuntimeView
from retryapp.web.access import NOBODY, Operators
from retryapp.web.actions import Action, CommandPage, Login
from retryapp.web.answers import Answers
from retryapp.web.errors import PageError, not_found
from retryapp.web.jobs import StartJob, TellHandler, TellJob, job, jobs, preview
from retryapp.web.page import Ask, Page
from retryapp.web.query import Question

if TYPE_CHECKING:
    import faust
    from faust.types.web import Web


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
    return await answers.view.metrics_text()


async def nothing(_answers: Answers, question: Question) -> Facts:
    """Refuse every other address below ours."""
    raise not_found("no-such-page", f"no page at {question.path}", f"Start at {PAGES_PREFIX}/")


ROUTES: Final[tuple[tuple[str, tuple[Ask, str]], ...]] = (
    ("", (slash, "")),
    ("/", (Answers.index, "index.html")),
    ("/health", (health, "")),
    ("/ready", (Answers.ready, "")),
    ("/part", (Answers.part, "")),
    ("/metrics", (metrics, "")),
    ("/{main}", (slash, "")),
    ("/{main}/", (Answers.handler, "handler.html")),
    ("/{main}/find", (find, "")),
    ("/{main}/partitions", (Answers.partitions, "partitions.html")),
    ("/{main}/pending", (Answers.pending, "pending.html")),
    ("/{main}/pending/{partition}/{offset}", (Answers.pending_record, "pending_record.html")),
    ("/{main}/dead", (Answers.dead, "dead.html")),
    ("/{main}/dead/{partition}/{offset}", (Answers.dead_letter, "dead_letter.html")),
    ("/{main}/jobs", (jobs, "jobs.html")),
    ("/{main}/jobs/new", (preview, "preview.html")),
    ("/{main}/jobs/{job}", (job, "job.html")),
    ("/{rest:.*}", (nothing, "")),
)
"""Addresses below ``PAGES_PREFIX``, in the order in which they are tried; the last one takes what is left.

Each with what to ask and the template that shows it; without one the answer is JSON (or the metrics' text)."""


ACTIONS: Final[tuple[tuple[str, type[Action]], ...]] = (
    ("/login", Login),
    ("/{main}/command", CommandPage),
    ("/{main}/command/handler", TellHandler),
    ("/{main}/command/job", StartJob),
    ("/{main}/command/job/{job}", TellJob),
)
"""Addresses that are sent something. A handler of a topic ``login`` has its page at ``/login/``."""


def lead_to_overview(server: Any) -> None:
    """Send browsers from ``/`` to the overview, where Faust's own ``{"status": "OK"}`` is all that is there."""
    if type(server.views.get("/")).__module__ != "faust.web.apps.production_index":
        return  # a page of the user's

    @middleware
    async def lead(request: Request, handler: Handler) -> StreamResponse:
        if request.path == "/" and "text/html" in request.headers.get("Accept", ""):
            raise HTTPFound(f"{PAGES_PREFIX}/")
        return await handler(request)

    server.web_app.middlewares.append(lead)


def register(app: faust.App, view: RuntimeView, *, clock: Clock, operators: Operators = NOBODY) -> None:
    """Add the pages to an app; `operators` may steer through them.

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
    answers = Answers(view, clock, operators)
    for path, action in ACTIONS:
        blueprint.route(PAGES_PREFIX + path, name=f"page{path}")(type("Page", (action,), {"answers": answers}))
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
            lead_to_overview(server)

    app.on_webserver_init = on_webserver_init  # type: ignore[assignment,method-assign]  # a hook to be overridden
