"""What holds a whole partition: a pause of its handler, by a command or a rule, and circuits that are forced open.

What a command or a rule sets is written down with the turn that tells it, and an opening finds it there again. What
holds back does so at once. Its end waits until that is durable: else a crash would leave a partition paused whose
records have run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from retryapp.core.circuit import CircuitState
from retryapp.core.control import Refusal
from retryapp.core.hops import Outgoing
from retryapp.core.jobs import HandlerCommand, HandlerVerb, Level, Steering
from retryapp.core.record import Origin, Record, failure_id
from retryapp.core.row_keys import identity_of, origin_offset
from retryapp.engine.delivery.damage import UNKNOWN_SEQUENCE
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.turn import Turn, observed
from retryapp.engine.partition.letter_commands import Effect, RefusedError
from retryapp.ports import Event, TopicPartition


class Levels:
    """The levels of one session of a partition."""

    def __init__(
        self,
        context: DeliveryContext,
        main: TopicPartition,
        steering: Steering,
        event: Callable[..., Outgoing],
        sent_to: Callable[[], int],
        lost: Callable[[], Iterator[bytes]],
    ) -> None:
        """Have the handler's pace follow what was written down before.

        Args:
            context: of the handler.
            main: the partition.
            steering: what is written down.
            event: returns the event that tells an effect.
            sent_to: returns the offset before which all commands were sent by now, as far as known.
            lost: yields the rows, by identity, that stop sequences and do not tell which ones; rising.
        """
        self._context = context
        self._main: Final = main
        self._steering = steering
        self._event = event
        self._sent_to = sent_to
        self._lost = lost
        self._told = b""
        """The last lost row that the partition was paused for in this session."""
        self._gate: tuple[Record, Level] | None = None
        """What a rule has paused the partition for, until that is in a turn."""
        context.pace.remember(
            paused=steering.paused is not None,
            forced={name: level.text for name, level in steering.forced_open.items()},
            pauses=steering.all_pauses,
        )

    @property
    def paused(self) -> Level | None:
        """Since when the handler is paused, and why; None: it is not."""
        return self._steering.paused

    @property
    def forced(self) -> Mapping[str, Level]:
        """Since when circuits are forced open, and why; the name of the handler's own is empty."""
        return self._steering.forced_open

    @property
    def closing(self) -> bool:
        """Whether a rule has paused the partition, and no turn says so yet."""
        return self._gate is not None

    def judge(self, run: Run, level: Level) -> bool:
        """Pause the partition as a rule says of a run, unless it is paused; tell whether it does."""
        if self.paused is not None or self.closing:
            return False
        self._context.pace.pause()  # the turn follows: until it is durable a crash only has the record run again
        self._gate = run.shown, level
        return True

    def shut(self) -> None:
        """Pause the partition if there is a row that stops a sequence and does not tell which one: for each of them.

        Also if somebody or a rule has paused it: who has it go on must know of them.
        """
        handler = self._context.handler
        is_open = handler.order is Order.KEY and handler.holding.stops and not self.closing
        if not is_open or (identity := next((each for each in self._lost() if each > self._told), None)) is None:
            return
        self._told = identity
        origin = Origin(self._main.topic, self._context.topic_id, self._main.partition, origin_offset(identity))
        name = failure_id(self._context.handler.group, origin) if identity_of(origin) == identity else ""
        before, why = self.paused, UNKNOWN_SEQUENCE
        if before is not None and before.why.startswith(UNKNOWN_SEQUENCE):
            if before.record == name:
                return
            why = before.why
        elif before is not None:
            why = f"{why}; it was {before.text}"  # whoever has it go on ends that, too
        self._context.pace.pause()
        level = Level(since_ms=self._context.clock.wall_ms(), record=name, why=why)
        self._gate = Record(*self._main, origin.offset, -1, None, None, ()), level

    def close(self) -> Turn | None:
        """Return the turn that writes down that a rule has paused the partition, if one has."""
        if self._gate is None:
            return None
        (record, level), self._gate = self._gate, None
        before = self._steering.paused
        level.since_ms = level.since_ms if before is None else before.since_ms
        self._steering.paused = level
        self._context.pace.pause()
        effect = Effect(level.text, before="going" if before is None else before.text, after=level.text)
        told = self._event(
            effect, command="", verb=str(HandlerVerb.PAUSE), failure_id=level.record, by=level.by, why=level.why
        )
        seen = {"failure_id": level.record, "message": level.text}
        return Turn(
            source=self._main,
            next_offset=0,
            steering=self._steering.written,
            publishes=(told,),
            observations=(observed(Event.PAUSED, self._context.handler.main, record, **seen),),
        )

    @property
    def unplaced(self) -> Level | None:
        """A pause whose place among the commands is not known yet."""
        return self.paused if self.paused is not None and self.paused.revision is None else None

    def place(self, level: Level, end: int) -> Turn:
        """Return the turn that writes down that a pause came after all commands before this offset."""
        level.revision = end
        return Turn(source=self._main, next_offset=0, steering=self._steering.written)

    def _is_later(self, level: Level, offset: int) -> bool:
        """Tell whether the partition was paused after the command at an offset was sent."""
        if level.revision is None:
            return True  # whoever sent the command cannot have known of this pause
        return offset < level.revision <= self._sent_to()  # one beyond the end is of a topic that was made again

    def obey(self, command: HandlerCommand, offset: int) -> Effect:
        """Set a level, or end it, as a command says that has this offset.

        Raises:
            RefusedError: there is no such circuit, or it would end a pause that came after it was sent.
        """
        if command.verb in (HandlerVerb.OPEN, HandlerVerb.CLOSE):
            return self._of_circuit(command, offset)
        steering, pace = self._steering, self._context.pace
        before = steering.paused
        if command.verb is HandlerVerb.RESUME and before is not None and self._is_later(before, offset):
            text = f"it was sent before the partition was {before.text}; send it again to end that, too"
            raise RefusedError(Refusal.CHANGED, text)
        steering.obey(command, self._context.clock.wall_ms(), offset)
        pace.pauses = steering.all_pauses
        if steering.paused is not None:
            pace.pause()
        words = [None if paused is None else paused.text for paused in (before, steering.paused)]
        text = "nothing begins; what runs goes on" if steering.paused else "deliveries go on"
        if before is not None and command.verb is HandlerVerb.RESUME and before.why.startswith(UNKNOWN_SEQUENCE):
            self.shut()
            text = f"paused again: {UNKNOWN_SEQUENCE}; there are several" if self.closing else text
        return Effect(text, before=words[0] or "going", after=words[1] or "going")

    def _of_circuit(self, command: HandlerCommand, offset: int) -> Effect:
        steering, pace, name = self._steering, self._context.pace, command.circuit
        gate, level = pace.gates.get(name), steering.forced_open.get(name)
        if gate is None and (command.verb is HandlerVerb.OPEN or level is None):
            there = ", ".join(each or "its own" for each in sorted(pace.gates))
            instead = ": pause it instead" if command.verb is HandlerVerb.OPEN else ""
            text = f"this handler has no circuit {name or 'of its own'}{f'; it has: {there}' if there else instead}"
            raise RefusedError(Refusal.NO_CIRCUIT, text)
        now = CircuitState.CLOSED if gate is None else gate.circuit.state
        before = now if level is None else level.text
        steering.obey(command, self._context.clock.wall_ms(), offset)
        pace.pauses = steering.all_pauses
        if (level := steering.forced_open.get(name)) is not None:
            pace.force(level.text, name)
            what = "no record that waits for it begins" if name else "nothing begins"
            return Effect(f"{what}, and no attempt is spent", before=before, after=level.text)
        shut = now in (CircuitState.FORCED_OPEN, CircuitState.OPEN)
        after = CircuitState.HALF_OPEN if shut else now
        return Effect("a few records try" if shut else f"it is {after}", before=before, after=after)

    def go_on(self, command: HandlerCommand, committed: bool, _offsets: tuple[int, ...]) -> None:
        """End what is over, now that it is durable."""
        pace = self._context.pace
        if committed and command.verb is HandlerVerb.CLOSE and command.circuit not in self.forced:
            pace.release(command.circuit)
        if committed and command.verb is HandlerVerb.RESUME and self.paused is None and not self.closing:
            pace.go_on()
