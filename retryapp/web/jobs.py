"""Jobs on the pages: what one would do, its start, how far it is; and what pauses, resumes and cancels it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import quote

from aiohttp import web
from pydantic import ValidationError
from typing_extensions import override

from retryapp.core.control import JOB_ID, MAX_WORDS, OF_LETTERS, Refusal, Verb
from retryapp.core.errors import InvalidSettingError, RetryAppError
from retryapp.core.jobs import HANDLER_VERBS, HandlerVerb, JobVerb, LetterFilter, Part, PartState
from retryapp.core.rates import parse_rate
from retryapp.core.topology import HandlerTopology
from retryapp.lookup import jobs as steering
from retryapp.lookup import previews
from retryapp.lookup.jobs import JobProgress, Order, Refused, Told, by_job, job_facts, outcomes, part_facts
from retryapp.lookup.previews import Preview, Scope
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX, HandlerInfo
from retryapp.web.access import MOST_LETTERS, Person, Role
from retryapp.web.actions import WAIT_S, Action
from retryapp.web.answers import Answers
from retryapp.web.api import COMMANDS
from retryapp.web.attention import paused_text
from retryapp.web.counting import Asked
from retryapp.web.errors import PageError, bad_parameter, not_found
from retryapp.web.figures import OPEN
from retryapp.web.hiding import check_search
from retryapp.web.page import is_browser
from retryapp.web.query import FILTERS, Question, is_known, is_yes, unknown_reason
from retryapp.web.turns import Turns

PREVIEW_S: Final = 8.0
"""How long a program's question waits for a count."""
LOOK_S: Final = 2.0
"""The same of a page, which is loaded again while counting goes on."""
MOST_AT_ONCE: Final = 2
"""Commands about jobs, of one worker's pages."""
MOST_REFUSED: Final = 1_000
"""Refused letters on a page."""
LIVE_S: Final = 2
"""Pages of jobs that go on are loaded again after this time."""
LATE_S: Final = 30
"""The same where parts are read from topics: of many partitions that takes seconds."""
_OVER: Final = (PartState.ENDED, PartState.CANCELLED)
_OF_PREVIEWS: Final = ("verb", "all", *FILTERS, "since", "until", "format", "refresh", "routed")
_readings: Final = Turns(2)

Fields = Mapping[str, str]
Doing = tuple[Callable[[], Told], str]
"""What does it, and the address that shows what became of it."""


async def jobs(answers: Answers, question: Question) -> Facts:
    """Return the jobs that go on and the last ones that are over, the newest first."""
    info = answers.get_handler_or_404(question.main)
    group = await answers.everywhere(info.main, answers.view.partitions(info.main))
    found = [job_facts(job, each) for job, each in by_job(group.parts).items()]
    going_on = any(each["state"] == PartState.RUNNING for each in found)
    return {
        "main": info.main,
        "jobs": found[::-1],
        "silent": group.silent,
        "partitions_left_out": [item.partition for item in group.partitions if item.state != OPEN],
        "live_s": LIVE_S if going_on else None,
    }


async def job(answers: Answers, question: Question) -> Facts:
    """Return how far a job is, by partition."""
    info = answers.get_handler_or_404(question.main)
    mine, silent, paused = await _parts(answers, info.main, question.job)
    whole, live_s = job_facts(question.job, mine) | {"not_begun": None}, LIVE_S
    if whole["state"] in _OVER:  # for others it may wait, where no worker has their partitions
        mine, whole, live_s = *(await _progress(answers, info, question.job, mine)), LATE_S
    return {
        "main": info.main,
        "job": whole,
        "partitions": [{"partition": number, **part_facts(part)} for number, part in sorted(mine.items())],
        "silent": silent,
        "paused": paused,
        "live_s": None if whole["state"] in _OVER and whole["not_begun"] == [] else live_s,
    }


async def _progress(
    answers: Answers, info: HandlerInfo, job: str, mine: Mapping[int, Part]
) -> tuple[Mapping[int, Part], Facts]:
    """Return the parts of a job that is over on some partitions, and the whole, with what topics say of others.

    As long as these cannot be read, with what workers here know.
    """
    found = JobProgress(mine)
    if len(mine) < info.partitions:
        read = partial(answers.view.on_topics, info.main, steering.progress_of, answers.now_ms())
        try:
            answers.check_broker()
            known = await _readings.take(read)
        except RetryAppError:  # no broker answers, or others read
            return mine, job_facts(job, mine) | {"not_begun": None}
        there = known.get(job, found)
        found = JobProgress({**there.parts, **mine}, [number for number in there.not_begun if number not in mine])
    return found.parts, found.facts(job)


async def refused(answers: Answers, question: Question) -> Facts:
    """Return which letters a job has refused, of those that have events."""
    info = answers.get_handler_or_404(question.main)
    mine, silent, _ = await _parts(answers, info.main, question.job)
    answers.check_broker()
    asked = (info.main, steering.read_refused, question.job, mine)
    found: Refused = await _readings.read(answers.view.on_topics, *asked, seconds=PREVIEW_S, most=MOST_REFUSED)
    total = steering.summed(mine).refused.total()
    return {"main": info.main, "job": question.job, "silent": silent, "refused": total, **found._asdict()}


async def _parts(answers: Answers, main: str, job: str) -> tuple[Mapping[int, Part], list[str], str | None]:
    """Return the parts of a job, which workers do not answer, and what is paused."""
    group = await answers.everywhere(main, answers.view.partitions(main))
    mine: Mapping[int, Part] | None = by_job(group.parts).get(job)
    if mine is None:  # it has begun just now, or is not of this handler
        answers.check_broker()
        mine = (await _readings.take(partial(answers.view.on_topics, main, steering.parts_of))).get(job)
    if mine is None:
        hint = (
            "A handler remembers those that go on and the last 5 that are over; the events topic has all. "
            "'retryapp job list' has those that wait for a worker on all partitions, too"
        )
        raise not_found("no-such-job", f"no partition of {main} knows a job {job}", hint)
    return mine, group.silent, paused_text(group.partitions)


async def preview(answers: Answers, question: Question) -> Facts:
    """Return what a job would do: how many letters, of which causes, some of them; and where it would end."""
    info = answers.get_handler_or_404(question.main)
    asked, said = (info.main, *_wanted(question)), question.address(format="", refresh="")
    answers.check_broker()
    wait_s = PREVIEW_S if question.as_json else LOOK_S
    (_, verb, wanted), found, goes_on = await answers.counting.count(asked, said, wait_s=wait_s)
    if found.complete and not (goes_on or found.letters or found.done or is_known(wanted.reason)):
        raise unknown_reason(wanted.reason)
    return {
        "main": info.main,
        "verb": verb,
        "order": info.order,
        "filter": wanted.model_dump(exclude_none=True, exclude={"v"}),
        "preview": found.facts,
        "job": Order(verb, wanted).id,
        "scope": found.scope.model_dump(mode="json"),
        "may": question.role >= _role_for(found),
        "goes_on": goes_on,
        "undecoded": wanted.field is not None and answers.decoding is not None,
        "live_s": LIVE_S if goes_on else None,
    }


def _role_for(found: Preview) -> Role:
    return Role.OPERATE if found.complete and found.letters <= MOST_LETTERS else Role.ADMIN


def _wanted(question: Question) -> tuple[Verb, LetterFilter]:
    given = question.query
    verb = given.get("verb", "")
    if verb not in OF_LETTERS:
        raise bad_parameter("verb", verb, ", ".join(sorted(OF_LETTERS)))
    if unknown := [name for name in given if name not in _OF_PREVIEWS]:  # a slip would have it take more letters
        raise bad_parameter(unknown[0], given[unknown[0]], f"no more than {', '.join(_OF_PREVIEWS)}")
    if not is_yes(given, "all") and question.wanted == LetterFilter():
        raise bad_parameter("all", "", "all=1, or one of " + ", ".join((*FILTERS, "since", "until")))
    return Verb(verb), question.wanted


class _JobAction(Action):
    """Something that an operator does to many records, with a reason."""

    turns: ClassVar[Turns] = Turns(MOST_AT_ONCE)
    sent: ClassVar[Collection[str]]
    """What it may be sent: what the document says."""

    @override
    async def act(self, request: web.Request, sent: Mapping[str, str], person: Person) -> web.Response:
        if unknown := [name for name in sent if name not in self.sent]:  # a slip would steer something else
            raise bad_sent(", ".join(unknown[:5]), f"no more than {', '.join(self.sent)}")
        match = request.match_info
        info = self.answers.get_handler_or_404(match["main"])
        why = sent.get("why", "").strip()
        if not why or len(why) > MAX_WORDS:
            raise bad_sent("why", f"1 to {MAX_WORDS} characters: the reason, for the audit")
        call, place = self.order(info, sent, match, {"by": person.name, "why": why, "wait_s": WAIT_S}, person)
        told: Told = await self.send(self.turns, info.main, call)
        self.answers.peers.ask_anew()
        said = outcomes(told)
        done = all(each["outcome"] == "done" for each in said)
        place = f"{PAGES_PREFIX}/{quote(info.main, safe='')}/{place}"
        facts: Facts = {"main": info.main, "verb": sent.get("verb"), "done": done, "see": place, "partitions": said}
        if done and is_browser(request):
            return self.respond(b"", "text/html", 303, {"Location": place})
        return await self.show(request, person, "told.html", facts, as_json=not is_browser(request))

    def order(self, info: HandlerInfo, sent: Fields, match: Fields, words: Any, person: Person) -> Doing:
        raise NotImplementedError


class StartJob(_JobAction):
    """Begins a job as its preview has shown it."""

    most_bytes = 256 * 1_024
    sent = COMMANDS["/{main}/command/job"][0].model_fields

    @override
    def order(self, info: HandlerInfo, sent: Fields, match: Fields, words: Any, person: Person) -> Doing:
        try:
            verb, wanted = Verb(sent.get("verb", "")), LetterFilter.model_validate_json(sent.get("filter", ""))
            scope = Scope.model_validate_json(sent.get("scope", ""))
            check_search(wanted, self.answers.mask, decodes=self.answers.decoding is not None)
        except (ValidationError, ValueError) as error:
            raise bad_sent("filter, scope or verb", "what the preview gave") from error
        name, rate = sent.get("job", ""), sent.get("rate", "").strip() or None
        if verb not in OF_LETTERS or not re.fullmatch(JOB_ID, name):
            raise bad_sent("verb or job", "what the preview gave")
        _check(scope, info)
        try:
            _ = rate and parse_rate(rate)
        except InvalidSettingError as error:
            raise bad_sent("rate", "a whole number for each second, minute or hour: 100/s, 600/m") from error
        force = sent.get("force", "") in ("on", "true", "1")
        order = Order(verb, wanted, id=name, rate=rate, force=force, by=words["by"], why=words["why"])

        def begin() -> Told:
            if person.role < Role.ADMIN:  # what was sent may say less than it takes
                found = self._found((info.main, verb, wanted), scope)
                person.require(_role_for(found))
                ends = ((found.upto.get(number, {}).get(topic, 0), end) for number, topic, end in _ends(scope))
                if any(counted < end for counted, end in ends):  # it would take what dies later, again and again
                    raise bad_sent("scope", "what the preview gave")
            return self.answers.view.on_topics(info.main, steering.begin, order, scope, wait_s=words["wait_s"])

        return begin, f"jobs/{name}"

    def _found(self, asked: Asked, scope: Scope) -> Preview:
        """Return what was counted with this scope, or count anew; blocks."""
        until_s, (main, verb, wanted) = time.monotonic() + PREVIEW_S, asked
        known, soon = self.answers.counting.known(asked, scope), lambda _found: time.monotonic() < until_s
        return known or self.answers.view.on_topics(main, previews.preview, verb, wanted, go_on=soon)


def _ends(scope: Scope) -> Iterator[tuple[int, str, int]]:
    for number, upto in scope.upto.items():
        for topic, end in upto.items():
            yield number, topic, end


def _check(scope: Scope, info: HandlerInfo) -> None:
    is_dlq = HandlerTopology(group=info.group, main=info.main).is_dlq  # also of a former policy: previews count these
    known = all(0 <= number < info.partitions for number in (*scope.letters, *scope.upto))
    named = all(is_dlq(topic) and end >= 0 for _, topic, end in _ends(scope))
    whole = set(scope.letters) <= set(scope.upto) and all(number > 0 for number in scope.letters.values())
    if not (scope.letters and known and named and whole):
        raise bad_sent("scope", "what the preview gave")


class TellJob(_JobAction):
    """Pauses, resumes or cancels a job."""

    sent = COMMANDS["/{main}/command/job/{job}"][0].model_fields

    @override
    def order(self, info: HandlerInfo, sent: Fields, match: Fields, words: Any, person: Person) -> Doing:
        verb, name = _verb(sent, "pause", "resume", "cancel"), match["job"]
        if not re.fullmatch(JOB_ID, name):
            raise bad_sent("job", "the id of a job")

        def tell() -> Told:
            on_topics, may = self.answers.view.on_topics, verb != "resume" or person.role >= Role.ADMIN
            if not may and (parts := on_topics(info.main, steering.parts_of).get(name)):
                letters = job_facts(name, parts)["letters"]
                person.require(Role.OPERATE if letters is not None and letters <= MOST_LETTERS else Role.ADMIN)
            told: Told = on_topics(info.main, steering.tell_job, name, JobVerb(f"job-{verb}"), **words)
            if not told:
                hint = "It is over, or unknown: the page of the job says which"
                raise PageError(409, str(Refusal.NO_JOB), f"no job {name} of {info.main} goes on", hint)
            return told

        return tell, f"jobs/{quote(name, safe='')}"


class TellHandler(_JobAction):
    """Pauses or resumes a handler, forces its circuit open, or has it probe."""

    sent = COMMANDS["/{main}/command/handler"][0].model_fields

    @override
    def order(self, info: HandlerInfo, sent: Fields, match: Fields, words: Any, person: Person) -> Doing:
        verb = HANDLER_VERBS[_verb(sent, *HANDLER_VERBS)]
        circuit = sent.get("circuit", "") if verb in (HandlerVerb.OPEN, HandlerVerb.CLOSE) else ""
        if len(circuit) > MAX_WORDS:
            raise bad_sent("circuit", "the name of one of the handler's circuits")
        return lambda: self.answers.view.on_topics(info.main, steering.tell_handler, verb, circuit, **words), ""


def _verb(sent: Mapping[str, str], *verbs: str) -> str:
    verb = sent.get("verb", "")
    if verb not in verbs:
        raise bad_sent("verb", ", ".join(verbs))
    return verb


def bad_sent(name: str, expected: str) -> PageError:
    """Return 400 for a field that cannot be used."""
    return PageError(400, "bad-command", f"{name} cannot be used", f"Expected {expected}")
