"""The commands of a partition that are read and not obeyed yet: bounded in number and bytes.

A command that has to wait is put off, and those after it pass, unless they are about the same record. The position on
the control topic stays before it; which commands have passed is remembered beside that, so none is obeyed twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from retryapp.core.control import Command, Refusal
from retryapp.core.errors import DamagedCommandError, DamagedMetadataError
from retryapp.core.jobs import AnyCommand, decode_command
from retryapp.core.lane_errors import PositionGoneError
from retryapp.core.record import parse_failure_id
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.partition.letter_commands import RefusedError, check_place

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

MOST_WAITING: Final = 5_000
"""Commands in memory; the others wait on their topic."""
MOST_WAITING_BYTES: Final = 4 << 20
"""The same in bytes: an edited value is in its command."""
FAULT_WAIT_S: Final = 1.0
"""After a fault of the topic, which costs the consumer that all lanes read with."""
MOST_AHEAD: Final = 100
"""Commands that pass others; what comes then waits, too."""


class ControlQueue:
    """Reads the control topic on from where the lane has obeyed all before."""

    def __init__(self, context: DeliveryContext, transport: LaneProtocol, ahead: Mapping[str, Collection[int]]) -> None:
        self._context = context
        self._transport = transport
        self._ahead = {*ahead.get(transport.place.control_id, ())}
        """Offsets of commands that are obeyed, and have passed others."""
        self._next = transport.control_next
        """Before this offset all that was taken is obeyed or put off."""
        self.put_off: deque[tuple[Any, Command]] = deque()
        """Commands that wait, with their records; the oldest first."""
        self._next_offset, self._end = transport.control_next, transport.control_end
        """Where the next reading begins, and where the topic ends."""
        self.failed = False
        """The topic could not be read: the next reading begins when `come` is called once `FAULT_WAIT_S` is over."""
        self._again_s = 0.0
        self._told = False
        """It was said that the topic cannot be read, and it could not be since."""
        self._records: deque[Any] = deque()
        self.wake = asyncio.Event()
        """Set when there may be something to do."""
        self.caught_up = asyncio.Event()
        """Set once the commands are obeyed that were there when the lane opened."""

    def come(self, end: int) -> None:
        """Note that the control topic ends there."""
        if self.failed and self._context.clock.monotonic_s() < self._again_s:
            return
        if end != self._end or self.failed:
            self._end, self.failed = end, False
            self.wake.set()

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def end(self) -> int:
        """Where the topic ends, as far as known."""
        return max(self._end, self._next_offset)

    @property
    def unread(self) -> bool:
        """Whether the topic has more that can be read."""
        return self._end != self._next_offset and not self.failed

    @property
    def more(self) -> bool:
        """Whether commands may be taken: they are here, or on the topic, and not too many have passed others."""
        some = self._records or (self.unread and not self._full)
        return bool(some) and not (self.put_off and len(self._ahead) >= MOST_AHEAD)

    @property
    def ahead(self) -> dict[str, list[int]]:
        """What is remembered of commands that have passed others (`core.jobs.Steering`)."""
        return {self._transport.place.control_id: sorted(self._ahead)} if self._ahead else {}

    def passes(self, record: Any, command: AnyCommand | RefusedError, *, waits: bool) -> bool:
        """Tell whether a command may be obeyed now; else put it off: it `waits`, or one about its record does."""
        if not isinstance(command, Command):
            return True
        passes = not waits and all(other.failure_id != command.failure_id for _, other in self.put_off)
        if not passes:
            self.put_off.append((record, command))
        return passes

    def obeyed(self, offset: int) -> int:
        """Note that a command is obeyed, or refused; return the offset before which all are."""
        self._ahead.add(offset)
        self._next = max(self._next, offset + 1)
        while self._next in self._ahead:  # of an earlier session
            self._next += 1
        first = self.put_off[0][0].offset if self.put_off else self._next
        self._ahead = {each for each in self._ahead if each >= first}
        return int(first)

    def take(self, limit: int) -> list[tuple[Any, AnyCommand | RefusedError]]:
        """Take the oldest records, each with the command that it is, or why it is none for this partition."""
        may_pass = max(1, MOST_AHEAD - len(self._ahead))  # if the first one is put off
        count = min(limit, may_pass, len(self._records)) if self.more else 0
        return [(record, self._decode(record)) for record in [self._records.popleft() for _ in range(count)]]

    def _decode(self, record: Any) -> AnyCommand | RefusedError:
        try:
            command = decode_command(record.value)
            if isinstance(command, Command):
                check_place(self._context, self._transport, *parse_failure_id(command.failure_id))
        except (DamagedCommandError, DamagedMetadataError) as error:
            return RefusedError(Refusal.MALFORMED, str(error))
        except RefusedError as error:
            return error
        return command

    async def read(self) -> None:
        """Read records, as many as there is room for."""
        control = self._transport.place.control
        if control is None:
            return
        end = await self._asked(self._transport.reader.read(control, self._next_offset, self._receive))
        if end is None:
            return
        if end < self._next_offset:
            raise PositionGoneError(*control, self._next_offset)
        if not self._full:
            self._next_offset, self._end = end, max(self._end, end)  # `come` may have said more meanwhile

    async def look(self) -> int | None:
        """Return where the topic ends now; None: it could not be read."""
        control = self._transport.place.control
        if control is None:
            return None
        bounds = await self._asked(self._transport.reader.bounds([control]))
        if bounds is None:
            return None
        self.come(bounds[control][1])
        return max(bounds[control][1], self._next_offset)

    async def _asked(self, answer: Awaitable[_T]) -> _T | None:
        try:
            answered = await answer
        except Exception as fault:
            if not self.caught_up.is_set():
                raise  # rows wait for what came before
            level = logging.DEBUG if self._told else logging.WARNING  # once until it can be read
            logger.log(level, "%s could not be read for commands: %r", self._transport.place.control, fault)
            self.failed = self._told = True
            self._again_s = self._context.clock.monotonic_s() + FAULT_WAIT_S
            return None
        self._told = False
        return answered

    def _receive(self, records: Sequence[Any], next_offset: int) -> bool:
        self._records.extend(record for record in records if record.offset not in self._ahead)
        self._next_offset = next_offset
        return self._full

    @property
    def _full(self) -> bool:
        records = [*self._records, *(record for record, _ in self.put_off)]
        held = sum(len(record.value or b"") for record in records)
        return len(records) >= MOST_WAITING or held >= MOST_WAITING_BYTES
