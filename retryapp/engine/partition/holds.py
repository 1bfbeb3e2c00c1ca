"""Change when a record that waits is tried: now, later, or not before somebody releases it.

A held row is in the table under the time of its deadline: no scan finds it before, and then it is released, loudly. A
record that runs is held once its run has failed: its row says so until then, also over a crash. Success wins.
"""

from __future__ import annotations

import logging
from typing import Final

from retryapp.core.control import HOLD_MS, Command, Refusal, Verb, row_state
from retryapp.core.durations import format_duration_ms
from retryapp.core.hops import due_anew, released
from retryapp.core.metadata import MAX_EPOCH_MS, RetryMetadata
from retryapp.core.rows import IDENTITY_AT, OPERATOR, PendingRow, decode_row, encode_row
from retryapp.engine.delivery.run import Claim, DeliveryContext, Outcome, Run
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.letter_commands import Effect, RefusedError
from retryapp.engine.partition.sequences import Sequences
from retryapp.ports import Row

logger = logging.getLogger("retryapp.events")

_LAST_MS: Final = MAX_EPOCH_MS - 1
"""Latest deadline: the last possible time is that of rows without one."""


class Holds:
    """The times and holds of the rows of one session of a partition."""

    def __init__(self, context: DeliveryContext, sequences: Sequences | None) -> None:
        self._context = context
        self._sequences = sequences
        self._next: dict[bytes, int] = {}
        """Deadlines of holds that begin when a run has failed, by identity."""

    def obey(
        self, command: Command, row: PendingRow, metadata: RetryMetadata, identity: bytes, claim: Claim | None
    ) -> Effect:
        """Return what a command comes to; `claim`: of the run that goes on.

        Raises:
            RefusedError: it is refused.
        """
        if command.verb in (Verb.RETRY_NOW, Verb.RESCHEDULE):
            return self._reschedule(command, row, metadata, identity, runs=claim is not None)
        if claim is not None and row.held:
            text = "its first attempt runs now: send it again once that has ended"
            raise RefusedError(Refusal.RUNNING, text)
        if command.verb is Verb.RELEASE:
            return self._release(row, metadata, identity, claim)
        now_ms = self._context.clock.wall_ms()
        hold_ms = command.hold_ms or HOLD_MS
        until_ms = min(now_ms + hold_ms, _LAST_MS)
        text = f"no attempt begins before it is released, or {format_duration_ms(hold_ms)} have passed"
        if claim is None:
            return self._moved(row.held_until(until_ms, now_ms), metadata, identity, text)
        self._next[identity] = until_ms
        claim.on_hold = _row(row.held_until(until_ms, now_ms), metadata, identity)  # it may not have begun
        text = f"attempt {metadata.attempt + 1} runs now; if it fails, {text}"
        return Effect(text, after="holding", rows=(_row(row.held_next(until_ms), metadata, identity),))

    def _reschedule(
        self, command: Command, row: PendingRow, metadata: RetryMetadata, identity: bytes, *, runs: bool
    ) -> Effect:
        if runs:
            text = f"attempt {metadata.attempt + 1} runs now: send it again once that has ended"
            raise RefusedError(Refusal.RUNNING, text)
        if row.held:
            raise RefusedError(Refusal.HELD, "it runs after the earlier records of its key, whatever its time")
        now_ms = self._context.clock.wall_ms()
        due_at_ms = now_ms if command.due_at_ms is None else max(now_ms, command.due_at_ms)
        circuit = self._context.pace.circuit
        gate = "" if circuit is None or circuit.closed else "; an outage is on, which holds it back"
        gate = "; it is held until somebody releases it" if row.hold else gate
        text = f"due in {max(0, due_at_ms - now_ms)} ms{gate}"
        return self._moved(due_anew(row, metadata, due_at_ms), metadata, identity, text)

    def _release(self, row: PendingRow, metadata: RetryMetadata, identity: bytes, claim: Claim | None) -> Effect:
        if claim is not None and self._next.pop(identity, None) is not None:
            claim.on_hold = None
            rows = (_row(row.held_next(None), metadata, identity),)
            return Effect("it is not held once its attempt has ended", after="running", rows=rows)
        if claim is not None or not row.hold & OPERATOR:
            why = "it waits for earlier records of its key" if row.held else "it waits for its time, or runs"
            raise RefusedError(Refusal.NOT_HELD, f"nobody holds it: {why}")
        return self._released(row, metadata, identity)

    def _released(self, row: PendingRow, metadata: RetryMetadata, identity: bytes) -> Effect:
        now_ms = self._context.clock.wall_ms()
        free = released(row, metadata, now_ms)
        text = "it runs after the earlier records of its key" if free.held else f"due in {free.due_at_ms - now_ms} ms"
        return self._moved(free, metadata, identity, text)

    def _moved(self, row: PendingRow, metadata: RetryMetadata, identity: bytes, text: str) -> Effect:
        if self._sequences is not None:
            self._sequences.moved(identity, row)
        after = row_state(metadata.replays, metadata.attempt, row.due_at_ms)
        return Effect(text, after=after, rows=(_row(row, metadata, identity),))

    def judged(self, run: Run, outcome: Outcome) -> Outcome:
        """Return the outcome that counts: a record that is to be held after its run does not wait for its time."""
        until_ms = self._next.pop(run.place, None)
        if until_ms is not None and isinstance(outcome, Turn):
            outcome.rows = tuple(self._after_run(row, run.place, until_ms) for row in outcome.rows)
        return outcome

    def _after_run(self, row: Row, identity: bytes, until_ms: int) -> Row:
        if row.value is None or row.identity != identity:
            return row
        held = decode_row(row.value).held_until(until_ms, self._context.clock.wall_ms())
        return row._replace(value=encode_row(held))

    def due(self, key: bytes, row: PendingRow, metadata: RetryMetadata) -> tuple[Verb, Effect] | None:
        """Return what becomes of a row that would be delivered now; None: it is delivered.

        The deadline of its hold has passed; or it was to be held after a run, which a crash has ended.
        """
        identity, now_ms, until_ms = key[IDENTITY_AT:], self._context.clock.wall_ms(), row.hold_next_ms
        if row.hold & OPERATOR or (until_ms is not None and until_ms <= now_ms):
            effect = self._released(row, metadata, identity)
            effect.text = f"nobody has released it within its time: {effect.text}"
            facts = {"handler": self._context.handler.main, "failure_id": metadata.failure_id}
            logger.warning("retryapp.hold_expired", extra={**facts, "attempt": metadata.attempt})
            return Verb.RELEASE, effect
        if until_ms is None:
            return None
        text = f"its last run has left no outcome; no attempt begins for {format_duration_ms(until_ms - now_ms)}"
        return Verb.HOLD, self._moved(row.held_until(until_ms, now_ms), metadata, identity, text)


def _row(row: PendingRow, metadata: RetryMetadata, identity: bytes) -> Row:
    return Row(identity, encode_row(row), metadata.tier or "?")
