"""The HTTP API as OpenAPI 3.1: the pages' own addresses, whose facts are JSON with ``format=json``.

There is no second set of addresses: what a page shows, a program gets. A model below names the facts of each; those
that are an object of ours (`ports`, `core`) have its fields. A test compares the models with what pages answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import models_json_schema

from retryapp.core.causes import CauseCount
from retryapp.core.classify import DeadReason
from retryapp.core.control import JOB_ID, MAX_WORDS, Edit, Verb
from retryapp.core.jobs import LetterFilter
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin
from retryapp.lookup.payloads import Kind
from retryapp.lookup.previews import Scope
from retryapp.ports import PAGES_PREFIX, HandlerInfo, PartitionInfo
from retryapp.web.access import Role
from retryapp.web.actions import MOST_CHOSEN
from retryapp.web.figures import Rates
from retryapp.web.lists import Line
from retryapp.web.query import DEFAULT_LIMIT, FILTERS, MAX_LIMIT, MAX_SEEN, YES

Model = type[BaseModel]


def _model(name: str, meaning: str, /, *bases: Any, **kinds: Any) -> Any:
    """Return a model of facts: their names and types. All are there; null is unknown, hidden or none."""
    each: dict[str, Any] = {field: kind if isinstance(kind, tuple) else (kind, ...) for field, kind in kinds.items()}
    return create_model(name, __doc__=meaning, __base__=bases or None, **each)


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid")  # a slip would steer something else


def _of(kind: type, *, unknown: bool = False) -> dict[str, Any]:
    """Return the fields of a dataclass; `unknown`: each may be null."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] | None if unknown else hints[each.name] for each in fields(kind)}


def _many(model: Any) -> Any:
    return list.__class_getitem__(model)


_Int, _Text, _Counts = int | None, str | None, dict[str, int]
_Why = Annotated[str, Field(min_length=1, max_length=MAX_WORDS)]
_Outcome = Literal["done", "refused", "queued"]

Error: Final[Model] = _model(
    "Error",
    "What is refused: a word for programs, what happened, and what to do.",
    error=_model("Fault", "A word, what happened, what to do.", code=str, message=str, hint=str),
)
_Page = _model(
    "Page",
    "What all pages have: the worker's time, how long no broker has answered, which workers refuse this one, and which "
    "facts your role does not see.",
    now_ms=int,
    broker_silence=_Text,
    refusing=list[str],
    hidden=(list[str], []),
)
_Cause = _model(
    "Cause", "Failures with one cause; how many a minute in the last five minutes, and in the five before.",
    **_of(CauseCount), failures_per_min=float | None, failures_per_min_before=float | None,
)  # fmt: skip
_Partition = _model("Partition", "A partition.", **_of(PartitionInfo, unknown=True))
_Lag = _model(
    "Lag", "A partition with its lag.", _Partition,
    is_here=bool, committed_offset=_Int, main_lag=_Int, due=_Int, due_is_least=bool,
)  # fmt: skip
_Rates = _model("Rates", "The last minute of all workers.", **_of(Rates))
_Group = _model(
    "Group", "Sums over all workers, and which do not answer.",
    partitions_open=_Int, pending=_Int, pending_by_tier=_Counts, stopped=_Int, next_due_ms=_Int, dead=_Int,
    as_of_ms=_Int, unknown_partitions=list[int], left_out=dict[str, list[int]], in_flight=_Int, silent=list[str],
    rates=_Rates | None,
)  # fmt: skip
_Handler = _model(
    "Handler", "A handler with its sums.", **{**_of(HandlerInfo), "partitions_here": int, "group": _Group}
)
_Todo = _model("Todo", "Something that needs action.", weight=int, main=str, text=str, path=str)
_Due = _model("Due", "How many are due; more: at least so many.", count=_Int, more=bool)
_Part = _model(
    "Part",
    "A part of a job; passed: how many of the refused were done with before, and stay so; outcomes: of how many "
    "replays it is known what their first attempt came to; failed_again: how many of these failed.",
    verb=str, state=str, done=int, refused=_Counts, passed=int, looked=int, letters=_Int, paused=_Text, by=str, why=str,
    outcomes=int, failed_again=_Int,
)  # fmt: skip
_Job = _model("Job", "A job.", _Part, job=str)
_WholeJob = _model(
    "WholeJob",
    "A job. not_begun: partitions on which it waits for a worker; null: not known, as parts go on, or topics could not "
    "be read: then others may go on where parts have ended.",
    _Job, not_begun=list[int] | None,
)  # fmt: skip
_PartOf = _model("PartOf", "The part of one partition.", _Part, partition=int)
_Record = _model(
    "Failure", "Why a record failed; its message is for operators.",
    failure_id=_Text, attempt=_Int, replays=_Int, max_attempts=(_Int, None), tier=_Text, reason=_Text,
    error_type=_Text, first_failed_ms=_Int, last_failed_ms=_Int, message=_Text, cause=_Text, cause_id=_Text,
    origin=Origin | None, damaged=_Text, partition=int,
)  # fmt: skip
_Waits = _model(
    "Waits", "A record that waits.", _Record,
    origin_offset=int, due_at_ms=_Int, held_by=_Text, held_until_ms=_Int, circuit=_Text, held_back_by=_Text,
)  # fmt: skip
_Dead = _model(
    "Dead", "A dead letter.", _Record,
    offset=int, letters=_Text, append_ms=_Int, mark=_Text, job=_Text,
)  # fmt: skip
_Bytes: dict[str, Any] = {
    "kind": Kind, "size_bytes": int, "shown_bytes": int, "truncated": bool, "text": (str, ""), "base64": (str, ""),
}  # fmt: skip
_Decoded = _model("Decoded", "What the app's decoder makes of a key or a value.", **_Bytes)
_Content = _model(
    "Content", "A key or a value as it was sent; problem: why the app's decoder failed.",
    **_Bytes, decoded=(_Decoded | None, None), problem=(str, ""),
)  # fmt: skip
_Header = _model("Header", "A header.", name=str, value=_Text)
_Metadata = _model("Metadata", "The retry headers.", **{**_of(RetryMetadata), "error_message": _Text})
_Failures = _model(
    "Failures", "What is known of its failures, also before a replay; is_first: none came before.",
    first_ms=_Int, is_first=bool, replay_first_ms=_Int, last_ms=_Int, deferred_ms=_Int,
    attempts=_many(_model("EndedAttempt", "An attempt; replay 0: before the first; null: unknown in which.",
                          attempt=int, replay=_Int, ended_ms=int, error_type=str, deferred=bool)),
)  # fmt: skip
_Detail: dict[str, Any] = {
    "metadata": _Metadata | None, "failures": _Failures | None,
    "headers": _many(_Header) | None, "retry_headers": _many(_Header) | None,
    "key": _Content | None, "value": _Content | None,
}  # fmt: skip
_Line = _model(
    "Record", "A record in a list; one that waits has `due_at_ms`, a dead letter `offset`.", Line,
    tier=_Text, cause=_Text, first_failed_ms=_Int, origin=Origin | None, circuit=(_Text, None),
    job=(_Text, None),
)  # fmt: skip
_List: dict[str, Any] = {
    "main": str, "partition": _Int, "limit": int, "first": int, "next": _Text, "total": _Int,
    "scanned": int, "undecoded": int,
    "partitions": list[int], "partitions_left_out": list[int], "silent": list[str], "of": _Int, "about": _Cause | None,
    **dict.fromkeys(("error_type", "cause", "key", "message", "header", "field", "since", "until"), _Text),
    "records": _many(_Line),
}  # fmt: skip
_RECORD_OUTCOME = _model(
    "RecordOutcome", "What became of the command about a record.",
    failure_id=str, command=str, outcome=_Outcome, refused=_Text, text=str, see=_Text,
)  # fmt: skip
_OUTCOME = _model("Outcome", "What became of a command.", _RECORD_OUTCOME, main=str, verb=str)
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_OFFSET: Final = {**_NUMBER, "maximum": 2**63 - 1}
_SEEN: Final = {**_NUMBER, "maximum": MAX_SEEN}
_STRING: Final = {"type": "string"}
_YES: Final = {**_STRING, "enum": [YES]}
_LIMITS: Final = {
    "limit": {**_NUMBER, "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "partition": _NUMBER,
}
_SEARCH: Final = dict.fromkeys(("error_type", "cause", "key", "message", "header", "field", "since", "until"), _STRING)
_REASON: Final = {**_STRING, "examples": sorted(DeadReason)}  # letters of a newer build may have others
_FILTER: Final = {**dict.fromkeys((*FILTERS, "since", "until"), _STRING), "reason": _REASON, "all": _YES}

ANSWERS: Final[Mapping[str, tuple[Model, Mapping[str, Any]]]] = {
    "/health": (_model("Alive", "That pages are served.", ok=Literal[True]), {}),
    "/ready": (_model("Ready", "That a broker answers, and every lane is open and moves.", ok=Literal[True]), {}),
    "/": (
        _model(
            "Overview", "Handlers with their totals, and what needs action.", _Page,
            group=_Text, url=str, ready=bool, silent=list[str], workers=list[str], todo=_many(_Todo),
            handlers=_many(_Handler),
        ),
        {},
    ),
    "/{main}/": (
        _model(
            "Levels", "One handler: partitions, what is paused or held back, causes, and what is due soon.", _Page,
            handler=_Handler, everywhere=_many(_Partition), causes=_many(_Cause), waiting_causes=_many(_Cause),
            due=dict.__class_getitem__((str, _Due)), due_left_out=list[int],
        ),
        {},
    ),
    "/{main}/partitions": (
        _model(
            "Partitions", "Owner, lane and lag of each partition.", _Page,
            main=str, group=str, url=_Text, partitions=_many(_Lag), silent=list[str], lag_unknown=_Text,
        ),
        {},
    ),
    "/{main}/pending": (
        _model("Pending", "Waiting records, the next due first.", _Page, **_List),
        {**_LIMITS, **_SEARCH, "after": _STRING, "seen": _SEEN},
    ),
    "/{main}/pending/{partition}/{offset}": (
        _model("PendingRecord", "One waiting record; letter, mark: of one that has stopped its sequence, the address "
               "of its dead letter, and what became of that.", _Page, main=str, policy=dict[str, str], jobs=list[str],
               letter=_Text, mark=_Text,
               record=_model(
                   "PendingDetail", "A record.", _Waits, **_Detail, since_ms=_Int, state=_Text, unread=_Text
               )),
        {"topic_id": _STRING},
    ),
    "/{main}/dead": (
        _model("DeadLetters", "Dead letters, newest first.", _Page, **_List, reason=_Text, marked=bool,
               reasons=list[str]),
        {**_LIMITS, **_SEARCH, "reason": _REASON, "marked": _YES, "before": _STRING, "seen": _SEEN},
    ),
    "/{main}/dead/{partition}/{offset}": (
        _model("DeadLetter", "One dead letter; stopped: where the sequence that it has stopped is released.", _Page,
               main=str, topic=str, policy=dict[str, str], jobs=list[str],
               record=_model("DeadDetail", "A letter.", _Dead, **_Detail, read_from=str, unread=_Text),
               newer=_Int, older=_Int, stopped=_Text),
        {"letters": _STRING},
    ),
    "/{main}/journey": (
        _model(
            "Journey", "What a record has been through, the oldest first, and the attempts that are planned.", _Page,
            main=str, failure_id=str, idempotency_key=str, origin=dict[str, int], looked=int, complete=bool,
            max_attempts=_Int, find=str, held_back_by=_Text, first_failed_ms=_Int, jobs=list[str],
            planned=_many(_model("Planned", "An attempt.", attempt=int, replays=int, due_at_ms=int)),
            steps=_many(_model(
                "Step", "An attempt, a command, or what became of it.", kind=str, at_ms=int, attempt=_Int,
                delivery=(_Int, None), worker=_Text,
                replays=_Int, duration_ms=_Int, error_type=_Text, message=_Text, cause_id=_Text, due_at_ms=_Int,
                reason=_Text, by=_Text, text=_Text, edited=_Int, job=_Text, first_failed_ms=_Int)),
        ),
        {"id": _STRING},
    ),
    "/{main}/audit": (
        _model(
            "AuditPage", "Commands of a time (a day if `since` does not say), the newest first.", _Page,
            main=str, from_ms=int, since=_Text, until=_Text, more=bool, looked=int, complete=bool, jobs=list[str],
            commands=_many(_model(
                "AuditEntry", "A command, or what a part of a job did by itself: how many partitions have obeyed or "
                "refused it, and what the first one says.", at_ms=int, verb=str, by=str, why=str, text=str,
                before=_Text, after=_Text, edited=str, failure_id=_Text, job=_Text, circuit=_Text, partition=_Int,
                done=int, refused=_Counts)),
        ),
        {"since": _STRING, "until": _STRING},
    ),
    "/api/commands/{main}/{partition}/{offset}": (
        _model("LaterOutcome", "What has become of a command.", _Page, _OUTCOME),
        {},
    ),
    "/{main}/jobs": (
        _model("Jobs", "Jobs that go on and the last ones that are over, the newest first.", _Page,
               main=str, jobs=_many(_Job), silent=list[str], partitions_left_out=list[int]),
        {},
    ),
    "/{main}/jobs/new": (
        _model("Preview", "What a job would do: what its start is sent, and whether you may.", _Page, main=str,
               verb=str, order=str, filter=dict[str, Any], preview=dict[str, Any], job=str, scope=Scope, may=bool,
               goes_on=bool, undecoded=bool),
        {"verb": {**_STRING, "enum": ["replay", "discard", "restore"]}, **_FILTER},
    ),
    "/{main}/jobs/{job}": (
        _model("JobProgress", "How far a job is.", _Page,
               main=str, job=_WholeJob, partitions=_many(_PartOf), silent=list[str], paused=_Text),
        {},
    ),
    "/{main}/jobs/{job}/refused": (
        _model("RefusedLetters", "Letters that a job has refused: the first 1,000 of each partition.", _Page,
               main=str, job=str, silent=list[str], refused=int, complete=bool,
               letters=_many(_model("RefusedLetter", "A letter; a damaged one has no failure id.", partition=int,
                                    failure_id=_Text, refused=str, text=str))),
        {},
    ),
}  # fmt: skip
"""What is asked with GET: the facts, and parameters besides `format`."""

_SELECTED = _model(
    "SelectionOutcome", "What became of each of the commands.",
    main=str, verb=str, done=bool, records=_many(_RECORD_OUTCOME),
)  # fmt: skip
_OUTCOMES = _model(
    "Outcomes", "What the partitions say of a command, and where its effect is seen.",
    main=str, verb=_Text, done=bool, see=str,
    partitions=_many(_model("PartOutcome", "What a partition says.", partition=int, outcome=_Outcome, refused=_Text,
                            text=str)),
)  # fmt: skip
COMMANDS: Final[Mapping[str, tuple[Model, Model]]] = {
    "/{main}/command": (
        _model("Command", "Steer one record.", _Sent, verb=Verb, failure_id=str, why=(str, ""), state=(str, ""),
               at=(str, ""), force=(bool, False), edit=(Edit | None, None), **{"for": (str, "")}),
        _OUTCOME,
    ),
    "/{main}/command/selection": (
        _model("CommandSome", f"Replay or discard up to {MOST_CHOSEN} dead letters.", _Sent,
               verb=Literal["replay", "discard"], why=_Why,
               failure_ids=Annotated[list[str], Field(min_length=1, max_length=MOST_CHOSEN)]),
        _SELECTED,
    ),
    "/{main}/command/handler": (
        _model("TellHandler", "Pause or resume a handler, force its circuit open, or have it probe.", _Sent,
               verb=Literal["pause", "resume", "outage-open", "outage-close"], why=_Why, circuit=(str, "")),
        _OUTCOMES,
    ),
    "/{main}/command/job": (
        _model("StartJob", "Begin a job as its preview has shown it.", _Sent, verb=Verb, filter=LetterFilter,
               scope=Scope, job=Annotated[str, Field(pattern=JOB_ID)], why=_Why, rate=(str, ""), force=(bool, False)),
        _OUTCOMES,
    ),
    "/{main}/command/job/{job}": (
        _model("TellJob", "Pause, resume or cancel a job.", _Sent, verb=Literal["pause", "resume", "cancel"],
               why=_Why),
        _OUTCOMES,
    ),
}  # fmt: skip
"""What is sent with POST, and the answer."""


@cache
def document(roles: tuple[tuple[str, Role], ...]) -> dict[str, Any]:
    """Return the OpenAPI document; `roles`: the role that each address needs."""
    told = {*(model for model, _ in ANSWERS.values()), *(model for _, model in COMMANDS.values()), Error}
    sent: list[tuple[Model, Any]] = [(model, "validation") for model, _ in COMMANDS.values()]
    template = "#/components/schemas/{model}"
    refs, schemas = models_json_schema([*sent, *((model, "serialization") for model in told)], ref_template=template)
    paths: dict[str, dict[str, Any]] = {}
    for path, role in roles:
        if path in ANSWERS:
            model, query = ANSWERS[path]
            form = (
                {"format": {**_STRING, "enum": ["json", "html"], "default": "html"}} if issubclass(model, _Page) else {}
            )
            operation = _operation(path, model, role, {**form, **query}, {"200": refs[model, "serialization"]})
            paths[path] = {"get": operation}
        elif path in COMMANDS:
            model, outcome = COMMANDS[path]
            told_as = dict.fromkeys(
                ("200", "202") if outcome is not _OUTCOMES else ("200",), refs[outcome, "serialization"]
            )
            operation = _operation(path, model, role, {}, told_as)
            body = {"required": True, "content": {"application/json": {"schema": refs[model, "validation"]}}}
            paths[path] = {"post": {**operation, "requestBody": body}}
    scheme = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "retryapp", "version": version("retryapp")},
        "servers": [{"url": PAGES_PREFIX}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": scheme},
    }


def _operation(
    path: str, model: Model, role: Role, query: Mapping[str, Any], answers: Mapping[str, Any]
) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    numbers = {"partition": _NUMBER, "offset": _OFFSET}
    places = {name: numbers.get(name, {**_STRING, "minLength": 1}) for name in names}
    parameters = [{"name": name, "in": "path", "required": True, "schema": each} for name, each in places.items()]
    parameters += [{"name": name, "in": "query", "schema": each} for name, each in query.items()]
    error, page = {"schema": {"$ref": "#/components/schemas/Error"}}, {"text/html": {"schema": _STRING}}
    responses = {
        status: {"description": model.__doc__, "content": {"application/json": {"schema": answer}, **page}}
        for status, answer in answers.items()
    }
    refused = {"description": "Refused, or elsewhere (Location).", "content": {"application/json": error, **page}}
    return {
        "operationId": model.__name__,
        "summary": model.__doc__,
        "description": f"Needs the role {role.name.lower()}.",
        "parameters": parameters,
        "responses": {**responses, "default": refused},
    }
