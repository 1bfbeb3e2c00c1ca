"""The API as OpenAPI: the document is valid and says what is answered, whatever is asked."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from functional.web.server import ADMIN, Served, ask, serving
from functional.web.test_access import ACCESS, address_of, bearer
from functional.web.test_jobs import fit
from functional.web.worker import BASE, GROUP, MAIN, NOW_MS, FakeWorker, dead_metadata
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import ValidationError
from samples import partition

from retryapp.web.access import Role
from retryapp.web.actions import _FIELDS, _OF_FORM
from retryapp.web.api import ANSWERS, COMMANDS, Error
from retryapp.web.views import ACTIONS, ROUTES

DOCUMENT = "/retries/api/openapi.json"
NAME = f"{GROUP}/{MAIN}@kq8G0bTz/0/10001"


async def test_the_document_is_valid_and_leaves_no_page_out(worker: FakeWorker) -> None:
    """Every page and every command is in it, with the role that it needs."""
    from openapi_spec_validator import OpenAPIV31SpecValidator  # takes half a second

    async with serving(worker, ACCESS) as url:
        document = json.loads((await ask(url, DOCUMENT))[1])
    OpenAPIV31SpecValidator(document).validate()
    needs = {path: role for path, (_, template, role) in ROUTES if template}
    needs |= {path: role for path, (_, role) in ACTIONS if path not in ("/login", "/logout")}
    needs |= {"/health": Role.NONE, "/ready": Role.NONE}
    said = {path: next(iter(each.values()))["description"] for path, each in document["paths"].items()}
    assert said == {path: f"Needs the role {role.name.lower()}." for path, role in needs.items()}


async def test_the_document_allows_what_the_pages_take(worker: FakeWorker) -> None:
    """Offsets beyond 2^31, and nothing but 1 for a yes."""
    async with serving(worker, ACCESS) as url:
        document = json.loads((await ask(url, DOCUMENT))[1])
        for path, offset in (("/{main}/dead", 2**63 - 1), ("/api/commands/{main}", 2**31)):
            operation = document["paths"][f"{path}/{{partition}}/{{offset}}"]["get"]
            limits = {each["name"]: each["schema"].get("maximum") for each in operation["parameters"]}
            assert (limits["partition"], limits["offset"]) == (2**31 - 1, 2**63 - 1)
            asked = f"/retries{path.replace('{main}', MAIN)}/0/{offset}?format=json"
            assert (await ask(url, asked, bearer(Role.LOOK)))[0] == 404, "it is a place where nothing is"
        for kind in ("dead", "pending"):
            query = document["paths"][f"/{{main}}/{kind}"]["get"]["parameters"]
            assert next(each["schema"]["maximum"] for each in query if each["name"] == "seen") == 2**53
            assert (await ask(url, f"{BASE}/{kind}?seen={2**53}&format=json", bearer(Role.LOOK)))[0] == 200
        for path, name in (("dead", "marked"), ("jobs/new", "all")):
            query = document["paths"][f"/{{main}}/{path}"]["get"]["parameters"]
            assert next(each["schema"]["enum"] for each in query if each["name"] == name) == ["1"]


@pytest.mark.parametrize(("path", "role"), list(product(ANSWERS, (Role.LOOK, Role.ADMIN))))
async def test_answers_are_as_the_document_says(worker: FakeWorker, path: str, role: Role) -> None:
    """With all facts and no other, whoever asks; also of damaged letters. What is new is described in `web.api`."""
    fit(worker)
    worker.parts["flights"] = [partition(0, paused="paused by ann", circuit="open"), partition(1)]
    worker.bury(240, dead_metadata(9_000, last_failed_ms=NOW_MS), value=b"\xff\x00")
    model, _ = ANSWERS[path]
    more = ["&verb=replay&all=1", "&verb=replay&cause=c1-0011223344"] if path.endswith("/new") else [""]
    whole = address_of(path)
    addresses = [f"{whole}{'&' if '?' in whole else '?'}format=json{each}" for each in more]
    addresses += [f"{BASE}/dead/{place}?format=json" for place in ("1/5", "1/7", "1/12", "0/240") if "dead/{" in path]
    async with serving(worker, ACCESS) as url:
        for address in addresses:
            status, body = await ask(url, address, bearer(role))
            if role is Role.LOOK and path.endswith("/new"):
                assert (status, bool(Error.model_validate_json(body, extra="forbid"))) == (403, True)
                continue
            assert status == 200, body
            model.model_validate_json(body, extra="forbid")


SENT: dict[str, dict[str, Any]] = {
    "/{main}/command": {"verb": "reschedule", "failure_id": NAME, "at": "10m", "why": "x", "state": "r0"},
    "/{main}/command/selection": {"verb": "replay", "why": "x", "failure_ids": [NAME]},
    "/{main}/command/handler": {"verb": "pause", "why": "x"},
    "/{main}/command/job": {
        "verb": "replay", "job": "aa", "why": "x", "rate": "100/s", "force": True, "filter": {"reason": "exhausted"},
        "scope": {"letters": {"0": 1}, "upto": {"0": {f"{GROUP}.{MAIN}.dlq": 3}}},
    },
    "/{main}/command/job/{job}": {"verb": "cancel", "why": "x"},
}  # fmt: skip


def test_all_that_a_command_may_be_sent_is_in_the_document() -> None:
    """But what a form has in place of an `edit`."""
    assert {*COMMANDS["/{main}/command"][0].model_fields} == {*_FIELDS} - {*_OF_FORM}


@pytest.mark.parametrize(("path", "answer"), list(product(COMMANDS, ("", "not-waiting", None))))
async def test_commands_are_as_the_document_says(worker: FakeWorker, path: str, answer: str | None) -> None:
    """What is sent, and what is told of it: obeyed, refused or queued."""
    worker.answer = answer
    sent, told = COMMANDS[path]
    sent.model_validate(SENT[path])
    async with serving(worker, ADMIN) as url:
        status, body = await ask(url, address_of(path), method="POST", json=SENT[path])
    of_records = path in ("/{main}/command", "/{main}/command/selection")
    assert status == (202 if answer is None and of_records else 200), body
    told.model_validate_json(body, extra="forbid")


@pytest.mark.parametrize("path", COMMANDS)
async def test_the_document_and_each_command_refuse_what_is_not_known(worker: FakeWorker, path: str) -> None:
    """A slip would steer something else."""
    slip = {**SENT[path], "circiut": "ledger"}
    with pytest.raises(ValidationError, match="circiut"):
        COMMANDS[path][0].model_validate(slip)
    async with serving(worker, ADMIN) as url:
        status, body = await ask(url, address_of(path), method="POST", json=slip)
    assert (status, json.loads(body)["error"]["code"], worker.commands) == (400, "bad-command", [])


def explore(operation: Any, mode: Any, checks: list[Any]) -> set[int]:
    """Ask something in many ways, and check the answers; return their statuses."""
    statuses = set()
    fixed = {"main": MAIN} if mode.is_positive else {}  # else most are 404

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        case.path_parameters = {**case.path_parameters, **fixed} if case.path_parameters else case.path_parameters
        response = case.call()
        statuses.add(response.status_code)
        case.validate_response(response, checks=checks)

    with suppress(Unsatisfiable):  # what has no parameter cannot be asked wrongly
        check()
    return statuses


def no_fault_of_ours(_context: Any, response: Any, _case: Any) -> None:
    """Refuse a 500; a 503 is an answer that the document names, as of a partition that opens."""
    assert response.status_code != 500


@pytest.mark.extended
def test_whatever_is_asked_is_answered_as_the_document_says(worker: FakeWorker) -> None:
    """Requests that fit the document, and others: never a 500, always a status, type and facts that it names."""
    import schemathesis  # takes a second
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks as known

    checks = [no_fault_of_ours, known.content_type_conformance, known.response_schema_conformance,
              known.status_code_conformance, known.unsupported_method]  # fmt: skip
    fit(worker)
    with Served(worker) as served:
        schema = schemathesis.openapi.from_url(served.url + DOCUMENT)
        operations = [result.ok() for result in schema.get_all_operations()]
        statuses = [explore(operation, mode, checks) for operation, mode in product(operations, GenerationMode)]
    assert set().union(*statuses) >= {200, 400, 404}
