"""The pages under ``/retries/`` as Faust views: route, ask, present.

Each view is one address with one method, GET (and HEAD). ``format=json`` gives the same facts as JSON. Whatever goes
wrong, the answer has one shape (``errors.PageError``): JSON, or a page with the same words for a browser.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from faust import web

from retryapp.web.answers import PREFIX, Answers, Locate
from retryapp.web.errors import PageError, bad_parameter, not_found
from retryapp.web.query import Question, question_of
from retryapp.web.records import Facts
from retryapp.web.render import HTML, JSON, safety_headers, status_text, to_html, to_json

METRICS_TYPE: Final = "text/plain"
METRICS_VERSION: Final = "version=0.0.4; charset=utf-8"

logger = logging.getLogger(__name__)


class Page(web.View):
    """One address. Subclasses answer; this class checks the query, presents the answer and refuses in one shape."""

    answers: ClassVar[Answers]
    """Set by ``register`` on a subclass of its own, so that two apps in one process do not share a worker."""

    template: ClassVar[str] = ""

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Any:
        """Return facts, or a whole response."""
        raise NotImplementedError

    async def get(self, request: web.Request, **match: str) -> web.Response:
        """Answer a GET request."""
        try:
            question = question_of(request.query)
            result = await self.answer(request, question, match)
            return await self._present(request, question, result) if isinstance(result, dict) else result
        except PageError as error:
            return self._refuse(request, error)
        except Exception:  # edge of the process: the log has the traceback, the reader an answer
            logger.exception("retryapp.page_failed", extra={"path": request.rel_url.path})
            return self._refuse(
                request,
                PageError(500, "page-failed", "this page failed", "The worker's log has a traceback; retries go on"),
            )

    async def post(self, request: web.Request, **match: str) -> web.Response:
        """Refuse: pages are for looking."""
        return self._refuse(
            request,
            PageError(
                405,
                "method-not-allowed",
                f"{request.method} is not possible here",
                "Pages only show: use GET or HEAD",
                {"Allow": "GET, HEAD"},
            ),
        )

    put = patch = delete = options = search = post

    async def _present(self, request: web.Request, question: Question, facts: Facts) -> web.Response:
        """Write the answer in a thread: a long list takes some 50 ms, in which records would wait."""
        if question.as_json:
            return self._respond(await asyncio.to_thread(to_json, facts), JSON)
        shown = {**self._frame(request), **facts, "refresh_s": question.refresh_s}
        return self._respond(await asyncio.to_thread(to_html, self.template, shown), HTML)

    def _refuse(self, request: web.Request, error: PageError) -> web.Response:
        if _wants_html(request):
            frame = {**self._frame(request), "refresh_s": None, "status": status_text(error.status)}
            return self._respond(to_html("error.html", {**frame, **error.facts}), HTML, error)
        return self._respond(to_json(error.facts), JSON, error)

    def _respond(self, body: str, content_type: str, error: PageError | None = None) -> web.Response:
        headers = {**safety_headers(), **(error.headers if error else {})}
        return self.text(body, content_type=content_type, status=error.status if error else 200, headers=headers)

    def _frame(self, request: web.Request) -> Facts:
        """Return what every page has around its facts."""
        query = {name: value for name, value in request.query.items() if name not in {"format", "refresh", "routed"}}
        return {
            "prefix": PREFIX,
            "app_id": self.app.conf.id,
            "now_ms": self.answers.now_ms(),
            "path": request.rel_url.path,
            "query": query,
        }


def _wants_html(request: web.Request) -> bool:
    return request.query.get("format") != "json" and "text/html" in request.headers.get("Accept", "")


def _locate(request: web.Request) -> Locate:
    """Return how this question is asked at another worker; the mark keeps two workers from sending it to and fro."""
    query = urlencode({**dict(request.query), "routed": "1"})
    return lambda url: f"{url}{request.rel_url.raw_path}?{query}"


class Index(Page):
    """All handlers."""

    template = "index.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return the handlers with their totals."""
        return await self.answers.index()


class Handler(Page):
    """One handler."""

    template = "handler.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return topics, policy and partitions."""
        return await self.answers.handler(match["main"])


class Pending(Page):
    """Waiting records."""

    template = "pending.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return one page of them."""
        facts = await self.answers.pending(match["main"], question, _locate(request))
        return {**facts, "next": _next(request, "after", facts["next_after"])}


class Due(Page):
    """How much becomes due when."""

    template = "due.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return counts by time."""
        return await self.answers.due(match["main"], question, _locate(request))


class Partitions(Page):
    """Each partition of a handler: owner, lane, lag."""

    template = "partitions.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return one line for each."""
        return await self.answers.partitions(match["main"])


class PendingRecord(Page):
    """One waiting record."""

    template = "pending_record.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return it with headers, key and value."""
        at = (match["partition"], match["offset"])
        return await self.answers.pending_record(match["main"], at, question, _locate(request))


class Dead(Page):
    """Dead letters."""

    template = "dead.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return one page of them."""
        facts = await self.answers.dead(match["main"], question, _locate(request))
        return {**facts, "next": _next(request, "before", facts["next_before"])}


class DeadLetter(Page):
    """One dead letter."""

    template = "dead_letter.html"

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Return it with headers, key and value."""
        at = (match["partition"], match["offset"])
        return await self.answers.dead_letter(match["main"], at, question, _locate(request))


class Find(Page):
    """Look-up by failure id."""

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> web.Response:
        """Send the reader to the record's page."""
        wanted = request.query.get("id", "")
        if not wanted:
            raise bad_parameter("id", wanted, "a failure id: group/topic@id/partition/offset")
        path = self.answers.find(match["main"], wanted, question, _locate(request))
        return self._redirect(path, "format=json" if question.as_json else "")

    def _redirect(self, path: str, query: str) -> web.Response:
        location = f"{path}?{query}" if query else path
        return self.text("", status=303, headers={**safety_headers(), "Location": location})


class Slash(Page):
    """An address without its last slash."""

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> web.Response:
        """Send the reader to the address with the slash, when there is such a handler."""
        if "main" in match:
            self.answers.get_handler_or_404(match["main"])
        query = f"?{request.query_string}" if request.query_string else ""
        location = f"{request.rel_url.raw_path}/{query}"
        return self.text("", status=308, headers={**safety_headers(), "Location": location})


class Health(Page):
    """Whether the pages are served at all."""

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> web.Response:
        """Answer yes."""
        return self._respond(to_json({"ok": True}), JSON)


class Ready(Page):
    """Whether every lane of this worker is open."""

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> web.Response:
        """Answer yes, or refuse with 503 and say what waits."""
        return self._respond(to_json(await self.answers.get_ready_or_503()), JSON)


class Metrics(Page):
    """Prometheus metrics."""

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> web.Response:
        """Return the metrics as text."""
        headers = {**safety_headers(), "Content-Type": f"{METRICS_TYPE}; {METRICS_VERSION}"}
        return self.bytes(self.answers.view.metrics_text(), headers=headers)


class Nothing(Page):
    """Every other address below ours."""

    async def answer(self, request: web.Request, question: Question, match: Mapping[str, str]) -> Facts:
        """Refuse with 404."""
        raise not_found("no-such-page", f"no page at {request.rel_url.path}", f"Start at {PREFIX}/")


def _next(request: web.Request, cursor: str, place: str | None) -> str | None:
    """Return the address of the next page with the same question, or None at the end."""
    if place is None:
        return None
    query = {name: value for name, value in request.query.items() if name != "routed"}
    return f"{request.rel_url.raw_path}?{urlencode({**query, cursor: place})}"


ROUTES: Final[tuple[tuple[str, type[Page]], ...]] = (
    ("", Slash),
    ("/", Index),
    ("/health", Health),
    ("/ready", Ready),
    ("/metrics", Metrics),
    ("/{main}", Slash),
    ("/{main}/", Handler),
    ("/{main}/find", Find),
    ("/{main}/due", Due),
    ("/{main}/partitions", Partitions),
    ("/{main}/pending", Pending),
    ("/{main}/pending/{partition}/{offset}", PendingRecord),
    ("/{main}/dead", Dead),
    ("/{main}/dead/{partition}/{offset}", DeadLetter),
    ("/{rest:.*}", Nothing),
)
"""Addresses below ``PREFIX``, in the order in which they are tried; the last one takes what is left."""
