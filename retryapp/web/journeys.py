"""The page of one record's journey: what it has been through, what is planned, and where it is now."""

from __future__ import annotations

import asyncio
import time
from typing import Final
from urllib.parse import quote

from retryapp.core.errors import RetryAppError
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin, failure_id, idempotency_key
from retryapp.lookup.journeys import journey as read_journey
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX
from retryapp.web.answers import READ_TIMEOUT_S, Answers, origin_asked
from retryapp.web.errors import bad_parameter, not_found
from retryapp.web.figures import ELSEWHERE, web_url
from retryapp.web.query import Question
from retryapp.web.turns import Turns

READ_S: Final = 5.0
"""How long a page reads topics for one record."""
MOST_PLANNED: Final = 20
_UNKNOWN: Final = dict.fromkeys(
    (
        "attempt",
        "by",
        "cause_id",
        "due_at_ms",
        "duration_ms",
        "edited",
        "error_type",
        "message",
        "reason",
        "replays",
        "text",
        "worker",
    )
)

_readings: Final = Turns(2)


async def journey(answers: Answers, question: Question) -> Facts:
    """Return what the topics say of a record, whoever has it now, and whether it waits, is dead or done."""
    info = answers.get_handler_or_404(question.main)
    origin = origin_asked(info, question)
    name = failure_id(info.group, origin)
    if origin.partition >= info.partitions:
        raise bad_parameter("id", name, f"a failure id of {info.group}/{info.main}")
    since_ms, until_s = await _begun(answers, origin), time.monotonic() + READ_S
    found = await _readings.take(
        lambda: answers.view.on_topics(info.main, read_journey, origin, since_ms, lambda: time.monotonic() < until_s)
    )
    if not found.steps and found.complete:
        hint = "It may be done at its first delivery, run now, or have left the topics by their retention"
        raise not_found("no-journey", f"no topic of {info.main} says anything of {name}", hint)
    last: Facts = next((step for step in reversed(found.steps) if "attempt" in step), {})
    waits = last.get("kind") == "failed" and last.get("due_at_ms") is not None
    edited = next((step["edited"] for step in reversed(found.steps) if step.get("edited")), None)
    item = answers.view.partition(info.main, origin.partition)
    owner = "" if item is None or item.state != ELSEWHERE else web_url(item.owner_url) or ""
    return {
        "main": info.main,
        "failure_id": name,
        "idempotency_key": idempotency_key(name, edited),
        "origin": {"partition": origin.partition, "offset": origin.offset},
        "steps": [{**_UNKNOWN, **step} for step in found.steps],
        "looked": found.looked,
        "complete": found.complete,
        "planned": planned(info.policy, last) if waits and found.steps[-1]["kind"] != "cancel" else [],
        "max_attempts": RetryPolicy.parse(info.policy).max_attempts,
        "find": f"{owner}{PAGES_PREFIX}/{quote(info.main, safe='')}/find?id={quote(name, safe='')}",
    }


async def _begun(answers: Answers, origin: Origin) -> int | None:
    """Return the timestamp of the record itself; None where it is gone."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            record = await answers.view.read_record(origin.topic, origin.partition, origin.offset)
    except (TimeoutError, RetryAppError):
        return None
    known = record is not None and 0 < record.timestamp_ms <= answers.now_ms()
    return record.timestamp_ms if record is not None and known else None


def planned(text: str, last: Facts) -> list[Facts]:
    """Return the attempts to come by today's policy if all of them fail, without jitter."""
    policy, at_ms, attempt = RetryPolicy.parse(text), last["due_at_ms"], last["attempt"] + 1
    plan = [{"attempt": attempt, "due_at_ms": at_ms}]
    while len(plan) < MOST_PLANNED and policy.schedule.follows(attempt) and policy.max_attempts is not None:
        at_ms += policy.schedule.nominal_ms(attempt)
        attempt += 1
        if attempt > policy.max_attempts:
            break
        plan.append({"attempt": attempt, "due_at_ms": at_ms})
    return plan
