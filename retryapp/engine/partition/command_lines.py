"""Lines of the log about commands: who asked for what, why, and what came of it.

They hold no payload, but what a refusal quotes. Turns call these when they have ended (`Turn.on_settled`): what a crash
undoes has no line. A worker that dies just after leaves the event alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from retryapp.core.control import Refusal
from retryapp.core.text import cut_text
from retryapp.engine.partition.letter_commands import Effect
from retryapp.ports import TopicPartition

MAX_TEXT_BYTES: Final = 1_000
"""Of what an event and a line say: a refusal may quote its command."""

logger = logging.getLogger("retryapp.command")


def log_command(
    main: TopicPartition,
    effect: Effect,
    refusal: Refusal | None,
    facts: Mapping[str, Any],
    committed: bool,
    _offsets: tuple[int, ...],
) -> None:
    """Log a command about a record, a job or a handler. Texts are quoted, so they cannot look like another line."""
    if not committed:
        return
    kinds = {"failure_id": "", "job": "job ", "circuit": "circuit "}
    about = "".join(f"{kind}{facts[name]!r} " for name, kind in kinds.items() if facts.get(name))
    by = f" by {facts['by']!r}, {facts['why']!r}" if "by" in facts else ""  # else a job has ended, or paused itself
    text = cut_text(effect.text, MAX_TEXT_BYTES)
    outcome = f"{'' if refusal is None else f'refused, {refusal}: '}{text!r}"
    states = {"before": effect.before, "after": effect.after, "refused": refusal and str(refusal)}
    extra = {**facts, **states, "handler": main.topic, "partition": main.partition, "outcome": text}
    logger.info("retryapp.command: %s %son %s[%d]%s: %s", facts["verb"], about, *main, by, outcome, extra=extra)


def log_unread(
    main: TopicPartition, number: int, refusal: Refusal, text: str, committed: bool, _offsets: tuple[int, ...]
) -> None:
    """Log records in a row that are no commands: how many, and the first one's sentence."""
    if committed:
        line = "retryapp.command: %d for %s[%d] refused that are none, the first as %s: %r"
        logger.info(line, number, *main, refusal, cut_text(text, MAX_TEXT_BYTES))
