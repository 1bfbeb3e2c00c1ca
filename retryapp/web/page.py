"""A page: admits who may see it, checks the query, asks, presents the answer, and refuses in one shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from aiohttp import web

from retryapp.core.errors import RetryAppError
from retryapp.kafka import AccessDeniedError
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX
from retryapp.runtime.machine.threads import Daemons
from retryapp.web.access import COOKIE, Person, Role
from retryapp.web.answers import Answers
from retryapp.web.errors import SOON, PageError
from retryapp.web.hiding import check_search, hidden_from
from retryapp.web.query import Question, question_of
from retryapp.web.render import HTML, JSON, safety_headers, to_html, to_json

PROBING: Final = ("field", "header", "key", "message")
"""Fields of `LetterFilter` about what only operators see: an answer without it would tell whether it is there."""

Ask = Callable[[Answers, Question], Awaitable[Facts | tuple[bytes, str]]]
"""Returns facts, or a body and its type: something without facts of records."""

_PUT_RIGHT: Final = "This is the worker's login. Once it is put right, ask again: no command is obeyed twice"
_writers: Final = Daemons(2, "writers")

logger = logging.getLogger(__name__)


class Page:
    """One address: who may see it, what to ask, and the template that shows it; without one the answer is JSON."""

    methods: ClassVar[tuple[str, ...]] = ("GET", "HEAD")
    how: ClassVar[str] = "Pages only show: use GET or HEAD"

    def __init__(self, answers: Answers, app: Any, needs: Role, ask: Ask | None = None, template: str = "") -> None:
        self.answers = answers
        self.app = app
        self.needs = needs
        self.ask = ask
        self.template = template

    async def handle(self, request: web.Request) -> web.StreamResponse:
        # whoever has a browser is shown what their role sees of any page; probes wait for no login hook
        needs = max(self.needs, Role.LOOK) if is_browser(request) else self.needs
        person = await self.answers.person(request, needs)
        try:
            self._refuse_other_methods(request)
            self.answers.refuse_other_groups(request)
            person.require(self.needs)
            return await self.answer(request, person)
        except PageError as error:
            return await self.refuse(request, person, error)
        except AccessDeniedError as error:
            return await self.refuse(request, person, PageError(503, "not-allowed", str(error), _PUT_RIGHT))
        except RetryAppError as error:  # a table was closed while it was read, or no broker answers
            return await self.refuse(
                request, person, PageError(503, "try-again", str(error), "Ask again in a few seconds", SOON)
            )
        except Exception:  # edge of the process: the log has the traceback, the reader an answer
            logger.exception("retryapp.page_failed", extra={"path": request.rel_url.path})
            hint = "The worker's log has a traceback; retries go on"
            return await self.refuse(request, person, PageError(500, "page-failed", "this page failed", hint))

    def _refuse_other_methods(self, request: web.Request) -> None:
        if request.method not in self.methods:
            message, allow = f"{request.method} is not possible here", {"Allow": ", ".join(self.methods)}
            raise PageError(405, "method-not-allowed", message, self.how, allow)

    async def answer(self, request: web.Request, person: Person) -> web.StreamResponse:
        address, now_ms = request.rel_url.raw_path, self.answers.now_ms()
        question = question_of(request.query, request.match_info, address, person.role, now_ms)
        if any(getattr(question.wanted, name) is not None for name in PROBING):
            person.require(Role.OPERATE)
        check_search(question.wanted, self.answers.mask, decodes=self.answers.decoding is not None)
        if self.ask is None:
            raise LookupError(f"nothing to ask at {request.rel_url.path}")
        facts = await self.ask(self.answers, question)
        if isinstance(facts, tuple):
            return web.Response(body=facts[0], headers={**safety_headers(), "Content-Type": facts[1]})
        live_s = None
        if self.template:
            facts = {
                **facts,
                "now_ms": self.answers.now_ms(),
                "broker_silence": self.answers.view.silence(),
                "refusing": sorted(self.answers.peers.refusing),
            }
            live_s = facts.pop("live_s", None)
        refresh_s = live_s if question.refresh_s is None else question.refresh_s
        return await self.show(request, person, self.template, facts, as_json=question.as_json, refresh_s=refresh_s)

    async def show(
        self,
        request: web.Request,
        person: Person,
        template: str,
        facts: Facts,
        *,
        as_json: bool,
        status: int = 200,
        refresh_s: int | None = None,
    ) -> web.Response:
        """Answer with facts, less what this person may not see.

        It is written in a thread: a long list takes some 50 ms, in which records would wait. Not in one of the event
        loop's, which handlers may hold: probes are answered so, too.
        """
        is_html = bool(template) and not as_json

        def write() -> bytes:
            seen = hidden_from(person.role, facts, self.answers.mask, decodes=self.answers.decoding is not None)
            if not is_html:
                return to_json(seen).encode()
            return to_html(template, {**self._frame(request, person), **seen, "refresh_s": refresh_s}).encode()

        body = await asyncio.get_running_loop().run_in_executor(_writers, write)
        return self.respond(body, HTML if is_html else JSON, status)

    async def refuse(self, request: web.Request, person: Person, error: PageError) -> web.Response:
        if not is_browser(request):
            return self.respond(to_json(error.facts).encode(), JSON, error.status, error.headers)
        main = request.match_info.get("main")
        known = person.role >= Role.LOOK and any(info.main == main for info in self.answers.view.handlers())
        facts = {
            **self._frame(request, person),
            **error.facts,
            "status": f"{error.status} {HTTPStatus(error.status).phrase}",
            "main": main if known else None,
            "links": error.links,
            "sent": request.method == "POST",
        }
        html = await asyncio.get_running_loop().run_in_executor(_writers, to_html, "error.html", facts)
        return self.respond(html.encode(), HTML, error.status, error.headers)

    def respond(
        self, body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        headers = {**safety_headers(), **(headers or {})}
        return web.Response(body=body, content_type=content_type, charset="utf-8", status=status, headers=headers)

    def _frame(self, request: web.Request, person: Person) -> Facts:
        """Return what every page has around its facts."""
        own = {"format", "refresh", "routed"}
        query = {name: value for name, value in request.query.items() if value and name not in own}
        back = {"to": asked_for(request)} if request.method == "POST" else {}  # there is no page where it was sent
        return {
            "prefix": PAGES_PREFIX,
            "base": f"{PAGES_PREFIX}/{quote(request.match_info.get('main', ''), safe='')}",
            "app_id": self.app.conf.id,
            "now_ms": self.answers.now_ms(),
            "path": request.rel_url.path,
            "query": query,
            "person": person,
            "login": f"{PAGES_PREFIX}/login{'?' * bool(back)}{urlencode(back)}",
            "logged_in": COOKIE in request.cookies,
            "operator": person.name if person.role >= Role.OPERATE else None,
            "admin": person.role >= Role.ADMIN,
            "refresh_s": None,
            "broker_silence": None,
            "hidden": (),
        }


def asked_for(request: web.Request) -> str:
    """Return the address, without its site, of the page of ours that has led a browser here; else nothing."""
    try:
        referer = urlsplit(request.headers.get("Referer", ""))
    except ValueError:
        return ""
    return urlunsplit(("", "", *referer[2:])) if referer.netloc == request.headers.get("Host") else ""


def is_browser(request: web.Request) -> bool:
    """Tell whether a page is wanted, and not JSON."""
    return request.query.get("format") != "json" and "text/html" in request.headers.get("Accept", "")
