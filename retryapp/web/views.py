"""The pages under ``/retries/``: addresses, and who may ask there.

Addresses that show have one method, GET (and HEAD); two are sent something (`actions`). ``format=json`` gives the same
facts as JSON. Every error has one shape (``errors.PageError``): JSON, or a page with the same words for a browser.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp.typedefs import Handler
from aiohttp.web import HTTPFound, Request, StreamResponse, middleware

from retryapp.core.masking import UNMASKED, Mask
from retryapp.lookup.decoding import Decoding
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX, Clock, PartitionInfo
from retryapp.runtime.view import RuntimeView
from retryapp.web.access import NOBODY, Operators, Role
from retryapp.web.actions import Action, CommandPage, Login, Logout, SelectionPage, outcome
from retryapp.web.answers import Answers
from retryapp.web.api import document
from retryapp.web.audit import audit
from retryapp.web.errors import PageError, not_found
from retryapp.web.jobs import StartJob, TellHandler, TellJob, job, jobs, preview, refused
from retryapp.web.journeys import journey
from retryapp.web.lists import Listing, Row, answer_of, chosen_of
from retryapp.web.page import Ask, Page
from retryapp.web.partitions import partitions, partitions_here
from retryapp.web.query import Question
from retryapp.web.render import JSON, to_json
from retryapp.web.turns import compute

if TYPE_CHECKING:
    import faust
    from faust.types.web import Web


METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def find(answers: Answers, question: Question) -> Facts:
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
    return {"ok": True}


async def metrics(answers: Answers, _question: Question) -> tuple[bytes, str]:
    return await answers.view.metrics_text(), METRICS_TYPE


async def openapi(_answers: Answers, _question: Question) -> tuple[bytes, str]:
    needs = {path: role for path, (_, _, role) in ROUTES} | {path: role for path, (_, role) in ACTIONS}
    return await compute(lambda: to_json(document(tuple(needs.items()))).encode()), JSON


def listed(own: Callable[[Answers, Question, Sequence[PartitionInfo]], Awaitable[Listing[Row]]]) -> Ask:
    """Return what lists the partitions of this worker, for the lists of the others."""

    async def list_own(answers: Answers, question: Question) -> Facts:
        info = answers.get_handler_or_404(question.main)
        listing = await own(answers, question, chosen_of(answers.view.partitions(info.main), question))
        return await compute(answer_of, listing)

    return list_own


async def nothing(_answers: Answers, question: Question) -> Facts:
    """Refuse every other address below ours."""
    raise not_found("no-such-page", f"no page at {question.path}", f"Start at {PAGES_PREFIX}/")


ROUTES: Final[tuple[tuple[str, tuple[Ask, str, Role]], ...]] = (
    ("", (slash, "", Role.LOOK)),
    ("/", (Answers.index, "index.html", Role.LOOK)),
    ("/health", (health, "", Role.NONE)),
    ("/ready", (Answers.ready, "", Role.NONE)),
    ("/part", (Answers.part, "", Role.LOOK)),
    ("/part/{main}/pending", (listed(Answers.pending_here), "", Role.LOOK)),
    ("/part/{main}/dead", (listed(Answers.dead_here), "", Role.LOOK)),
    ("/part/{main}/due", (Answers.due_here, "", Role.LOOK)),
    ("/part/{main}/partitions", (partitions_here, "", Role.LOOK)),
    ("/metrics", (metrics, "", Role.LOOK)),
    ("/api/openapi.json", (openapi, "", Role.NONE)),
    ("/api/commands/{main}/{partition}/{offset}", (outcome, "outcome.html", Role.LOOK)),
    ("/{main}", (slash, "", Role.LOOK)),
    ("/{main}/", (Answers.handler, "handler.html", Role.LOOK)),
    ("/{main}/find", (find, "", Role.LOOK)),
    ("/{main}/partitions", (partitions, "partitions.html", Role.LOOK)),
    ("/{main}/pending", (Answers.pending, "pending.html", Role.LOOK)),
    ("/{main}/pending/{partition}/{offset}", (Answers.pending_record, "pending_record.html", Role.LOOK)),
    ("/{main}/dead", (Answers.dead, "dead.html", Role.LOOK)),
    ("/{main}/dead/{partition}/{offset}", (Answers.dead_letter, "dead_letter.html", Role.LOOK)),
    ("/{main}/audit", (audit, "audit.html", Role.LOOK)),
    ("/{main}/journey", (journey, "journey.html", Role.LOOK)),
    ("/{main}/jobs", (jobs, "jobs.html", Role.LOOK)),
    ("/{main}/jobs/new", (preview, "preview.html", Role.OPERATE)),
    ("/{main}/jobs/{job}", (job, "job.html", Role.LOOK)),
    ("/{main}/jobs/{job}/refused", (refused, "refused.html", Role.LOOK)),
    ("/{rest:.*}", (nothing, "", Role.NONE)),
)
"""Addresses below ``PAGES_PREFIX``, in the order in which they are tried; the last one takes what is left.

Each with what to ask, the template that shows it (without one the answer is JSON, or the metrics' text), and the role
that it needs. What only operators may see is left out of the answers of others (`hiding`)."""


ACTIONS: Final[tuple[tuple[str, tuple[type[Action], Role]], ...]] = (
    ("/login", (Login, Role.NONE)),
    ("/logout", (Logout, Role.NONE)),
    ("/{main}/command", (CommandPage, Role.OPERATE)),
    ("/{main}/command/selection", (SelectionPage, Role.OPERATE)),
    ("/{main}/command/handler", (TellHandler, Role.ADMIN)),
    ("/{main}/command/job", (StartJob, Role.OPERATE)),
    ("/{main}/command/job/{job}", (TellJob, Role.OPERATE)),
)
"""Addresses that are sent something. Topics ``login`` and ``logout`` have pages at ``/login/`` and ``/logout/``."""


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


def register(
    app: faust.App,
    view: RuntimeView,
    *,
    clock: Clock,
    operators: Operators = NOBODY,
    mask: Mask = UNMASKED,
    decoding: Decoding | None = None,
) -> None:
    """Add the pages to an app; `operators` says who may do what, `mask` what nobody sees, `decoding` decodes payloads.

    Call it once per app, at any time before its web server starts, before or after the app is configured. Faust serves
    pages from before the consumer starts until the end, so ``view`` must answer from the first moment (``ready()``
    False, every partition closed); it is asked on the web server's event loop: the worker's, unless ``web_in_thread``.

    The routes are added in ``App.on_webserver_init``, Faust's own hook, and not by ``app.web.blueprints.add`` in
    ``on_after_configured``: where ``app.web`` is what first asks for the settings (as ``@app.page`` does), Faust makes
    a second web server there and throws away the one that got the blueprint. They are routes of aiohttp, not of Faust:
    those would have the app's ``web_cors_options``, which are for the user's own pages.

    Raises:
        RuntimeError: the app's web server has its pages already.
    """
    if "web" in vars(app) and app.web.blueprints.applied:
        raise RuntimeError("the web server of this app has started: register the pages before")
    answers = Answers(view, clock, operators, mask, decoding)
    pages: list[tuple[str, Page]] = [(path, action(answers, app, needs)) for path, (action, needs) in ACTIONS]
    pages += [(path, Page(answers, app, needs, ask, template)) for path, (ask, template, needs) in ROUTES]
    before = app.on_webserver_init
    added = False

    def on_webserver_init(server: Web) -> None:
        nonlocal added
        before(server)
        if not added:  # a worker calls this twice
            added = True
            for path, page in pages:
                cast("Any", server).web_app.router.add_route("*", PAGES_PREFIX + path, page.handle)
            lead_to_overview(server)

    app.on_webserver_init = on_webserver_init  # type: ignore[assignment,method-assign]  # a hook to be overridden
