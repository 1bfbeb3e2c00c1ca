"""What commands about records that wait come to: they are tried now, later, after a release, or not again.

A held row is in the table under the time of its deadline: no scan finds it before, and then it is released, loudly. A
record that runs is held once its run has failed: its row says so until then, also over a crash. Success wins.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from retryapp.core.classify import DeadReason
from retryapp.core.control import HOLD_MS, Command, Refusal, Verb, row_state
from retryapp.core.durations import MAX_DURATION_MS, format_duration_ms
from retryapp.core.hops import cancelled, counted_from_ms, due_anew, released, restore
from retryapp.core.metadata import MAX_EPOCH_MS, RetryMetadata
from retryapp.core.record import Record
from retryapp.core.row_keys import IDENTITY_AT
from retryapp.core.rows import CANCELLED, OPERATOR, STOPPED, TOKEN, PendingRow, decode_row, encode_row
from retryapp.engine.delivery.damage import end_instead, ended
from retryapp.engine.delivery.run import Claim, DeliveryContext, Outcome, Run
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.letter_commands import Effect, RefusedError
from retryapp.engine.partition.sequences import Sequences
from retryapp.ports import Row

logger = logging.getLogger("retryapp.events")

_LAST_MS: Final = MAX_EPOCH_MS - 1
"""Latest deadline: the last possible time is that of rows without one."""


class RowCommands:
    """The commands about rows of one session of a partition."""

    def __init__(self, context: DeliveryContext, transport: LaneProtocol, sequences: Sequences | None) -> None:
        self._context = context
        self._transport = transport
        self._sequences = sequences
        self._cancelled: set[bytes] = set()
        """Identities of records that run, and are not tried again."""
        self._next: dict[bytes, int] = {}
        """Deadlines of holds that begin when a run has failed, by identity."""

    def is_replaced(self, identity: bytes, row: PendingRow) -> bool:
        """Tell whether the outcome of a newer record removes a row: to change it now could bring it back after that."""
        return self._sequences is not None and not self._sequences.has(identity, row.key)

    def check_newest(self, identity: bytes, row: PendingRow) -> None:
        """Check that no newer record takes the place of a row.

        Raises:
            RefusedError: one does.
        """
        if self.is_replaced(identity, row):
            raise RefusedError(Refusal.NOT_WAITING, "a newer record of its key takes its place")

    def obey(
        self, command: Command, row: PendingRow, metadata: RetryMetadata, identity: bytes, claim: Claim | None
    ) -> Effect:
        """Return what a command comes to; `claim`: of the run that goes on.

        Raises:
            RefusedError: it is refused.
        """
        if row.hold & STOPPED:
            if command.verb is Verb.RELEASE:
                return self.go_on(row, identity)
            text = "it is dead, and later records of its key wait: replay or discard its letter, or release it"
            raise RefusedError(Refusal.NOT_WAITING, text)
        if command.verb in (Verb.RETRY_NOW, Verb.RESCHEDULE):
            return self._reschedule(command, row, metadata, identity, claim)
        if command.verb is Verb.CANCEL and claim is None:
            return self._cancel(row, metadata, identity)
        if claim is not None and row.held:
            text = f"its first attempt {_stage(claim)}: send it again once that has ended"
            raise RefusedError(Refusal.RUNNING, text)
        if command.verb is Verb.CANCEL and claim is not None:
            return self._cancel_later(row, metadata, identity, claim)
        if command.verb is Verb.RELEASE:
            holds = TOKEN if command.delivery is not None else TOKEN | OPERATOR
            return self._release(row, metadata, identity, claim, holds)
        if row.flags & CANCELLED:
            raise RefusedError(Refusal.NOT_WAITING, "it is cancelled: no attempt comes that could be held")
        now_ms = self._context.clock.wall_ms()
        hold_ms = command.hold_ms or HOLD_MS
        until_ms = min(now_ms + hold_ms, _LAST_MS)
        text = f"no attempt begins before it is released, or {format_duration_ms(hold_ms)} have passed"
        if claim is None:
            return self._moved(row.held_until(until_ms, now_ms), metadata, identity, text)
        self._next[identity] = until_ms
        claim.on_hold = _row(row.held_until(until_ms, now_ms), metadata, identity)  # it may not have begun
        if claim.begun:
            text = f"attempt {metadata.attempt + 1} runs now; if it fails, {text}"
        return Effect(text, after="holding", rows=(_row(row.held_next(until_ms), metadata, identity),))

    def _reschedule(
        self, command: Command, row: PendingRow, metadata: RetryMetadata, identity: bytes, claim: Claim | None
    ) -> Effect:
        if claim is not None:
            text = f"attempt {metadata.attempt + 1} {_stage(claim)}: send it again once that has ended"
            raise RefusedError(Refusal.RUNNING, text)
        if row.flags & CANCELLED:
            raise RefusedError(Refusal.NOT_WAITING, "it is cancelled: no attempt comes")
        if row.hold & TOKEN:
            raise RefusedError(Refusal.HELD, "its handler waits for an event: release it, or cancel it")
        if row.held:
            raise RefusedError(Refusal.HELD, "it runs after the earlier records of its key, whatever its time")
        now_ms = self._context.clock.wall_ms()
        due_at_ms = now_ms if command.due_at_ms is None else max(now_ms, command.due_at_ms)
        gates = self._gates(identity, row)
        if row.hold:
            gates.append("it is held until somebody releases it")
        text = "; ".join([_due_text(due_at_ms - now_ms), *gates])
        return self._moved(due_anew(row, metadata, due_at_ms), metadata, identity, text)

    def _release(
        self, row: PendingRow, metadata: RetryMetadata, identity: bytes, claim: Claim | None, holds: int
    ) -> Effect:
        if claim is not None and holds == TOKEN:
            raise RefusedError(Refusal.TOO_LATE, "its deadline has passed, or it was released: it runs, or is to run")
        if claim is not None and self._next.pop(identity, None) is not None:
            claim.on_hold = None
            rows = (_row(row.held_next(None), metadata, identity),)
            return Effect("it is not held once its attempt has ended", after="running", rows=rows)
        if claim is not None or not row.hold & holds:
            why = "it waits for earlier records of its key" if row.held else "it waits for its time, or runs"
            raise RefusedError(Refusal.NOT_HELD, f"nobody holds it: {why}")
        return self.released(row, metadata, identity, holds)

    def released(self, row: PendingRow, metadata: RetryMetadata, identity: bytes, holds: int = TOKEN) -> Effect:
        """Return what it comes to that a row loses some of its holds."""
        now_ms = self._context.clock.wall_ms()
        held = counted_from_ms(metadata), row.since_ms, now_ms
        counted_ms = self._context.pace.later_ms(*held, now_ms, row.circuit)
        free, metadata = released(row, metadata, now_ms, holds, counted_ms)
        gates = self._gates(identity, free)
        text = "; ".join([_due_text(0 if free.held else free.due_at_ms - now_ms), *gates])
        if self._is_surplus(identity, free):
            text = "it is dead at once, as overflow: more records of its key wait than may (max_sequence_size)"
            text += "; deliveries are paused" if self._context.pace.paused else ""
        text = "somebody still holds it" if free.hold & OPERATOR else text
        return self._moved(free, metadata, identity, text)

    def _gates(self, identity: bytes, row: PendingRow) -> list[str]:
        """Return what holds a row back that is due, for people."""
        gates = self._context.pace.gates_of(row.circuit, first=row.held)
        if self._sequences is not None and self._sequences.waits_behind(identity, row.key):
            gates.append("it runs after the earlier records of its key")
        return gates

    def _is_surplus(self, identity: bytes, row: PendingRow) -> bool:
        """Tell whether a row that waits is given up, as too many wait for it."""
        lines = self._sequences
        return lines is not None and not lines.waits_behind(identity, row.key) and lines.is_surplus(row)

    def go_on(self, row: PendingRow, identity: bytes) -> Effect:
        """Return the effect of letting a sequence go on behind its dead record."""
        if self._sequences is not None:
            self._sequences.removed(identity, row.key)
        return Effect("it stays dead, and its sequence goes on", after="dead", rows=(Row(identity, None, "?"),))

    def _moved(self, row: PendingRow, metadata: RetryMetadata, identity: bytes, text: str) -> Effect:
        if self._sequences is not None:
            self._sequences.moved(identity, row)
        after = row_state(metadata.replays, metadata.attempt, row.due_at_ms)
        return Effect(text, after=after, rows=(_row(row, metadata, identity),))

    def judged(self, run: Run, outcome: Outcome) -> Outcome:
        """Return the outcome that counts: one that was cancelled is not tried again, one that is held waits on."""
        if not self._cancelled and not self._next:
            return outcome
        place = run.place
        if place not in self._cancelled:
            return self._held_after(place, outcome)
        self._cancelled.discard(place)
        again = [] if isinstance(outcome, int) else [row for row in outcome.rows if row.value is not None]
        if not again or not isinstance(outcome, Turn) or again[0].identity != place:
            return outcome
        return end_instead(run, outcome, DeadReason.CANCELLED)

    def _held_after(self, place: bytes, outcome: Outcome) -> Outcome:
        until_ms = self._next.pop(place, None)
        if until_ms is not None and isinstance(outcome, Turn):
            outcome.rows = tuple(self._after_run(row, place, until_ms) for row in outcome.rows)
        return outcome

    def _after_run(self, row: Row, identity: bytes, until_ms: int) -> Row:
        if row.value is None or row.identity != identity:
            return row
        held = decode_row(row.value).held_until(until_ms, self._context.clock.wall_ms())
        return row._replace(value=encode_row(held))

    def due(self, key: bytes, row: PendingRow, metadata: RetryMetadata) -> tuple[Verb, Effect] | None:
        """Return what becomes of a row that would be delivered now; None: it is delivered, or a newer one replaces it.

        The deadline of its hold has passed; or it was to be held after a run, which a crash has ended.
        """
        identity, now_ms, until_ms = key[IDENTITY_AT:], self._context.clock.wall_ms(), row.hold_next_ms
        if self.is_replaced(identity, row):
            return None
        if row.hold & OPERATOR or (until_ms is not None and until_ms <= now_ms):
            effect = self.released(row, metadata, identity, OPERATOR)
            effect.text = f"nobody has released it within its time: {effect.text}"
            facts = {"handler": self._context.handler.main, "failure_id": metadata.failure_id}
            logger.warning("retryapp.hold_expired", extra={**facts, "attempt": metadata.attempt})
            return Verb.RELEASE, effect
        if until_ms is None:
            return None
        text = f"its last run has left no outcome; no attempt begins for {format_duration_ms(until_ms - now_ms)}"
        return Verb.HOLD, self._moved(row.held_until(until_ms, now_ms), metadata, identity, text)

    def _cancel(self, row: PendingRow, metadata: RetryMetadata, identity: bytes) -> Effect:
        shown = self._shown(row, metadata)
        now_ms = self._context.clock.wall_ms()
        ends, dead = ended(self._context, shown, cancelled(metadata, "cancelled before its first attempt", now_ms))
        if self._sequences is not None:
            self._sequences.removed(identity, row.key)
        gone = (Row(identity, None, "?"),)
        return Effect("it is dead, and not tried again", after="dead", rows=gone, publishes=ends, observations=(dead,))

    def _cancel_later(self, row: PendingRow, metadata: RetryMetadata, identity: bytes, claim: Claim) -> Effect:
        """Cancel a record that runs: its row gets a flag under the same key, so the claim stays."""
        self._cancelled.add(identity)
        self._next.pop(identity, None)
        claim.cancelled = True  # it may not have begun
        value = encode_row(replace(row, flags=row.flags | CANCELLED, revision=row.revision + 1))
        ends = "runs now; if it fails, it is the last" if claim.begun else "was about to begin, and does not"
        text = f"attempt {metadata.attempt + 1} {ends}"
        return Effect(text, after="cancelling", rows=(Row(identity, value, metadata.tier or "?"),))

    def _shown(self, row: PendingRow, metadata: RetryMetadata) -> Record:
        changelog = self._transport.place.changelog
        waiting = Record(*changelog, metadata.origin.offset, row.since_ms, row.key, row.value, row.headers)
        return restore(waiting, metadata)


def _row(row: PendingRow, metadata: RetryMetadata, identity: bytes) -> Row:
    return Row(identity, encode_row(row), metadata.tier or "?")


def _stage(claim: Claim) -> str:
    """Say for people where the run of a claimed row is."""
    return "runs now" if claim.begun else "is about to begin"


def _due_text(wait_ms: int) -> str:
    """Say for people when a record is due."""
    if wait_ms <= 0:
        return "due now"
    if wait_ms > MAX_DURATION_MS:
        return f"due in more than {format_duration_ms(MAX_DURATION_MS)}"
    return f"due in {format_duration_ms(wait_ms if wait_ms < 1_000 else wait_ms // 1_000 * 1_000)}"
