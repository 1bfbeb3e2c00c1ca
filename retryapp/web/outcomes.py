"""What became of a command, asked later by the address that its answer has."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from retryapp.core.lifecycle import Commanded
from retryapp.lookup.outcomes import QUEUED, Outcome, outcome_of, read_outcome
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX
from retryapp.web.answers import READ_TIMEOUT_S, Answers
from retryapp.web.errors import SOON, PageError, not_found
from retryapp.web.query import Question
from retryapp.web.turns import Turns

LIVE_S: Final = 5
"""The page of a command that is queued is loaded again after this time."""
_readings: Final = Turns(2)


async def outcome(answers: Answers, question: Question) -> Facts:
    """Return whether a command is queued, obeyed or refused, whichever worker has its partition."""
    info = answers.get_handler_or_404(question.main)
    partition, offset = question.at()
    found: Outcome | None = None
    if partition < info.partitions:
        asked = (info.main, read_outcome, partition, offset)
        found = await _readings.read(answers.view.on_topics, *asked, seconds=READ_TIMEOUT_S)
    if found is None:
        hint = "It may be older than the retention of the control topic"
        raise not_found("no-such-command", f"no command of {info.main} at partition {partition}, offset {offset}", hint)
    if not found.complete:
        message = f"too many events came since to read them in {READ_TIMEOUT_S:g} s"
        raise PageError(503, "not-read", message, "The journey of its record may say it", SOON)
    return {
        "main": info.main,
        "verb": found.sent.verb,
        "failure_id": found.sent.failure_id,
        "command": found.sent.id,
        **outcome_facts(found.told),
        "see": address_of(info.main, partition, offset),
        "live_s": LIVE_S if found.told is None else None,
    }


def outcome_facts(told: Commanded | None) -> Facts:
    """Return what a worker has said of a command; None: nothing yet."""
    return {
        "outcome": outcome_of(told),
        "refused": told and told.refused,
        "text": QUEUED if told is None else told.text,
    }


def address_of(main: str, partition: int, offset: int) -> str:
    return f"{PAGES_PREFIX}/api/commands/{quote(main, safe='')}/{partition}/{offset}"
