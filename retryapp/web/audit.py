"""The page of a handler's audit: who did what, when and why, and what came of it."""

from __future__ import annotations

import asyncio
from typing import Final

from retryapp.lookup.audit import Audit, read_audit
from retryapp.lookup.records import Facts
from retryapp.web.answers import Answers
from retryapp.web.group import Group
from retryapp.web.query import Question
from retryapp.web.turns import Turns

READ_S: Final = 5.0
"""How long a page reads events."""
SPAN_MS: Final = 86_400_000
"""How far it looks back if the reader does not say."""

_readings: Final = Turns(2)


async def audit(answers: Answers, question: Question) -> Facts:
    """Return the commands of a time, the newest first, with who has sent them and why."""
    info = answers.get_handler_or_404(question.main)
    answers.check_broker()
    wanted = question.wanted
    since_ms = answers.now_ms() - SPAN_MS if wanted.from_ms is None else wanted.from_ms
    asked = (info.main, read_audit, since_ms, wanted.until_ms)
    group: Group
    found: Audit
    group, found = await asyncio.gather(
        answers.everywhere(info.main, answers.view.partitions(info.main)),
        _readings.read(answers.view.on_topics, *asked, seconds=READ_S),
    )
    jobs = {each["job"] for each in found.commands} & {part.job for _, part in group.parts}
    times = {name: question.query.get(name) for name in ("since", "until")}
    return {"main": info.main, "from_ms": since_ms, "jobs": sorted(jobs), **times, **found._asdict()}
