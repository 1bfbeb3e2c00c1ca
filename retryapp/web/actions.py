"""What changes records through the pages: commands, of one record or some, sent as `retryapp` sends them."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from aiohttp import web
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import override

from retryapp.core.checks import problem_text
from retryapp.core.control import MAX_COMMAND_BYTES, Command, Edit, Verb, named_by
from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import BrokerUnreachableError, DamagedMetadataError, InvalidDurationError, shown
from retryapp.core.lifecycle import Commanded
from retryapp.core.record import parse_failure_id
from retryapp.kafka.commands import reach_first, send_commands
from retryapp.lookup.instants import parse_instant
from retryapp.lookup.outcomes import QUEUED, Outcome, Sent, outcome_of, read_outcome
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX, HandlerInfo
from retryapp.web.access import COOKIE, Person, refuse_other_sites
from retryapp.web.answers import LIVE_S, READ_TIMEOUT_S, Answers
from retryapp.web.errors import SOON, PageError, not_found
from retryapp.web.page import Page, asked_for, is_browser
from retryapp.web.query import Question
from retryapp.web.turns import Turns

T = TypeVar("T")
MAX_BODY_BYTES: Final = 16_384
MOST_AT_ONCE: Final = 4
"""Commands of one worker's pages that wait for an answer."""
WAIT_S: Final = 10.0
_OF_FORM: Final = ("value", "key", "headers", "drop", "idempotency")
"""Fields of a form in place of `edit`; empty: as it was. `headers`: ``name=text`` a line; `drop`: names, one a line."""
_FIELDS: Final = ("verb", "failure_id", "state", "why", "at", "for", "force", "edit", *_OF_FORM)
Places = dict[str, tuple[int, int]]
"""Partition and offset of commands on the control topic, by their ids."""
MOST_CHOSEN: Final = 50
"""Records of a selection; more are a job."""
CHOSEN: Final = "failure_ids"
"""The one field that a form sends several times."""
_Names: Final = TypeAdapter(Annotated[list[str], Field(min_length=1, max_length=MOST_CHOSEN)])
_MOST_FIELDS: Final = 600
_OF_ONE_BUTTON: Final = {"at": "reschedule", "for": "hold"}
"""Fields of a form with several buttons that belong to one of them."""
LOGIN: Final = f"{PAGES_PREFIX}/login"
LOGOUT: Final = f"{PAGES_PREFIX}/logout"
_readings: Final = Turns(2)
_AGAIN: Final = "Once a broker answers, send it again: what was obeyed already is not done twice"


class Action(Page):
    """An address that is sent something."""

    methods: ClassVar[tuple[str, ...]] = ("POST",)
    how: ClassVar[str] = "Send a form or JSON with POST"
    most_bytes: ClassVar[int] = MAX_BODY_BYTES

    @override
    async def answer(self, request: web.Request, person: Person) -> web.StreamResponse:
        refuse_other_sites(request)
        return await self.act(request, await _sent(request, self.most_bytes), person)

    async def act(self, request: web.Request, sent: Mapping[str, str], person: Person) -> web.Response:
        raise NotImplementedError

    async def send(self, turns: Turns, main: str, call: Callable[[], T]) -> T:
        """Call what sends commands of a handler, in a thread, once a broker has answered.

        Raises:
            PageError: 503, no broker answers: it says whether something was sent.
        """

        def reach_and_call() -> T:
            try:
                self.answers.view.on_topics(main, reach_first)
                return call()
            except BrokerUnreachableError as error:
                raise PageError(503, "no-broker", str(error), _AGAIN, SOON) from error

        answer: T = await turns.take(reach_and_call)
        return answer


class CommandPage(Action):
    """Sends a command, waits for the worker that obeys or refuses it, and says which."""

    turns: ClassVar[Turns] = Turns(MOST_AT_ONCE)
    most_bytes: ClassVar[int] = MAX_COMMAND_BYTES

    @override
    async def act(self, request: web.Request, sent: Mapping[str, str], person: Person) -> web.Response:
        info = self.answers.get_handler_or_404(request.match_info["main"])
        main, command = info.main, _command(sent, person.name, info, self.answers.now_ms())
        if command.edit is not None and command.edit.is_masked(self.answers.mask):
            raise PageError(400, "masked", "the edit has *** where something is masked", "Send what it replaces")
        places: Places = {}
        send = partial(self.answers.view.on_topics, main, send_commands, [command], wait_s=WAIT_S, places=places)
        told = (await self.send(self.turns, main, send)).get(command.id)
        facts: Facts = {"main": main, "verb": str(command.verb), **_outcome(main, command, told, places)}
        status = 202 if told is None else 200
        return await self.show(request, person, "outcome.html", facts, as_json=not is_browser(request), status=status)


class SelectionPage(Action):
    """Replays or discards the chosen dead letters, each by a command of its own, for one reason."""

    most_bytes: ClassVar[int] = 65_536

    @override
    async def act(self, request: web.Request, sent: Mapping[str, str], person: Person) -> web.Response:
        info = self.answers.get_handler_or_404(request.match_info["main"])
        main = info.main
        try:
            names = _Names.validate_json(sent.get(CHOSEN, "[]"))
        except ValidationError as error:
            hint = "For more, filter the list and begin a job"
            raise PageError(400, "bad-command", f"choose 1 to {MOST_CHOSEN} dead letters", hint) from error
        verb, more = sent.get("verb"), {name: value for name, value in sent.items() if name != CHOSEN}
        if verb not in (Verb.REPLAY, Verb.DISCARD) or not sent.get("why", "").strip() or {*more} > {"verb", "why"}:
            expected = f"Send verb (replay or discard), why (the reason, for the audit) and {CHOSEN}, nothing else"
            raise PageError(400, "bad-command", "verb, reason or another field cannot be used", expected)
        now_ms = self.answers.now_ms()
        commands = [_command({**more, "failure_id": name}, person.name, info, now_ms) for name in dict.fromkeys(names)]
        places: Places = {}
        send = partial(self.answers.view.on_topics, main, send_commands, commands, wait_s=WAIT_S, places=places)
        told = await self.send(CommandPage.turns, main, send)
        records = [_outcome(main, command, told.get(command.id), places) for command in commands]
        done = all(each["outcome"] == "done" for each in records)
        facts: Facts = {"main": main, "verb": verb, "done": done, "records": records}
        status = 200 if len(told) == len(commands) else 202
        as_json = not is_browser(request)
        return await self.show(request, person, "told.html", facts, as_json=as_json, status=status)


async def outcome(answers: Answers, question: Question) -> Facts:
    """Return whether a command is queued, obeyed or refused, asked later by the address that its answer has.

    Whichever worker has its partition.
    """
    info = answers.get_handler_or_404(question.main)
    partition, offset = question.at()
    found: Outcome | None = None
    if partition < info.partitions:
        answers.check_broker()
        asked = (info.main, read_outcome, partition, offset)
        found = await _readings.read(answers.view.on_topics, *asked, seconds=READ_TIMEOUT_S)
    if found is None:
        hint = "It may be older than the retention of the control topic"
        raise not_found("no-such-command", f"no command of {info.main} at partition {partition}, offset {offset}", hint)
    if not found.complete:
        message = f"too many events came since to read them in {READ_TIMEOUT_S:g} s"
        raise PageError(503, "not-read", message, "The journey of its record may say it", SOON)
    facts = _outcome(info.main, found.sent, found.told, {found.sent.id: (partition, offset)})
    return {"main": info.main, "verb": found.sent.verb, **facts, "live_s": LIVE_S if found.told is None else None}


def _outcome(main: str, sent: Command | Sent, told: Commanded | None, places: Places) -> Facts:
    """Return what a worker has said of a command, and the address that says it later; None: nothing yet."""
    place = places.get(sent.id)
    return {
        "failure_id": sent.failure_id,
        "command": sent.id,
        "outcome": outcome_of(told),
        "refused": told and told.refused,
        "text": QUEUED if told is None else told.text,
        "see": place and f"{PAGES_PREFIX}/api/commands/{quote(main, safe='')}/{place[0]}/{place[1]}",
    }


class Login(Action):
    """Gives a browser its token as a cookie."""

    methods: ClassVar[tuple[str, ...]] = ("GET", "HEAD", "POST")

    @override
    async def answer(self, request: web.Request, person: Person) -> web.StreamResponse:
        if request.method == "POST":
            return await super().answer(request, person)
        to = _page_of(request.query.get("to") or asked_for(request))
        return await self.show(request, person, "login.html", {"wrong": False, "to": to}, as_json=False)

    @override
    async def act(self, request: web.Request, sent: Mapping[str, str], person: Person) -> web.Response:
        token, to = sent.get("token", "").strip(), _page_of(sent.get("to", ""))
        if self.answers.operators.owner_of(token) is None:
            await asyncio.sleep(1.0)  # guessing takes for ever anyway; this keeps the log short
            return await self.show(request, person, "login.html", {"wrong": True, "to": to}, as_json=False)
        response = self.respond(b"", "text/html", 303, {"Location": to})
        secure = request.url.scheme == "https" or request.headers.get("X-Forwarded-Proto") == "https"
        facts: Any = {"path": PAGES_PREFIX, "httponly": True, "samesite": "Strict", "secure": secure}
        response.set_cookie(COOKIE, token, max_age=12 * 3_600, **facts)
        return response


class Logout(Action):
    """Takes the cookie from a browser."""

    @override
    async def act(self, request: web.Request, sent: Mapping[str, str], person: Person) -> web.Response:
        response = self.respond(b"", "text/html", 303, {"Location": LOGIN})
        response.del_cookie(COOKIE, path=PAGES_PREFIX)
        return response


def _page_of(address: str) -> str:
    """Return a page of ours to go to after a login; the overview for everything else."""
    path = unquote(urlsplit(address).path) if address.startswith(f"{PAGES_PREFIX}/") else LOGIN
    shows = path not in (LOGIN, LOGOUT) and not {".", "..", "command"} & {*path.replace("\\", "/").split("/")}
    return address if shows and address.isascii() and address.isprintable() else f"{PAGES_PREFIX}/"


async def _sent(request: Any, most_bytes: int) -> Mapping[str, str]:
    """Return the fields of a form, or of a JSON object; Faust reads bodies of any length."""
    body = b""
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > most_bytes:
                raise PageError(413, "too-large", f"more than {most_bytes} bytes were sent", "Send less")
        if request.content_type == "application/json" or body.lstrip().startswith(b"{"):  # curl says it is a form
            found = json.loads(body)
            json.dumps(found, ensure_ascii=False).encode()  # a half of a surrogate pair is no text
            if not isinstance(found, dict):
                raise PageError(400, "bad-body", "the JSON is no object", f"Send an object with {', '.join(_FIELDS)}")
            given = {name: value for name, value in found.items() if value is not None}
            return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
        fields = parse_qs(body.decode(), max_num_fields=_MOST_FIELDS)
        form = {name: json.dumps(each) if name == CHOSEN else each[-1] for name, each in fields.items()}
        return {name: value for name, value in form.items() if _OF_ONE_BUTTON.get(name) in (None, form.get("verb"))}
    except web.RequestPayloadError as error:
        message = "the body is not compressed in the way that Content-Encoding says"
        raise PageError(400, "bad-body", message, "Send it as it is, without Content-Encoding") from error
    except (ValueError, RecursionError) as error:
        raise PageError(
            400, "bad-body", f"the body cannot be read: {error}", "Send a form, or JSON in UTF-8"
        ) from error


def _command(sent: Mapping[str, str], by: str, info: HandlerInfo, now_ms: int) -> Command:
    given = {name: sent[name] for name in _FIELDS if sent.get(name)}
    if unknown := [name for name in sent if name not in _FIELDS]:
        raise PageError(400, "bad-command", f"unknown: {', '.join(unknown[:5])}", f"Send {', '.join(_FIELDS)}")
    if (word := given.get("verb", "")) not in {*Verb}:
        *others, last = Verb
        raise PageError(400, "bad-command", f"verb={shown(word)} is not known", f"Send {', '.join(others)} or {last}")
    try:
        facts: dict[str, Any] = {name: given[name] for name in ("state", "why") if name in given}
        if "at" in given or word == Verb.RESCHEDULE:
            facts["due_at_ms"] = parse_instant(given.get("at", ""), now_ms)
        if "edit" in given:
            facts["edit"] = Edit.model_validate_json(given["edit"])
        elif any(name in given for name in _OF_FORM):
            facts["edit"] = _edit_of(given)
        if "for" in given:
            facts["hold_ms"] = parse_duration_ms(given["for"])
        force = given.get("force", "false") in ("true", "on", "1")
        name, verb = given.get("failure_id", ""), Verb(word)
        facts |= named_by(name)
        origin = parse_failure_id(facts["failure_id"])[1]
        command = Command(id=secrets.token_hex(8), verb=verb, by=by, force=force, **facts)
    except ValidationError as error:
        problem = problem_text(error).replace("due_at_ms", "at").replace("hold_ms", "for")  # as they were sent
        raise PageError(400, "bad-command", problem, f"Send {', '.join(_FIELDS)}") from error
    except (ValueError, DamagedMetadataError, InvalidDurationError) as error:
        raise PageError(400, "bad-command", str(error), "Nothing was done: correct it and send it again") from error
    if origin.topic != info.main:
        raise PageError(400, "bad-command", f"{name} is not of {info.main}", "Send it to the address of its handler")
    if origin.partition >= info.partitions:
        message = f"{info.main} has no partition {origin.partition}, which {name} names"
        raise PageError(400, "bad-command", message, "In a failure id it is the number before the offset")
    return command


def _edit_of(given: Mapping[str, str]) -> Edit:
    """Return the edit of a form, whose lines browsers end with CRLF.

    Raises:
        ValueError: it changes nothing, or has a line that is no header.
    """
    value, key = given.get("value"), given.get("key")
    headers: dict[str, bytes] = {}
    for line in filter(None, given.get("headers", "").splitlines()):
        name, sign, text = line.partition("=")
        if not sign or not name or name in headers:
            raise ValueError(f"headers are name=text, one a line and each name once, not {line!r}")
        headers[name] = text.encode()
    return Edit.of(
        given.get("idempotency", ""),
        value=None if value is None else value.replace("\r\n", "\n").encode(),
        key=None if key is None else key.encode(),
        headers=headers,
        drop=tuple(filter(None, (name.strip() for name in given.get("drop", "").splitlines()))),
    )
