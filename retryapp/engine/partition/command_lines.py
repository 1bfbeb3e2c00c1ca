"""Lines of the log about commands: who asked for what, why, and what came of it. They hold no payload.

Turns call these when they have ended (`Turn.on_settled`): what a crash undoes has no line. A worker that dies just
after leaves the event alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from retryapp.core.control import Refusal
from retryapp.engine.partition.letter_commands import Effect
from retryapp.ports import TopicPartition

logger = logging.getLogger("retryapp.command")


def log_command(
    main: TopicPartition,
    effect: Effect,
    refusal: Refusal | None,
    facts: Mapping[str, Any],
    committed: bool,
    _offsets: tuple[int, ...],
) -> None:
    """Log a command about a record, a job or a handler; texts are quoted, so that nobody forges a line."""
    if not committed:
        return
    kinds = {"failure_id": "", "job": "job ", "circuit": "circuit "}
    about = "".join(f"{kind}{facts[name]!r} " for name, kind in kinds.items() if facts.get(name))
    who, why = facts.get("by", ""), facts.get("why", "")
    outcome = f"{'' if refusal is None else f'refused, {refusal}: '}{effect.text!r}"
    states = {"before": effect.before, "after": effect.after, "refused": refusal and str(refusal)}
    extra = {**facts, **states, "handler": main.topic, "partition": main.partition, "outcome": effect.text}
    line = "retryapp.command: %s %son %s[%d] by %r, %r: %s"
    logger.info(line, facts["verb"], about, *main, who, why, outcome, extra=extra)


def log_unread(
    main: TopicPartition, number: int, refusal: Refusal, text: str, committed: bool, _offsets: tuple[int, ...]
) -> None:
    """Log records in a row that are no commands: how many, and the first one's sentence."""
    if committed:
        line = "retryapp.command: %d for %s[%d] refused that are none, the first as %s: %r"
        logger.info(line, number, *main, refusal, text)
