"""A page: checks the query, asks, presents the answer, and refuses in one shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Final

from faust import web

from retryapp.core.errors import RetryAppError
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX
from retryapp.web.answers import Answers
from retryapp.web.errors import SOON, PageError
from retryapp.web.query import Question, question_of
from retryapp.web.render import HTML, JSON, safety_headers, status_text, to_html, to_json

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Ask = Callable[[Answers, Question], Awaitable[Facts | bytes]]

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
            return self.refuse(request, error)
        except RetryAppError as error:  # a table was closed while it was read
            return self.refuse(request, PageError(503, "try-again", str(error), "Ask again in a few seconds", SOON))
        except Exception:  # edge of the process: the log has the traceback, the reader an answer
            logger.exception("retryapp.page_failed", extra={"path": request.rel_url.path})
            hint = "The worker's log has a traceback; retries go on"
            return self.refuse(request, PageError(500, "page-failed", "this page failed", hint))

    async def post(self, request: web.Request, **match: str) -> web.Response:
        """Refuse all other methods."""
        message, hint = f"{request.method} is not possible here", "Pages only show: use GET or HEAD"
        return self.refuse(request, PageError(405, "method-not-allowed", message, hint, {"Allow": "GET, HEAD"}))

    put = patch = delete = options = search = post

    async def _present(self, request: web.Request, question: Question, facts: Facts | bytes) -> web.Response:
        """Write the answer in a thread: a long list takes some 50 ms, in which records would wait."""
        if isinstance(facts, bytes):
            return self.bytes(facts, headers={**safety_headers(), "Content-Type": METRICS_TYPE})
        live_s = None
        if self.template:
            facts = {**facts, "broker_silence": self.answers.view.silence()}
            live_s = facts.pop("live_s", None)
        if question.as_json or not self.template:
            return self.respond(await asyncio.to_thread(to_json, facts), JSON)
        refresh_s = live_s if question.refresh_s is None else question.refresh_s
        shown = {**self._frame(request), **facts, "refresh_s": refresh_s}
        return self.respond(await asyncio.to_thread(to_html, self.template, shown), HTML)

    async def show(self, request: web.Request, template: str, facts: Facts, *, as_json: bool) -> web.Response:
        """Answer with facts that were not asked for by a question."""
        if as_json:
            return self.respond(to_json(facts), JSON)
        frame = {**self._frame(request), "refresh_s": None, "broker_silence": None}
        return self.respond(to_html(template, {**frame, **facts}), HTML)

    def refuse(self, request: web.Request, error: PageError) -> web.Response:
        """Answer with an error."""
        wants_html = request.query.get("format") != "json" and "text/html" in request.headers.get("Accept", "")
        if not wants_html:
            return self.respond(to_json(error.facts), JSON, error.status, error.headers)
        frame = {**self._frame(request), "refresh_s": None, "broker_silence": None, "status": status_text(error.status)}
        return self.respond(to_html("error.html", {**frame, **error.facts}), HTML, error.status, error.headers)

    def respond(
        self, body: str, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """Return an answer with the headers that all have."""
        headers = {**safety_headers(), **(headers or {})}
        return self.text(body, content_type=content_type, status=status, headers=headers)

    def _frame(self, request: web.Request) -> Facts:
        """Return what every page has around its facts."""
        query = {name: value for name, value in request.query.items() if name not in {"format", "refresh", "routed"}}
        return {
            "prefix": PAGES_PREFIX,
            "app_id": self.app.conf.id,
            "now_ms": self.answers.now_ms(),
            "path": request.rel_url.path,
            "query": query,
            "operator": self.answers.operators.named(request),
            "can_log_in": bool(self.answers.operators.tokens),
        }
