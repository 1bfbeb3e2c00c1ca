"""Planted faults of commands; see `simulation.mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from retryapp.core.circuit import Circuit, CircuitState
from retryapp.core.control import Command, Edit
from retryapp.core.hops import after_failure, replayed
from retryapp.core.jobs import Level, Part, Steering
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.rows import PendingRow
from retryapp.engine.delivery import deliver
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.delivery.run import Outcome, Run
from retryapp.engine.lane.notes import Notes
from retryapp.engine.lane.refused import RefusedTurns
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition import jobs, letter_commands
from retryapp.engine.partition.commands import Commands
from retryapp.engine.partition.control_queue import ControlQueue
from retryapp.engine.partition.jobs import Jobs
from retryapp.engine.partition.letter_commands import Effect, LetterCommands
from retryapp.engine.partition.levels import Levels
from retryapp.engine.partition.releases import Releases
from retryapp.engine.partition.row_commands import RowCommands
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.sequences import Sequences
from retryapp.engine.partition.session import Session
from retryapp.testing.tables import MemoryDeadLetterTable


async def _hasty(self: Scheduler) -> None:
    """Records of the main topic come in while commands are read that were there before."""
    if self._sequences is None and self._on_loaded is not None:
        self.loaded = True
        self._on_loaded()
    await _run(self)


def _unsaid(self: Notes, _batch: Any) -> str:
    """The position on the control topic is in no transaction."""
    return self.control


async def _before(self: Commands, record: Any, command: Any) -> None:
    place = self._transport.place.main
    self._submit(Turn(source=place, next_offset=0, control=record.offset + 1))
    await _obey(self, record, command)


_obey = Commands._obey


def _not_claimed(_self: Scheduler, _key: bytes, _identity: bytes, _size: int) -> None:
    """A row that a command changes is claimed meanwhile."""


def _unheeded(_self: Commands, _run: Run, outcome: Outcome) -> Outcome:
    """A record that was cancelled while it ran is tried again."""
    return outcome


def _unflagged(_self: Scheduler, *args: Any) -> Any:
    """After a crash nobody knows that a record was cancelled while it ran."""
    found = _claim(_self, *args)
    if found is not None:
        object.__setattr__(found[0], "cancelled", False)
    return found


_claim = Scheduler._claim


def _unmarked(_self: MemoryDeadLetterTable, *_mark: Any) -> None:
    """A letter may be replayed again and again."""


async def _unsettled(self: Commands) -> None:
    """A command does not see what is on its way to the tables."""
    self._touched.clear()


def _stays(_self: Sequences, _identity: bytes, _key: Any) -> None:
    """The followers of a cancelled head wait for it."""


def _passed(self: RefusedTurns, turn: Turn) -> bool:
    """Commands overtake one whose turn a topic has refused."""
    control, turn.control, turn.hurried = turn.control, None, False
    try:
        return _keep(self, turn)
    finally:
        turn.control = control


_keep = RefusedTurns.keep


def _unremembered(self: Commands, turn: Turn, told: Any) -> None:
    """Where a part of a job is, stands in no turn."""
    _submit_step(self, turn, told)
    turn.steering = None


def _step_ahead(self: Commands, turn: Turn, told: Any) -> None:
    """A part of a job is further in a turn before that of its letters."""
    place = self._transport.place.main
    self._submit(Turn(source=place, next_offset=0, steering=self._jobs.steering.written))
    _submit_step(self, turn, told)


_submit_step = Commands._submit_step


def _endless(self: Jobs, part: Part, topic: Any, _end: int) -> Any:
    """A part goes on to letters that died after its begin."""
    return _next(self, part, topic, 1 << 60)


_next = Jobs._next


def _forgotten(_text: str) -> Steering:
    return Steering()


def _not_held(self: Pace, run: Any) -> bool:
    """What was taken in before a pause begins in it."""
    return False if self.paused else _holds(self, run)


_holds = Pace.holds


def _not_sent_back(self: Pace, run: Any) -> bool:
    """The same of rows that were claimed."""
    return False if self.paused else _sends_back(self, run)


_sends_back = Pace.sends_back


def _unpaused(_self: Pace, **_state: Any) -> None:
    """An opening forgets that the handler is paused."""


def _unedited(_self: Edit, letter: Record) -> Record:
    return letter


def _key_forgotten(*args: Any, **facts: Any) -> RetryMetadata:
    """A record that fails again has its first idempotency key."""
    return replace(after_failure(*args, **facts), edited=None)


def _not_forced(self: Pace, **state: Any) -> None:
    _remember(self, **{**state, "forced": {}})


_remember = Pace.remember


def _costly(self: Circuit, now_ms: float) -> bool:
    """Attempts are spent while somebody has forced the circuit open."""
    return self.state is not CircuitState.FORCED_OPEN and _free(self, now_ms)


_free = Circuit.free
_run = Scheduler.run


def _in_memory(self: Commands) -> None:
    """A partition that a rule pauses is so in memory only: the next owner does not know."""
    closing = self.levels.closing
    _close_gate(self)
    if closing:
        self._submit(_unpaused_turn(self.levels))


def _placed_in_memory(self: Levels, level: Level, end: int) -> Turn:
    level.revision = end
    return _unpaused_turn(self)


def _unpaused_turn(levels: Levels) -> Turn:
    steering = levels._steering
    level, steering.paused = steering.paused, None
    turn = Turn(source=levels._main, next_offset=0, steering=steering.written)
    steering.paused = level
    return turn


_close_gate = Commands._close_gate


def _runs_on(_self: RowCommands, _run: Run, outcome: Outcome) -> Outcome:
    """A record that was held while it ran waits for its time."""
    return outcome


def _unwritten(self: PendingRow, _until_ms: int | None) -> PendingRow:
    """After a crash nobody knows that a record was to be held after its run."""
    return self


def _in_silence(_self: Commands, _key: bytes, _row: PendingRow) -> bool:
    """At its deadline a record runs without a word."""
    return False


def _not_moved(_self: Sequences, _identity: bytes, _row: PendingRow) -> None:
    """A sequence does not know that its head is held."""


def _dropped(_self: Releases, *_args: Any) -> Effect:
    """A release that comes before its record waits is obeyed, and forgotten."""
    return Effect("it is released", after="released")


def _unkept(self: Releases, *args: Any) -> Effect:
    """A release that comes before its record waits is forgotten by a crash."""
    effect = _keep_release(self, *args)
    effect.steered = False
    return effect


_keep_release = Releases.keep


def _unconcerned(_self: Releases, _turns: Any) -> bool:
    """A release that has come early is looked at by an opening only."""
    return False


@property  # type: ignore[misc]
def _forgets_passed(_self: ControlQueue) -> dict[str, list[int]]:
    """A crash has those obeyed again that have passed one that still waited."""
    return {}


async def _not_obeyed_yet(_self: Session) -> None:
    """Rows and records begin before the commands that were there are obeyed."""


def _numbered_anew(metadata: RetryMetadata, **facts: Any) -> RetryMetadata:
    """A replay numbers deliveries from the first one again, as it does attempts."""
    return replace(replayed(metadata, **facts), delivery=0)


def _by_force(self: LetterCommands, command: Command, *about: Any) -> None:
    """Whoever has a letter replayed need not say that a newer record may have replaced it."""
    _check_replay(self, command.model_copy(update={"force": True}), *about)


_check_replay = LetterCommands._check_replay


def _unreplaced(_self: RowCommands, _identity: bytes, _row: PendingRow) -> bool:
    """The end of a hold puts a row once more that the outcome of a newer record removes."""
    return False


def _only_taken_in(self: Session, offset: int) -> bool:
    """A replay does not ask whether its record is to be read again, since somebody has set the offset back."""
    return self.window.has(offset)


COMMANDS: Final = (
    ("an early release is dropped", ((Releases, "keep", _dropped),), 2_000_007),
    ("an early release is lost at a crash", ((Releases, "keep", _unkept),), 2_000_355),
    ("an early release waits for an opening", ((Releases, "concern", _unconcerned),), 2_000_007),
    ("a held run waits for its time", ((RowCommands, "_held_after", _runs_on),), 2_000_196),
    ("a hold is lost at a crash", ((PendingRow, "held_next", _unwritten),), 2_000_224),
    ("a hold ends in silence", ((Commands, "take_held", _in_silence),), 2_000_003),
    ("a sequence does not know of holds", ((Sequences, "moved", _not_moved),), 4_000_079),
    ("the position of commands is not written down", ((Notes, "commanded", _unsaid),), 1_000_002),
    ("a command counts before its turn", ((Commands, "_obey", _before),), 1_000_035),
    ("what has passed a command is obeyed again", ((ControlQueue, "ahead", _forgets_passed),), 1_000_202),
    ("a row is claimed while a command changes it", ((Scheduler, "take", _not_claimed),), 1_000_004),
    ("a cancelled run is tried again", ((Commands, "judged", _unheeded),), 1_000_025),
    ("a cancelled run is forgotten by a crash", ((Scheduler, "_claim", _unflagged),), 1_000_213),
    ("what was replaced is replayed without force", ((LetterCommands, "_check_replay", _by_force),), 14_001_114),
    ("a replay goes before its record that comes again", ((Session, "_runs_again", _only_taken_in),), 20_100_968),
    ("a hold that ends brings back what was replaced", ((RowCommands, "is_replaced", _unreplaced),), 14_362_230),
    ("a letter is replayed twice", ((MemoryDeadLetterTable, "mark", _unmarked),), 1_000_047),
    ("a command does not see what is in the lane", ((Commands, "_settle", _unsettled),), 1_000_018),
    ("a cancelled head keeps its followers", ((Sequences, "removed", _stays),), 1_000_432),
    ("commands overtake a refused one", ((RefusedTurns, "keep", _passed),), 1_000_131),
    ("where a job is, is not written down", ((Commands, "_submit_step", _unremembered),), 1_000_005),
    ("a job is further before its turn", ((Commands, "_submit_step", _step_ahead),), 1_000_128),
    ("a job takes what died after its begin", ((Jobs, "_next", _endless),), 1_000_013),
    (
        "a paused handler begins what it has taken in",
        ((Pace, "holds", _not_held), (Pace, "sends_back", _not_sent_back)),
        1_000_520,
    ),
    ("first deliveries do not wait for commands", ((Scheduler, "run", _hasty),), 2_010_258),
    ("claim before control", ((Session, "_commanded", _not_obeyed_yet),), 1_000_005),
    ("delivery reset by replay", ((letter_commands, "replayed", _numbered_anew),), 1_000_000),
    ("an opening forgets a pause", ((Pace, "remember", _unpaused),), 1_000_062),
    ("an edit is lost", ((Edit, "applied_to", _unedited),), 1_000_005),
    ("a failure forgets the edited record's key", ((deliver, "after_failure", _key_forgotten),), 1_000_030),
    ("an opening forgets the jobs", ((jobs, "read_steering", _forgotten),), 1_000_017),
    ("an opening forgets a forced outage", ((Pace, "remember", _not_forced),), 3_000_166),
    ("attempts are spent in a forced outage", ((Circuit, "free", _costly),), 3_000_568),
    (
        "a gate is lost at a rebalance",
        ((Commands, "_close_gate", _in_memory), (Levels, "place", _placed_in_memory)),
        3_000_003,
    ),
)
