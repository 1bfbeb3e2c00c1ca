"""Planted faults of dead letters that have a handler, and of those that there are none of; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from retryapp.core.control import LetterMark, MarkKind, OutgoingMark
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import RETRY_GROUP
from retryapp.core.hops import Outgoing
from retryapp.core.letters import read_letter
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers, Origin, Record
from retryapp.engine.delivery import damage, deliver, pool
from retryapp.engine.delivery.run import DeliveryContext, Outcome, Run
from retryapp.engine.lane.dead_keeper import DeadLetterKeeper
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.letter_commands import LetterCommands
from retryapp.engine.partition.session import Session
from retryapp.ports import Event
from simulation.scripts import INVALID

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


def _unheeded(self: LetterCommands, command: Any, letter: Any, mark: str | None) -> None:
    """A replay does not look whether the letter was handled."""
    _check_replay(self, command, letter, None if mark == MarkKind.HANDLED else mark)


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


async def _at_once(self: SharedLetters, letter: int | None = None) -> None:
    """A letter that has ended its workers is given up before it can be marked."""
    if letter is None:
        await _known(self)


_known = SharedLetters.known


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


def _whoever(
    context: DeliveryContext, kind: MarkKind, headers: Headers, letter: Origin, why: str = ""
) -> tuple[Outgoing, ...]:
    """A letter of another group is marked, too."""
    others = dict(headers).get(RETRY_GROUP) == b"others"
    ours = tuple((name, b"sim" if others and name == RETRY_GROUP else value) for name, value in headers)
    return _letter_mark(context, kind, ours, letter, why)


_letter_mark = damage.letter_mark
_MARKING: Final = damage, deliver


def _for_the_sound(run: Run) -> Turn | None:
    """A letter with damaged headers, or that is none, is dead without a run."""
    if (turn := _unpack(run)) is None and run.context.handler.topology.letters_of is not None:
        told = read_letter(run.shown.headers)
        if told.damage is not None:
            return damage.bury_damaged(run, DamagedMetadataError("retry-version", told.damage), 0)
    return turn


_unpack = deliver.unpack


def _of_what_is_there(self: SharedLetters, letter: int) -> bool:
    """A letter that retention has deleted is not marked."""
    table: Any = getattr(self._keeper, "table", None)
    return (table is None or letter in table.rows) and _may_mark(self, letter)


_may_mark = SharedLetters.may_mark


def _usual(self: LetterMark, topic: str, partition: int) -> OutgoingMark:
    """All marks go to the usual dead-letter topic."""
    return _to_record(self, topic.removesuffix(f".{INVALID}"), partition)


_to_record = LetterMark.to_record


def _of_its_record(self: SharedLetters, letter: int) -> str | None:
    """A record that dies again needs no handler, as it had one before."""
    table: Any = getattr(self._keeper, "table", None)
    if table is not None and (row := table.rows.get(letter)) is not None:
        former = [at for at, each in table.rows.items() if at < letter and each.failure_id == row.failure_id]
        if any(table.mark_of(at) == MarkKind.HANDLED for at in former):
            return MarkKind.DISCARDED
    return _mark_of(self, letter)


_mark_of = SharedLetters.mark_of


async def _kept(_self: SharedLetters) -> None:
    """The table keeps a mark whose transaction the broker has rolled back."""


LETTERS: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("the index decides", ((SharedLetters, "waits", _by_the_index),), 18_000_107),
    ("a mark is durable before the outcome", ((Session, "take", _marked_before),), 18_000_010),
    ("a failed letter is delivered anew", ((damage, "to_end", _anew), (deliver, "to_end", _anew)), 18_000_007),
    ("dropped without a fate", ((damage, "to_end", _without_a_fate), (deliver, "to_end", _without_a_fate)), 18_000_004),
    ("dropped and not counted", ((damage, "to_end", _uncounted), (deliver, "to_end", _uncounted)), 18_000_064),
    ("a replay ignores the mark", ((LetterCommands, "_check_replay", _unheeded),), 18_000_002),
    ("a letter is replayed while its handler has it", ((SharedLetters, "runs", _never_runs),), 18_000_018),
    ("a letter that is replayed begins", ((SharedLetters, "change", _not_kept),), 18_000_256),
    ("the table does not get marks of the handler", ((DeadLetterKeeper, "take", _not_taken),), 18_000_013),
    ("what was replayed is handled", ((deliver, "_passed", _begins),), 18_000_002),
    ("a letter that has ended its workers has no mark", ((SharedLetters, "known", _at_once),), 18_000_045),
    ("a letter of another group is marked", tuple((at, "letter_mark", _whoever) for at in _MARKING), 18_000_000),
    ("a damaged letter is not given", ((pool, "unpack", _for_the_sound),), 18_000_000),
    ("a letter that is gone has no mark", ((SharedLetters, "may_mark", _of_what_is_there),), 18_000_001),
    ("marks of a rule's letters go to the usual topic", ((LetterMark, "to_record", _usual),), 18_000_002),
    ("a record that dies again is not handled again", ((SharedLetters, "mark_of", _of_its_record),), 18_000_035),
    ("a mark that was rolled back is kept", ((SharedLetters, "rolled_back", _kept),), 18_613_727),
    ("a letter is free before its outcome is durable", ((SharedLetters, "ended", _let_go_early),), 18_000_090),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""
