"""Keep releases that come before their records wait: a callback is faster than a commit.

A handler may hand out the token of its delivery before it raises `Defer`. A release that comes while that delivery goes
on, or while its row is on the way to the table, is remembered in the turn that answers it (`core.jobs.Steering`), so
over a crash, too. It is obeyed once the row is in the table, and forgotten where the delivery has ended otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from retryapp.core.control import Refusal
from retryapp.core.errors import RecordError
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import MOST_EARLY, Steering
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of, origin_offset
from retryapp.core.rows import TOKEN, PendingRow, decode_row
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.letter_commands import Effect, RefusedError


class Releases:
    """The early releases of one session of a partition."""

    def __init__(
        self,
        context: DeliveryContext,
        transport: LaneProtocol,
        steering: Steering,
        claimed: Collection[bytes],
        *,
        applied_to: Callable[[], int],
        read_to: Callable[[], int],
        runs_again: Callable[[int], bool],
        unwritten: Collection[bytes],
    ) -> None:
        """Begin.

        Args:
            context: of the handler.
            transport: of the lane.
            steering: what the partition remembers.
            claimed: keys of the rows that are being delivered or changed.
            applied_to: the offset of the main topic before which what became of all records is in the tables.
            read_to: that before which records may have been delivered, here or in former sessions.
            runs_again: whether a record may come as a first delivery, or what that came to is not on its way.
            unwritten: identities of records whose first delivery has ended with a row that is not in the table yet.
        """
        self._context = context
        self._transport = transport
        self._steering = steering
        self._claimed = claimed
        self._applied_to = applied_to
        self._read_to = read_to
        self._runs_again = runs_again
        self._unwritten = unwritten
        self._looked_to = 0
        """What that was at the last look."""

    def keep(self, origin: Origin, delivery: int, last: int | None) -> Effect:
        """Keep a release; `last`: number of the record's last delivery that has ended, None: it has no row.

        Raises:
            RefusedError: the delivery has ended, or too many are kept.
        """
        if delivery != (last or 0) + 1 or (last is None and not self._goes_on(origin)):
            text = f"delivery {delivery} has ended otherwise, was released before, or its deadline has passed"
            raise RefusedError(Refusal.TOO_LATE, text)
        if sum(map(len, self._steering.releases.values())) >= MOST_EARLY:
            text = f"{MOST_EARLY} records are released whose deliveries go on: send it again once some have ended"
            raise RefusedError(Refusal.TOO_MANY, text)
        self._steering.releases.setdefault(origin.topic_id, {})[origin.offset] = delivery
        text = f"delivery {delivery} has not ended: the record is released as soon as it waits"
        return Effect(text, after="released", steered=True)

    def _goes_on(self, origin: Origin) -> bool:
        """Tell whether a record without a row may still be in its first delivery, or is to have one from that."""
        if origin.topic_id != self._context.topic_id or origin.offset >= self._read_to():
            return False
        return self._runs_again(origin.offset) or identity_of(origin) in self._unwritten

    def concern(self, turns: Sequence[Turn]) -> bool:
        """Tell whether turns that are in the tables may have ended the delivery of a record that was released before.

        A first delivery that its handler is done with has no row: the offset passes it, or its note names it.
        """
        before, self._looked_to = self._looked_to, self._applied_to()
        if not self._steering.releases:
            return False
        offsets = set[int]().union(*self._steering.releases.values())
        rows = (row for turn in turns for row in turn.rows)
        passed = any(before <= offset < self._looked_to for offset in offsets)
        passed = passed or any(offset in offsets for turn in turns for offset in turn.beyond or ())
        return passed or any(origin_offset(row.identity) in offsets for row in rows)

    def obey(self) -> Iterator[tuple[bytes, bytes, PendingRow, RetryMetadata]]:
        """Yield the rows, with their keys, that are to be released now; forget what has ended otherwise."""
        main, table = self._transport.place.main, self._transport.pending
        kept = [(topic_id, *each) for topic_id, some in self._steering.releases.items() for each in some.items()]
        for topic_id, offset, number in kept:
            origin = Origin(main.topic, topic_id, main.partition, offset)
            key = None if table is None else table.find(identity_of(origin))
            value = None if table is None or key is None else table.get(key)
            if key is None or value is None:
                if not self._goes_on(origin):
                    self._forget(origin)
                continue
            row = metadata = None
            with suppress(RecordError):
                row = decode_row(value)
                metadata = decode_metadata(row.headers)
            if row is None or key in self._claimed or (metadata is not None and metadata.delivery < number):
                continue  # whoever claims it says what is wrong; or it runs, or a command changes it
            self._forget(origin)
            if metadata is not None and metadata.delivery == number and row.hold & TOKEN:
                yield key, value, row, metadata

    def _forget(self, origin: Origin) -> None:
        kept = self._steering.releases
        del kept[origin.topic_id][origin.offset]
        if not kept[origin.topic_id]:
            del kept[origin.topic_id]
