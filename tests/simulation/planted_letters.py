"""Planted faults of dead letters that have a handler, and of those that there are none of; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from retryapp.core.control import MarkKind, OutgoingMark
from retryapp.core.hops import Outgoing
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.engine.delivery import damage, deliver
from retryapp.engine.delivery.run import DeliveryContext, Outcome, Run
from retryapp.engine.lane.dead_keeper import DeadLetterKeeper
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.letter_commands import LetterCommands
from retryapp.engine.partition.session import Session
from retryapp.ports import Event

Ended = tuple[tuple[Outgoing, ...], RetryMetadata, Event]


def _by_the_index(self: SharedLetters, letter: int | None = None) -> bool:
    """What the table of the letters has now decides, whether it has all marks or not."""
    return letter in self._changing


def _marked_before(self: Session, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
    """The mark of a letter goes ahead of the turn with its outcome."""
    if isinstance(outcome, Turn):
        marks = tuple(out for out in outcome.publishes if isinstance(out, OutgoingMark))
        if marks:
            self._submit(Turn(publishes=marks))
            outcome.publishes = tuple(out for out in outcome.publishes if out not in marks)
    _take(self, run, outcome, fault)


_take = Session.take


def _anew(context: DeliveryContext, record: Record, metadata: RetryMetadata, dead_letters: str | None = None) -> Ended:
    """A letter that its handler has failed for good dies once more, onto its own topic."""
    ends, metadata, event = _to_end(context, record, metadata, dead_letters)
    topology = context.handler.topology
    if topology.letters_of is not None:
        again = Outgoing(topology.main, record.partition, record.key, record.value or b"", record.headers)
        ends = (*(out for out in ends if not isinstance(out, OutgoingMark)), again)
    return ends, metadata, event


def _without_a_fate(
    context: DeliveryContext, record: Record, metadata: RetryMetadata, dead_letters: str | None = None
) -> Ended:
    """Where there is no dead-letter topic, nothing says that a record is dead."""
    ends, metadata, event = _to_end(context, record, metadata, dead_letters)
    return (() if event is Event.DISCARDED else ends), metadata, event


_to_end = damage.to_end


def _unheeded(self: LetterCommands, command: Any, metadata: RetryMetadata, mark: str | None) -> None:
    """A replay does not look whether the letter was handled."""
    _check_replay(self, command, metadata, None if mark == MarkKind.HANDLED else mark)


_check_replay = LetterCommands._check_replay


def _never_runs(_self: SharedLetters, _letter: int) -> bool:
    """A command does not see that the handler has the letter."""
    return False


def _not_kept(_self: SharedLetters, _letter: int) -> None:
    """The handler begins a letter that a command changes."""


def _not_taken(_self: DeadLetterKeeper, _marks: Sequence[Any]) -> None:
    """The table does not get what the lane of the handler has committed."""


def _begins(_run: Run) -> None:
    """What a command has replayed or discarded is handled all the same."""


def _at_once(self: SharedLetters, letter: int | None = None) -> bool:
    """A letter that has ended its workers is given up before it can be marked."""
    return letter is not None and _waits(self, letter)


_waits = SharedLetters.waits


def _let_go_early(self: SharedLetters, letter: int, publishes: Sequence[Outgoing]) -> None:
    """A letter is free once its run has ended, and not once that is committed."""
    _ended(self, letter, ())


_ended = SharedLetters.ended


def _uncounted(
    context: DeliveryContext, record: Record, metadata: RetryMetadata, dead_letters: str | None = None
) -> Ended:
    """What is discarded is counted as dead."""
    ends, metadata, event = _to_end(context, record, metadata, dead_letters)
    return ends, metadata, Event.DEAD if event is Event.DISCARDED else event


LETTERS: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("the index decides", ((SharedLetters, "waits", _by_the_index),), 18_000_045),
    ("a mark is durable before the outcome", ((Session, "take", _marked_before),), 18_000_030),
    ("a failed letter is delivered anew", ((damage, "to_end", _anew), (deliver, "to_end", _anew)), 18_000_007),
    ("dropped without a fate", ((damage, "to_end", _without_a_fate), (deliver, "to_end", _without_a_fate)), 18_000_004),
    ("dropped and not counted", ((damage, "to_end", _uncounted), (deliver, "to_end", _uncounted)), 18_000_064),
    ("a replay ignores the mark", ((LetterCommands, "_check_replay", _unheeded),), 18_000_001),
    ("a letter is replayed while its handler has it", ((SharedLetters, "runs", _never_runs),), 18_000_005),
    ("a letter that is replayed begins", ((SharedLetters, "change", _not_kept),), 18_000_020),
    ("the table does not get marks of the handler", ((DeadLetterKeeper, "take", _not_taken),), 18_000_001),
    ("what was replayed is handled", ((deliver, "_passed", _begins),), 18_000_016),
    ("a letter that has ended its workers has no mark", ((SharedLetters, "waits", _at_once),), 18_000_030),
    ("a letter is free before its outcome is durable", ((SharedLetters, "ended", _let_go_early),), 18_000_016),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""
